// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_views.h"

#include <algorithm>
#include <new>
#include <utility>

namespace gpusm {

namespace {

// Names the blocks to the peer, whose kernel is to read them. Anything but `ok`: they have to be
// packed.
status offer_blocks(gpu_side &side, const mca_btl_base_endpoint_t *endpoint, registration *made,
                    const view &of, std::size_t size)
{
    const bool is_listed = 0 != of.memory.layout.blocks;
    if (!offers_blocks(is_listed ? 0 : of.memory.layout.block_bytes, size)) {
        return status::unsupported;
    }
    remote_handle memory{};
    const status s =
        side.exports.export_range(of.lowest, of.end - of.lowest, of.buffer_id, export_use::read,
                                  &made->exported, &memory, endpoint->link->maps);
    if (status::ok != s) {
        return s;
    }
    if (!side.described.publish(memory, of.memory, of.address, size, made, &made->handle.remote)) {
        side.exports.release(std::exchange(made->exported, nullptr));
        return status::no_memory;
    }
    count(endpoint, counter::described_messages, 1);
    count(endpoint, counter::described_bytes, size);
    return status::ok;
}

status offer_packed(gpu_side &side, const mca_btl_base_endpoint_t *endpoint, registration *made,
                    view &of, std::size_t size)
{
    made->packed = side.views.take_packed(*of.on, size);
    if (nullptr == made->packed.on) {
        return status::no_memory;
    }
    status s = side.views.pack(of, of.address, made->packed.address, size, true);
    if (status::ok == s) {
        s = offer_device(side, endpoint, made, made->packed.address, size);
    }
    if (status::ok == s) {
        count(endpoint, counter::packed_messages, 1);
        count(endpoint, counter::packed_bytes, size);
    } else {
        deregister_view(side, made);
    }
    return s;
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
    made->plain_until = of->address + of->len_bytes;
    if (!for_peers) {
        return status::ok; // the length is that of the message, which may be too long
    }
    if (address != of->address || size > of->len_bytes || 0 == size) {
        return status::unsupported;
    }
    const status s = offer_blocks(side, endpoint, made, *of, size);
    return status::ok == s ? s : offer_packed(side, endpoint, made, *of, size);
}

void deregister_view(gpu_side &side, registration *given)
{
    if (share_kind::strided == given->handle.remote.kind) {
        side.described.withdraw(given->handle.remote);
    }
    if (given->packed.on != nullptr) {
        side.views.give_packed(std::exchange(given->packed, {}));
    }
}

std::uint64_t address_in_handle(const remote_handle &handle, std::uint64_t address)
{
    return handle.base + view_offset(address);
}

bool find_blocks(transfer *get)
{
    get->from_blocks = true;
    const remote_handle &named = get->described = get->remote;
    // Its base is the beginning of a view: what is behind it is told from the address alone.
    return 0 == view_offset(named.base) &&
           view_directory::read(*get->endpoint->peer, named, &get->remote, &get->blocks);
}

status map_blocks(transfer *get)
{
    // The message is the whole of what is described, up to where the receiver's buffer ends.
    strided_side mapped = get->blocks;
    mapped.address += get->mapping->local_base - get->mapping->remote_base;
    try {
        get->from_view = get->gpu().views.open_mapped(
            mapped, view_offset(get->remote_address) + get->job.copy.len_bytes, *get->into,
            get->kernel_reads);
    } catch (const std::bad_alloc &) {
        get->from_view = nullptr;
    }
    if (nullptr == get->from_view) {
        return status::no_memory;
    }
    get->job.copy.source = get->from_view->address + view_offset(get->remote_address);
    if (!get->kernel_reads || !get->gpu().has_kernels()) {
        get->known.set(fact::sender_writes, false); // block by block, which is for one side
        choose_mode(get);
    }
    return status::ok;
}

std::size_t size_in_view(const view *into, std::uint64_t address, std::size_t size)
{
    if (nullptr == into) {
        return size;
    }
    const std::uint64_t before = view_offset(address);
    return before >= into->len_bytes ? 0 : std::min<std::uint64_t>(size, into->len_bytes - before);
}

} // namespace gpusm
