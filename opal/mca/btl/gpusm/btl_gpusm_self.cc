// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_self.h"
#include "opal/mca/btl/gpusm/btl_gpusm_device.h"
#include "opal/mca/btl/gpusm/btl_gpusm_frags.h"
#include "opal/mca/btl/gpusm/btl_gpusm_views.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace gpusm {

self_side::self_side(transport &of) : transport_(of)
{
    endpoint.transport = &of;
    endpoint.summary = new_peer_summary();
    unusable.unusable = true;
}

self_frag *self_side::take(std::size_t bytes, bool of_device)
{
    const auto set_up = [&](auto *taken, bool is_short) -> self_frag * {
        if (nullptr == taken) {
            return nullptr;
        }
        self_frag &frag = taken->frag;
        frag.is_short = is_short;
        frag.segments[0].seg_addr.pval = taken->payload;
        gpu_side *gpu = of_device ? transport_.process.gpu() : nullptr;
        frag.registered = nullptr == gpu ? nullptr : transport_.frags->get(bytes);
        if (frag.registered != nullptr) {
            gpu->packs_fragments();
            frag.segments[0].seg_addr.pval = frag.registered->segment.seg_addr.pval;
        }
        frag.segments[0].seg_len = bytes;
        frag.base.des_segments = frag.segments;
        frag.base.des_segment_count = 1;
        return &frag;
    };
    return bytes > self_fragment_bytes ? nullptr
           : bytes > short_bytes       ? set_up(long_.take(), false)
                                       : set_up(short_.take(), true);
}

void self_side::give(self_frag *back)
{
    if (back->registered != nullptr) {
        transport_.frags->give(back->registered);
    }
    if (back->is_short) {
        short_.give(reinterpret_cast<self_frag_of<short_bytes> *>(back));
    } else {
        long_.give(reinterpret_cast<self_frag_of<self_fragment_bytes> *>(back));
    }
}

// The flag is the endpoint's and not the module's: osc/rdma takes that for a promise that windows
// in device memory work.
void self_side::enable_get()
{
    opal_proc_t *self = nullptr;
    {
        const std::lock_guard guard(transport_.lock);
        if (mca_btl_gpusm_self.error_cb != nullptr && self_ != nullptr &&
            !std::exchange(told_, true)) {
            self = self_;
        }
    }
    if (self != nullptr) {
        mca_btl_gpusm_self.error_cb(&mca_btl_gpusm_self.super,
                                    MCA_BTL_ERROR_FLAGS_ADD_ACCELERATOR_IPC, self, nullptr);
    }
}

void self_side::answer_pointer_checks()
{
    if (!answers_pointer_checks_.exchange(true, std::memory_order_relaxed)) {
        install_pointer_check(transport_);
    }
}

void self_side::serve(opal_proc_t *self)
{
    const std::lock_guard guard(transport_.lock);
    self_ = self;
    told_ = false;
}

