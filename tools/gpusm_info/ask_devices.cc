// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ask_devices.cc: starts the owner and the peer (wire.h), and makes facts of the owner's records.
// Whatever becomes of the two, there is a page.
#include "tools/gpusm_info/child.h"
#include "tools/gpusm_info/facts.h"
#include "tools/gpusm_info/text.h"
#include "tools/gpusm_info/wire.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gpusm::info {

namespace {

number number_of(const record &from, const char *key)
{
    return parse_number(from.text(key));
}

std::optional<bool> flag_of(const record &from, const char *key)
{
    const number value = number_of(from, key);
    return value ? std::optional<bool>(0 != *value) : std::nullopt;
}

void take_driver(const record &from, driver_facts *out)
{
    out->problem = from.text("problem");
    out->loaded = flag_of(from, "loaded").value_or(false);
    out->nvml = flag_of(from, "nvml").value_or(false);
    out->missing = from.text("missing");
    out->context_flags = flag_of(from, "context_flags").value_or(false);
    out->batch_copies = flag_of(from, "batch_copies").value_or(false);
    out->cuda_version = number_of(from, "cuda_version");
    out->release = from.text("release");
}

device_facts device_of(const record &from)
{
    device_facts found;
    found.ordinal = number_of(from, "ordinal").value_or(0);
    found.name = from.text("name");
    found.uuid = from.text("uuid");
    found.gpu_uuid = starts_with(found.uuid, "MIG-") ? from.text("gpu_uuid") : found.uuid;
    found.pci = from.text("pci");
    found.memory_bytes = number_of(from, "memory_bytes");
    found.compute_capability = from.text("compute_capability");
    found.compute_mode = from.text("compute_mode");
    found.mps = flag_of(from, "mps");
    found.mig = flag_of(from, "mig");
    found.nvlinks = number_of(from, "nvlinks");
    found.numa_node = number_of(from, "numa_node");
    return found;
}

link_facts link_of(const record &from)
{
    link_facts found;
    found.from = number_of(from, "from").value_or(0);
    found.to = number_of(from, "to").value_or(0);
    found.access = flag_of(from, "access");
    found.atomics = flag_of(from, "atomics");
    found.performance_rank = number_of(from, "performance_rank");
    found.nvlink = flag_of(from, "nvlink");
    found.path = from.text("path");
    return found;
}

share_facts share_of(const record &from)
{
    return {from.text("kind"),
            number_of(from, "from").value_or(0),
            number_of(from, "to").value_or(0),
            from.text("result"),
            from.text("call"),
            from.text("error")};
}

// False: it was the last one.
bool take(const record &from, facts *out)
{
    if ("begin" == from.name()) {
        out->tries.begun = from.text("what");
    } else if ("driver" == from.name()) {
        take_driver(from, &out->driver);
    } else if ("driver_failed" == from.name()) {
        out->driver.failed_call = from.text("call");
        out->driver.failed_error = from.text("error");
        out->driver.problem = out->driver.failed_call + ": " + out->driver.failed_error;
    } else if ("device" == from.name()) {
        out->devices.push_back(device_of(from));
    } else if ("link" == from.name()) {
        out->links.push_back(link_of(from));
    } else if ("single" == from.name()) {
        out->single_copies.tried = true;
        out->single_copies.error = from.text("error");
        out->single_copies.permitted_error = from.text("permitted_error");
    } else if ("tried" == from.name()) {
        out->tries.devices = number_of(from, "devices").value_or(0);
        out->tries.all_devices = flag_of(from, "all").value_or(true);
    } else if ("share" == from.name()) {
        out->shares.push_back(share_of(from));
    } else if ("lost" == from.name()) {
        out->tries.problem = from.text("what");
    }
    return from.name() != "end";
}

// This program, by a name that can be executed; /proc may be missing.
std::string own_name()
{
    char self[4096] = "";
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) > 0) {
        return self;
    }
    const std::string called = program_invocation_name;
    if (std::string::npos != called.find('/')) {
        return called;
    }
    for (const std::string &each : split(environment_value("PATH"), ':')) {
        if (const std::string path = each + "/" + called; 0 == access(path.c_str(), X_OK)) {
            return path;
        }
    }
    return called;
}

