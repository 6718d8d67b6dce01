// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_module.cc: the module for peers: who can be reached, and the end.
#include "opal/mca/btl/gpusm/btl_gpusm_frags.h"
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"
#include "opal/mca/common/gpusm/common_gpusm_modex.h"

#include <mutex>

namespace gpusm {

mca_btl_base_endpoint_t *transport::make_endpoint(peer &of)
{
    const std::lock_guard guard(lock);
    if (void *known = of.user.load(std::memory_order_relaxed); known != nullptr) {
        return static_cast<mca_btl_base_endpoint_t *>(known); // another thread was faster
    }
    auto *made = new mca_btl_base_endpoint_t{};
    made->peer = &of;
    made->transport = this;
    made->link = process.offers().link_of(of);
    made->summary = new_peer_summary();
    endpoints.push_back(made);
    of.user.store(made, std::memory_order_release); // pairs with endpoint_of
    return made;
}

mca_btl_base_endpoint_t *transport::endpoint_at(std::size_t index)
{
    const std::lock_guard guard(lock);
    return index < endpoints.size() ? endpoints[index] : nullptr;
}

mca_btl_base_endpoint_t *transport::live_endpoint_at(std::size_t index)
{
    peer *live = process.own_node().live_peer_at(index);
    return nullptr == live ? nullptr : endpoint_of(*live);
}

} // namespace gpusm

extern "C" {

static int add_procs(mca_btl_base_module_t *btl, size_t nprocs, opal_proc_t **procs,
                     mca_btl_base_endpoint_t **endpoints, opal_bitmap_t *reachable) noexcept
{
    const opal_proc_t *self = opal_proc_local_get();
    gpusm::transport &ours = gpusm::transport_of(btl);
    const bool alone = gpusm::has_peers_alone(ours);
    // Components of Open MPI's coll framework have been asked by now.
    ours.process.decide_to_meet(false);
    for (size_t i = 0; i < nprocs; ++i) {
        endpoints[i] = nullptr;
        gpusm::segment_place place;
        if (!alone || procs[i] == self || !gpusm::find_segment(*procs[i], &place)) {
            if (0 != place.other_version) {
                gpusm::show_help("other version", static_cast<unsigned>(procs[i]->proc_name.vpid),
                                 static_cast<unsigned>(place.other_version),
                                 static_cast<unsigned>(gpusm::wire_version));
            }
            continue;
        }
        gpusm::peer *peer = ours.process.own_node().add_peer(place.identity, place.directory);
        endpoints[i] = ours.endpoint_of(*peer);
        endpoints[i]->proc.tell(procs[i], place.same_pids);
        gpusm::install_pointer_check(ours);
        if (reachable != nullptr) {
            const int rc = opal_bitmap_set_bit(reachable, static_cast<int>(i));
            if (OPAL_SUCCESS != rc) {
                return rc;
            }
        }
    }
    return OPAL_SUCCESS;
}

static int del_procs(mca_btl_base_module_t *btl, size_t nprocs, opal_proc_t **,
                     mca_btl_base_endpoint_t **endpoints) noexcept
{
    gpusm::transport &ours = gpusm::transport_of(btl);
    for (size_t i = 0; i < nprocs; ++i) {
        // The endpoint stays in the component's list, where later progress gives its
        // fragments back, and goes with the component.
        if (endpoints[i] != nullptr) {
            // Of one to whom Open MPI has just decided to send otherwise there are none.
            gpusm::finish_sends(ours, endpoints[i]);
            endpoints[i]->proc.withdraw();
            // Should the process come back, ob1 will have to be told anew.
            endpoints[i]->get_enabled = false;
            gpusm::smsc_release(endpoints[i]);
            if (gpusm::gpu_side *side = ours.process.gpu_if_made(); side != nullptr) {
                const std::lock_guard guard(side->lock);
                side->imports.drop_owner(endpoints[i]->peer->number);
                endpoints[i]->link->fetches.start_anew();
            }
        }
    }
    return OPAL_SUCCESS;
}

static int free_descriptor(mca_btl_base_module_t *btl,
                           mca_btl_base_descriptor_t *descriptor) noexcept
{
    gpusm::transport_of(btl).frags->give(reinterpret_cast<mca_btl_gpusm_frag_t *>(descriptor));
    return OPAL_SUCCESS;
}

// ob1 calls it at the end of each of its add_procs, when it has an endpoint for every process.
static int register_error(mca_btl_base_module_t *btl,
                          mca_btl_base_module_error_cb_fn_t cbfunc) noexcept
{
    gpusm::transport &ours = gpusm::transport_of(btl);
    mca_btl_gpusm.error_cb = cbfunc;
    for (std::size_t i = 0; mca_btl_base_endpoint_t *each = ours.endpoint_at(i); ++i) {
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
    .transport = nullptr,
};

} // extern "C"