namespace {

self_side &side_of(const mca_btl_base_module_t *btl)
{
    return *transport_of(btl).self;
}

// Must the payload be packed, because it lies in device memory or in parts?
[[gnu::always_inline]] inline bool must_pack(const opal_convertor_t *convertor)
{
    constexpr std::uint32_t plain = CONVERTOR_HOMOGENEOUS | OPAL_DATATYPE_FLAG_NO_GAPS;
    return plain != (convertor->flags & (plain | CONVERTOR_ACCELERATOR)) &&
           (0 != opal_convertor_need_buffers(convertor) ||
            0 != (convertor->flags & CONVERTOR_ACCELERATOR));
}

[[gnu::always_inline]] inline void deliver_to_self(mca_btl_base_endpoint_t *self,
                                                   mca_btl_base_tag_t tag,
                                                   mca_btl_base_segment_t *segments,
                                                   std::size_t count)
{
    const mca_btl_active_message_callback_t &callback = mca_btl_base_active_message_trigger[tag];
    const mca_btl_base_receive_descriptor_t received = {.endpoint = self,
                                                        .des_segments = segments,
                                                        .des_segment_count = count,
                                                        .tag = tag,
                                                        .cbdata = callback.cbdata};
    callback.cbfunc(&mca_btl_gpusm_self.super, &received);
}

// Packs at most *bytes behind `reserve` bytes; then *bytes says how many. False: it cannot.
bool pack(self_side &self, opal_convertor_t *convertor, self_frag *frag, std::size_t reserve,
          std::size_t *bytes)
{
    const bool of_device = 0 != (convertor->flags & CONVERTOR_ACCELERATOR);
    const bool first = 0 == convertor->bConverted;
    if (of_device) { // ob1 may have made its endpoint later than it has registered its callback
        self.enable_get();
        self.answer_pointer_checks();
    }
    auto *payload = static_cast<unsigned char *>(frag->segments[0].seg_addr.pval);
    struct iovec iov = {payload + reserve, *bytes};
    std::uint32_t iov_count = 1;
    if (opal_convertor_pack(convertor, &iov, &iov_count, bytes) < 0) {
        return false;
    }
    if (of_device) {
        count(&self.endpoint, counter::device_fragments_messages, first ? 1 : 0);
        count(&self.endpoint, counter::device_fragments_bytes, *bytes);
    }
    frag->segments[0].seg_len = reserve + *bytes;
    return true;
}

} // namespace
} // namespace gpusm

