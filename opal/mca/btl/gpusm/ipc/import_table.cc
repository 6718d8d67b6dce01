// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/ipc/import_table.h"

#include "opal/mca/btl/gpusm/ipc/legacy.h"
#include "opal/mca/btl/gpusm/ipc/memory_kind.h"
#include "opal/mca/btl/gpusm/ipc/pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gpusm {

namespace {

// Mappings that stay although nobody uses them.
constexpr std::size_t most_unused = 1024;

// After so many failures in a row the driver is not asked any more.
constexpr unsigned most_failures = 4;

} // namespace

bool is_over(const segment_view &owner, std::uint32_t slot, std::uint64_t generation)
{
    return slot >= owner.export_slots ||
           generation != owner.exports[slot].generation.load(std::memory_order_acquire);
}

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

import_table::import_table(const driver_api &driver, device_table &devices, fd_passing &fds,
                           std::size_t max_bytes)
    : driver_(driver), devices_(devices), fds_(fds),
      cache_({this, open, close}, {most_unused, max_bytes})
{
}

import_table::~import_table()
{
    for (const opened_event &each : events_) {
        const driver_scope scope(driver_, devices_.all()[each.device]->context);
        if (scope.entered()) {
            (void)driver_.event_destroy(each.event);
        }
    }
}

status import_table::event_of(std::uint32_t owner, const peer &from, const remote_handle &handle,
                              const device &into, CUevent *out)
{
    *out = nullptr;
    const segment_view &view = from.shared().view();
    if (no_event_slot == handle.event_slot) {
        return status::ok;
    }
    if (handle.event_slot >= view.event_slots ||
        1 != view.events[handle.event_slot].ready.load(std::memory_order_acquire)) {
        return status::bad_peer;
    }
    for (const opened_event &each : events_) {
        if (each.owner == owner && each.slot == handle.event_slot && each.device == into.index) {
            *out = each.event;
            return status::ok;
        }
    }
    CUipcEventHandle described;
    std::memcpy(&described, view.events[handle.event_slot].event_handle, sizeof(described));
    const status s = open_event(driver_, into, described, out);
    if (status::ok == s) {
        events_.push_back({owner, handle.event_slot, into.index, *out});
    }
    return s;
}

status import_table::import(std::uint32_t owner, const peer &from, const remote_handle &handle,
                            device &into, mapping **out)
{
    // Before memory is mapped anew, memory that its owner has freed is given back.
    close_over(owner, from);
    const bool of_pool = share_kind::pool == handle.kind;
    const auto acquire = [&](device &in) {
        // The driver maps memory of a pool once in a process, for all its devices.
        const mapping_key key{owner, of_pool ? 0 : in.index, handle.slot, handle.generation};
        const request wanted{&from, &handle, &in};
        return cache_.acquire(key, handle.base, handle.len_bytes, &wanted, out);
    };
    device &home = home_of(into);
    status s = acquire(home);
    if (status::driver_failed == s && &home != &into) {
        // The program may have opened memory of that peer itself, in the context of this buffer.
        s = acquire(into);
    }
    if (status::ok == s && of_pool) {
        s = allow(*find_pool(opened_.find((*out)->local_base)->second.pool), into);
        if (status::ok != s) {
            cache_.release(*out);
        }
    }
    return s;
}

// The driver opens CUDA IPC memory of one process in one context of a device only, as long as any
// of it is open (CUDA_ERROR_INVALID_HANDLE in the others). Copies in the other contexts can read it
// there. So all of it is opened in the first context of the device that lives.
device &import_table::home_of(device &into)
{
    for (const auto &each : devices_.all()) {
        if (each.get() == &into) {
            break;
        }
        if (each->ordinal == into.ordinal && devices_.is_alive(*each)) {
            return *each;
        }
    }
    return into;
}

import_table::device_pair &import_table::pair_of(const export_slot &entry, const device &into)
{
    for (device_pair &each : pairs_) {
        if (each.into == into.ordinal && each.kind == entry.kind &&
            0 == std::memcmp(each.owner.data(), entry.device_uuid, each.owner.size())) {
            return each;
        }
    }
    device_pair made{{}, into.ordinal, entry.kind, 0};
    std::memcpy(made.owner.data(), entry.device_uuid, made.owner.size());
    return pairs_.emplace_back(made);
}

status import_table::open(void *self, const mapping_key &key, std::uint64_t,
                          std::uint64_t len_bytes, const void *open_argument,
                          std::uint64_t *local_base)
{
    auto &table = *static_cast<import_table *>(self);
    const auto &wanted = *static_cast<const request *>(open_argument);
    export_slot entry{};
    if (!read_export(wanted.from->shared(), *wanted.handle, &entry)) {
        return status::not_found;
    }
    device_pair &pair = table.pair_of(entry, *wanted.into);
    if (pair.failures >= most_failures) {
        return status::unsupported;
    }
    status s = table.open_way(key, wanted, entry, local_base);
    if (status::ok == s && share_kind::descriptors != entry.kind) { // those have been added up
        s = check_mapped_length(table.driver_, *wanted.into, *local_base, len_bytes);
        if (status::ok != s) {
            close(self, key, *local_base);
        }
    }
    if (status::ok == s) {
        pair.failures = 0;
    } else if (status::unsupported == s || status::driver_failed == s) {
        ++pair.failures;
    }
    return s;
}

