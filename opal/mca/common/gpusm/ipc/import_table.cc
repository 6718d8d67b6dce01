// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/ipc/import_table.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/ipc/by_descriptor.h"
#include "opal/mca/common/gpusm/ipc/legacy.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gpusm {

namespace {

// Reads an export directory entry of a peer; false when the generation is over.
bool read_export(const segment_view &owner, const remote_handle &handle, export_slot *out)
{
    if (0 == handle.generation || handle.slot >= owner.export_slots ||
        handle.slot >= owner.header->exports_committed.load(std::memory_order_acquire)) {
        return false;
    }
    const export_slot &slot = owner.exports[handle.slot];
    if (handle.generation != slot.generation.load(std::memory_order_acquire)) {
        return false;
    }
    out->base = slot.base;
    out->len_bytes = slot.len_bytes;
    std::memcpy(out->device_uuid, slot.device_uuid, sizeof(slot.device_uuid));
    std::memcpy(out->memory_handle, slot.memory_handle, sizeof(slot.memory_handle));
    out->kind = slot.kind;
    out->anchor_slot = slot.anchor_slot;
    // The fields were those of that generation if it is still the same one.
    std::atomic_thread_fence(std::memory_order_acquire);
    return handle.generation == slot.generation.load(std::memory_order_relaxed) &&
           handle.base == out->base && handle.len_bytes == out->len_bytes &&
           handle.kind == out->kind;
}

} // namespace

bool is_over(const segment_view &owner, std::uint32_t slot, std::uint64_t generation)
{
    return slot >= owner.export_slots ||
           generation != owner.exports[slot].generation.load(std::memory_order_acquire);
}

