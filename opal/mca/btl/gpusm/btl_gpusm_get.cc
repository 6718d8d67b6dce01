// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_get.cc: how ob1 fetches device memory. The sender's register_mem exports the buffer
// and yields the handle that ob1 carries over; the receiver's btl_get maps what the handle
// names, once, and gives the copy to the engine.
#include "opal/mca/btl/gpusm/btl_gpusm.h"
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <cinttypes>
#include <iterator>
#include <mutex>
#include <tuple>
#include <utility>

namespace {

using gpusm::count;
using gpusm::counter;
using gpusm::status;

// What register_mem made; ob1 sees the handle inside. Recycled through a free list.
struct registration_t {
    opal_free_list_item_t super;
    mca_btl_base_registration_handle_t handle;
    gpusm::exported *exported; // referenced; null for a local buffer of a get
    gpusm::device *device;     // whose context the local buffer wants; null for host memory
    std::uint64_t plain_until; // where the device memory ends that a kernel may write, else 0
};

// One btl_get on its way.
struct get_t {
    opal_free_list_item_t super;
    gpusm::copy_request copy;
    gpusm::mapping *mapping; // referenced
    mca_btl_base_endpoint_t *endpoint;
    void *local_address;
    mca_btl_base_registration_handle_t *local_handle;
    mca_btl_base_rdma_completion_fn_t cbfunc;
    void *cbcontext;
    void *cbdata;
};

OBJ_CLASS_INSTANCE(registration_t, opal_free_list_item_t, nullptr, nullptr);
OBJ_CLASS_INSTANCE(get_t, opal_free_list_item_t, nullptr, nullptr);

opal_free_list_t registrations;
opal_free_list_t gets;

registration_t *registration_around(mca_btl_base_registration_handle_t *handle)
{
    return gpusm::enclosing<registration_t>(handle, offsetof(registration_t, handle));
}

get_t *get_around(gpusm::copy_request *copy)
{
    return gpusm::enclosing<get_t>(copy, offsetof(get_t, copy));
}

// Can this be device memory? Where ob1 says so itself, host messages cost no question.
bool may_be_device_memory(uint32_t flags)
{
#if OPAL_CUDA_GDR_SUPPORT
    return 0 != (flags & MCA_BTL_REG_FLAG_CUDA_GPU_MEM);
#else
    (void)flags;
    return true;
#endif
}

void tell_submissions(const gpusm::copy_engine::tally &made)
{
    static constexpr counter counters[] = {counter::single_submissions, counter::batch_submissions,
                                           counter::kernel_submissions};
    static_assert(std::size(counters) == std::tuple_size_v<gpusm::copy_engine::tally>);
    for (std::size_t way = 0; way < made.size(); ++way) {
        mca_btl_gpusm_component.counters[static_cast<unsigned>(counters[way])].store(
            made[way], std::memory_order_relaxed);
    }
}

} // namespace

namespace gpusm {

void setup_gets()
{
    constexpr int first_items = 64;
    constexpr int more_items = 64;
    constexpr int no_limit = -1;
    OBJ_CONSTRUCT(&registrations, opal_free_list_t);
    OBJ_CONSTRUCT(&gets, opal_free_list_t);
    (void)opal_free_list_init(&registrations, sizeof(registration_t), opal_cache_line_size,
                              OBJ_CLASS(registration_t), 0, 0, first_items, no_limit, more_items,
                              nullptr, 0, nullptr, nullptr, nullptr);
    (void)opal_free_list_init(&gets, sizeof(get_t), opal_cache_line_size, OBJ_CLASS(get_t), 0, 0,
                              first_items, no_limit, more_items, nullptr, 0, nullptr, nullptr,
                              nullptr);
}

void release_gets()
{
    OBJ_DESTRUCT(&gets);
    OBJ_DESTRUCT(&registrations);
}

int progress_gets(bool busy)
{
    gpu_desk *desk = mca_btl_gpusm_component.gpu;
    if (nullptr == desk) {
        return 0;
    }
    constexpr std::uint32_t calls_between_sweeps = 128;
    static std::uint32_t calls = 0;
    copy_request *finished = nullptr;
    desk->copies.hold(false);
    {
        // Another thread may be inside a driver call that takes milliseconds. Host messages are
        // not to wait for it, and this will be called again.
        const std::unique_lock guard(desk->lock, std::try_to_lock);
        if (!guard.owns_lock()) {
            return 0; // copies that wait go out with the next call, or the next copy
        }
        if (0 == ++calls % calls_between_sweeps) {
            desk->sweep();
        }
        if (!desk->copies.idle()) {
            finished = desk->copies.collect(busy);
            tell_submissions(desk->copies.submissions());
        }
        for (copy_request *each = finished; each != nullptr; each = each->next) {
            desk->imports.release(get_around(each)->mapping);
        }
    }
    int completed = 0;
    if (finished != nullptr && finished->next != nullptr) {
        open_bundles(); // for the FINs
    }
    while (finished != nullptr) {
        get_t *get = get_around(std::exchange(finished, finished->next));
        const bool copied = status::ok == get->copy.outcome;
        if (copied) {
            count(counter::get_messages, 1);
            count(counter::get_bytes, get->copy.len_bytes);
        }
        // Any failure but NOT_AVAILABLE makes ob1 fetch that region by fragments instead.
        get->cbfunc(&mca_btl_gpusm.super, get->endpoint, get->local_address, get->local_handle,
                    get->cbcontext, get->cbdata, copied ? OPAL_SUCCESS : OPAL_ERROR);
        opal_free_list_return(&gets, &get->super);
        ++completed;
    }
    close_bundles();
    return completed;
}

} // namespace gpusm

