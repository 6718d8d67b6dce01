// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/ipc/export_directory.h"

#include "opal/mca/btl/gpusm/ipc/legacy.h"
#include "opal/mca/btl/gpusm/ipc/memory_kind.h"
#include "opal/mca/btl/gpusm/ipc/pool.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace gpusm {

namespace {

static_assert(sizeof(CUipcMemHandle) == ipc_handle_bytes);
static_assert(sizeof(CUmemPoolPtrExportData) == ipc_handle_bytes);
static_assert(sizeof(CUipcEventHandle) == ipc_handle_bytes);

std::uint64_t bit_of(int ordinal)
{
    return std::uint64_t{1} << (ordinal & 63);
}

} // namespace

export_directory::export_directory(const driver_api &driver, device_table &devices, segment &own,
                                   bool use_events)
    : driver_(driver), devices_(devices), own_(own), use_events_(use_events),
      table_({this, publish, retire}, own.view().export_slots)
{
}

status export_directory::publish(void *self, const exported &entry, const void *described)
{
    auto &directory = *static_cast<export_directory *>(self);
    const auto &what = *static_cast<const description *>(described);
    if (const status s = directory.own_.commit_exports(entry.slot + 1); status::ok != s) {
        return s;
    }
    if (directory.described_.size() <= entry.slot) {
        directory.described_.resize(entry.slot + 1);
    }
    directory.described_[entry.slot] = what;
    export_slot &slot = directory.own_.view().exports[entry.slot];
    slot.base = what.memory.base;
    slot.len_bytes = what.memory.len_bytes;
    slot.kind = what.kind;
    std::memcpy(slot.device_uuid, what.uuid.data(), sizeof(slot.device_uuid));
    std::memcpy(slot.memory_handle, what.handle.data(), sizeof(slot.memory_handle));
    slot.generation.store(entry.generation, std::memory_order_release); // pairs with read_export
    return status::ok;
}

void export_directory::retire(void *self, const exported &entry)
{
    const segment_view &own = static_cast<export_directory *>(self)->own_.view();
    own.exports[entry.slot].generation.store(0, std::memory_order_release);
    // Orders the zero before the fields that the next publish writes.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    own.header->retire_epoch.fetch_add(1, std::memory_order_release);
}

// Is it still the memory that was exported? The one question per message; of VMM memory one for
// each chunk that the message touches.
bool export_directory::still_exported(const exported &entry, std::uint64_t address,
                                      std::uint64_t len_bytes, unsigned long long buffer_id) const
{
    const description &what = described_[entry.slot];
    const auto is_still = [&](std::uint64_t at, unsigned long long id, unsigned long long known) {
        return (id != 0 || CUDA_SUCCESS == driver_.pointer_get_attribute(
                                               &id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at)) &&
               id == known;
    };
    if (share_kind::descriptors != what.kind) {
        return is_still(address, buffer_id, entry.memory.buffer_id);
    }
    auto chunk =
        std::upper_bound(what.chunks.begin(), what.chunks.end(), address,
                         [](std::uint64_t at, const memory_chunk &each) { return at < each.base; });
    for (chunk = chunk == what.chunks.begin() ? chunk : chunk - 1;
         chunk != what.chunks.end() &&
         (chunk->base <= address || chunk->base - address < len_bytes);
         ++chunk) {
        if (!is_still(chunk->base, 0, chunk->buffer_id)) {
            return false;
        }
    }
    return true;
}

status export_directory::export_range(std::uint64_t address, std::size_t len_bytes,
                                      unsigned long long buffer_id, std::uint64_t without,
                                      exported **out, remote_handle *handle)
{
    const auto is_refused = [this](std::uint64_t id) {
        return id != 0 && refused_[id % refused_.size()] == id;
    };
    exported *entry = table_.find(address, len_bytes);
    if (entry != nullptr && !still_exported(*entry, address, len_bytes, buffer_id)) {
        table_.retire(entry);
        entry = nullptr;
    }
    device *of = nullptr;
    if (nullptr == entry || use_events_) {
        if (is_refused(buffer_id)) {
            return status::unsupported;
        }
        const pointer_facts facts = inspect_pointer(driver_, address);
        if (!facts.on_device || is_refused(facts.buffer_id) ||
            0 != (without & bit_of(facts.ordinal))) {
            return status::unsupported;
        }
        status s = devices_.for_memory(facts, &of);
        if (status::ok == s && nullptr == entry) {
            s = make(address, len_bytes, facts, *of, &entry);
        }
        if (status::ok != s) {
            return s;
        }
        if (address + len_bytes > entry->memory.base + entry->memory.len_bytes) {
            return status::unsupported; // the range goes on in the next allocation
        }
    }
    const description &what = described_[entry->slot];
    if (0 != (without & bit_of(what.ordinal))) {
        return status::unsupported;
    }
    *handle = {entry->slot,
               use_events_ ? record_event(*of) : no_event_slot,
               what.kind,
               0,
               entry->generation,
               entry->memory.base,
               entry->memory.len_bytes};
    table_.add_reference(entry);
    *out = entry;
    return status::ok;
}

status export_directory::make(std::uint64_t address, std::size_t len_bytes,
                              const pointer_facts &facts, device &of, exported **out)
{
    // That a new export is made means that the program allocates. What it has freed is then given
    // back before peers hold more than one such buffer. An importer takes longer to map this one.
    constexpr std::size_t questions = 1024;
    description what;
    if (const status s = describe(address, len_bytes, facts, of, &what); status::ok != s) {
        return s;
    }
    retire_gone(questions);
    return table_.insert(what.memory, &what, out);
}

