// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_component.cc: what Open MPI sees first: the component, its life and its progress.
// progress() is where the rooms meet, in this order: read the FIFO, post what had to wait and
// take fragments back, poll the copies.
#include "opal/mca/btl/gpusm/btl_gpusm_get.h"
#include "opal/mca/btl/gpusm/btl_gpusm_limits.h"
#include "opal/mca/btl/gpusm/btl_gpusm_smsc.h"

#include "opal/mca/btl/gpusm/base/log.h"
#include "opal/mca/btl/gpusm/base/processors.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>

namespace {

using gpusm::frag_size;

constexpr unsigned frag_sizes = static_cast<unsigned>(frag_size::count);

// Payload that a control message or an inline send of ob1 (256 bytes and a header) needs.
constexpr std::size_t small_payload_bytes = 288;

constexpr std::size_t frag_bytes(std::size_t payload_bytes)
{
    const std::size_t bytes = sizeof(gpusm::frag_header) + payload_bytes;
    return (bytes + gpusm::granule_bytes - 1) / gpusm::granule_bytes * gpusm::granule_bytes;
}

int frags_at_most(unsigned size)
{
    const int most = mca_btl_gpusm_component.free_list_max;
    return static_cast<unsigned>(frag_size::gpu) == size ? std::max(most / 8, 1) : most;
}

// The large ones come in smaller numbers: what is added has memory behind it from then on.
int frags_to_add(unsigned size)
{
    constexpr int parts[frag_sizes] = {2, 16, 8, 8};
    return std::max(mca_btl_gpusm_component.free_list_inc / parts[size], 1);
}

// Fixes the payload of each size of fragments. Returns the bytes that all of them together, and
// what GPU messages need besides, can come to take of the segment.
std::size_t plan_frags()
{
    mca_btl_base_module_t &module = mca_btl_gpusm.super;
    const std::size_t payloads[frag_sizes] = {
        small_payload_bytes, std::min(module.btl_eager_limit, gpusm::eager_frag_bytes),
        module.btl_max_send_size, module.btl_accelerator_max_send_size};
    std::size_t bytes = gpusm::host_ring_bytes() + gpusm::bounce_bytes();
    for (unsigned size = 0; size < frag_sizes; ++size) {
        mca_btl_gpusm_component.frag_capacity[size] = payloads[size];
        bytes += frag_bytes(payloads[size]) * static_cast<std::size_t>(frags_at_most(size));
    }
    return bytes;
}

// Binds a new descriptor of a free list to a piece of the segment, for good.
int bind_frag(opal_free_list_item_t *item, void *size_of_list)
{
    auto *frag = reinterpret_cast<mca_btl_gpusm_frag_t *>(item);
    const auto size = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(size_of_list));
    gpusm::segment &own = mca_btl_gpusm_component.node->own();
    const std::size_t payload_bytes = mca_btl_gpusm_component.frag_capacity[size];
    std::uint32_t granule = 0;
    const std::lock_guard guard(*mca_btl_gpusm_component.lock); // several lists, one segment
    if (gpusm::status::ok != own.carve(frag_bytes(payload_bytes), &granule)) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    frag->list = &mca_btl_gpusm_component.frags[size];
    frag->touched_bytes = 0;
    frag->out.granule = granule;
    frag->out.header = reinterpret_cast<gpusm::frag_header *>(own.at(granule));
    frag->segment.seg_addr.pval = frag->out.header + 1;
    frag->segment.seg_len = payload_bytes;
    return OPAL_SUCCESS;
}

// A descriptor outside the segment, its payload behind it: for control messages that find all
// fragments in flight.
int keep_private(opal_free_list_item_t *item, void *)
{
    auto *frag = reinterpret_cast<mca_btl_gpusm_frag_t *>(item);
    frag->list = &mca_btl_gpusm_component.unbound;
    frag->segment.seg_addr.pval = frag + 1;
    return OPAL_SUCCESS;
}

// The module's layout depends on the version and on CUDA support, and the loader checks
// neither.
bool fits_this_open_mpi()
{
    static const char built_for[] = OPAL_VERSION;
    const auto minor_bytes =
        static_cast<std::size_t>(std::strchr(std::strchr(built_for, '.') + 1, '.') - built_for);
    const bool same_version = 0 == std::strncmp(built_for, opal_version_string, minor_bytes + 1);
    const bool with_cuda = 0 != OPAL_CUDA_SUPPORT;
    if (same_version && with_cuda == opal_built_with_cuda_support) {
        return true;
    }
    gpusm::show_help("wrong open mpi", built_for, with_cuda ? "with CUDA" : "without CUDA",
                     opal_version_string,
                     opal_built_with_cuda_support ? "with CUDA" : "without CUDA");
    return false;
}

} // namespace

