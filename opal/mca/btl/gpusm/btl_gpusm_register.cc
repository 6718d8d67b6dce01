// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_register.cc: what ob1 registers: memory that peers are to read, for which it gets a
// handle to carry over, and the buffers of gets.
#include "opal/mca/btl/gpusm/btl_gpusm_get.h"
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"
#include "opal/mca/btl/gpusm/btl_gpusm_smsc.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <mutex>
#include <vector>

using gpusm::registration;

OBJ_CLASS_DECLARATION(registration);
OBJ_CLASS_INSTANCE(registration, opal_free_list_item_t, nullptr, nullptr);

namespace {

using gpusm::status;

opal_free_list_t registrations;
// All registrations ever made, by number; guarded by the component's lock.
std::vector<registration *> numbered;

// Can this be device memory? Where ob1 says so itself, host messages cost no question.
bool may_be_device_memory(const void *base, uint32_t flags)
{
#if OPAL_CUDA_GDR_SUPPORT
    (void)base;
    return 0 != (flags & MCA_BTL_REG_FLAG_CUDA_GPU_MEM);
#else
    (void)flags;
    int device = 0;
    uint64_t kind = 0;
    return 0 != opal_accelerator.check_addr(base, &device, &kind);
#endif
}

int number_registration(opal_free_list_item_t *item, void *)
{
    auto *made = reinterpret_cast<registration *>(item);
    const std::lock_guard guard(*mca_btl_gpusm_component.lock);
    made->number = static_cast<std::uint32_t>(numbered.size());
    made->turn = 0;
    numbered.push_back(made);
    return OPAL_SUCCESS;
}

// The peer is to ask for this memory, as it cannot map it.
void name_registration(registration *of, gpusm::share_kind kind, std::uint64_t address,
                       std::size_t len_bytes)
{
    of->handle.remote = {of->number, gpusm::no_event_slot, kind, 0, of->turn, address, len_bytes};
}

// Sender's side, host memory: the peer reads it by itself if it can, or asks for it if its own
// buffer is device memory.
void offer_host(mca_btl_base_endpoint_t *endpoint, registration *made, void *base, std::size_t size)
{
    const bool single = gpusm::smsc_reaches_us(endpoint);
    const auto address = reinterpret_cast<std::uint64_t>(base);
    name_registration(made, gpusm::share_kind::host, address, size);
    gpusm::gpu_side *side = mca_btl_gpusm_component.gpu;
    const bool locked =
        side != nullptr && gpusm::writes_to(endpoint, size) && side->is_page_locked(address, size);
    made->handle.remote.flags = static_cast<std::uint8_t>((single ? 0 : gpusm::no_single_copy) |
                                                          (locked ? gpusm::page_locked : 0));
    gpusm::add_to(mca_btl_gpusm_component.host_offers, std::uint32_t{1});
}

// In which context the memory is used, and how far a kernel may write.
status find_device(gpusm::gpu_side &side, registration *made, std::uint64_t address)
{
    std::uint64_t plain_bytes = 0;
    const status s = side.devices.for_address(address, &made->device, &plain_bytes);
    made->plain_until = 0 == plain_bytes ? 0 : address + plain_bytes;
    return s;
}

// Shorter messages out of memory that the peer cannot map go in fragments: a stream takes a message
// and a copy on either side, whatever its length.
constexpr std::size_t staged_least_bytes = std::size_t{16} * 1024;

// Sender's side, device memory: makes it known to the peer.
status offer(gpusm::gpu_side &side, const mca_btl_base_endpoint_t *endpoint, registration *made,
             std::uint64_t address, std::size_t size)
{
    const unsigned long long buffer_id = gpusm::take_buffer_id(address);
    const status s = side.export_range(address, size, buffer_id, &made->exported,
                                       &made->handle.remote, endpoint->staged_devices);
    if (status::unsupported != s || size < staged_least_bytes) {
        return s;
    }
    if (status::ok != find_device(side, made, address) || nullptr == made->device) {
        return status::unsupported;
    }
    name_registration(made, gpusm::share_kind::staged, address, size);
    return status::ok;
}

// Receiver's side: in which context the buffer of a get is written.
status prepare_local(gpusm::gpu_side &side, registration *made, std::uint64_t address)
{
    gpusm::known_memory *known = gpusm::known_allocation(address);
    if (nullptr == known) {
        return find_device(side, made, address);
    }
    made->plain_until = known->plain() ? known->end() : 0;
    // Memory without a context of its own outlives the one in which it was used before.
    const bool is_known =
        known->on != nullptr && (known->context != nullptr || side.devices.is_alive(*known->on));
    const status s =
        is_known ? status::ok : side.devices.for_memory(known->context, known->ordinal, &known->on);
    made->device = known->on;
    return s;
}

} // namespace

