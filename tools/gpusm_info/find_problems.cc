// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// find_problems.cc: findings about Open MPI, limits and the host. Those about devices:
// find_device_problems.cc.
#include "tools/gpusm_info/find_problems.h"

#include "tools/gpusm_info/text.h"

#include <unistd.h>

#include <algorithm>

namespace gpusm::info {

namespace {

constexpr std::int64_t kib = 1024;
constexpr std::int64_t mib = 1024 * kib;
// What containers have unless they are told otherwise, and what is left for others then.
constexpr std::int64_t small_shared_bytes = 64 * mib;
constexpr std::int64_t least_free_bytes = 16 * mib; // for each rank: rings, fragments, its segment
// What kernels before 5.16 gave every user.
constexpr std::int64_t small_memlock_bytes = 64 * kib;
constexpr std::int64_t few_descriptors = 256;

std::string minor_of(const std::string &version) // "5.0" of "5.0.7"
{
    const std::vector<std::string> parts = split(version, '.');
    return parts.size() < 2 ? version : parts[0] + "." + parts[1];
}

std::int64_t major_of(const std::string &version)
{
    return parse_number(split(version, '.')[0]).value_or(0);
}

std::string selection_of(const openmpi_facts &openmpi, const char *framework)
{
    const setting *found = openmpi.find_setting(framework);
    return nullptr == found ? std::string() : found->value;
}

std::string said_where(const openmpi_facts &openmpi, const char *framework)
{
    const setting *found = openmpi.find_setting(framework);
    return format("The parameter %s is '%s' (%s)", framework, found->value.c_str(),
                  found->source.empty() ? "source unknown" : found->source.c_str());
}

// Where an installation with --prefix has its components: beside this program, with which they may
// have been moved, else where make install puts them. Empty: they are in neither place.
std::string own_components()
{
    std::vector<std::string> folders;
    char self[4096] = "";
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) > 0) {
        std::string folder = self;
        folder.resize(folder.rfind('/'));
        folder.resize(std::min(folder.size(), folder.rfind('/')));
        folders.push_back(folder + "/lib/openmpi");
    }
    folders.emplace_back(GPUSM_INFO_COMPONENTS);
    for (const std::string &each : folders) {
        if (0 == access((each + "/mca_btl_gpusm.so").c_str(), R_OK)) {
            return each;
        }
    }
    return {};
}

void find_missing_components(facts *out)
{
    const openmpi_facts &openmpi = out->openmpi;
    const setting *path = openmpi.find_setting("mca_base_component_path");
    if (!openmpi.has("btl", "gpusm")) {
        const std::string own = own_components();
        std::string seen = openmpi.ompi_info + " does not list btl/gpusm";
        seen += nullptr == path || path->value.empty()
                    ? ""
                    : "; components are looked for in " + path->value;
        for (const std::string &each : openmpi.messages) {
            seen += std::string::npos == each.find("btl_gpusm") ? "" : "; it says: " + each;
        }
        const bool by_pmix = path != nullptr && std::string::npos != path->value.find("pmix");
        add(out, severity::error, "btl-not-loaded", seen,
            by_pmix ? "PMIx has set Open MPI's path of components: docs/distributions.md, 'PMIx "
                      "and the path of components'."
            : own.empty() ? "Install gpusm for this Open MPI (README), or put its folder into "
                            "mca_base_component_path, before SYS_DEFAULT."
                          : "Start programs with mpirun --omca mca_base_component_path " + own +
                                ":SYS_DEFAULT (README, 'Use it with your Open MPI').");
        return;
    }
    std::vector<std::string> missing;
    for (const char *framework : {"coll", "osc"}) {
        if (!openmpi.has(framework, "gpusm")) {
            missing.push_back(std::string(framework) + "/gpusm");
        }
    }
    if (!missing.empty()) {
        add(out, severity::warning, "components-missing",
            "btl/gpusm is there, but not " + join(missing, " and "),
            "Collectives or windows on device memory are Open MPI's own, through host memory. "
            "Install all components of one build (make install).");
    }
}

