// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_views.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace gpusm {

namespace {

std::uint64_t place_in_view(const transfer *get)
{
    return reinterpret_cast<std::uint64_t>(get->given.local_address);
}

// Up to where a kernel may touch what is registered.
std::uint64_t end_of(const registration &of)
{
    return nullptr == of.view ? of.plain_until : of.view->address + of.view->len_bytes;
}

void give_packed(gpu_side &side, packed_block *block)
{
    if (block->on != nullptr) {
        side.views.give_packed(std::exchange(*block, {}));
    }
}

} // namespace

status register_view(gpu_side &side, const mca_btl_base_endpoint_t *endpoint, registration *made,
                     std::uint64_t address, std::size_t size, bool for_peers)
{
    view *of = side.views.find(address);
    if (nullptr == of || !side.views.is_there(*of)) {
        return status::bad_argument;
    }
    made->device = of->on;
    made->view = of;
    if (!for_peers) {
        return status::ok; // the length is that of the message, which may be too long
    }
    if (address != of->address || size > of->len_bytes || 0 == size) {
        return status::unsupported;
    }
    made->packed = side.views.take_packed(*of->on, size);
    if (nullptr == made->packed.on) {
        return status::no_memory;
    }
    status s = side.views.pack(*of, address, made->packed.address, size);
    if (status::ok == s) {
        s = offer_device(side, endpoint, made, made->packed.address, size);
    }
    if (status::ok == s) {
        count(counter::packed_messages, 1);
        count(counter::packed_bytes, size);
    } else {
        deregister_view(side, made);
    }
    return s;
}

void deregister_view(gpu_side &side, registration *given)
{
    give_packed(side, &given->packed);
}

std::uint64_t address_of_packed(const remote_handle &handle, std::uint64_t address)
{
    return handle.base + view_offset(address);
}

status start_strided(transfer *get)
{
    if (!get->kernel_reads) {
        return status::unsupported;
    }
    const status s = get->gpu().views.describe(place_in_view(get), get->copy.source,
                                               get->copy.len_bytes, &get->strided);
    if (status::ok == s) {
        get->copy.strided = &get->strided;
        get->gpu().copies.submit(*get->into, &get->copy);
    }
    return s;
}

bool pack_first(transfer *get)
{
    gpu_side &side = get->gpu();
    if (nullptr == get->packed.on) {
        get->packed = side.views.take_packed(*get->into, get->copy.len_bytes);
    }
    get->unpacks = get->packed.on != nullptr;
    get->copy.destination = get->packed.address;
    get->copy.kernel_reaches = get->unpacks;
    return get->unpacks;
}

bool strided_otherwise(transfer *get)
{
    get->copy.strided = nullptr;
    if (get->packed.on != nullptr || get->known.own_process) { // it was unpacking, or both is ours
        get->copy.outcome = get->gpu().views.copy_locked(
            place_in_view(get), get->packed.on != nullptr ? get->packed.address : get->copy.source,
            get->copy.len_bytes);
        return false;
    }
    if (!pack_first(get)) {
        return false;
    }
    get->copy.kernel_reaches = get->kernel_reads;
    get->gpu().copies.submit(*get->into, &get->copy);
    return true;
}

status unpack(transfer *get)
{
    gpu_side &side = get->gpu();
    get->unpacks = false;
    const status s = side.views.describe(place_in_view(get), get->packed.address,
                                         get->copy.len_bytes, &get->strided);
    if (status::ok != s) {
        return side.views.copy_locked(place_in_view(get), get->packed.address, get->copy.len_bytes);
    }
    get->copy.strided = &get->strided;
    get->copy.wait_for = nullptr;
    side.copies.submit(*get->into, &get->copy);
    return status::busy;
}

int copy_view_for_self(const registration &from, const registration &into, std::uint64_t source,
                       const get_arguments &given, mca_btl_base_endpoint_t *endpoint,
                       std::size_t size)
{
    gpu_side &side = *endpoint->transport->process.gpu_if_made();
    const auto destination = reinterpret_cast<std::uint64_t>(given.local_address);
    std::unique_lock guard(side.lock);
    if (into.view != nullptr) { // the length is that of the message, which may be too long
        const std::uint64_t before = view_offset(destination);
        if (before >= into.view->len_bytes) {
            return OPAL_ERROR;
        }
        size = std::min<std::uint64_t>(size, into.view->len_bytes - before);
    }
    if (from.device == into.device && source + size <= end_of(from) &&
        destination + size <= end_of(into)) {
        facts known{memory_kind::mappable, memory_kind::mappable, size, true};
        transfer *get = new_transfer(endpoint, given, known);
        if (nullptr == get) {
            return OPAL_ERR_OUT_OF_RESOURCE;
        }
        get->goes = choose(known);
        get->into = into.device;
        get->into_view = into.view;
        get->copy.source = source;
        if (status::ok == side.views.describe(destination, source, size, &get->strided)) {
            get->copy.strided = &get->strided;
            get->copy.within_device = true;
            get->copy.wait_for = side.event_before_copies(*from.device);
            side.copies.submit(*into.device, &get->copy);
            return OPAL_SUCCESS;
        }
        endpoint->transport->gets->all.give(get);
    }
    const status s = side.views.copy_locked(destination, source, size);
    guard.unlock();
    if (status::ok != s) {
        return OPAL_ERROR; // ob1 takes fragments
    }
    count(counter::self_messages, 1);
    count(counter::self_bytes, size);
    given.call_back(endpoint, OPAL_SUCCESS);
    return OPAL_SUCCESS;
}

} // namespace gpusm
