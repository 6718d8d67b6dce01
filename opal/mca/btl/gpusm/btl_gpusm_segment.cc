// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_segment.cc: this process's segment, made, placed and made known through the modex, and
// where the other processes keep theirs.
#include "opal/mca/btl/gpusm/btl_gpusm.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <algorithm>
#include <cstring>
#include <string>

#include <unistd.h>

namespace gpusm {

namespace {

constexpr std::uint32_t event_slots = 32;
// Device allocations of this process that peers can know at once; the least recently used one makes
// room for the next.
constexpr std::uint32_t export_slots = 1024;

// What a process posts through the modex: where its segment is.
struct modex_t {
    std::uint32_t wire_version;
    std::uint32_t directory_bytes; // of the path that follows, without a terminating zero
    segment_identity identity;
};
static_assert(sizeof(modex_t) == 24);

// The owner is the first to touch its segment's memory, so the system takes it from the NUMA node
// that the owner is bound to, and need not be told. Which one that is says the locality that the
// runtime has worked out with hwloc: every process would load the topology for itself, which is a
// part of MPI_Init that grows with the machine.
void tell_place()
{
    char *nodes = nullptr;
    if (opal_process_info.locality != nullptr) {
        nodes = opal_hwloc_base_get_location(opal_process_info.locality, HWLOC_OBJ_NODE, 0);
    }
    if (nodes != nullptr) {
        log_line(log_level::info, "bound to NUMA node %s, as is the segment's memory", nodes);
    } else {
        log_line(log_level::info, "not bound, so the segment's memory is where this process is "
                                  "when it needs some");
    }
    free(nodes);
}

} // namespace

status make_node(std::size_t frags_bytes, std::string *why)
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    segment_options options;
    options.directory = component.backing_directory;
    options.jobid = OPAL_PROC_MY_NAME.jobid;
    options.vpid = OPAL_PROC_MY_NAME.vpid;
    options.fifo_slots = component.fifo_size;
    options.peer_slots = component.max_peers;
    options.event_slots = event_slots;
    options.export_slots = export_slots;
    options.fast_box_units = component.fast_box_size / sizeof(fast_box_unit);
    options.segment_bytes = component.segment_size;
    if (0 == options.segment_bytes) {
        constexpr std::size_t slack_bytes = 1U << 20;
        options.segment_bytes = std::min(
            frags_bytes + slack_bytes +
                std::size_t{component.fast_box_max} * component.fast_box_size +
                options.fifo_slots * sizeof(fifo_slot) + options.peer_slots * sizeof(peer_slot) +
                options.export_slots * sizeof(export_slot),
            static_cast<std::size_t>(max_segment_bytes));
    }
    (void)segment_sweep(options.directory);
    segment own;
    const status s = segment::create(options, &own, why);
    if (status::ok == s) {
        tell_place();
        component.node = new node(std::move(own), component.threads, component.fast_box_max);
        // In case this process is killed: the runtime then removes the files.
        std::string path = component.node->own().path();
        (void)opal_pmix_register_cleanup(path.data(), false, false, false);
        path += companion_suffix;
        (void)opal_pmix_register_cleanup(path.data(), false, false, false);
    }
    return s;
}

bool post_modex()
{
    const segment &own = mca_btl_gpusm_component.node->own();
    const modex_t about{wire_version, static_cast<std::uint32_t>(own.directory().size()),
                        own.identity()};
    std::string posted(reinterpret_cast<const char *>(&about), sizeof(about));
    posted += own.directory();
    int rc = OPAL_SUCCESS;
    // Global scope: only that can be asked for by processes of another job (MPI_Comm_spawn).
    OPAL_MODEX_SEND(rc, PMIX_GLOBAL, &mca_btl_gpusm_component.super.btl_version, posted.data(),
                    posted.size());
    return OPAL_SUCCESS == rc;
}

bool find_segment_of(const opal_proc_t &proc, segment_identity *identity, std::string *directory)
{
    // Processes of other jobs carry no locality: for them the answer decides, and it may have
    // to be fetched. For the rest, asking about another node could wait for the network.
    const bool same_job = proc.proc_name.jobid == OPAL_PROC_MY_NAME.jobid;
    if (same_job && !OPAL_PROC_ON_LOCAL_NODE(proc.proc_flags)) {
        return false;
    }
    void *data = nullptr;
    size_t bytes = 0;
    int rc = OPAL_SUCCESS;
    const mca_base_component_t *version = &mca_btl_gpusm_component.super.btl_version;
    if (same_job) {
        OPAL_MODEX_RECV_IMMEDIATE(rc, version, &proc.proc_name, &data, &bytes);
    } else {
        OPAL_MODEX_RECV(rc, version, &proc.proc_name, &data, &bytes);
    }
    if (OPAL_SUCCESS != rc || nullptr == data) {
        return false;
    }
    modex_t about{};
    bool usable = bytes > sizeof(about);
    if (usable) {
        std::memcpy(&about, data, sizeof(about));
        if (wire_version != about.wire_version) {
            show_help("other version", static_cast<unsigned>(proc.proc_name.vpid),
                      static_cast<unsigned>(about.wire_version),
                      static_cast<unsigned>(wire_version));
        }
        usable =
            wire_version == about.wire_version && bytes == sizeof(about) + about.directory_bytes;
    }
    if (usable) {
        *identity = about.identity;
        directory->assign(static_cast<const char *>(data) + sizeof(about), about.directory_bytes);
        // Another container's /dev/shm looks like ours until one tries.
        usable = 0 == access(segment_path(*directory, *identity).c_str(), R_OK | W_OK);
    }
    log_line(log_level::info, "process %u of job %08x %s%s",
             static_cast<unsigned>(proc.proc_name.vpid),
             static_cast<unsigned>(proc.proc_name.jobid),
             usable ? "can be reached" : "has a segment that cannot be reached from here",
             OPAL_PROC_ON_LOCAL_NUMA(proc.proc_flags) ? ", on the same NUMA node" : "");
    free(data);
    return usable;
}

} // namespace gpusm
