// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_module.cc: who can be reached, and where descriptors come from.
#include "opal/mca/btl/gpusm/btl_gpusm.h"
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"
#include "opal/mca/btl/gpusm/btl_gpusm_smsc.h"

#include "opal/mca/btl/gpusm/base/log.h"
#include "opal/mca/btl/gpusm/base/prefetch.h"

#include <cinttypes>
#include <cstring>
#include <mutex>
#include <string>

namespace {

void construct_frag(mca_btl_gpusm_frag_t *frag)
{
    frag->base.des_segments = &frag->segment;
    frag->base.des_segment_count = 1;
    frag->base.order = MCA_BTL_NO_ORDER;
    frag->out = gpusm::outgoing{};
    frag->endpoint = nullptr;
    frag->list = nullptr;
    frag->call_back = false;
}

} // namespace

OBJ_CLASS_INSTANCE(mca_btl_gpusm_frag_t, mca_btl_base_descriptor_t, construct_frag, nullptr);

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

static void own_ahead(const opal_free_list_t &list, std::size_t bytes)
{
    const auto *next =
        reinterpret_cast<const mca_btl_gpusm_frag_t *>(list.super.opal_lifo_head.data.item);
    if (&list.super.opal_lifo_ghost == reinterpret_cast<const opal_list_item_t *>(next)) {
        return;
    }
    const auto *at = reinterpret_cast<const unsigned char *>(next->out.header);
    for (std::size_t line = 0; line < bytes; line += cache_line_bytes) {
        prefetch_to_write(at + line);
    }
}

void own_next_frag(const mca_btl_gpusm_frag_t *like)
{
    own_ahead(*like->list, sizeof(frag_header) + like->segment.seg_len);
}

// The lines of a fragment that the peer has just read are in its cache, and a processor writes to
// them at a third of the speed at which it writes to lines that have left that cache. So the
// fragments of messages in rows are used in turns, and those of a turn are more than a cache holds:
// the list grows so far before what peers have read is used again, and that in the order in which
// it was used. Short messages are few lines, and would have to find a page each; fragments for
// device memory are written to by devices.
static bool is_round_short(const opal_free_list_t &list, unsigned size)
{
    return static_cast<unsigned>(frag_size::gpu) != size &&
           list.fl_num_allocated * mca_btl_gpusm_component.frag_capacity[size] <
               mca_btl_gpusm_component.round_bytes;
}

static mca_btl_gpusm_frag_t *first_of(opal_free_list_t &list)
{
    return reinterpret_cast<mca_btl_gpusm_frag_t *>(opal_free_list_get(&list));
}

static mca_btl_gpusm_frag_t *frag_get(std::size_t bytes, bool is_in_row)
{
    for (unsigned size = 0; size < static_cast<unsigned>(frag_size::count); ++size) {
        if (bytes > mca_btl_gpusm_component.frag_capacity[size]) {
            continue;
        }
        opal_free_list_t &list = mca_btl_gpusm_component.frags[size];
        mca_btl_gpusm_frag_t *frag = nullptr;
        if (!opal_lifo_is_empty(&list.super) || (is_in_row && is_round_short(list, size))) {
            frag = first_of(list);
        }
        if (nullptr == frag) {
            reclaim_frags(); // before the list grows, or because it cannot
            frag = first_of(list);
        }
        if (!mca_btl_gpusm_component.threads) {
            own_ahead(list, fetched_ahead_bytes);
        }
        return frag;
    }
    return nullptr;
}

mca_btl_gpusm_frag_t *frag_get(std::size_t bytes)
{
    return frag_get(bytes, false);
}

mca_btl_gpusm_frag_t *frag_get_for(const mca_btl_base_endpoint_t *endpoint, std::size_t bytes)
{
    return frag_get(bytes, bytes >= row_frag_bytes && !mca_btl_gpusm_component.threads &&
                               endpoint->peer->is_in_row());
}

mca_btl_gpusm_frag_t *frag_get_for_control(std::size_t bytes)
{
    mca_btl_gpusm_frag_t *frag = frag_get(bytes);
    constexpr auto small = static_cast<unsigned>(frag_size::small);
    if (nullptr == frag && bytes <= mca_btl_gpusm_component.frag_capacity[small]) {
        frag = reinterpret_cast<mca_btl_gpusm_frag_t *>(
            opal_free_list_get(&mca_btl_gpusm_component.unbound));
    }
    return frag;
}

void frag_return(mca_btl_gpusm_frag_t *frag)
{
    opal_free_list_return(frag->list, &frag->base.super);
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
            if (gpusm::gpu_desk *desk = mca_btl_gpusm_component.gpu; desk != nullptr) {
                const std::lock_guard guard(desk->lock);
                desk->imports.drop_owner(endpoints[i]->number);
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

mca_btl_base_descriptor_t *mca_btl_gpusm_alloc(mca_btl_base_module_t *, mca_btl_base_endpoint_t *,
                                               uint8_t order, size_t size, uint32_t flags)
{
    mca_btl_gpusm_frag_t *frag = gpusm::frag_get_for_control(size);
    if (nullptr == frag) {
        return nullptr;
    }
    frag->segment.seg_len = size;
    frag->base.des_flags = flags;
    frag->base.des_cbfunc = nullptr;
    frag->base.order = order;
    return &frag->base;
}

static mca_btl_base_descriptor_t *prepare_src(mca_btl_base_module_t *,
                                              mca_btl_base_endpoint_t *endpoint,
                                              opal_convertor_t *convertor, uint8_t order,
                                              size_t reserve, size_t *size, uint32_t flags)
{
    using gpusm::counter;
    using gpusm::frag_size;

    const bool gpu = 0 != (convertor->flags & CONVERTOR_ACCELERATOR);
    const size_t most =
        mca_btl_gpusm_component
            .frag_capacity[static_cast<unsigned>(gpu ? frag_size::gpu : frag_size::max)];
    if (reserve >= most) {
        return nullptr;
    }
    size_t packed = std::min(*size, most - reserve);
    gpusm::reclaim_warm_frags(endpoint, reserve + packed);
    mca_btl_gpusm_frag_t *frag = gpusm::frag_get(reserve + packed);
    if (nullptr == frag) {
        return nullptr;
    }
    const bool first = 0 == convertor->bConverted;
    if (gpu) { // not only at its start: beside another BTL, ob1 gives us parts of messages
        gpusm::gpu_message_to(endpoint, convertor->pBaseBuf);
    }
    struct iovec iov = {static_cast<unsigned char *>(frag->segment.seg_addr.pval) + reserve,
                        packed};
    uint32_t iov_count = 1;
    if (opal_convertor_pack(convertor, &iov, &iov_count, &packed) < 0) {
        gpusm::frag_return(frag);
        return nullptr;
    }
    gpusm::count(gpu ? counter::staged_messages : counter::host_messages, first ? 1 : 0);
    gpusm::count(gpu ? counter::staged_bytes : counter::host_bytes, packed);
    *size = packed;
    frag->segment.seg_len = reserve + packed;
    frag->base.des_flags = flags;
    frag->base.des_cbfunc = nullptr;
    frag->base.order = order;
    return &frag->base;
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
            .btl_prepare_src = prepare_src,
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