namespace gpusm {

int to_opal(status s)
{
    switch (s) {
    case status::ok:
        return OPAL_SUCCESS;
    case status::busy:
    case status::no_memory:
    case status::not_ready:
        return OPAL_ERR_OUT_OF_RESOURCE;
    case status::not_found:
        return OPAL_ERR_NOT_FOUND;
    case status::bad_argument:
        return OPAL_ERR_BAD_PARAM;
    case status::bad_peer:
    case status::peer_gone:
        return OPAL_ERR_UNREACH;
    case status::unsupported:
    case status::driver_failed:
    case status::system_failed:
        return OPAL_ERROR;
    }
    return OPAL_ERROR;
}

void release_component()
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    if (nullptr == component.node) {
        return;
    }
    remove_pointer_check();
    release_stage();
    release_descriptors();
    delete component.gpu.exchange(nullptr);
    component.deferred = component.last_deferred = nullptr;
    component.joint_gets.store(nullptr, std::memory_order_relaxed);
    component.latest_inline = {};
    for (opal_free_list_t &list : component.frags) {
        OBJ_DESTRUCT(&list);
    }
    OBJ_DESTRUCT(&component.unbound);
    release_gets();
    for (mca_btl_base_endpoint_t *each : *component.endpoints) {
        smsc_release(each);
        release_joint(each);
        delete each->handshake;
        delete each;
    }
    delete std::exchange(component.endpoints, nullptr);
    delete std::exchange(component.active, nullptr);
    delete std::exchange(component.node, nullptr);
    delete std::exchange(component.lock, nullptr);
    delete std::exchange(component.watching, nullptr);
}

} // namespace gpusm

extern "C" {

static int component_register(void)
{
    if (!fits_this_open_mpi()) {
        return OPAL_ERR_NOT_AVAILABLE;
    }
    gpusm::register_parameters();
    gpusm::register_counters();
    return OPAL_SUCCESS;
}

static int component_open(void)
{
    mca_btl_gpusm_component.output = opal_output_open(nullptr);
    opal_output_set_verbosity(mca_btl_gpusm_component.output,
                              mca_btl_gpusm_component.cuda_ipc_verbose);
    gpusm::log_to_opal();
    return OPAL_SUCCESS;
}

static int component_close(void)
{
    gpusm::release_component();
    gpusm::log_install(nullptr, gpusm::log_level::error);
    opal_output_close(mca_btl_gpusm_component.output);
    return OPAL_SUCCESS;
}

// Memory for rows is memory of every process that has sent some.
static void limit_round()
{
    constexpr std::size_t most_of_all_bytes = 16U << 20;
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    const std::size_t processes = opal_process_info.num_local_peers + 1;
    const std::size_t segment_bytes = component.node->own().view().header->segment_bytes;
    // Processes that take turns on a processor find their fragments in its cache.
    component.round_bytes =
        component.crowded
            ? 0
            : std::min({component.round_bytes, most_of_all_bytes / processes, segment_bytes / 8});
    gpusm::log_line(gpusm::log_level::info,
                    "host messages in rows take fragments of up to %zu bytes in turns",
                    component.round_bytes);
}

static mca_btl_base_module_t **component_init(int *num_btls, bool, bool enable_mpi_threads)
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    *num_btls = 0;
    gpusm::choose_limits(enable_mpi_threads);
    if (!gpusm::check_parameters()) {
        return nullptr;
    }
    component.threads = enable_mpi_threads;
    component.crowded = gpusm::is_crowded(opal_process_info.num_local_peers + 1);
    mca_btl_gpusm.super.btl_registration_handle_size = gpusm::smsc_handle_bytes();
    std::string why;
    if (gpusm::status::ok != gpusm::make_node(plan_frags(), &why)) {
        gpusm::show_help("no segment", component.backing_directory, why.c_str());
        return nullptr;
    }
    limit_round();
    component.lock = new gpusm::optional_mutex(component.threads);
    component.watching = new gpusm::optional_mutex(component.threads);
    component.endpoints = new std::vector<mca_btl_base_endpoint_t *>;
    component.active = new std::vector<mca_btl_base_endpoint_t *>;
    gpusm::setup_gets();
    constexpr int no_limit = -1;
    OBJ_CONSTRUCT(&component.unbound, opal_free_list_t);
    bool listed =
        OPAL_SUCCESS ==
        opal_free_list_init(&component.unbound, sizeof(mca_btl_gpusm_frag_t) + small_payload_bytes,
                            opal_cache_line_size, OBJ_CLASS(mca_btl_gpusm_frag_t), 0, 0, 0,
                            no_limit, 64, nullptr, 0, nullptr, keep_private, nullptr);
    for (unsigned size = 0; size < frag_sizes; ++size) {
        const bool at_once = size <= static_cast<unsigned>(frag_size::eager);
        const int most = frags_at_most(size);
        opal_free_list_t *list = &component.frags[size];
        OBJ_CONSTRUCT(list, opal_free_list_t);
        listed = listed &&
                 OPAL_SUCCESS == opal_free_list_init(
                                     list, sizeof(mca_btl_gpusm_frag_t), opal_cache_line_size,
                                     OBJ_CLASS(mca_btl_gpusm_frag_t), 0, 0,
                                     at_once ? std::min(component.free_list_num, most) : 0, most,
                                     frags_to_add(size), nullptr, 0, nullptr, bind_frag,
                                     reinterpret_cast<void *>(static_cast<std::uintptr_t>(size)));
    }
    auto **modules =
        static_cast<mca_btl_base_module_t **>(calloc(1, sizeof(mca_btl_base_module_t *)));
    if (!listed || nullptr == modules || !gpusm::post_modex()) {
        free(modules);
        gpusm::release_component();
        return nullptr;
    }
    modules[0] = &mca_btl_gpusm.super;
    *num_btls = 1;
    return modules;
}