extern "C" {

static int add_self(mca_btl_base_module_t *btl, size_t nprocs, opal_proc_t **procs,
                    mca_btl_base_endpoint_t **endpoints, opal_bitmap_t *reachable) noexcept
{
    const opal_proc_t *self = opal_proc_local_get();
    for (size_t i = 0; i < nprocs; ++i) {
        endpoints[i] = nullptr;
        if (procs[i] != self) {
            continue;
        }
        endpoints[i] = &gpusm::side_of(btl).endpoint;
        gpusm::side_of(btl).serve(procs[i]);
        if (reachable != nullptr) {
            const int rc = opal_bitmap_set_bit(reachable, static_cast<int>(i));
            if (OPAL_SUCCESS != rc) {
                return rc;
            }
        }
    }
    return OPAL_SUCCESS;
}

static int delete_self(mca_btl_base_module_t *btl, size_t nprocs, opal_proc_t **,
                       mca_btl_base_endpoint_t **endpoints) noexcept
{
    // Open MPI forgets its own process when MPI ends, before it leaves PMIx, which then removes the
    // file of the segment. Peers of other jobs it may have forgotten long before.
    gpusm::finish_sends(gpusm::transport_of(btl));
    for (size_t i = 0; i < nprocs; ++i) {
        if (endpoints[i] != nullptr) {
            gpusm::side_of(btl).serve(nullptr);
        }
    }
    return OPAL_SUCCESS;
}

// ob1 calls it at the end of its add_procs, when it has an endpoint for every process.
static int register_error_of_self(mca_btl_base_module_t *btl,
                                  mca_btl_base_module_error_cb_fn_t cbfunc) noexcept
{
    mca_btl_gpusm_self.error_cb = cbfunc;
    gpusm::side_of(btl).enable_get();
    return OPAL_SUCCESS;
}

// The transport goes with the other module.
static int finalize_self(mca_btl_base_module_t *) noexcept
{
    return OPAL_SUCCESS;
}

static mca_btl_base_descriptor_t *alloc_to_self(mca_btl_base_module_t *btl,
                                                mca_btl_base_endpoint_t *, uint8_t order,
                                                size_t size, uint32_t flags) noexcept
{
    gpusm::self_frag *frag = gpusm::side_of(btl).take(size);
    if (nullptr == frag) {
        return nullptr;
    }
    frag->base.order = order;
    frag->base.des_flags = static_cast<int32_t>(flags);
    return &frag->base;
}

static int free_to_self(mca_btl_base_module_t *btl, mca_btl_base_descriptor_t *descriptor) noexcept
{
    gpusm::side_of(btl).give(reinterpret_cast<gpusm::self_frag *>(descriptor));
    return OPAL_SUCCESS;
}

static mca_btl_base_descriptor_t *
prepare_to_self(mca_btl_base_module_t *btl, mca_btl_base_endpoint_t *, opal_convertor_t *convertor,
                uint8_t order, size_t reserve, size_t *size, uint32_t flags) noexcept
{
    gpusm::self_side &self = gpusm::side_of(btl);
    const bool packs = gpusm::must_pack(convertor);
    if (packs && reserve >= gpusm::self_fragment_bytes) {
        return nullptr;
    }
    *size = packs ? std::min(*size, gpusm::self_fragment_bytes - reserve) : *size;
    const bool of_device = packs && 0 != (convertor->flags & CONVERTOR_ACCELERATOR);
    gpusm::self_frag *frag = self.take(reserve + (packs ? *size : 0), of_device);
    if (nullptr == frag) {
        return nullptr;
    }
    frag->base.order = order;
    frag->base.des_flags = static_cast<int32_t>(flags);
    if (!packs) {
        opal_convertor_get_current_pointer(convertor, &frag->segments[1].seg_addr.pval);
        frag->segments[1].seg_len = *size;
        frag->base.des_segment_count = 2;
    } else if (!gpusm::pack(self, convertor, frag, reserve, size)) {
        self.give(frag);
        return nullptr;
    }
    return &frag->base;
}

static int send_to_self(mca_btl_base_module_t *btl, mca_btl_base_endpoint_t *endpoint,
                        mca_btl_base_descriptor_t *descriptor, mca_btl_base_tag_t tag) noexcept
{
    const auto flags = static_cast<uint32_t>(descriptor->des_flags);
    gpusm::deliver_to_self(endpoint, tag, descriptor->des_segments, descriptor->des_segment_count);
    if (0 != (flags & MCA_BTL_DES_SEND_ALWAYS_CALLBACK)) {
        descriptor->des_cbfunc(btl, endpoint, descriptor, OPAL_SUCCESS);
    }
    if (0 != (flags & MCA_BTL_DES_FLAGS_BTL_OWNERSHIP)) {
        free_to_self(btl, descriptor);
    }
    return 1; // done, and called back if that was asked for
}

static int sendi_to_self(mca_btl_base_module_t *btl, mca_btl_base_endpoint_t *endpoint,
                         opal_convertor_t *convertor, void *header, size_t header_size,
                         size_t payload_size, uint8_t order, uint32_t flags, mca_btl_base_tag_t tag,
                         mca_btl_base_descriptor_t **descriptor) noexcept
{
    // An empty message may come with a convertor that nobody has set up.
    if (0 == payload_size || !gpusm::must_pack(convertor)) [[likely]] {
        mca_btl_base_segment_t segments[2] = {{{.pval = header}, header_size},
                                              {{.pval = nullptr}, 0}};
        if (payload_size > 0) {
            opal_convertor_get_current_pointer(convertor, &segments[1].seg_addr.pval);
            segments[1].seg_len = payload_size;
        }
        gpusm::deliver_to_self(endpoint, tag, segments, payload_size > 0 ? 2 : 1);
        return OPAL_SUCCESS;
    }
    if (descriptor != nullptr) {
        *descriptor = nullptr;
    }
    size_t packed = payload_size;
    mca_btl_base_descriptor_t *made =
        header_size + payload_size > gpusm::self_fragment_bytes
            ? nullptr
            : prepare_to_self(btl, endpoint, convertor, order, header_size, &packed,
                              flags | MCA_BTL_DES_FLAGS_BTL_OWNERSHIP);
    if (nullptr == made) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    if (packed != payload_size) {
        free_to_self(btl, made);
        return OPAL_ERROR;
    }
    std::memcpy(made->des_segments[0].seg_addr.pval, header, header_size);
    made->des_flags &= ~MCA_BTL_DES_SEND_ALWAYS_CALLBACK; // done when this returns
    (void)send_to_self(btl, endpoint, made, tag);
    return OPAL_SUCCESS;
}

static mca_btl_base_registration_handle_t *register_for_self(mca_btl_base_module_t *btl,
                                                             mca_btl_base_endpoint_t *endpoint,
                                                             void *base, size_t size,
                                                             uint32_t flags) noexcept
{
    gpusm::transport &ours = gpusm::transport_of(btl);
    if (!gpusm::may_be_device_memory(base, flags)) {
        return &ours.self->host.handle;
    }
    ours.self->answer_pointer_checks();
    const bool is_source = 0 != (flags & MCA_BTL_REG_FLAG_REMOTE_READ);
    gpusm::gpu_side *gpu = ours.process.gpu();
    gpusm::registration *made = nullptr == gpu ? nullptr : ours.registrations->take();
    if (made != nullptr) {
        const gpusm::status s = gpusm::register_device(*gpu, endpoint, made, base, size, false);
        if (gpusm::status::ok == s) {
            // The header carries a copy of the handle: by its number the registration is found.
            made->name(gpusm::share_kind::staged, reinterpret_cast<std::uint64_t>(base), size);
            return &made->handle;
        }
        gpusm::fell_back_to_fragments(endpoint, s, size);
        gpusm::deregister_device(*gpu, made);
        ours.registrations->give(made);
    }
    return is_source ? nullptr : &ours.self->unusable.handle;
}

static int deregister_for_self(mca_btl_base_module_t *btl,
                               mca_btl_base_registration_handle_t *handle) noexcept
{
    const gpusm::self_side &self = gpusm::side_of(btl);
    return handle == &self.host.handle || handle == &self.unusable.handle
               ? OPAL_SUCCESS
               : mca_btl_gpusm_deregister_mem(btl, handle);
}

static int get_from_self(mca_btl_base_module_t *btl, mca_btl_base_endpoint_t *endpoint,
                         void *local_address, uint64_t remote_address,
                         mca_btl_base_registration_handle_t *local_handle,
                         mca_btl_base_registration_handle_t *remote_handle, size_t size, int, int,
                         mca_btl_base_rdma_completion_fn_t cbfunc, void *cbcontext,
                         void *cbdata) noexcept
{
    const gpusm::remote_handle &remote = remote_handle->remote;
    const gpusm::registration *into = gpusm::registration_around(local_handle);
    const gpusm::transport &ours = *endpoint->transport;
    const gpusm::registration *from = &ours.self->host;
    if (gpusm::share_kind::staged == remote.kind) {
        from = ours.registrations->named(remote, remote_address, size);
    }
    if (nullptr == into || into->unusable || nullptr == from) [[unlikely]] {
        return OPAL_ERROR; // ob1 takes fragments
    }
    if (nullptr == into->device && nullptr == from->device) { // mode self, by the processor
        std::memcpy(local_address, reinterpret_cast<const void *>(remote_address), size);
        cbfunc(btl, endpoint, local_address, local_handle, cbcontext, cbdata, OPAL_SUCCESS);
        return OPAL_SUCCESS;
    }
    return gpusm::copy_for_self(*from, *into, remote_address,
                                {btl, local_address, local_handle, cbfunc, cbcontext, cbdata},
                                endpoint, size);
}

mca_btl_gpusm_t mca_btl_gpusm_self = {
    .super =
        {
            .btl_component = &mca_btl_gpusm_component.super,
            .btl_add_procs = gpusm::entry(add_self),
            .btl_del_procs = gpusm::entry(delete_self),
            .btl_finalize = gpusm::entry(finalize_self),
            .btl_alloc = gpusm::entry(alloc_to_self),
            .btl_free = gpusm::entry(free_to_self),
            .btl_prepare_src = gpusm::entry(prepare_to_self),
            .btl_send = gpusm::entry(send_to_self),
            .btl_sendi = gpusm::entry(sendi_to_self),
            .btl_get = gpusm::entry(get_from_self),
            .btl_dump = mca_btl_base_dump,
            .btl_register_mem = gpusm::entry(register_for_self),
            .btl_deregister_mem = gpusm::entry(deregister_for_self),
            .btl_register_error = gpusm::entry(register_error_of_self),
        },
    .error_cb = nullptr,
    .transport = nullptr,
};

} // extern "C"