status export_directory::describe(std::uint64_t address, std::size_t len_bytes,
                                  const pointer_facts &facts, device &of, description *out)
{
    out->uuid = of.uuid;
    out->ordinal = of.ordinal;
    out->memory = {facts.start, facts.len_bytes, facts.buffer_id};
    out->kind = kind_of(driver_, facts, address);
    status s = status::unsupported;
    switch (out->kind) {
    case share_kind::legacy: {
        exported_memory memory;
        s = export_memory(driver_, of, address, &memory);
        out->memory.base = memory.base;
        out->memory.len_bytes = memory.len_bytes;
        std::memcpy(out->handle.data(), &memory.handle, sizeof(memory.handle));
        return s; // its copies are synchronous
    }
    case share_kind::descriptors:
        s = list_chunks(driver_, of, address, std::max<std::size_t>(len_bytes, 1), &out->chunks);
        if (status::ok == s) {
            // All that lies side by side is exported together, because messages from other parts of
            // it will come, and would end this export if theirs overlapped it. So exports that
            // overlap this one end first, and become a part of it.
            const auto bytes_from = [&](std::uint64_t base) {
                return out->chunks.back().base + out->chunks.back().len_bytes - base;
            };
            std::uint64_t base = out->chunks.front().base;
            table_.retire_overlapping(base, bytes_from(base));
            extend_run(
                driver_, of, [this](std::uint64_t at) { return nullptr == table_.find(at, 0); },
                &out->chunks);
            base = out->chunks.front().base;
            out->memory = {base, bytes_from(base), out->chunks.front().buffer_id};
        }
        break;
    case share_kind::pool: {
        pool_pointer pointer;
        s = export_pool_pointer(driver_, of, address, &pointer);
        out->memory.base = pointer.base;
        out->memory.len_bytes = pointer.len_bytes;
        out->pool = pointer.pool;
        std::memcpy(out->handle.data(), &pointer.data, sizeof(pointer.data));
        break;
    }
    case share_kind::none:
    case share_kind::staged:
    case share_kind::host:
        refused_[facts.buffer_id % refused_.size()] = facts.buffer_id;
        break;
    }
    if (status::ok == s) {
        s = make_copies_synchronous(driver_, of);
        s = status::unsupported == s ? status::ok : s; // docs/memory.md
    }
    return s;
}

exported *export_directory::live_export(const remote_handle &handle) const
{
    exported *entry = table_.find(handle.base, 0);
    return entry != nullptr && entry->slot == handle.slot &&
                   entry->generation == handle.generation &&
                   still_exported(*entry, handle.base, handle.len_bytes, 0)
               ? entry
               : nullptr;
}

std::uint64_t export_directory::device_of(const remote_handle &handle) const
{
    const exported *entry = live_export(handle);
    return nullptr == entry ? 0 : bit_of(described_[entry->slot].ordinal);
}

status export_directory::descriptors_of(const remote_handle &handle,
                                        std::vector<file_descriptor> *descriptors,
                                        std::vector<std::uint64_t> *lengths) const
{
    const exported *entry = live_export(handle);
    if (nullptr == entry) {
        return status::not_found;
    }
    const description &what = described_[entry->slot];
    std::vector<int> fds(share_kind::pool == what.kind ? 1 : what.chunks.size());
    lengths->clear();
    for (const memory_chunk &each : what.chunks) {
        lengths->push_back(each.len_bytes);
    }
    status s = status::not_found;
    if (share_kind::pool == what.kind) {
        lengths->push_back(0);
        s = export_pool(driver_, what.pool, fds.data());
    } else if (share_kind::descriptors == what.kind) {
        s = export_chunks(driver_, what.chunks, fds.data());
    }
    if (status::ok == s) {
        for (const int each : fds) {
            descriptors->emplace_back(each);
        }
    }
    return s;
}

// Asks about the next few exports; `questions` to the driver, at most, but for the last export. A
// run of VMM chunks of which a message is on its way is left alone: its own chunks live, and others
// can wait.
void export_directory::retire_gone(std::size_t questions)
{
    for (std::size_t left = table_.live(), asked = 0; left > 0 && asked < questions; --left) {
        exported *entry = table_.next_for_sweep();
        const description &what = described_[entry->slot];
        asked += std::max<std::size_t>(what.chunks.size(), 1);
        if ((0 == entry->references || share_kind::descriptors != what.kind) &&
            !still_exported(*entry, entry->memory.base, entry->memory.len_bytes, 0)) {
            table_.retire(entry);
        }
    }
}

// One interprocess event per device is enough: a peer that waits for it waits for its latest
// record, and that one is at or after the record made for the peer's message.
std::uint16_t export_directory::record_event(device &of)
{
    const segment_view &own = own_.view();
    if (of.index >= own.event_slots) {
        return no_event_slot;
    }
    event_slot &slot = own.events[of.index];
    if (0 == slot.ready.load(std::memory_order_relaxed)) {
        CUipcEventHandle described;
        if (status::ok != export_event(driver_, devices_, of, &described)) {
            return no_event_slot;
        }
        std::memcpy(slot.event_handle, &described, sizeof(slot.event_handle));
        slot.ready.store(1, std::memory_order_release); // pairs with import_table::event_of
    }
    CUevent event = nullptr;
    if (status::ok != devices_.ipc_event(of, &event)) {
        return no_event_slot;
    }
    const driver_scope scope(driver_, of.context);
    return status::ok == driver_.record_legacy_stream(event) ? static_cast<std::uint16_t>(of.index)
                                                             : no_event_slot;
}

} // namespace gpusm