namespace gpusm {

void setup_free_list(opal_free_list_t *list, std::size_t item_bytes, opal_class_t *of,
                     opal_free_list_item_init_fn_t number)
{
    constexpr int first_items = 64;
    constexpr int more_items = 64;
    constexpr int no_limit = -1;
    OBJ_CONSTRUCT(list, opal_free_list_t);
    (void)opal_free_list_init(list, item_bytes, opal_cache_line_size, of, 0, 0, first_items,
                              no_limit, more_items, nullptr, 0, nullptr, number, nullptr);
}

void setup_registrations()
{
    setup_free_list(&registrations, sizeof(registration), OBJ_CLASS(registration),
                    number_registration);
}

void release_registrations()
{
    OBJ_DESTRUCT(&registrations);
    numbered.clear();
}

registration *registration_around(mca_btl_base_registration_handle_t *handle)
{
    return enclosing<registration>(handle, offsetof(registration, handle));
}

registration *registration_named(const remote_handle &handle, std::uint64_t address,
                                 std::uint64_t len_bytes)
{
    registration *named = nullptr;
    {
        const std::lock_guard guard(*mca_btl_gpusm_component.lock);
        if (handle.slot < numbered.size()) {
            named = numbered[handle.slot];
        }
    }
    const bool registered = named != nullptr && 0 != named->turn % 2 &&
                            named->turn == handle.generation &&
                            named->handle.remote.kind == handle.kind;
    return registered && covers(named->handle.remote, address, len_bytes) ? named : nullptr;
}

} // namespace gpusm

extern "C" mca_btl_base_registration_handle_t *
mca_btl_gpusm_register_mem(mca_btl_base_module_t *, mca_btl_base_endpoint_t *endpoint, void *base,
                           size_t size, uint32_t flags)
{
    const bool for_peers = 0 != (flags & MCA_BTL_REG_FLAG_REMOTE_READ);
    const bool ask = may_be_device_memory(base, flags);
    if (MCA_BTL_ENDPOINT_ANY == endpoint) {
        return nullptr; // handles are for one peer
    }
    gpusm::gpu_side *side = ask ? gpusm::gpu() : nullptr;
    if (ask && for_peers && nullptr == side) {
        return nullptr;
    }
    auto *made = reinterpret_cast<registration *>(opal_free_list_get(&registrations));
    if (nullptr == made) {
        return nullptr;
    }
    ++made->turn;
    made->exported = nullptr;
    made->device = nullptr;
    made->streamed = false;
    made->plain_until = 0;
    made->handle.remote = {
        gpusm::no_export_slot, gpusm::no_event_slot, gpusm::share_kind::none, 0, 0, 0, 0};
    status s = status::ok;
    if (side != nullptr) {
        const auto address = reinterpret_cast<std::uint64_t>(base);
        const std::lock_guard guard(side->lock);
        s = for_peers ? offer(*side, endpoint, made, address, size)
                      : prepare_local(*side, made, address);
    } else if (for_peers) {
        offer_host(endpoint, made, base, size);
    }
    if (status::ok != s) {
        gpusm::log_line(gpusm::log_level::info, "a message of %zu bytes goes in fragments: %s",
                        size, gpusm::to_string(s));
        ++made->turn;
        opal_free_list_return(&registrations, &made->super);
        return nullptr;
    }
    return &made->handle;
}

extern "C" int mca_btl_gpusm_deregister_mem(mca_btl_base_module_t *,
                                            mca_btl_base_registration_handle_t *handle)
{
    registration *given = gpusm::registration_around(handle);
    if (gpusm::gpu_side *side = mca_btl_gpusm_component.gpu; side != nullptr) {
        const std::lock_guard guard(side->lock);
        ++given->turn;
        if (given->exported != nullptr) {
            side->exports.release(given->exported);
        }
    } else {
        ++given->turn;
    }
    if (given->streamed) {
        gpusm::forget_source(given);
    }
    if (gpusm::share_kind::host == given->handle.remote.kind) {
        gpusm::add_to(mca_btl_gpusm_component.host_offers, ~std::uint32_t{0}); // one less
    }
    opal_free_list_return(&registrations, &given->super);
    return OPAL_SUCCESS;
}