status import_table::open_way(const mapping_key &key, const request &wanted,
                              const export_slot &entry, std::uint64_t *local_base)
{
    switch (entry.kind) {
    case share_kind::legacy: {
        CUipcMemHandle handle;
        std::memcpy(&handle, entry.memory_handle, sizeof(handle));
        return open_memory(driver_, *wanted.into, handle, local_base);
    }
    case share_kind::descriptors:
        return open_chunks(key, wanted, local_base);
    case share_kind::pool:
        return open_pool_pointer(key, wanted, entry, local_base);
    case share_kind::none:
    case share_kind::staged:
    case share_kind::host:
        break;
    }
    return status::bad_peer;
}

status import_table::open_chunks(const mapping_key &key, const request &wanted,
                                 std::uint64_t *local_base)
{
    descriptor_message message;
    if (const status s = fds_.take(key.owner, *wanted.handle, &message); status::ok != s) {
        return s;
    }
    std::vector<int> fds;
    std::uint64_t left = wanted.handle->len_bytes;
    for (std::size_t i = 0; i < message.fds.size() && message.lengths[i] <= left; ++i) {
        fds.push_back(message.fds[i].get());
        left -= message.lengths[i];
    }
    if (0 != left || fds.size() != message.fds.size()) {
        return status::bad_peer;
    }
    const status s = map_chunks(driver_, *wanted.into, message.lengths.data(), fds.data(),
                                fds.size(), local_base);
    if (status::ok == s) {
        opened_[*local_base] = {std::move(message.lengths), nullptr};
    }
    return s;
}

import_table::imported_pool *import_table::find_pool(CUmemoryPool pool)
{
    const auto found = std::find_if(pools_.begin(), pools_.end(),
                                    [=](const imported_pool &each) { return each.handle == pool; });
    return found == pools_.end() ? nullptr : &*found;
}

// An imported pool must be opened to each device that is to touch it. `unsupported`: that one
// cannot reach its memory.
status import_table::allow(imported_pool &pool, const device &into)
{
    if (std::find(pool.allowed.begin(), pool.allowed.end(), into.ordinal) != pool.allowed.end()) {
        return status::ok;
    }
    const status s = allow_pool(driver_, pool.handle, into);
    if (status::ok == s) {
        pool.allowed.push_back(into.ordinal);
    }
    return s;
}

// The pool's descriptor comes with each of its allocations, because nothing else tells whether it
// is still the pool that was imported before. The driver gives the same handle for the same pool,
// and counts how often it did.
status import_table::open_pool_pointer(const mapping_key &key, const request &wanted,
                                       const export_slot &entry, std::uint64_t *local_base)
{
    descriptor_message message;
    CUmemoryPool pool = nullptr;
    status s = fds_.take(key.owner, *wanted.handle, &message);
    if (status::ok == s) {
        s = 1 == message.fds.size() ? import_pool(driver_, message.fds[0].get(), &pool)
                                    : status::bad_peer;
    }
    if (status::ok != s) {
        return s;
    }
    imported_pool *known = find_pool(pool);
    if (nullptr == known) {
        known = &pools_.emplace_back(imported_pool{pool, 0, 0, {}});
    }
    ++known->imports;
    s = allow(*known, *wanted.into);
    if (status::ok == s) {
        CUmemPoolPtrExportData data;
        std::memcpy(&data, entry.memory_handle, sizeof(data));
        s = import_pool_pointer(driver_, *wanted.into, pool, data, local_base);
    }
    if (status::ok == s) {
        opened_[*local_base] = {{}, pool};
        ++known->pointers;
    } else {
        close_pool_without_pointers(pool);
    }
    return s;
}

void import_table::close_pool_without_pointers(CUmemoryPool pool)
{
    std::erase_if(pools_, [&](const imported_pool &each) {
        const bool ends = each.handle == pool && 0 == each.pointers;
        for (std::uint32_t i = 0; ends && i < each.imports; ++i) {
            close_pool(driver_, pool);
        }
        return ends;
    });
}

void import_table::close(void *self, const mapping_key &key, std::uint64_t local_base)
{
    auto &table = *static_cast<import_table *>(self);
    device &into = *table.devices_.all()[key.device];
    (void)table.devices_.is_alive(into); // or it must not be entered
    const auto found = table.opened_.extract(local_base);
    if (found.empty()) {
        close_memory(table.driver_, into, local_base);
    } else if (const opened &closed = found.mapped(); nullptr == closed.pool) {
        unmap_chunks(table.driver_, local_base, closed.lengths.data(), closed.lengths.size());
    } else {
        free_pool_pointer(table.driver_, into, local_base);
        --table.find_pool(closed.pool)->pointers;
        table.close_pool_without_pointers(closed.pool);
    }
}

void import_table::close_over(std::uint32_t owner, const peer &from)
{
    if (!from.attached()) {
        return;
    }
    if (epochs_.size() <= owner) {
        epochs_.resize(owner + 1, 0);
    }
    const segment_view &view = from.shared().view();
    const std::uint64_t epoch = view.header->retire_epoch.load(std::memory_order_acquire);
    if (epoch == std::exchange(epochs_[owner], epoch)) {
        return;
    }
    cache_.invalidate(
        owner,
        [](void *of, const mapping_key &key) {
            return is_over(*static_cast<const segment_view *>(of), key.slot, key.generation);
        },
        const_cast<segment_view *>(&view));
    fds_.drop_over(owner, view);
}

// Unused memory is closed because an importer's mapping keeps it taken when its owner frees it, and
// an owner that does not call MPI any more ends no export. The time is much longer than opening it
// anew takes, and counts seconds in which this process has called MPI: a program that computes for
// a while keeps its mappings. One at a time, as that may take the driver some hundred microseconds.
void import_table::close_idle(std::int64_t second)
{
    if (second != std::exchange(second_, second)) {
        cache_.begin_epoch();
    }
    (void)cache_.close_idle(idle_seconds);
}

} // namespace gpusm