import_table::~import_table()
{
    while (!anchors_.empty()) {
        release_anchors(anchors_.begin()->first.first, true);
    }
    for (const auto &[of, event] : events_) {
        (void)in_context(driver_, devices_.all()[of[2]]->context,
                         [&, opened = event] { return driver_.event_destroy(opened); });
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
    const std::array<std::uint32_t, 3> of{owner, handle.event_slot, into.index};
    if (const auto known = events_.find(of); known != events_.end()) {
        *out = known->second;
        return status::ok;
    }
    CUipcEventHandle described;
    std::memcpy(&described, view.events[handle.event_slot].event_handle, sizeof(described));
    const status s = driver_.answer("cuIpcOpenEventHandle", in_context(driver_, into.context, [&] {
                                        return driver_.ipc_open_event_handle(out, described);
                                    }));
    if (status::ok == s) {
        events_[of] = *out;
    }
    return s;
}

// It may be read while its owner writes it: whoever imports it then finds out.
bool import_table::is_on(const peer &from, const remote_handle &handle, const device_uuid &which)
{
    if (!names_export(handle.kind) || !from.attached()) {
        return false;
    }
    const segment_view &view = from.shared().view();
    return handle.slot < view.export_slots &&
           handle.slot < view.header->exports_committed.load(std::memory_order_acquire) &&
           0 == std::memcmp(view.exports[handle.slot].device_uuid, which.data(), which.size());
}

status import_table::import(std::uint32_t owner, const peer &from, const remote_handle &handle,
                            device &into, mapping **out)
{
    if (!from.attached()) {
        return status::peer_gone;
    }
    // Before memory is mapped anew, memory that its owner has freed is given back.
    close_over(owner, from);
    if (last_.is(owner, handle, into) && last_.changes == cache_.changes() &&
        is_open(*last_.mapped, into)) {
        *out = mapping_cache::hold(last_.mapped);
        ++asked_.hits;
        return status::ok;
    }
    const bool of_pool = share_kind::pool == handle.kind;
    descriptor_message message;
    bool was_open = true;
    const auto acquire = [&](device &in) {
        // The driver maps memory of a pool once in a process, for all its devices.
        const mapping_key key{owner, of_pool ? 0 : in.index, handle.slot, handle.generation,
                              handle.kind};
        return cache_.acquire(
            key, handle.base, handle.len_bytes,
            [&](mapping *made) {
                was_open = false;
                return open(owner, from, handle, in, &message, made);
            },
            out);
    };
    device &home = home_of(into);
    status s = acquire(home);
    if (status::driver_failed == s && &home != &into) {
        // The program may have opened memory of that peer itself, in the context of this buffer.
        s = acquire(into);
    }
    ++(was_open ? asked_.hits : asked_.misses);
    if (status::ok == s && (*out)->anchor_slot != no_export_slot) [[unlikely]] {
        hold_anchor(owner, from, std::exchange((*out)->anchor_slot, no_export_slot), home);
    }
    if (status::ok == s && of_pool) {
        s = allow((*out)->pool, into);
        if (status::ok != s) {
            cache_.release(std::exchange(*out, nullptr));
        }
    }
    if (status::ok == s) {
        last_ = {*out, owner, into.index, handle, cache_.changes()};
    }
    return s;
}

// After the first memory of that context, as that is where the driver's time goes.
void import_table::hold_anchor(std::uint32_t owner, const peer &from, std::uint32_t slot,
                               device &home)
{
    const segment_view &view = from.shared().view();
    if (anchors_.contains({owner, home.index}) || slot >= view.export_slots ||
        slot >= view.header->exports_committed.load(std::memory_order_acquire)) {
        return;
    }
    const export_slot &described = view.exports[slot];
    const remote_handle handle{slot,
                               no_event_slot,
                               share_kind::legacy,
                               0,
                               described.generation.load(std::memory_order_acquire),
                               described.base,
                               described.len_bytes};
    const mapping_key key{owner, home.index, slot, handle.generation, handle.kind};
    descriptor_message unused;
    mapping *anchor = nullptr;
    const status s = cache_.acquire(
        key, handle.base, handle.len_bytes,
        [&](mapping *made) { return open(owner, from, handle, home, &unused, made); }, &anchor);
    if (status::ok == s) {
        anchors_[{owner, home.index}] = anchor;
        ++anchored_.entries;
        anchored_.bytes += anchor->len_bytes;
    }
}

// Those whose context is gone, or all of that peer.
void import_table::release_anchors(std::uint32_t owner, bool all)
{
    for (auto at = anchors_.lower_bound({owner, 0});
         at != anchors_.end() && at->first.first == owner;) {
        if (all || at->second->stale) {
            --anchored_.entries;
            anchored_.bytes -= at->second->len_bytes;
            cache_.release(at->second);
            at = anchors_.erase(at);
        } else {
            ++at;
        }
    }
}

// Memory of CUDA IPC goes with the context that it was opened in, home_of().
bool import_table::is_open(const mapping &found, const device &into)
{
    return share_kind::legacy != found.key.kind || found.key.device == into.index ||
           devices_.is_alive(*devices_.all()[found.key.device]);
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

status import_table::open(std::uint32_t owner, const peer &from, const remote_handle &handle,
                          device &into, descriptor_message *message, mapping *out)
{
    export_slot entry{};
    if (!read_export(from.shared().view(), handle, &entry)) {
        return status::not_found;
    }
    keep_freed(into);
    out->device_uuid = std::to_array(entry.device_uuid);
    const std::tuple of_what{out->device_uuid, into.ordinal, entry.kind};
    if (!reach_.may_try(of_what)) {
        return status::unsupported;
    }
    const log_as_retry quiet(reach_.has_failed(of_what));
    status s = share_kind::legacy == entry.kind || !message->fds.empty()
                   ? status::ok
                   : fds_.take(owner, handle, message);
    if (status::ok != s) {
        return s;
    }
    if (share_kind::legacy == entry.kind) {
        out->anchor_slot = entry.anchor_slot;
        s = open_memory(driver_, into, std::to_array(entry.memory_handle), &out->local_base);
        out->close = [this, &into](const mapping &closed, bool by_force) {
            return close_legacy(into, closed.local_base, by_force);
        };
    } else if (share_kind::pool == entry.kind) {
        s = open_pool_pointer(entry, *message, into, out);
    } else {
        s = map_chunks(driver_, into, *message, handle.len_bytes, &out->local_base);
        out->close = [this](const mapping &closed, bool) {
            unmap_chunks(driver_, closed.local_base, closed.len_bytes);
            return true;
        };
    }
    if (status::ok == s && share_kind::descriptors != entry.kind) { // those have been added up
        s = check_mapped_length(driver_, into, out->local_base, handle.len_bytes);
        if (status::ok != s) {
            (void)out->close(*out, true);
        }
    }
    if (status::ok == s) {
        (void)reach_.worked(of_what);
    } else if (status::unsupported == s || status::driver_failed == s) {
        if (reach_.failed(of_what, s)) {
            log_line(log_level::info,
                     "memory of peers on a device cannot be mapped on device %d (%s); it is tried "
                     "again later",
                     into.ordinal, to_string(s));
        }
        s = reach_.is_refused(of_what) ? status::unsupported : s;
    }
    return s;
}

// The devices of a node are alike, as a rule: the owner's memory is taken to be as large.
void import_table::keep_freed(const device &into)
{
    most_memory_bytes_ = std::max(most_memory_bytes_, into.memory_bytes);
    const std::size_t kept_bytes = most_memory_bytes_ / kept_part;
    cache_.bound_postponed(kernels_wait_ ? SIZE_MAX : kept_bytes + closed_by_force_bytes,
                           kept_bytes);
}

bool import_table::close_legacy(device &into, std::uint64_t local_base, bool by_force)
{
    if (devices_.is_alive(into)) { // or it must not be entered
        const driver_scope scope(driver_, into.context);
        if (!by_force && (kernels_wait_ || (scope.entered() && !driver_.legacy_stream_is_idle()))) {
            return false;
        }
    }
    close_memory(driver_, into, local_base);
    return true;
}

// The pool's descriptor comes with each of its allocations, because nothing else tells whether it
// is still the pool that was imported before. The driver gives the same handle for the same pool,
// and counts how often it did.
status import_table::open_pool_pointer(const export_slot &entry, const descriptor_message &message,
                                       device &into, mapping *out)
{
    if (1 != message.fds.size()) {
        return status::bad_peer;
    }
    CUmemoryPool pool = nullptr;
    status s = import_pool(driver_, message.fds[0], &pool);
    if (status::ok != s) {
        return s;
    }
    ++pools_[pool].imports;
    ++pools_[pool].pointers;
    out->pool = pool;
    s = allow(pool, into);
    if (status::ok == s) {
        s = import_pool_pointer(driver_, into, pool, std::to_array(entry.memory_handle),
                                &out->local_base);
    }
    if (status::ok != s) {
        leave_pool(pool);
        return s;
    }
    out->close = [this, &into](const mapping &closed, bool) {
        device *in = &into;
        if (!devices_.is_alive(into)) { // in any other context of that device
            (void)devices_.for_memory(nullptr, into.ordinal, &in);
        }
        free_device(driver_, *in, closed.local_base);
        leave_pool(closed.pool);
        return true;
    };
    return status::ok;
}

void import_table::leave_pool(void *pool)
{
    const auto left = pools_.find(pool);
    if (0 == --left->second.pointers) {
        for (; left->second.imports > 0; --left->second.imports) {
            close_pool(driver_, static_cast<CUmemoryPool>(pool));
        }
        pools_.erase(left);
    }
}

// An imported pool must be opened to each device that is to touch it. `unsupported`: that one
// cannot reach its memory.
status import_table::allow(void *pool, const device &into)
{
    std::set<int> &allowed = pools_[pool].allowed;
    if (allowed.contains(into.ordinal)) {
        return status::ok;
    }
    const status s = allow_pool(driver_, static_cast<CUmemoryPool>(pool), into);
    if (status::ok == s) {
        allowed.insert(into.ordinal);
    }
    return s;
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
        owner, [&view](const mapping_key &key) { return is_over(view, key.slot, key.generation); });
    release_anchors(owner, false);
    fds_.drop_over(owner, view);
}

bool import_table::drop_owner(std::uint32_t owner)
{
    release_anchors(owner, true);
    cache_.invalidate(owner, [](const mapping_key &) { return true; });
    if (cache_.has_any_of(owner)) { // and who uses it may be going to wait for an event
        return false;
    }
    std::erase_if(events_, [&](const auto &each) {
        const bool is_its = owner == each.first[0];
        if (is_its) {
            close_event(each.first[2], each.second);
        }
        return is_its;
    });
    return true;
}

void import_table::close_event(std::uint32_t index, CUevent event)
{
    device &in = *devices_.all()[index];
    if (devices_.is_alive(in)) {
        (void)driver_.report("cuEventDestroy", in_context(driver_, in.context, [&] {
                                 return driver_.event_destroy(event);
                             }));
    }
}

} // namespace gpusm
