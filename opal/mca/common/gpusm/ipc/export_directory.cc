// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/ipc/export_directory.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace gpusm {

namespace {

static_assert(sizeof(memory_handle) == ipc_handle_bytes);
static_assert(sizeof(CUipcEventHandle) == ipc_handle_bytes);

} // namespace

// The live export that covers the range, whether or not its memory still exists.
exported *export_directory::find(std::uint64_t address, std::uint64_t len_bytes) const
{
    const auto above = live_.upper_bound(address);
    exported *entry = above == live_.begin() ? nullptr : std::prev(above)->second;
    return entry != nullptr && covers(*entry, address, std::max<std::uint64_t>(len_bytes, 1))
               ? entry
               : nullptr;
}

// Is it still the memory that was exported? The one question per message; of VMM memory one for
// each chunk that the message touches.
bool export_directory::still_exported(const exported &entry, std::uint64_t address,
                                      std::uint64_t len_bytes, unsigned long long buffer_id) const
{
    if (share_kind::descriptors != entry.kind) {
        return 0 != buffer_id ? buffer_id == entry.buffer_id
                              : is_still(driver_, address, entry.buffer_id);
    }
    return std::all_of(entry.chunks.begin(), entry.chunks.end(), [&](const memory_chunk &each) {
        const bool before = each.base + each.len_bytes <= address;
        const bool behind = each.base > address && each.base - address >= len_bytes;
        return before || behind || is_still(driver_, each.base, each.buffer_id);
    });
}

status export_directory::export_range(std::uint64_t address, std::size_t len_bytes,
                                      unsigned long long buffer_id, export_use use, exported **out,
                                      remote_handle *handle, const mappings_of_exports &by_peer)
{
    exported *entry = find(address, len_bytes);
    if (entry != nullptr && !still_exported(*entry, address, len_bytes, buffer_id)) {
        retire(entry);
        entry = nullptr;
    }
    const bool takes_event = use_events_ && export_use::read == use;
    device *of = nullptr;
    if (nullptr == entry || takes_event) {
        const pointer_facts facts = devices_.facts_of(address);
        const std::uint64_t id = facts.buffer_id;
        const auto mapped_as = [&](share_kind kind) {
            return by_peer.may_try({facts.ordinal, kind});
        };
        if (!facts.on_device || (id != 0 && refused_[id % refused_.size()] == id) ||
            (facts.legacy_ipc
                 ? !mapped_as(share_kind::legacy)
                 : !mapped_as(share_kind::descriptors) && !mapped_as(share_kind::pool))) {
            return status::unsupported;
        }
        status s = devices_.for_memory(facts, &of);
        if (status::ok == s && nullptr == entry) {
            s = make(address, len_bytes, facts, *of, &entry);
        }
        if (status::ok != s) {
            return s;
        }
        if (address + len_bytes > entry->base + entry->len_bytes) {
            return status::unsupported; // the range goes on in the next allocation
        }
    }
    if (export_use::read == use && !entry->is_of_context()) {
        if (const status s = use_current_context(entry); status::ok != s) {
            return s;
        }
    }
    const std::pair of_what{entry->on->ordinal, entry->kind};
    if (!by_peer.may_try(of_what)) {
        return status::unsupported;
    }
    if (export_use::read == use) {
        if (const status s = wait_for_earlier_copies(driver_, *entry->on, entry->mark);
            status::ok != s) {
            return s;
        }
    }
    const std::uint8_t flags = by_peer.is_refused(of_what) ? asks_for_answer : 0;
    *handle = {entry->slot,       takes_event ? record_event(*of) : no_event_slot,
               entry->kind,       flags,
               entry->generation, entry->base,
               entry->len_bytes};
    add_reference(entry);
    *out = entry;
    return status::ok;
}

// Memory without a context of its own is written in the one that the program is in, which has to be
// marked, too; and the one before may be gone.
status export_directory::use_current_context(exported *entry)
{
    device *of = entry->on;
    const status s = devices_.for_shared(entry->on->ordinal, &of);
    return status::ok != s || of == entry->on ? s : mark_context(*of, entry);
}

status export_directory::mark_context(device &of, exported *out)
{
    const status s = make_copies_synchronous(driver_, of);
    if (status::ok != s && status::unsupported != s) { // docs/memory.md
        return s;
    }
    out->on = &of;
    out->mark = of.marks.of_context;
    return status::ok;
}

void export_directory::release(exported *entry)
{
    --entry->references;
    entry->last_use = ++uses_;
}