void look_at_files(facts *out)
{
    driver_facts &driver = out->driver;
    driver.kernel_module = first_line("/proc/driver/nvidia/version");
    if (DIR *folder = opendir("/dev"); folder != nullptr) {
        std::int64_t files = 0;
        while (const dirent *each = readdir(folder)) {
            const std::string name = each->d_name;
            files += starts_with(name, "nvidia") && parse_number(name.substr(6)) ? 1 : 0;
        }
        (void)closedir(folder);
        driver.device_files = files;
    }
    const std::string folder = environment_value("CUDA_MPS_PIPE_DIRECTORY");
    driver.mps_folder = folder.empty() ? "/tmp/nvidia-mps" : folder;
    driver.mps_control = 0 == access((driver.mps_folder + "/control").c_str(), F_OK);
    single_copy_facts &copies = out->single_copies;
    copies.ptrace_scope = number_in("/proc/sys/kernel/yama/ptrace_scope");
    copies.seccomp = parse_number(line_of(read_file("/proc/self/status").value_or(""), "Seccomp"));
    copies.xpmem = 0 == access("/dev/xpmem", R_OK | W_OK);
    copies.knem = 0 == access("/dev/knem", R_OK | W_OK);
}

} // namespace

void ask_devices(const options &wanted, facts *out)
{
    look_at_files(out);
    out->tries.wanted = wanted.tries;
    int pair[2];
    int records[2];
    if (0 != socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
        out->tries.problem = std::string("socketpair: ") + std::strerror(errno);
        return;
    }
    descriptor owner_end(pair[0]);
    descriptor peer_end(pair[1]);
    if (0 != pipe2(records, O_CLOEXEC)) {
        out->tries.problem = std::string("pipe: ") + std::strerror(errno);
        return;
    }
    const descriptor read_end(records[0]);
    descriptor write_end(records[1]);
    const std::string self = own_name();
    // What the driver prints must not come into the page.
    const passed quiet = {STDERR_FILENO, STDOUT_FILENO};
    const pid_t owner =
        start({self, owner_role, wanted.tries ? "1" : "0"},
              {quiet, {owner_end.get(), peer_socket_fd}, {write_end.get(), record_fd}});
    const std::string fork_error = std::strerror(errno);
    const pid_t peer = start({self, peer_role}, {quiet, {peer_end.get(), peer_socket_fd}});
    owner_end.reset();
    peer_end.reset();
    write_end.reset();
    const std::int64_t deadline_ms = now_ms() + std::int64_t{1000} * wanted.timeout_s;
    std::string said;
    const bool in_time = owner > 0 && read_all(read_end.get(), deadline_ms, &said);
    bool ended = false;
    for (const std::string &line : split(said, '\n')) {
        ended = !line.empty() ? !take(record::parse(line), out) : ended;
    }
    const child_end owner_is = owner > 0 ? wait_for(owner, in_time ? deadline_ms : 0) : child_end();
    // It goes by itself when the owner has.
    const child_end peer_is =
        peer > 0 ? wait_for(peer, in_time ? now_ms() + 2000 : 0) : child_end();
    if (owner < 0) {
        out->tries.problem = "no process can be started: " + fork_error;
    } else if (!in_time) {
        out->tries.problem = format("no end within %d s", wanted.timeout_s);
    } else if (!out->tries.problem.empty()) {
        out->tries.problem += " with " + peer_is.text();
    } else if (!ended) {
        out->tries.problem = "the process that asks the driver has ended with " + owner_is.text();
    }
    if (out->tries.problem.empty()) {
        out->tries.begun.clear();
    }
}

} // namespace gpusm::info
