// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// host.cc: the machine, limits, namespaces and the environment of this process.
#include "tools/gpusm_info/facts.h"
#include "tools/gpusm_info/text.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>

extern char **environ;

namespace gpusm::info {

namespace {

std::string cpu_model()
{
    const std::string content = read_file("/proc/cpuinfo").value_or("");
    const std::string name = line_of(content, "model name");
    if (!name.empty()) {
        return name;
    }
    // Arm's have numbers instead.
    const std::string maker = line_of(content, "CPU implementer");
    return maker.empty() ? "" : "implementer " + maker + ", part " + line_of(content, "CPU part");
}

limit limit_of(decltype(RLIMIT_NOFILE) which)
{
    rlimit found{};
    if (0 != getrlimit(which, &found)) {
        return {};
    }
    const auto value = [](rlim_t bound) {
        return RLIM_INFINITY == bound ? number() : number(static_cast<std::int64_t>(bound));
    };
    return {value(found.rlim_cur), value(found.rlim_max)};
}

// The lowest of what the groups from `path` up to the root say.
number lowest_limit(const std::string &root, std::string path, const char *file)
{
    // Version 1 says so where there is none: the largest multiple of a page.
    constexpr std::int64_t no_limit = std::int64_t{1} << 62;
    number lowest;
    for (;;) {
        const number found = number_in(root + path + "/" + file);
        if (found && *found < no_limit && (!lowest || *found < *lowest)) {
            lowest = found;
        }
        if (path.empty()) {
            return lowest;
        }
        path.resize(std::min(path.size(), path.rfind('/')));
    }
}

number cgroup_memory()
{
    number lowest;
    for (const std::string &line : split(read_file("/proc/self/cgroup").value_or(""), '\n')) {
        const std::vector<std::string> parts = split(line, ':'); // number, controllers, path
        if (parts.size() < 3) {
            continue;
        }
        const std::string path = "/" == parts[2] ? "" : parts[2];
        const std::vector<std::string> controllers = split(parts[1], ',');
        const bool first_version =
            std::find(controllers.begin(), controllers.end(), "memory") != controllers.end();
        number found;
        if (first_version) {
            found = lowest_limit("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes");
        } else if (parts[1].empty()) {
            found = lowest_limit("/sys/fs/cgroup", path, "memory.max");
        }
        lowest = found && (!lowest || *found < *lowest) ? found : lowest;
    }
    return lowest;
}

// "always [madvise] never": the word in brackets
std::string choice_in(const std::string &path)
{
    const std::string line = first_line(path);
    const std::size_t begin = line.find('[');
    const std::size_t end = line.find(']');
    return std::string::npos == begin || end < begin ? line
                                                     : line.substr(begin + 1, end - begin - 1);
}

number in_kib(const std::string &value) // "2048 kB"
{
    const number kib = parse_number(value.substr(0, value.find(' ')));
    return kib ? number(*kib * 1024) : kib;
}

// "4" or "4(x2)"; "4,3": the nodes differ, and which one this is is not known.
number slurm_local_size(const std::string &tasks)
{
    return std::string::npos == tasks.find(',') ? parse_number(tasks.substr(0, tasks.find('(')))
                                                : number();
}

bool matters(std::string_view name)
{
    constexpr const char *beginnings[] = {"OMPI_MCA_",       "PMIX_MCA_", "PRTE_MCA_",
                                          "CUDA_",           "NVIDIA_",   "GPUSM_SOFTCUDA_",
                                          "OMPI_COMM_WORLD_"};
    constexpr const char *names[] = {"UCX_TLS", "LD_PRELOAD", "LD_LIBRARY_PATH",
                                     "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"};
    return std::any_of(std::begin(beginnings), std::end(beginnings),
                       [&](const char *each) { return starts_with(name, each); }) ||
           std::find(std::begin(names), std::end(names), name) != std::end(names);
}

} // namespace

host_facts look_at_host()
{
    host_facts found;
    utsname name{};
    if (0 == uname(&name)) {
        found.kernel = format("%s %s %s", name.sysname, name.release, name.machine);
    }
    char library[64] = ""; // "glibc 2.36"
    if (confstr(_CS_GNU_LIBC_VERSION, library, sizeof(library)) > 0) {
        found.glibc = split(library, ' ').back();
    }
    found.cpu = cpu_model();
    found.processors = sysconf(_SC_NPROCESSORS_ONLN);
    return found;
}

limit_facts look_at_limits(const std::string &shared_folder)
{
    limit_facts found;
    found.memlock = limit_of(RLIMIT_MEMLOCK);
    found.nofile = limit_of(RLIMIT_NOFILE);
    if (!shared_folder.empty()) {
        found.shared_folder = shared_folder;
    }
    struct statvfs there {};
    if (0 == statvfs(found.shared_folder.c_str(), &there)) {
        const auto unit = static_cast<std::int64_t>(there.f_frsize);
        found.shared_total_bytes = unit * static_cast<std::int64_t>(there.f_blocks);
        found.shared_free_bytes = unit * static_cast<std::int64_t>(there.f_bavail);
    }
    found.cgroup_memory_bytes = cgroup_memory();
    const std::optional<std::string> memory = read_file("/proc/meminfo");
    found.proc = read_file("/proc/self/status").has_value();
    char self[32] = "";
    found.own_proc = readlink("/proc/self", self, sizeof(self) - 1) > 0 &&
                     parse_number(self) == number(getpid());
    found.memory_bytes = in_kib(line_of(memory.value_or(""), "MemTotal"));
    found.huge_pages = parse_number(line_of(memory.value_or(""), "HugePages_Total"));
    found.huge_pages_free = parse_number(line_of(memory.value_or(""), "HugePages_Free"));
    found.huge_page_bytes = in_kib(line_of(memory.value_or(""), "Hugepagesize"));
    const std::string transparent = "/sys/kernel/mm/transparent_hugepage/";
    found.transparent_huge_pages = choice_in(transparent + "enabled");
    found.transparent_huge_pages_shared = choice_in(transparent + "shmem_enabled");
    return found;
}

namespace_facts look_at_namespaces()
{
    namespace_facts found;
    for (const char *name : {"user", "pid", "ipc", "net", "mnt"}) {
        char id[64] = "";
        const ssize_t length =
            readlink(format("/proc/self/ns/%s", name).c_str(), id, sizeof(id) - 1);
        found.all.push_back({name, std::string(id, length > 0 ? std::size_t(length) : 0)});
    }
    // "0 0 4294967295": nobody is anybody else.
    std::vector<std::string> map;
    for (const std::string &each : split(first_line("/proc/self/uid_map"), ' ')) {
        if (!each.empty()) {
            map.push_back(each);
        }
    }
    found.initial_user =
        map.size() != 3 || ("0" == map[0] && "0" == map[1] && "4294967295" == map[2]);
    for (const char *file : {"/.dockerenv", "/run/.containerenv", "/.singularity.d"}) {
        if (0 == access(file, F_OK)) {
            found.container_hints.emplace_back(file);
        }
    }
    const std::string container = environment_value("container"); // set by podman, systemd-nspawn
    if (!container.empty()) {
        found.container_hints.push_back("container=" + container);
    }
    return found;
}

std::vector<variable> look_at_environment()
{
    std::vector<variable> found;
    for (char **each = environ; each != nullptr && *each != nullptr; ++each) {
        const std::string text = *each;
        const std::size_t end = text.find('=');
        if (std::string::npos != end && matters(std::string_view(text).substr(0, end))) {
            found.push_back({text.substr(0, end), text.substr(end + 1)});
        }
    }
    std::sort(found.begin(), found.end(),
              [](const variable &a, const variable &b) { return a.name < b.name; });
    return found;
}

job_facts look_at_job()
{
    const auto value = [](const char *name) { return parse_number(environment_value(name)); };
    if (!value("OMPI_COMM_WORLD_RANK") && value("SLURM_STEP_NUM_TASKS")) { // started by srun
        return {value("SLURM_PROCID"), value("SLURM_LOCALID"),
                slurm_local_size(environment_value("SLURM_STEP_TASKS_PER_NODE")),
                value("SLURM_STEP_NUM_TASKS")};
    }
    return {value("OMPI_COMM_WORLD_RANK"), value("OMPI_COMM_WORLD_LOCAL_RANK"),
            value("OMPI_COMM_WORLD_LOCAL_SIZE"), value("OMPI_COMM_WORLD_SIZE")};
}

} // namespace gpusm::info