status export_directory::make(std::uint64_t address, std::size_t len_bytes,
                              const pointer_facts &facts, device &of, exported **out)
{
    exported made;
    if (const status s = describe(address, len_bytes, facts, of, &made); status::ok != s) {
        return s;
    }
    // That a new export is made means that the program allocates. What it has freed is then given
    // back before peers hold more than one such buffer. An importer takes longer to map this one.
    constexpr std::size_t questions = 1024;
    retire_gone(questions);
    retire_overlapping(made.base, made.len_bytes); // these are older, hence gone
    const std::uint32_t anchor_slot =
        share_kind::legacy == made.kind && address != of.canary ? anchor_of(of) : no_export_slot;
    exported *entry = take_slot();
    if (nullptr == entry) {
        return status::no_memory;
    }
    if (const status s = own_.commit_exports(entry->slot + 1); status::ok != s) {
        return s;
    }
    made.slot = entry->slot;
    made.generation = entry->generation + 1;
    made.retired = false;
    made.last_use = ++uses_;
    *entry = std::move(made);
    live_.emplace(entry->base, entry);
    publish(*entry, of, anchor_slot);
    *out = entry;
    return status::ok;
}

status export_directory::describe(std::uint64_t address, std::size_t len_bytes,
                                  const pointer_facts &facts, device &of, exported *out)
{
    out->on = &of;
    out->buffer_id = facts.buffer_id;
    if (facts.legacy_ipc) {
        out->kind = share_kind::legacy;
        return export_memory(driver_, of, address, out); // its copies are synchronous
    }
    // Pools first: were a driver to name the allocations behind a pool, sharing them would share
    // what else the pool hands out, and no number would tell when that changes.
    bool can_be_exported = false;
    out->pool = facts.managed ? nullptr : pool_of(driver_, address, &can_be_exported);
    status s = status::unsupported;
    if (out->pool != nullptr && can_be_exported) {
        out->kind = share_kind::pool;
        s = export_pool_pointer(driver_, of, out->pool, address, out);
    } else if (nullptr == out->pool && !facts.managed) {
        out->kind = share_kind::descriptors;
        // All that lies side by side is exported together, because messages from other parts of it
        // will come, and would end this export if theirs overlapped it. Exports that the range
        // itself touches become a part of it.
        const auto may_take = [&](std::uint64_t at) {
            const exported *other = find(at, 0);
            return nullptr == other ||
                   (other->base < address + len_bytes && address < other->base + other->len_bytes);
        };
        s = list_run(driver_, of, address, len_bytes, may_take, &out->chunks);
        if (status::ok == s) {
            out->base = out->chunks.front().base;
            out->len_bytes = out->chunks.back().base + out->chunks.back().len_bytes - out->base;
        }
    }
    if (status::unsupported == s && out->chunks.empty()) {
        refused_[facts.buffer_id % refused_.size()] = facts.buffer_id;
    }
    return status::ok == s ? mark_context(of, out) : s;
}

// An export that importers keep mapped as long as they know this process: of the few bytes by which
// it is seen whether the context lives. For the driver takes two milliseconds to open memory of a
// device in another process when none of it is open there, and 40 us otherwise.
std::uint32_t export_directory::anchor_of(device &of)
{
    anchors_.resize(std::max<std::size_t>(anchors_.size(), of.index + 1), nullptr);
    exported *&anchor = anchors_[of.index];
    if (anchor != nullptr && anchor->retired) {
        release(std::exchange(anchor, nullptr)); // with its context
    }
    if (nullptr == anchor && 0 != of.canary &&
        status::ok == make(of.canary, 1, inspect_pointer(driver_, of.canary), of, &anchor)) {
        add_reference(anchor);
    }
    return nullptr == anchor ? no_export_slot : anchor->slot;
}

std::size_t export_directory::live() const
{
    const auto anchors = std::count_if(anchors_.begin(), anchors_.end(), [](const exported *each) {
        return each != nullptr && !each->retired;
    });
    return live_.size() - static_cast<std::size_t>(anchors);
}

// A slot that nobody uses, of a retired export if there is one. An insertion costs several driver
// calls, so that a look at all slots does not count.
exported *export_directory::take_slot()
{
    exported *best = nullptr;
    for (const auto &each : entries_) {
        if (0 == each->references &&
            (nullptr == best || each->retired || each->last_use < best->last_use)) {
            best = each.get();
        }
        if (best != nullptr && best->retired) {
            return best;
        }
    }
    if (entries_.size() < own_.view().export_slots) {
        entries_.push_back(std::make_unique<exported>());
        best = entries_.back().get();
        best->slot = static_cast<std::uint32_t>(entries_.size() - 1);
    } else if (best != nullptr) {
        retire(best);
    }
    return best;
}

