// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/common_gpusm_modex.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <sys/stat.h>
#include <unistd.h>

namespace gpusm {

namespace {

constexpr char modex_key[] = "common.gpusm";

// What a process posts: where its segment is, and what its number means.
struct modex_t {
    std::uint32_t wire_version;
    std::uint32_t reserved;
    segment_identity identity;
    std::uint64_t pid_namespace; // and behind it the path of the directory, without a zero
};
static_assert(sizeof(modex_t) == 32);

// That of this process; 0 where /proc does not say.
std::uint64_t own_pid_namespace()
{
    struct stat about;
    return 0 == stat("/proc/self/ns/pid", &about) ? about.st_ino : 0;
}

} // namespace

bool post_segment(const segment &own)
{
    for (std::string path : {own.path(), own.path() + companion_suffix}) {
        (void)opal_pmix_register_cleanup(path.data(), false, false, false);
    }
    const modex_t about{wire_version, 0, own.identity(), own_pid_namespace()};
    std::string posted(reinterpret_cast<const char *>(&about), sizeof(about));
    posted += own.directory();
    int rc = OPAL_SUCCESS;
    // Global scope: only that can be asked for by processes of another job (MPI_Comm_spawn).
    OPAL_MODEX_SEND_STRING(rc, PMIX_GLOBAL, modex_key, posted.data(), posted.size());
    return PMIX_SUCCESS == rc;
}

bool find_segment(const opal_proc_t &proc, segment_place *out)
{
    // Processes of other jobs carry no locality: for them the answer decides, and it may have
    // to be fetched. For the rest, asking about another node could wait for the network.
    const bool same_job = proc.proc_name.jobid == OPAL_PROC_MY_NAME.jobid;
    if (same_job && !OPAL_PROC_ON_LOCAL_NODE(proc.proc_flags)) {
        return false;
    }
    std::uint8_t *data = nullptr;
    size_t bytes = 0;
    int rc = OPAL_SUCCESS;
    if (same_job) {
        OPAL_MODEX_RECV_STRING_IMMEDIATE(rc, modex_key, &proc.proc_name, &data, &bytes);
    } else {
        OPAL_MODEX_RECV_STRING(rc, modex_key, &proc.proc_name, &data, &bytes);
    }
    if (PMIX_SUCCESS != rc || nullptr == data) {
        return false;
    }
    modex_t about{};
    std::memcpy(&about, data, std::min(bytes, sizeof(about)));
    const bool whole = bytes > sizeof(about);
    out->other_version = whole && wire_version != about.wire_version ? about.wire_version : 0;
    bool usable = whole && 0 == out->other_version;
    if (usable) {
        out->identity = about.identity;
        out->same_pids = 0 != about.pid_namespace && own_pid_namespace() == about.pid_namespace;
        out->directory.assign(reinterpret_cast<const char *>(data) + sizeof(about),
                              bytes - sizeof(about));
        // Another container's /dev/shm looks like ours until one tries.
        usable = 0 == access(segment_path(out->directory, out->identity).c_str(), R_OK | W_OK);
    }
    std::free(data);
    log_line(log_level::info, "process %u of job %08x %s",
             static_cast<unsigned>(proc.proc_name.vpid),
             static_cast<unsigned>(proc.proc_name.jobid),
             usable ? "can be reached" : "has a segment that cannot be reached from here");
    return usable;
}

} // namespace gpusm