// Which transport has the messages of a node.
void find_other_transports(facts *out)
{
    const openmpi_facts &openmpi = out->openmpi;
    const std::string btls = selection_of(openmpi, "btl");
    if (!is_selected(btls, "gpusm")) {
        add(out, severity::error, "btl-excluded",
            said_where(openmpi, "btl") + ", which leaves gpusm out",
            "Unset it, or name gpusm: --mca btl gpusm,self.");
    }
    const std::string pmls = selection_of(openmpi, "pml");
    if (!is_selected(pmls, "ob1")) {
        add(out, severity::error, "pml-not-ob1",
            said_where(openmpi, "pml") +
                ", but transports of the kind of gpusm are used by ob1 only",
            "Unset it, or say --mca pml ob1.");
    } else if (openmpi.has("pml", "ucx") && is_selected(pmls, "ucx")) {
        add(out, severity::note, "pml-ucx",
            "pml/ucx is there. Where it finds a network that it supports it takes all messages, "
            "and gpusm has none",
            "--mca pml ob1 keeps messages within a node with gpusm.");
    }
    const std::string copiers = selection_of(openmpi, "smsc");
    if (std::none_of(openmpi.components.begin(), openmpi.components.end(),
                     [&](const component &each) {
                         return "smsc" == each.framework && is_selected(copiers, each.name);
                     })) {
        add(out, severity::warning, "no-smsc",
            "Open MPI has no component of its framework smsc to use (smsc is '" + copiers +
                "'), so no process reads another one's memory",
            "Messages between host buffers are copied twice. Unset the parameter smsc, or take an "
            "Open MPI with smsc/cma.");
    }
    const auto &list = openmpi.exclusivities;
    const auto ours = std::find_if(list.begin(), list.end(),
                                   [](const auto &each) { return "gpusm" == each.name; });
    for (const openmpi_facts::weighed &each : list) {
        // btl/self has messages of a process to itself only.
        if (list.end() != ours && each.name != "gpusm" && each.name != "self" &&
            each.value > ours->value && openmpi.has("btl", each.name) &&
            is_selected(btls, each.name)) {
            add(out, severity::warning, "btl-exclusivity",
                "btl/" + each.name + " has the exclusivity " + std::to_string(each.value) +
                    ", btl/gpusm " + std::to_string(ours->value) + ": where both reach a peer, " +
                    each.name + " has its messages",
                "Unset btl_" + each.name +
                    "_exclusivity and btl_gpusm_exclusivity, or leave it out: --mca btl ^" +
                    each.name + ".");
        }
    }
}

void find_openmpi_problems(facts *out)
{
    const openmpi_facts &openmpi = out->openmpi;
    if (openmpi.ompi_info.empty()) {
        add(out, severity::error, "openmpi-not-found", "There is " + openmpi.problem,
            "Put the bin folder of the Open MPI that runs the program first into PATH.");
        return;
    }
    if (!openmpi.problem.empty()) {
        add(out, severity::error, "openmpi-no-answer",
            openmpi.ompi_info + " gave no usable answer: " + openmpi.problem,
            "Run it by hand with --parsable --all; an Open MPI that cannot describe itself runs no "
            "program.");
    }
    if (openmpi.version.empty()) {
        return;
    }
    if (major_of(openmpi.version) < 5) {
        add(out, severity::error, "openmpi-too-old",
            "This is Open MPI " + openmpi.version + "; gpusm needs 5.0 or 6",
            "./quickstart builds a 5.0, or put another Open MPI first into PATH.");
        return;
    }
    if (minor_of(openmpi.version) != minor_of(built_for_openmpi)) {
        // It may have been built with gpusm in its tree, and then this program is not its own.
        const bool listed = openmpi.has("btl", "gpusm");
        add(out, listed ? severity::warning : severity::error, "openmpi-other-version",
            "This gpusm was built for Open MPI " + std::string(built_for_openmpi) + ", and " +
                openmpi.ompi_info + " is of " + openmpi.version +
                ". Components are for one minor version",
            "Build gpusm for this one (configure --with-openmpi=" + openmpi.prefix +
                "), or put the other one first into PATH.");
    }
    if (openmpi.cuda && !*openmpi.cuda) {
        const bool ours = openmpi.has("accelerator", "gpusm");
        add(out, ours ? severity::note : severity::warning, "openmpi-without-cuda",
            std::string("Open MPI was built without CUDA; accelerator/gpusm is ") +
                (ours ? "there and tells device memory from host memory"
                      : "not there, so device memory is taken for host memory"),
            ours ? "Nothing: device messages up to 4 KiB go through host memory "
                   "(docs/distributions.md)."
                 : "Install all components of gpusm (make install).");
    }
    find_missing_components(out);
    find_other_transports(out);
    const std::string accelerators = selection_of(openmpi, "accelerator");
    if (!accelerators.empty() && !is_selected(accelerators, "cuda") &&
        !is_selected(accelerators, "gpusm")) {
        add(out, severity::warning, "accelerator-excluded",
            said_where(openmpi, "accelerator") + ", so device memory is taken for host memory",
            "Unset it where programs send device memory.");
    }
}