void export_directory::publish(const exported &entry, const device &of, std::uint32_t anchor_slot)
{
    export_slot &slot = own_.view().exports[entry.slot];
    slot.base = entry.base;
    slot.len_bytes = entry.len_bytes;
    slot.kind = entry.kind;
    slot.anchor_slot = anchor_slot;
    std::memcpy(slot.device_uuid, of.uuid.data(), sizeof(slot.device_uuid));
    std::memcpy(slot.memory_handle, entry.handle.data(), sizeof(slot.memory_handle));
    slot.generation.store(entry.generation, std::memory_order_release); // pairs with read_export
}

// The generation of the slot is over, and the slot is free, at once or with the last release.
void export_directory::retire(exported *entry)
{
    entry->retired = true;
    live_.erase(entry->base);
    const segment_view &own = own_.view();
    own.exports[entry->slot].generation.store(0, std::memory_order_release);
    // Orders the zero before the fields that the next publish writes.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    own.header->retire_epoch.fetch_add(1, std::memory_order_release);
}

void export_directory::retire_overlapping(std::uint64_t base, std::uint64_t len_bytes)
{
    for (auto above = live_.lower_bound(base + len_bytes); above != live_.begin();
         above = live_.lower_bound(base + len_bytes)) {
        exported *last = std::prev(above)->second;
        if (last->base + last->len_bytes <= base) {
            return;
        }
        retire(last);
    }
}

// Asks about the next few exports, in turns; `questions` to the driver, at most, but for the last
// export. A run of VMM chunks of which a message is on its way is left alone: its own chunks live,
// and others can wait.
void export_directory::retire_gone(std::size_t questions)
{
    for (std::size_t left = live_.size(), asked = 0; left > 0 && asked < questions; --left) {
        auto next = live_.lower_bound(next_swept_);
        exported *entry = (next == live_.end() ? live_.begin() : next)->second;
        next_swept_ = entry->base + 1;
        asked += std::max<std::size_t>(entry->chunks.size(), 1);
        if ((0 == entry->references || share_kind::descriptors != entry->kind) &&
            !still_exported(*entry, entry->base, entry->len_bytes, 0)) {
            retire(entry);
        }
    }
}

exported *export_directory::live_export(const remote_handle &handle) const
{
    exported *entry = find(handle.base, 0);
    return entry != nullptr && entry->slot == handle.slot &&
                   entry->generation == handle.generation &&
                   still_exported(*entry, handle.base, handle.len_bytes, 0)
               ? entry
               : nullptr;
}

status export_directory::descriptors_of(const remote_handle &handle, descriptor_message *out) const
{
    const exported *entry = live_export(handle);
    if (entry != nullptr && share_kind::pool == entry->kind) {
        out->lengths = {0};
        out->fds.resize(1);
        return export_pool(driver_, entry->pool, &out->fds[0]);
    }
    if (entry != nullptr && share_kind::descriptors == entry->kind) {
        return export_chunks(driver_, entry->chunks, out);
    }
    return status::not_found;
}

// One interprocess event per device is enough: a peer that waits for it waits for its latest
// record, and that one is at or after the record made for the peer's message.
std::uint16_t export_directory::record_event(device &of)
{
    const segment_view &own = own_.view();
    CUevent event = devices_.record_ipc_event(of);
    const driver_scope scope(driver_, of.context);
    if (nullptr == event || !scope.entered()) {
        return no_event_slot;
    }
    if (of.index < own.event_slots) {
        event_slot &slot = own.events[of.index];
        CUipcEventHandle described;
        if (0 == slot.ready.load(std::memory_order_relaxed) &&
            status::ok == driver_.report("cuIpcGetEventHandle",
                                         driver_.ipc_get_event_handle(&described, event))) {
            std::memcpy(slot.event_handle, &described, sizeof(slot.event_handle));
            slot.ready.store(1, std::memory_order_release); // pairs with import_table::event_of
        }
        if (0 != slot.ready.load(std::memory_order_relaxed)) {
            return static_cast<std::uint16_t>(of.index);
        }
    }
    (void)driver_.wait_for_legacy_stream(); // as the peer has nothing to wait for
    return no_event_slot;
}

} // namespace gpusm
