// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_views.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <utility>

namespace gpusm {

namespace {

std::uint64_t place_in_view(const transfer *get)
{
    return reinterpret_cast<std::uint64_t>(get->given.local_address);
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
    const status s = get->gpu().views.unpacking(
        *get->into_view, place_in_view(get), get->copy.source, get->copy.len_bytes, &get->strided);
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
    if (get->packed.on != nullptr) { // it was unpacking
        get->copy.outcome = get->gpu().views.copy_locked(place_in_view(get), get->packed.address,
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
    const status s = side.views.unpacking(*get->into_view, place_in_view(get), get->packed.address,
                                          get->copy.len_bytes, &get->strided);
    if (status::ok != s) {
        return side.views.copy_locked(place_in_view(get), get->packed.address, get->copy.len_bytes);
    }
    get->copy.strided = &get->strided;
    get->copy.wait_for = nullptr;
    side.copies.submit(*get->into, &get->copy);
    return status::busy;
}

} // namespace gpusm
