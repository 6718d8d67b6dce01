// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_component.cc: what Open MPI sees first: the component, its life and its progress.
// progress() is where the layers meet, in this order: read the FIFO, post what had to wait and
// take fragments back, poll the copies.
#include "opal/mca/btl/gpusm/btl_gpusm_get.h"
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"
#include "opal/mca/btl/gpusm/btl_gpusm_smsc.h"

#include "opal/mca/btl/gpusm/base/log.h"
#include "opal/mca/btl/gpusm/base/processors.h"
#include "opal/mca/btl/gpusm/protocol/stream_receiver.h"
#include "opal/mca/btl/gpusm/protocol/stream_sender.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>

namespace gpusm {

int to_opal(status s)
{
    const bool may_pass = status::busy == s || status::no_memory == s || status::not_ready == s;
    return status::ok == s ? OPAL_SUCCESS : may_pass ? OPAL_ERR_OUT_OF_RESOURCE : OPAL_ERROR;
}

void release_component()
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    if (nullptr == component.node) {
        return;
    }
    remove_pointer_check();
    release_stage();
    delete component.gpu.exchange(nullptr);
    release_host();
    release_frags();
    release_gets();
    for (mca_btl_base_endpoint_t *each : *component.endpoints) {
        smsc_release(each);
        delete each->handshake;
        delete each;
    }
    delete std::exchange(component.endpoints, nullptr);
    delete std::exchange(component.node, nullptr);
    delete std::exchange(component.lock, nullptr);
}

} // namespace gpusm

extern "C" {

static int component_register(void)
{
    // The module's layout depends on the version and on CUDA support, and the loader checks
    // neither.
    const std::string minor =
        std::to_string(OPAL_MAJOR_VERSION) + "." + std::to_string(OPAL_MINOR_VERSION) + ".";
    const bool with_cuda = 0 != OPAL_CUDA_SUPPORT;
    if (with_cuda != opal_built_with_cuda_support ||
        !std::string(opal_version_string).starts_with(minor)) {
        gpusm::show_help("wrong open mpi", OPAL_VERSION, with_cuda ? "with CUDA" : "without CUDA",
                         opal_version_string,
                         opal_built_with_cuda_support ? "with CUDA" : "without CUDA");
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
                              static_cast<int>(mca_btl_gpusm_component.cuda_ipc_verbose));
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

static mca_btl_base_module_t **component_init(int *num_btls, bool, bool enable_mpi_threads)
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    *num_btls = 0;
    if (!gpusm::check_parameters()) {
        return nullptr;
    }
    component.threads = enable_mpi_threads;
    component.oversubscribed = gpusm::is_oversubscribed(opal_process_info.num_local_peers + 1,
                                                        opal_process_info.proc_is_bound);
    mca_btl_gpusm.super.btl_registration_handle_size = sizeof(mca_btl_base_registration_handle_t);
    std::string why;
    if (gpusm::status::ok != gpusm::make_node(gpusm::plan_frags(), &why)) {
        gpusm::show_help("no segment", component.backing_directory, why.c_str());
        return nullptr;
    }
    component.lock = new gpusm::optional_mutex(component.threads);
    component.endpoints = new std::vector<mca_btl_base_endpoint_t *>;
    gpusm::setup_gets();
    gpusm::setup_host();
    gpusm::setup_stage();
    if (!gpusm::make_first_frags()) {
        gpusm::show_help("no segment", component.backing_directory,
                         "there is no room for a fragment of btl_gpusm_eager_limit bytes");
        gpusm::release_component();
        return nullptr;
    }
    auto **modules =
        static_cast<mca_btl_base_module_t **>(calloc(1, sizeof(mca_btl_base_module_t *)));
    if (nullptr == modules || !gpusm::post_modex()) {
        free(modules);
        gpusm::release_component();
        return nullptr;
    }
    modules[0] = &mca_btl_gpusm.super;
    *num_btls = 1;
    return modules;
}

// A message between the glue of two processes.
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
        if (gpusm::stage_message_from(from, payload, header.payload_bytes)) {
            return;
        }
        break;
    case gpusm::frag_kind::cooperative:
        if (gpusm::cooperative_message_from(from, payload, header.payload_bytes)) {
            return;
        }
        break;
    }
    from->peer->close_for_nonsense(); // a peer's byte
}

// A peer that has been closed, for what it has written or because it has ended: nothing more will
// come of its messages, and ob1 would wait for them for ever. It ends the job, or, where it is
// asked to tolerate that, reports the process as failed.
static void give_up_closed_peers()
{
    for (std::size_t i = 0; mca_btl_base_endpoint_t *each = gpusm::endpoint_at(i); ++i) {
        if (!each->peer->closed() || std::exchange(each->given_up, true)) {
            continue;
        }
        if (mca_btl_gpusm.error_cb != nullptr && each->proc != nullptr) {
            std::string why = "btl/gpusm: messages to and from process " +
                              std::to_string(each->peer->identity().vpid) + " have ended";
            mca_btl_gpusm.error_cb(&mca_btl_gpusm.super, MCA_BTL_ERROR_FLAGS_FATAL, each->proc,
                                   why.data());
        }
    }
}

// Taken from the peers in one call of progress, so that what waits for others than ob1's messages
// gets its turn.
static constexpr int messages_per_progress = 64;

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
    // With threads another one may be inside the engine when this one is to send out what it held.
    if (gpusm::gpu_side *side = component.gpu.load(std::memory_order_acquire);
        side != nullptr && !component.threads) {
        side->copies.hold(true); // until progress_gets
        gpusm::end_of_question();
    }
    int events = component.node->poll(
        messages_per_progress,
        [](gpusm::peer &from, const gpusm::frag_header &header, const unsigned char *payload) {
            mca_btl_base_endpoint_t *endpoint = gpusm::endpoint_of(from);
            if (gpusm::frag_kind::active_message == header.kind) {
                gpusm::deliver(endpoint, header.tag, payload, header.payload_bytes);
            } else {
                take_our_own(endpoint, header, payload);
            }
        });
    if (component.sends_to_look_after.load(std::memory_order_relaxed)) {
        events += gpusm::progress_sends();
    }
    if (!component.host_sender->idle() || !component.host_receiver->idle()) {
        events += gpusm::progress_host();
    }
    if (component.gpu.load(std::memory_order_acquire) != nullptr) {
        events += gpusm::progress_gets(events > 0);
    } else if (!component.stage_sender->idle()) {
        component.stage_sender->progress();
        ++events;
    }
    constexpr std::uint32_t calls_between_looks = 1024;
    if (0 == ++component.progress_calls % calls_between_looks) {
        component.node->mend_inbox();
        give_up_closed_peers();
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
