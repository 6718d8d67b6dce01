// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_import.cc: the importer's side of the GPU desk: peers' device memory, mapped once and
// kept while its export lives.
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"

#include "opal/mca/btl/gpusm/base/log.h"
#include "opal/mca/btl/gpusm/ipc/legacy.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

namespace gpusm {

namespace {

// Messages with file descriptors that wait to be taken. Each keeps its memory alive, so old ones
// go; whoever still wants them asks again.
constexpr std::size_t most_arrived = 64;

// A mapping that no message has used for so long is closed, because it keeps the memory taken when
// its owner frees that and does not call MPI any more. Much longer than opening it anew takes, and
// counted in seconds in which this process has called MPI: a program that computes for a while
// keeps its mappings.
constexpr std::uint64_t idle_seconds = 5;

// The owner has ended that generation.
bool is_over(const segment_view &owner, std::uint32_t slot, std::uint64_t generation)
{
    return slot >= owner.export_slots ||
           generation != owner.exports[slot].generation.load(std::memory_order_acquire);
}

} // namespace

bool read_export(const peer_segment &of, const remote_handle &handle, export_slot *out)
{
    const segment_view &view = of.view();
    if (0 == handle.generation || handle.slot >= view.export_slots ||
        handle.slot >= view.header->exports_committed.load(std::memory_order_acquire)) {
        return false;
    }
    const export_slot &slot = view.exports[handle.slot];
    if (handle.generation != slot.generation.load(std::memory_order_acquire)) {
        return false;
    }
    out->base = slot.base;
    out->len_bytes = slot.len_bytes;
    std::memcpy(out->device_uuid, slot.device_uuid, sizeof(slot.device_uuid));
    std::memcpy(out->memory_handle, slot.memory_handle, sizeof(slot.memory_handle));
    out->kind = slot.kind;
    // The fields were those of that generation if it is still the same one.
    std::atomic_thread_fence(std::memory_order_acquire);
    return handle.generation == slot.generation.load(std::memory_order_relaxed) &&
           handle.base == out->base && handle.len_bytes == out->len_bytes &&
           handle.kind == out->kind;
}

status gpu_desk::event_of(const mca_btl_base_endpoint_t &from, const remote_handle &handle,
                          const device &into, CUevent *out)
{
    *out = nullptr;
    const segment_view &view = from.peer->shared().view();
    if (no_event_slot == handle.event_slot) {
        return status::ok;
    }
    if (handle.event_slot >= view.event_slots ||
        1 != view.events[handle.event_slot].ready.load(std::memory_order_acquire)) {
        return status::bad_peer;
    }
    for (const opened_event &each : events_) {
        if (each.owner == from.number && each.slot == handle.event_slot &&
            each.device == into.index) {
            *out = each.event;
            return status::ok;
        }
    }
    CUipcEventHandle described;
    std::memcpy(&described, view.events[handle.event_slot].event_handle, sizeof(described));
    const status s = open_event(driver, into, described, out);
    if (status::ok == s) {
        events_.push_back({from.number, handle.event_slot, into.index, *out});
    }
    return s;
}

status gpu_desk::import(mca_btl_base_endpoint_t &from, const remote_handle &handle, device &into,
                        mapping **out)
{
    // Before memory is mapped anew, memory that its owner has freed is given back.
    close_stale_mappings_of(from);
    // The driver maps memory of a pool once in a process, for all its devices.
    const bool of_pool = share_kind::pool == handle.kind;
    if (of_pool) {
        if (const status s = allow_pools_of(from); status::ok != s) {
            return s;
        }
    }
    device &home = home_of(into);
    const auto acquire = [&](device &in) {
        const std::uint32_t device = of_pool ? 0 : in.index;
        const mapping_key key{from.number, device, handle.slot, handle.generation};
        const import_request request{&from, &handle, &in};
        return imports.acquire(key, handle.base, handle.len_bytes, &request, out);
    };
    const status s = acquire(home);
    // The program may have opened memory of that peer itself, in the context of this buffer.
    return status::driver_failed == s && &home != &into ? acquire(into) : s;
}

// The driver opens CUDA IPC memory of one process in one context of a device only, as long as any
// of it is open (CUDA_ERROR_INVALID_HANDLE in the others). Copies in the other contexts can read it
// there. So all of it is opened in the first context of the device that lives.
device &gpu_desk::home_of(device &into)
{
    for (const auto &each : devices.all()) {
        if (each.get() == &into) {
            break;
        }
        if (each->ordinal == into.ordinal && devices.is_alive(*each)) {
            return *each;
        }
    }
    return into;
}

void gpu_desk::keep_descriptors(mca_btl_base_endpoint_t &from, descriptor_message &&message)
{
    if (arrived_.size() >= most_arrived) {
        arrived_.erase(arrived_.begin());
    }
    arrived_.push_back({from.number, std::move(message)});
}

// Moves what has come for that export to *out. `not_ready`: nothing has.
status gpu_desk::take_descriptors(const import_request &wanted, descriptor_message *out)
{
    const auto found =
        std::find_if(arrived_.begin(), arrived_.end(), [&](const arrived_descriptors &each) {
            return each.owner == wanted.from->number &&
                   each.message.label.slot == wanted.handle->slot &&
                   each.message.label.generation == wanted.handle->generation;
        });
    if (found == arrived_.end()) {
        return status::not_ready;
    }
    *out = std::move(found->message);
    arrived_.erase(found);
    return status::ok;
}

status gpu_desk::open_mapping(void *self, const mapping_key &key, std::uint64_t,
                              std::uint64_t len_bytes, const void *request,
                              std::uint64_t *local_base)
{
    auto &desk = *static_cast<gpu_desk *>(self);
    const auto &wanted = *static_cast<const import_request *>(request);
    export_slot entry{};
    if (!read_export(wanted.from->peer->shared(), *wanted.handle, &entry)) {
        return status::not_found;
    }
    status opened = status::bad_peer;
    switch (entry.kind) {
    case share_kind::legacy:
        opened = desk.open_legacy(entry, *wanted.into, local_base);
        break;
    case share_kind::descriptors:
        return desk.open_chunks(wanted, local_base); // checks every length
    case share_kind::pool:
        opened = desk.open_pool_pointer(wanted, entry, local_base);
        break;
    case share_kind::none:
    case share_kind::staged:
    case share_kind::host:
        break;
    }
    if (status::ok != opened) {
        return opened;
    }
    const status checked = check_mapped_length(desk.driver, *wanted.into, *local_base, len_bytes);
    if (status::ok != checked) {
        close_mapping(self, key, *local_base);
    }
    return checked;
}

status gpu_desk::open_legacy(const export_slot &entry, device &into, std::uint64_t *local_base)
{
    CUipcMemHandle handle;
    std::memcpy(&handle, entry.memory_handle, sizeof(handle));
    return open_memory(driver, into, handle, local_base);
}

status gpu_desk::open_chunks(const import_request &wanted, std::uint64_t *local_base)
{
    descriptor_message message;
    if (const status s = take_descriptors(wanted, &message); status::ok != s) {
        return s;
    }
    std::uint64_t total = 0;
    std::vector<std::uint64_t> lengths(message.lengths.begin(),
                                       message.lengths.begin() + message.label.count);
    std::vector<int> descriptors;
    for (std::uint32_t i = 0; i < message.label.count; ++i) {
        descriptors.push_back(message.fds[i].get());
    }
    for (const std::uint64_t each : lengths) {
        total = each > wanted.handle->len_bytes - total ? 0 : total + each;
    }
    if (total != wanted.handle->len_bytes) {
        return status::bad_peer;
    }
    const status s = map_chunks(driver, *wanted.into, lengths.data(), descriptors.data(),
                                lengths.size(), local_base);
    if (status::ok == s) {
        chunks_.push_back({*local_base, std::move(lengths), nullptr});
    }
    return s;
}

// A pool that is imported must be opened to each device, also to those that came later.
status gpu_desk::allow_pools_of(const mca_btl_base_endpoint_t &owner)
{
    for (imported_pool &each : imported_pools_) {
        while (each.owner == owner.number && each.devices < devices.all().size()) {
            const status s = allow_pool(driver, each.handle, *devices.all()[each.devices]);
            // A device that cannot reach it may be another one than the one that is to.
            if (status::ok != s && status::unsupported != s) {
                return s;
            }
            ++each.devices;
        }
    }
    return status::ok;
}

// The pool's descriptor comes with each of its allocations, because nothing else tells whether it
// is still the pool that was imported before. The driver gives the same handle for the same pool,
// and counts how often it did.
status gpu_desk::import_pool_of(const import_request &wanted, CUmemoryPool *out)
{
    descriptor_message message;
    status s = take_descriptors(wanted, &message);
    if (status::ok == s) {
        s = 1 == message.label.count ? import_pool(driver, message.fds[0].get(), out)
                                     : status::bad_peer;
    }
    if (status::ok != s) {
        return s;
    }
    const auto known = std::find_if(imported_pools_.begin(), imported_pools_.end(),
                                    [&](const imported_pool &each) { return each.handle == *out; });
    if (known == imported_pools_.end()) {
        imported_pools_.push_back({wanted.from->number, 0, *out, 1, 0});
    } else {
        ++known->imports;
    }
    return status::ok;
}

void gpu_desk::close_all_imports(const imported_pool &of)
{
    for (std::uint32_t i = 0; i < of.imports; ++i) {
        close_pool(driver, of.handle);
    }
}

void gpu_desk::close_pool_without_pointers(CUmemoryPool pool)
{
    const auto found = std::find_if(
        imported_pools_.begin(), imported_pools_.end(),
        [&](const imported_pool &each) { return each.handle == pool && 0 == each.pointers; });
    if (found != imported_pools_.end()) {
        close_all_imports(*found);
        imported_pools_.erase(found);
    }
}

status gpu_desk::open_pool_pointer(const import_request &wanted, const export_slot &entry,
                                   std::uint64_t *local_base)
{
    CUmemoryPool pool = nullptr;
    status s = import_pool_of(wanted, &pool);
    if (status::ok != s) {
        return s;
    }
    s = allow_pools_of(*wanted.from);
    if (status::ok == s) {
        CUmemPoolPtrExportData data;
        std::memcpy(&data, entry.memory_handle, sizeof(data));
        s = import_pool_pointer(driver, *wanted.into, pool, data, local_base);
    }
    if (status::ok == s) {
        chunks_.push_back({*local_base, {}, pool});
        ++std::find_if(imported_pools_.begin(), imported_pools_.end(),
                       [&](const imported_pool &each) { return each.handle == pool; })
              ->pointers;
    } else {
        close_pool_without_pointers(pool);
    }
    return s;
}

void gpu_desk::close_mapping(void *self, const mapping_key &key, std::uint64_t local_base)
{
    auto &desk = *static_cast<gpu_desk *>(self);
    device &into = *desk.devices.all()[key.device];
    (void)desk.devices.is_alive(into); // or it must not be entered
    const auto found =
        std::find_if(desk.chunks_.begin(), desk.chunks_.end(),
                     [&](const opened_chunks &each) { return each.local_base == local_base; });
    if (found == desk.chunks_.end()) {
        close_memory(desk.driver, into, local_base);
        return;
    }
    const opened_chunks closed = std::move(*found);
    desk.chunks_.erase(found);
    if (nullptr == closed.pool) {
        unmap_chunks(desk.driver, local_base, closed.lengths.data(), closed.lengths.size());
        return;
    }
    free_pool_pointer(desk.driver, into, local_base);
    for (imported_pool &each : desk.imported_pools_) {
        each.pointers -= each.handle == closed.pool ? 1 : 0;
    }
    desk.close_pool_without_pointers(closed.pool);
}

void gpu_desk::close_stale_mappings_of(mca_btl_base_endpoint_t &peer)
{
    if (!peer.peer->attached()) {
        return;
    }
    const peer_segment &shared = peer.peer->shared();
    const std::uint64_t epoch = shared.view().header->retire_epoch.load(std::memory_order_acquire);
    if (epoch == peer.retire_epoch) {
        return;
    }
    peer.retire_epoch = epoch;
    imports.invalidate(
        peer.number,
        [](void *segment, const mapping_key &key) {
            return is_over(static_cast<const peer_segment *>(segment)->view(), key.slot,
                           key.generation);
        },
        const_cast<peer_segment *>(&shared));
    std::erase_if(arrived_, [&](const arrived_descriptors &each) {
        return each.owner == peer.number &&
               is_over(shared.view(), each.message.label.slot, each.message.label.generation);
    });
}

void gpu_desk::close_stale_mappings()
{
    for (std::size_t i = 0; mca_btl_base_endpoint_t *each = endpoint_at(i); ++i) {
        close_stale_mappings_of(*each);
    }
}

// One at a time, as closing may take the driver some hundred microseconds.
void gpu_desk::close_idle_mapping()
{
    timespec now{};
    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    if (now.tv_sec != second_) {
        second_ = now.tv_sec;
        imports.begin_epoch();
    }
    (void)imports.close_idle(idle_seconds);
}

} // namespace gpusm