extern "C" mca_btl_base_registration_handle_t *
mca_btl_gpusm_register_mem(mca_btl_base_module_t *, mca_btl_base_endpoint_t *endpoint, void *base,
                           size_t size, uint32_t flags)
{
    const bool for_peers = 0 != (flags & MCA_BTL_REG_FLAG_REMOTE_READ);
    const bool ask = may_be_device_memory(flags);
    if (for_peers && !ask) {
        return nullptr; // host memory cannot be exported; ob1 sends it instead
    }
    if (for_peers) {
        endpoint->peer->expect_post();
    }
    gpusm::gpu_desk *desk = ask ? gpusm::gpu() : mca_btl_gpusm_component.gpu.load();
    if (for_peers && nullptr == desk) {
        return nullptr;
    }
    auto *made = reinterpret_cast<registration_t *>(opal_free_list_get(&registrations));
    if (nullptr == made) {
        return nullptr;
    }
    made->exported = nullptr;
    made->device = nullptr;
    made->plain_until = 0;
    made->handle.remote = {gpusm::no_export_slot, gpusm::no_event_slot, 0, 0, 0};
    status s = status::ok;
    if (desk != nullptr) {
        const auto address = reinterpret_cast<std::uint64_t>(base);
        const std::lock_guard guard(desk->lock);
        if (for_peers) {
            s = desk->export_range(address, size, gpusm::take_buffer_id(address), &made->exported,
                                   &made->handle.remote);
        } else if (ask) {
            const gpusm::plain_allocation *known = gpusm::known_allocation(address);
            if (known != nullptr) {
                made->plain_until = known->end;
                s = desk->devices.for_context(known->context, &made->device);
            } else {
                std::uint64_t plain_bytes = 0;
                s = desk->devices.for_address(address, &made->device, &plain_bytes);
                made->plain_until = 0 == plain_bytes ? 0 : address + plain_bytes;
            }
        }
    }
    if (status::ok != s) {
        opal_free_list_return(&registrations, &made->super);
        return nullptr;
    }
    return &made->handle;
}

extern "C" int mca_btl_gpusm_deregister_mem(mca_btl_base_module_t *,
                                            mca_btl_base_registration_handle_t *handle)
{
    registration_t *given = registration_around(handle);
    if (given->exported != nullptr) {
        gpusm::gpu_desk *desk = mca_btl_gpusm_component.gpu;
        const std::lock_guard guard(desk->lock);
        desk->exports.release(given->exported);
    }
    opal_free_list_return(&registrations, &given->super);
    return OPAL_SUCCESS;
}

extern "C" int mca_btl_gpusm_get(mca_btl_base_module_t *, mca_btl_base_endpoint_t *endpoint,
                                 void *local_address, uint64_t remote_address,
                                 mca_btl_base_registration_handle_t *local_handle,
                                 mca_btl_base_registration_handle_t *remote_handle, size_t size,
                                 int, int, mca_btl_base_rdma_completion_fn_t cbfunc,
                                 void *cbcontext, void *cbdata)
{
    gpusm::gpu_desk *desk = gpusm::gpu();
    const gpusm::remote_handle remote = remote_handle->remote;
    // The handle is the peer's word.
    if (nullptr == desk || remote_address < remote.base || size > remote.len_bytes ||
        remote_address - remote.base > remote.len_bytes - size) {
        return OPAL_ERROR;
    }
    auto *get = reinterpret_cast<get_t *>(opal_free_list_get(&gets));
    if (nullptr == get) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    const std::lock_guard guard(desk->lock);
    const registration_t *local =
        nullptr == local_handle ? nullptr : registration_around(local_handle);
    gpusm::device *into = nullptr == local ? nullptr : local->device;
    status s = nullptr == into ? desk->devices.for_host(&into) : status::ok;
    if (status::ok == s) {
        s = desk->import(*endpoint, remote, *into, &get->mapping);
    }
    if (status::ok == s) {
        s = desk->event_of(*endpoint, remote, *into, &get->copy.wait_for);
        if (status::ok != s) {
            desk->imports.release(get->mapping);
        }
    }
    if (status::ok != s) {
        gpusm::log_line(gpusm::log_level::info,
                        "a get of %zu bytes goes through host memory instead: %s", size,
                        gpusm::to_string(s));
        opal_free_list_return(&gets, &get->super);
        return gpusm::to_opal(s);
    }
    get->endpoint = endpoint;
    get->local_address = local_address;
    get->local_handle = local_handle;
    get->cbfunc = cbfunc;
    get->cbcontext = cbcontext;
    get->cbdata = cbdata;
    get->copy.destination = reinterpret_cast<std::uint64_t>(local_address);
    get->copy.source = get->mapping->local_base + (remote_address - get->mapping->remote_base);
    get->copy.len_bytes = size;
    // A kernel that writes behind an allocation takes the whole context down; the driver's copies
    // only fail.
    get->copy.on_device = local != nullptr && get->copy.destination + size <= local->plain_until;
    desk->copies.submit(*into, &get->copy);
    return OPAL_SUCCESS;
}
