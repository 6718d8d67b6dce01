// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_module.cc: who can be reached.
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"
#include "opal/mca/btl/gpusm/btl_gpusm_smsc.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <cinttypes>
#include <cstring>
#include <mutex>
#include <string>

namespace gpusm {

mca_btl_base_endpoint_t *make_endpoint_of(peer &of)
{
    const std::lock_guard guard(*mca_btl_gpusm_component.lock);
    if (void *known = of.user.load(std::memory_order_relaxed); known != nullptr) {
        return static_cast<mca_btl_base_endpoint_t *>(known); // another thread was faster
    }
    auto *made = new mca_btl_base_endpoint_t{};
    made->peer = &of;
    made->handshake = new handshake;
    made->number = static_cast<std::uint32_t>(mca_btl_gpusm_component.endpoints->size());
    mca_btl_gpusm_component.endpoints->push_back(made);
    of.user.store(made, std::memory_order_release); // pairs with endpoint_of
    return made;
}

mca_btl_base_endpoint_t *endpoint_at(std::size_t number)
{
    const std::lock_guard guard(*mca_btl_gpusm_component.lock);
    const auto &all = *mca_btl_gpusm_component.endpoints;
    return number < all.size() ? all[number] : nullptr;
}

} // namespace gpusm

extern "C" {

static int add_procs(mca_btl_base_module_t *, size_t nprocs, opal_proc_t **procs,
                     mca_btl_base_endpoint_t **endpoints, opal_bitmap_t *reachable)
{
    const opal_proc_t *self = opal_proc_local_get();
    for (size_t i = 0; i < nprocs; ++i) {
        endpoints[i] = nullptr;
        gpusm::segment_identity identity;
        std::string directory;
        if (procs[i] == self || !gpusm::find_segment_of(*procs[i], &identity, &directory)) {
            continue;
        }
        gpusm::peer *peer = mca_btl_gpusm_component.node->add_peer(identity, directory);
        endpoints[i] = gpusm::endpoint_of(*peer);
        endpoints[i]->proc = procs[i];
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
                     mca_btl_base_endpoint_t **endpoints)
{
    for (size_t i = 0; i < nprocs; ++i) {
        // The endpoint stays in the component's list, where later progress gives its
        // fragments back, and goes with the component.
        if (endpoints[i] != nullptr) {
            endpoints[i]->proc = nullptr;
            gpusm::smsc_release(endpoints[i]);
            if (gpusm::gpu_side *side = mca_btl_gpusm_component.gpu; side != nullptr) {
                const std::lock_guard guard(side->lock);
                side->imports.drop_owner(endpoints[i]->number);
                // Should the process come back, ob1 will have to be told anew.
                *endpoints[i]->handshake = gpusm::handshake();
                endpoints[i]->get_enabled = false;
            }
        }
    }
    return OPAL_SUCCESS;
}

static int free_descriptor(mca_btl_base_module_t *, mca_btl_base_descriptor_t *descriptor)
{
    gpusm::frag_return(reinterpret_cast<mca_btl_gpusm_frag_t *>(descriptor));
    return OPAL_SUCCESS;
}

static int register_error(mca_btl_base_module_t *, mca_btl_base_module_error_cb_fn_t cbfunc)
{
    mca_btl_gpusm.error_cb = cbfunc;
    return OPAL_SUCCESS;
}

static void dump(mca_btl_base_module_t *, mca_btl_base_endpoint_t *endpoint, int)
{
    const std::lock_guard guard(*mca_btl_gpusm_component.lock);
    for (const mca_btl_base_endpoint_t *each : *mca_btl_gpusm_component.endpoints) {
        if (endpoint != nullptr && endpoint != each) {
            continue;
        }
        opal_output(0,
                    "btl/gpusm: process %" PRIu32 " of job %08" PRIx32
                    ": %s, %s, next message %" PRIu64 ", CUDA IPC state %d after %" PRIu32
                    " retries",
                    each->peer->identity().vpid, each->peer->identity().jobid,
                    each->peer->closed() ? "closed" : "open",
                    each->peer->waiting() ? "waits for room in its FIFO" : "nothing waits",
                    each->peer->next_sequence, static_cast<int>(each->handshake->state()),
                    each->handshake->retries());
    }
}

static int finalize(mca_btl_base_module_t *)
{
    gpusm::release_component();
    return OPAL_SUCCESS;
}

mca_btl_gpusm_t mca_btl_gpusm = {
    .super =
        {
            .btl_component = &mca_btl_gpusm_component.super,
            .btl_add_procs = add_procs,
            .btl_del_procs = del_procs,
            .btl_finalize = finalize,
            .btl_alloc = mca_btl_gpusm_alloc,
            .btl_free = free_descriptor,
            .btl_prepare_src = mca_btl_gpusm_prepare_src,
            .btl_send = mca_btl_gpusm_send,
            .btl_sendi = mca_btl_gpusm_sendi,
            .btl_get = mca_btl_gpusm_get,
            .btl_dump = dump,
            .btl_register_mem = mca_btl_gpusm_register_mem,
            .btl_deregister_mem = mca_btl_gpusm_deregister_mem,
            .btl_register_error = register_error,
        },
    .error_cb = nullptr,
};

} // extern "C"
