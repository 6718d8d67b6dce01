// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_module.cc: who can be reached: this process's segment, made, placed and made known
// through the modex, and where the other processes keep theirs.
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <string>

#include <sys/stat.h>
#include <unistd.h>

namespace gpusm {

namespace {

// Processes of this node that can ever send to this one; memory comes as they do.
constexpr std::uint32_t peer_slots = 4 * 1024;
constexpr std::uint32_t event_slots = 32;
// Device allocations of this process that peers can know at once; the least recently used one makes
// room for the next.
constexpr std::uint32_t export_slots = 1024;

// What a process posts through the modex: where its segment is, and what its number means.
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

// Where `proc` keeps its segment, from the modex, and whether process numbers mean the same to it.
// False: it cannot be reached from here (it runs elsewhere, has no gpusm, or does not share our
// file system).
bool find_segment_of(const opal_proc_t &proc, segment_identity *identity, std::string *directory,
                     bool *same_pids)
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
    std::memcpy(&about, data, std::min(bytes, sizeof(about)));
    const auto vpid = static_cast<unsigned>(proc.proc_name.vpid);
    if (bytes > sizeof(about) && wire_version != about.wire_version) {
        show_help("other version", vpid, static_cast<unsigned>(about.wire_version),
                  static_cast<unsigned>(wire_version));
    }
    bool usable = wire_version == about.wire_version && bytes > sizeof(about);
    if (usable) {
        *identity = about.identity;
        *same_pids = 0 != about.pid_namespace && own_pid_namespace() == about.pid_namespace;
        directory->assign(static_cast<const char *>(data) + sizeof(about), bytes - sizeof(about));
        // Another container's /dev/shm looks like ours until one tries.
        usable = 0 == access(segment_path(*directory, *identity).c_str(), R_OK | W_OK);
    }
    free(data);
    log_line(log_level::info, "process %u of job %08x %s", vpid,
             static_cast<unsigned>(proc.proc_name.jobid),
             usable ? "can be reached" : "has a segment that cannot be reached from here");
    return usable;
}

} // namespace

status make_node(std::size_t frags_bytes, std::string *why)
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    segment_options options;
    options.directory = component.backing_directory;
    options.jobid = OPAL_PROC_MY_NAME.jobid;
    options.vpid = OPAL_PROC_MY_NAME.vpid;
    options.fifo_slots = std::bit_ceil(component.fifo_size);
    options.peer_slots = peer_slots;
    options.event_slots = event_slots;
    options.export_slots = export_slots;
    options.segment_bytes = component.segment_size;
    // Those of this job; as memory comes in pages, others find room, too.
    options.expected_peers = opal_process_info.num_local_peers + 1;
    if (0 == options.segment_bytes) {
        constexpr std::size_t slack_bytes = 1U << 20;
        options.segment_bytes = std::min(
            frags_bytes + slack_bytes + std::size_t{component.fast_box_max} * sizeof(fast_box) +
                options.fifo_slots * sizeof(fifo_slot) + options.peer_slots * sizeof(peer_slot) +
                options.export_slots * sizeof(export_slot),
            static_cast<std::size_t>(max_segment_bytes));
    }
    (void)segment_sweep(options.directory);
    segment own;
    if (const status s = segment::create(options, &own, why); status::ok != s) {
        return s;
    }
    // A page of them, so that device messages do not all go in fragments where the file system is
    // full before the first one.
    (void)own.commit_exports(page_bytes / sizeof(export_slot));
    // In case this process is killed: the runtime then removes the files.
    for (std::string path : {own.path(), own.path() + companion_suffix}) {
        (void)opal_pmix_register_cleanup(path.data(), false, false, false);
    }
    here().node = std::make_unique<node>(std::move(own), component.fast_box_max);
    return status::ok;
}

bool post_modex()
{
    const segment &own = here().node->own();
    const modex_t about{wire_version, 0, own.identity(), own_pid_namespace()};
    std::string posted(reinterpret_cast<const char *>(&about), sizeof(about));
    posted += own.directory();
    int rc = OPAL_SUCCESS;
    // Global scope: only that can be asked for by processes of another job (MPI_Comm_spawn).
    OPAL_MODEX_SEND(rc, PMIX_GLOBAL, &mca_btl_gpusm_component.super.btl_version, posted.data(),
                    posted.size());
    return OPAL_SUCCESS == rc;
}

mca_btl_base_endpoint_t *make_endpoint_of(peer &of)
{
    const std::lock_guard guard(here().lock);
    if (void *known = of.user.load(std::memory_order_relaxed); known != nullptr) {
        return static_cast<mca_btl_base_endpoint_t *>(known); // another thread was faster
    }
    auto *made = new mca_btl_base_endpoint_t{};
    made->peer = &of;
    made->handshake = new handshake;
    made->number = static_cast<std::uint32_t>(here().endpoints.size());
    here().endpoints.push_back(made);
    here().live.push_back(made);
    of.user.store(made, std::memory_order_release); // pairs with endpoint_of
    return made;
}