// A message between the desks of two processes.
static void take_our_own(mca_btl_base_endpoint_t *from, const gpusm::frag_header &header,
                         const unsigned char *payload)
{
    switch (header.kind) {
    case gpusm::frag_kind::active_message:
        break; // the caller's
    case gpusm::frag_kind::ipc_control:
        gpusm::ipc_message_from(from, payload, header.payload_bytes);
        return;
    case gpusm::frag_kind::stage:
        gpusm::stage_message_from(from, payload, header.payload_bytes);
        return;
    case gpusm::frag_kind::bundle:
        gpusm::deliver_bundle(from, payload, header.payload_bytes);
        return;
    case gpusm::frag_kind::joint:
        gpusm::joint_message_from(from, payload, header.payload_bytes);
        return;
    }
    // A peer's byte.
    gpusm::log_line(gpusm::log_level::error,
                    "process %u sent a message of an unknown kind; nothing more is sent to it "
                    "or taken from it",
                    static_cast<unsigned>(from->peer->identity().vpid));
    from->peer->close();
}

static int component_progress(void)
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    // One thread at a time, and never from within a callback: the order of a peer's messages
    // depends on it. A locked instruction would be a good part of an idle round.
    if (nullptr == component.node ||
        (component.threads ? component.progressing.exchange(true, std::memory_order_acquire)
                           : component.progressing.load(std::memory_order_relaxed))) {
        return 0;
    }
    component.progressing.store(true, std::memory_order_relaxed);
    component.rounds.store(component.rounds.load(std::memory_order_relaxed) + 1,
                           std::memory_order_relaxed);
    // With threads another one may be inside the engine when this one is to send out what it held.
    if (gpusm::gpu_desk *desk = component.gpu.load(std::memory_order_acquire);
        desk != nullptr && !component.threads) {
        desk->copies.hold(true); // until progress_gets
        gpusm::end_of_question();
    }
    int events = component.node->poll(
        component.fifo_poll_limit,
        [](gpusm::peer &from, const gpusm::frag_header &header, const unsigned char *payload) {
            mca_btl_base_endpoint_t *endpoint = gpusm::endpoint_of(from);
            if (gpusm::frag_kind::active_message == header.kind) {
                gpusm::deliver(endpoint, header.tag, payload, header.payload_bytes);
            } else {
                take_our_own(endpoint, header, payload);
            }
        });
    if (component.latest_inline.to != nullptr && 0 == events) {
        gpusm::own_next_inline();
    }
    if (component.sends_to_look_after.load(std::memory_order_relaxed)) {
        events += gpusm::progress_sends();
    }
    if (component.joint_gets.load(std::memory_order_relaxed) != nullptr) {
        events += gpusm::progress_joint_gets();
    }
    if (component.gpu.load(std::memory_order_acquire) != nullptr) {
        events += gpusm::progress_gets(events > 0);
    }
    component.progressing.store(false, std::memory_order_release);
    return events;
}

mca_btl_gpusm_component_t mca_btl_gpusm_component = {
    .super =
        {
            .btl_version =
                {
                    MCA_BTL_DEFAULT_VERSION("gpusm"),
                    .mca_open_component = component_open,
                    .mca_close_component = component_close,
                    .mca_register_component_params = component_register,
                },
            .btl_data =
                {
                    .param_field = MCA_BASE_METADATA_PARAM_CHECKPOINT,
                },
            .btl_init = component_init,
            .btl_progress = component_progress,
        },
};

} // extern "C"