void find_limit_problems(facts *out)
{
    const limit_facts &limits = out->limits;
    const std::int64_t ranks = out->job.local_size.value_or(1);
    const std::int64_t total = limits.shared_total_bytes.value_or(INT64_MAX);
    const std::int64_t free_bytes = limits.shared_free_bytes.value_or(INT64_MAX);
    if (total <= small_shared_bytes || free_bytes < ranks * least_free_bytes) {
        add(out, severity::warning, "shared-memory-small",
            limits.shared_folder + " has " + bytes_text(total) + ", of which " +
                bytes_text(free_bytes) + " are free; each rank may want " +
                bytes_text(least_free_bytes) + " for its messages, and other libraries use it, too",
            "Start the container with --shm-size=1g (docker, podman), mount a larger tmpfs, or "
            "name another folder: --mca btl_gpusm_backing_directory DIR.");
    }
    if (limits.memlock.soft && *limits.memlock.soft <= small_memlock_bytes) {
        add(out, severity::note, "memlock-small",
            "RLIMIT_MEMLOCK is " + bytes_text(*limits.memlock.soft),
            "gpusm page-locks by the CUDA driver; whether that works here is among what was tried "
            "(page_locked). Networks that register memory need more: ulimit -l unlimited, or "
            "docker run --ulimit memlock=-1.");
    }
    if (limits.nofile.soft && *limits.nofile.soft < few_descriptors) {
        add(out, severity::warning, "descriptors-few",
            "A process may have " + std::to_string(*limits.nofile.soft) +
                " file descriptors open; the driver of a GPU has many itself",
            "ulimit -n 1024 or more.");
    }
    const char *mount_it =
        "Mount it (mount -t proc proc /proc; unshare --mount-proc): the driver does not start "
        "without one, and processes cannot see whether others live.";
    if (!limits.proc) {
        add(out, severity::error, "no-proc", "/proc cannot be read", mount_it);
    } else if (!limits.own_proc) {
        add(out, severity::error, "proc-of-others",
            "/proc is that of another PID namespace than this process's", mount_it);
    }
}

// Why a copy between two processes is refused, as far as the kernel says.
std::string reason_of_refusal(const single_copy_facts &copies)
{
    std::vector<std::string> reasons;
    if (copies.ptrace_scope.value_or(0) >= 1) {
        reasons.push_back("kernel.yama.ptrace_scope is " + std::to_string(*copies.ptrace_scope));
    }
    if (2 == copies.seccomp.value_or(0)) {
        reasons.emplace_back("a seccomp filter is on, as in containers");
    }
    return reasons.empty() ? "the kernel gives no further reason" : join(reasons, "; ");
}

void find_single_copy_problems(facts *out)
{
    const single_copy_facts &copies = out->single_copies;
    if (copies.tried && !copies.permitted_error.empty()) {
        add(out, severity::warning, "single-copies-refused",
            "A process may not read another one's memory (" + copies.permitted_error +
                "): " + reason_of_refusal(copies),
            "Messages between host buffers are copied twice, through shared memory, until it is "
            "allowed: sysctl kernel.yama.ptrace_scope=0 or 1, or docker run --cap-add=SYS_PTRACE.");
    }
    if (!out->namespaces.initial_user) {
        add(out, severity::note, "user-namespace",
            "This process is in a user namespace of its own; processes of different ones may not "
            "read each other's memory",
            "Start all ranks of a node in one container, or all containers in one user namespace "
            "(podman: --userns=host).");
    }
}

} // namespace

void add(facts *out, severity level, const char *id, const std::string &seen,
         const std::string &to_do)
{
    const bool ended = !seen.empty() && '.' == seen.back();
    out->findings.push_back({level, id, seen + (ended ? "" : "."), to_do});
}

bool is_selected(const std::string &selection, const std::string &name)
{
    if (selection.empty()) {
        return true;
    }
    const bool without = '^' == selection[0];
    bool named = false;
    for (const std::string &each : split(selection.substr(without ? 1 : 0), ',')) {
        named = named || trim(each) == name;
    }
    return named != without;
}

void find_problems(facts *out)
{
    find_openmpi_problems(out);
    find_driver_problems(out);
    find_device_problems(out);
    find_share_problems(out);
    find_single_copy_problems(out);
    find_limit_problems(out);
    std::stable_sort(out->findings.begin(), out->findings.end(),
                     [](const finding &a, const finding &b) { return a.level > b.level; });
}

} // namespace gpusm::info