mca_btl_base_endpoint_t *endpoint_at(std::size_t number)
{
    const std::lock_guard guard(here().lock);
    const auto &all = here().endpoints;
    return number < all.size() ? all[number] : nullptr;
}

mca_btl_base_endpoint_t *live_endpoint_at(std::size_t index)
{
    const std::lock_guard guard(here().lock);
    const auto &live = here().live;
    return index < live.size() ? live[index] : nullptr;
}

} // namespace gpusm

extern "C" {

static int add_procs(mca_btl_base_module_t *, size_t nprocs, opal_proc_t **procs,
                     mca_btl_base_endpoint_t **endpoints, opal_bitmap_t *reachable) noexcept
{
    const opal_proc_t *self = opal_proc_local_get();
    const bool alone = gpusm::has_peers_alone();
    for (size_t i = 0; i < nprocs; ++i) {
        endpoints[i] = nullptr;
        gpusm::segment_identity identity;
        std::string directory;
        bool same_pids = false;
        if (!alone || procs[i] == self ||
            !gpusm::find_segment_of(*procs[i], &identity, &directory, &same_pids)) {
            continue;
        }
        gpusm::peer *peer = gpusm::here().node->add_peer(identity, directory);
        endpoints[i] = gpusm::endpoint_of(*peer);
        if (nullptr == endpoints[i]->proc) { // or others may be reading this
            endpoints[i]->single.same_pids = same_pids;
        }
        endpoints[i]->proc.store(procs[i], std::memory_order_release);
        gpusm::install_pointer_check();
        if (reachable != nullptr) {
            const int rc = opal_bitmap_set_bit(reachable, static_cast<int>(i));
            if (OPAL_SUCCESS != rc) {
                return rc;
            }
        }
    }
    return OPAL_SUCCESS;
}

static int del_procs(mca_btl_base_module_t *, size_t nprocs, opal_proc_t **,
                     mca_btl_base_endpoint_t **endpoints) noexcept
{
    for (size_t i = 0; i < nprocs; ++i) {
        // The endpoint stays in the component's list, where later progress gives its
        // fragments back, and goes with the component.
        if (endpoints[i] != nullptr) {
            endpoints[i]->proc.store(nullptr, std::memory_order_relaxed);
            // Should the process come back, ob1 will have to be told anew.
            endpoints[i]->get_enabled = false;
            gpusm::smsc_release(endpoints[i]);
            if (gpusm::gpu_side *side = gpusm::here().gpu; side != nullptr) {
                const std::lock_guard guard(side->lock);
                side->imports.drop_owner(endpoints[i]->number);
                endpoints[i]->handshake->start_anew();
            }
        }
    }
    return OPAL_SUCCESS;
}

static int free_descriptor(mca_btl_base_module_t *, mca_btl_base_descriptor_t *descriptor) noexcept
{
    gpusm::frag_return(reinterpret_cast<mca_btl_gpusm_frag_t *>(descriptor));
    return OPAL_SUCCESS;
}

// ob1 calls it at the end of each of its add_procs, when it has an endpoint for every process.
static int register_error(mca_btl_base_module_t *,
                          mca_btl_base_module_error_cb_fn_t cbfunc) noexcept
{
    mca_btl_gpusm.error_cb = cbfunc;
    for (std::size_t i = 0; mca_btl_base_endpoint_t *each = gpusm::endpoint_at(i); ++i) {
        gpusm::enable_get(each);
    }
    return OPAL_SUCCESS;
}

static int finalize(mca_btl_base_module_t *) noexcept
{
    gpusm::release_component();
    return OPAL_SUCCESS;
}

mca_btl_gpusm_t mca_btl_gpusm = {
    .super =
        {
            .btl_component = &mca_btl_gpusm_component.super,
            .btl_add_procs = gpusm::entry(add_procs),
            .btl_del_procs = gpusm::entry(del_procs),
            .btl_finalize = gpusm::entry(finalize),
            .btl_alloc = gpusm::entry(mca_btl_gpusm_alloc),
            .btl_free = gpusm::entry(free_descriptor),
            .btl_prepare_src = gpusm::entry(mca_btl_gpusm_prepare_src),
            .btl_send = gpusm::entry(mca_btl_gpusm_send),
            .btl_sendi = gpusm::entry(mca_btl_gpusm_sendi),
            .btl_get = gpusm::entry(mca_btl_gpusm_get),
            .btl_dump = mca_btl_base_dump,
            .btl_register_mem = gpusm::entry(mca_btl_gpusm_register_mem),
            .btl_deregister_mem = gpusm::entry(mca_btl_gpusm_deregister_mem),
            .btl_register_error = gpusm::entry(register_error),
        },
    .error_cb = nullptr,
};

} // extern "C"
