// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_view_hooks.cc: Open MPI's accelerator table, for addresses in views. The question
// whether an address is device memory is btl_gpusm_pointer_check.cc's.
//
// The BTLs of other components copy by the processor into what ob1 calls memory without gaps. So
// their btl_get refuses views, and ob1 takes fragments, which are packed and unpacked through the
// table.
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"

namespace gpusm {

namespace {

view_hooks &hooks()
{
    return mca_btl_gpusm_component.view_hooks;
}

// Null: there are none.
view_table *views()
{
    transport *of = hooks().serves.load(std::memory_order_acquire);
    gpu_side *side = nullptr == of ? nullptr : of->process.gpu_if_made();
    return nullptr == side ? nullptr : &side->views;
}

view *view_at(const void *address)
{
    view_table *all = is_view_address(address) ? views() : nullptr;
    return nullptr == all ? nullptr : all->find(address);
}

// The answer to a copy from or to the reserved range, in which nobody else may read or write.
int copy_of_view(void *to, const void *from, std::size_t len_bytes)
{
    view_table *all = views();
    const bool good =
        all != nullptr && (0 == len_bytes || status::ok == all->copy(to, from, len_bytes));
    return good ? OPAL_SUCCESS : OPAL_ERROR;
}

bool is_of_view(const void *to, const void *from)
{
    return is_view_address(to) || is_view_address(from);
}

extern "C" {

int view_mem_copy(int to_device, int from_device, void *to, const void *from, std::size_t size,
                  opal_accelerator_transfer_type_t way) noexcept
{
    return is_of_view(to, from)
               ? copy_of_view(to, from, size)
               : hooks().mem_copy.original()(to_device, from_device, to, from, size, way);
}

// Is over when it returns.
int view_mem_copy_async(int to_device, int from_device, void *to, const void *from,
                        std::size_t size, opal_accelerator_stream_t *stream,
                        opal_accelerator_transfer_type_t way) noexcept
{
    return is_of_view(to, from) ? copy_of_view(to, from, size)
                                : hooks().mem_copy_async.original()(to_device, from_device, to,
                                                                    from, size, stream, way);
}

int view_mem_move(int to_device, int from_device, void *to, const void *from, std::size_t size,
                  opal_accelerator_transfer_type_t way) noexcept
{
    return is_of_view(to, from)
               ? copy_of_view(to, from, size)
               : hooks().mem_move.original()(to_device, from_device, to, from, size, way);
}

int view_get_address_range(int device, const void *address, void **base, std::size_t *size) noexcept
{
    if (!is_view_address(address)) {
        return hooks().get_address_range.original()(device, address, base, size);
    }
    const view *of = view_at(address);
    if (nullptr == of) {
        return OPAL_ERR_NOT_FOUND;
    }
    *base = reinterpret_cast<void *>(of->address);
    *size = of->len_bytes;
    return OPAL_SUCCESS;
}

int view_get_buffer_id(int device, const void *address, opal_accelerator_buffer_id_t *id) noexcept
{
    if (!is_view_address(address)) {
        return hooks().get_buffer_id.original()(device, address, id);
    }
    const view *of = view_at(address);
    *id = nullptr == of ? 0 : of->buffer_id;
    return nullptr == of ? OPAL_ERR_NOT_FOUND : OPAL_SUCCESS;
}

int refusing_get(mca_btl_base_module_t *btl, mca_btl_base_endpoint_t *endpoint, void *local_address,
                 std::uint64_t remote_address, mca_btl_base_registration_handle_t *local_handle,
                 mca_btl_base_registration_handle_t *remote_handle, std::size_t size, int flags,
                 int order, mca_btl_base_rdma_completion_fn_t cbfunc, void *cbcontext,
                 void *cbdata) noexcept
{
    return is_view_address(local_address) || is_view_address(remote_address)
               ? OPAL_ERROR
               : hooks().others.at(btl)(btl, endpoint, local_address, remote_address, local_handle,
                                        remote_handle, size, flags, order, cbfunc, cbcontext,
                                        cbdata);
}

} // extern "C"

} // namespace

void install_view_hooks(transport &of)
{
    view_hooks &all = hooks();
    if (all.serves.load(std::memory_order_relaxed) != nullptr) {
        return;
    }
#define GPUSM_PUT(name) all.name.put(&opal_accelerator.name, entry(view_##name));
    GPUSM_VIEW_HOOKS(GPUSM_PUT)
#undef GPUSM_PUT
    mca_btl_base_selected_module_t *each = nullptr;
    OPAL_LIST_FOREACH(each, &mca_btl_base_modules_initialized, mca_btl_base_selected_module_t)
    {
        mca_btl_base_module_t *module = each->btl_module;
        if (each->btl_component != &mca_btl_gpusm_component.super && module->btl_get != nullptr &&
            module->btl_get != entry(refusing_get)) {
            all.others[module] = module->btl_get;
        }
    }
    // Other threads may enter ours at once, and read the whole map.
    for (const auto &[module, get] : all.others) {
        std::atomic_ref(module->btl_get).store(entry(refusing_get), std::memory_order_release);
    }
    all.serves.store(&of, std::memory_order_release);
}

void remove_view_hooks()
{
    view_hooks &all = hooks();
    if (nullptr == all.serves.exchange(nullptr)) {
        return;
    }
#define GPUSM_TAKE(name) all.name.take_back(&opal_accelerator.name, entry(view_##name));
    GPUSM_VIEW_HOOKS(GPUSM_TAKE)
#undef GPUSM_TAKE
    // Open MPI ends the BTLs one after the other: some of these modules may have gone.
    mca_btl_base_selected_module_t *each = nullptr;
    OPAL_LIST_FOREACH(each, &mca_btl_base_modules_initialized, mca_btl_base_selected_module_t)
    {
        const auto found = all.others.find(each->btl_module);
        if (found != all.others.end() && each->btl_module->btl_get == entry(refusing_get)) {
            each->btl_module->btl_get = found->second;
        }
    }
    all.others.clear();
}

} // namespace gpusm
