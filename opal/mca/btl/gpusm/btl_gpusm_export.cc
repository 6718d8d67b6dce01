// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_export.cc: the owner's side of the GPU desk: device memory of this process in the
// export directory of its segment, for as long as the memory lives.
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"

#include "opal/mca/btl/gpusm/base/log.h"
#include "opal/mca/btl/gpusm/ipc/legacy.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gpusm {

namespace {

// What make_export hands through the table to publish.
struct description {
    exported_memory memory; // its handle with kind `legacy`
    device_uuid uuid{};
    share_kind kind = share_kind::none;
    CUmemPoolPtrExportData pool_data{}; // with kind `pool`
};

// Questions whether exported memory is still there, asked when a new export is made, which means
// that the program allocates. What it has freed is then given back before peers hold more than one
// such buffer.
constexpr int questions_per_insertion = 64;
constexpr std::uint64_t long_bytes = std::uint64_t{2} << 20; // of an export that is missed

static_assert(sizeof(CUipcMemHandle) == ipc_handle_bytes);
static_assert(sizeof(CUmemPoolPtrExportData) == ipc_handle_bytes);
static_assert(sizeof(CUipcEventHandle) == ipc_handle_bytes);

} // namespace

status gpu_desk::publish(void *, const exported &entry, const void *described)
{
    segment &own = mca_btl_gpusm_component.node->own();
    if (const status s = own.commit_exports(entry.slot + 1); status::ok != s) {
        return s;
    }
    const auto &what = *static_cast<const description *>(described);
    export_slot &slot = own.view().exports[entry.slot];
    slot.base = what.memory.base;
    slot.len_bytes = what.memory.len_bytes;
    slot.kind = what.kind;
    std::memcpy(slot.device_uuid, what.uuid.data(), sizeof(slot.device_uuid));
    if (share_kind::pool == what.kind) {
        std::memcpy(slot.memory_handle, &what.pool_data, sizeof(slot.memory_handle));
    } else {
        std::memcpy(slot.memory_handle, &what.memory.handle, sizeof(slot.memory_handle));
    }
    slot.generation.store(entry.generation, std::memory_order_release); // pairs with read_export
    return status::ok;
}

void gpu_desk::retire(void *, const exported &entry)
{
    const segment_view &own = mca_btl_gpusm_component.node->own().view();
    own.exports[entry.slot].generation.store(0, std::memory_order_release);
    // Orders the zero before the fields that the next publish writes.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    own.header->retire_epoch.fetch_add(1, std::memory_order_release);
}

// Is it still the memory that was exported? The one question per message; of VMM memory one for
// each chunk that the message touches.
bool gpu_desk::still_exported(const exported &entry, std::uint64_t address, std::uint64_t len_bytes,
                              unsigned long long buffer_id) const
{
    const export_details &details = details_[entry.slot];
    const auto is_still = [&](std::uint64_t at, unsigned long long id, unsigned long long known) {
        return (id != 0 || CUDA_SUCCESS == driver.pointer_get_attribute(
                                               &id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at)) &&
               id == known;
    };
    if (share_kind::descriptors != details.kind) {
        return is_still(address, buffer_id, entry.memory.buffer_id);
    }
    auto chunk =
        std::upper_bound(details.chunks.begin(), details.chunks.end(), address,
                         [](std::uint64_t at, const memory_chunk &each) { return at < each.base; });
    for (chunk = chunk == details.chunks.begin() ? chunk : chunk - 1;
         chunk != details.chunks.end() &&
         (chunk->base <= address || chunk->base - address < len_bytes);
         ++chunk) {
        if (!is_still(chunk->base, 0, chunk->buffer_id)) {
            return false;
        }
    }
    return true;
}

status gpu_desk::export_range(std::uint64_t address, std::size_t len_bytes,
                              unsigned long long buffer_id, exported **out, remote_handle *handle)
{
    device *of = nullptr;
    exported *entry = exports.find(address, len_bytes);
    if (entry != nullptr && !still_exported(*entry, address, len_bytes, buffer_id)) {
        exports.retire(entry);
        entry = nullptr;
    }
    if (nullptr == entry || mca_btl_gpusm_component.use_cuda_events) {
        const pointer_facts facts = inspect_pointer(driver, address);
        if (!facts.on_device) {
            return status::unsupported;
        }
        if (const status s = devices.for_memory(facts, &of); status::ok != s) {
            return s;
        }
        if (nullptr == entry) {
            retire_gone_of_youngest(); // before, as these may end any export
            retire_gone(questions_per_insertion);
            if (const status s = make_export(address, len_bytes, facts, *of, &entry);
                status::ok != s) {
                return s;
            }
            register_segment();
        }
        if (address + len_bytes > entry->memory.base + entry->memory.len_bytes) {
            return status::unsupported; // the range goes on in the next allocation
        }
    }
    handle->slot = entry->slot;
    handle->event_slot =
        mca_btl_gpusm_component.use_cuda_events ? record_event(*of) : no_event_slot;
    handle->kind = details_[entry->slot].kind;
    handle->flags = 0;
    handle->generation = entry->generation;
    handle->base = entry->memory.base;
    handle->len_bytes = entry->memory.len_bytes;
    exports.add_reference(entry);
    *out = entry;
    return status::ok;
}

// All that lies side by side with these chunks is exported together, because messages from other
// parts of it will come, and would end this export if theirs overlapped it. Not beyond the address
// range that the program has reserved: what is there lives and dies by itself.
void gpu_desk::extend_run(const device &of, std::vector<memory_chunk> *chunks) const
{
    CUdeviceptr start = 0;
    std::size_t reserved_bytes = 0;
    const CUdeviceptr inside = chunks->front().base;
    if (CUDA_SUCCESS !=
            driver.pointer_get_attribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside) ||
        CUDA_SUCCESS != driver.pointer_get_attribute(&reserved_bytes,
                                                     CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside)) {
        return;
    }
    std::vector<memory_chunk> two; // side by side, on one device
    const auto finds_two = [&](std::uint64_t address, std::uint64_t len_bytes, std::uint64_t next) {
        return next - start < reserved_bytes && nullptr == exports.find(next, 0) &&
               status::ok == list_chunks(driver, of, address, len_bytes, &two) && 2 == two.size();
    };
    for (memory_chunk last = chunks->back();
         chunks->size() < most_chunks &&
         finds_two(last.base, last.len_bytes + 1, last.base + last.len_bytes);
         last = two.back()) {
        chunks->push_back(two.back());
    }
    std::vector<memory_chunk> before; // in falling order
    for (std::uint64_t first = chunks->front().base;
         before.size() + chunks->size() < most_chunks && finds_two(first - 1, 2, first - 1);
         first = two.front().base) {
        before.push_back(two.front());
    }
    chunks->insert(chunks->begin(), before.rbegin(), before.rend());
}

status gpu_desk::make_export(std::uint64_t address, std::size_t len_bytes,
                             const pointer_facts &facts, device &of, exported **out)
{
    description described;
    described.uuid = of.uuid;
    std::vector<memory_chunk> chunks;
    CUmemoryPool pool = nullptr;
    allocation memory{facts.start, facts.len_bytes, facts.buffer_id};
    status s = status::unsupported;
    switch (kind_of(driver, facts, address)) {
    case share_kind::none:
    case share_kind::staged:
    case share_kind::host:
        break;
    case share_kind::legacy:
        described.kind = share_kind::legacy;
        s = export_memory(driver, of, address, &described.memory);
        memory.base = described.memory.base;
        memory.len_bytes = described.memory.len_bytes;
        break;
    case share_kind::descriptors:
        described.kind = share_kind::descriptors;
        s = list_chunks(driver, of, address, std::max<std::size_t>(len_bytes, 1), &chunks);
        if (status::ok == s) {
            extend_run(of, &chunks);
            const memory_chunk &last = chunks.back();
            memory = {chunks.front().base, last.base + last.len_bytes - chunks.front().base,
                      chunks.front().buffer_id};
        }
        break;
    case share_kind::pool: {
        described.kind = share_kind::pool;
        pool_pointer pointer;
        s = export_pool_pointer(driver, of, address, &pointer);
        if (status::ok == s) {
            memory.base = pointer.base;
            memory.len_bytes = pointer.len_bytes;
            described.pool_data = pointer.data;
            pool = pointer.pool;
        }
        break;
    }
    }
    if (status::ok == s && share_kind::legacy != described.kind) {
        s = make_copies_synchronous(driver, of);       // export_memory has seen to that
        s = status::unsupported == s ? status::ok : s; // docs/memory.md
    }
    if (status::ok == s) {
        described.memory.base = memory.base;
        described.memory.len_bytes = memory.len_bytes;
        s = exports.insert(memory, &described, out);
    }
    if (status::ok == s) {
        if (details_.size() <= (*out)->slot) {
            details_.resize((*out)->slot + 1);
        }
        if (memory.len_bytes >= long_bytes) {
            youngest_long_[next_long_++ % youngest_long_.size()] = memory.base;
        } else {
            youngest_[next_youngest_++ % youngest_.size()] = memory.base;
        }
        details_[(*out)->slot] = {described.kind, pool, std::move(chunks)};
    }
    return s;
}

exported *gpu_desk::live_export(const remote_handle &handle) const
{
    exported *entry = exports.find(handle.base, 0);
    return entry != nullptr && entry->slot == handle.slot &&
                   entry->generation == handle.generation &&
                   still_exported(*entry, handle.base, handle.len_bytes, 0)
               ? entry
               : nullptr;
}

status gpu_desk::export_descriptors(const remote_handle &handle, std::vector<int> *descriptors,
                                    std::vector<std::uint64_t> *lengths)
{
    const exported *entry = live_export(handle);
    if (nullptr == entry) {
        return status::not_found;
    }
    const export_details &details = details_[entry->slot];
    if (share_kind::pool == details.kind) {
        descriptors->resize(1);
        *lengths = {0};
        return export_pool(driver, details.pool, descriptors->data());
    }
    if (share_kind::descriptors != details.kind) {
        return status::not_found;
    }
    descriptors->resize(details.chunks.size());
    for (const memory_chunk &each : details.chunks) {
        lengths->push_back(each.len_bytes);
    }
    return export_chunks(driver, details.chunks, descriptors->data());
}

// Is the memory of that export gone, all of it or a part? A run of VMM chunks of which a message is
// on its way is left alone: its own chunks live, and others can wait.
bool gpu_desk::is_gone(const exported &entry) const
{
    return (0 == entry.references || share_kind::descriptors != details_[entry.slot].kind) &&
           !still_exported(entry, entry.memory.base, entry.memory.len_bytes, 0);
}

// Ends those of the youngest exports, and of the youngest long ones, whose memory is gone: what a
// program frees first is mostly what it has allocated last, however much else it keeps, and it is
// the long ones that are missed.
void gpu_desk::retire_gone_of_youngest()
{
    const auto look_at = [&](std::uint64_t base) {
        exported *entry = 0 == base ? nullptr : exports.find(base, 0);
        if (entry != nullptr && is_gone(*entry)) {
            exports.retire(entry);
        }
    };
    std::for_each(youngest_.begin(), youngest_.end(), look_at);
    std::for_each(youngest_long_.begin(), youngest_long_.end(), look_at);
}

// Ends exports whose memory is gone, among the next few. `questions`: to the driver, at most, but
// for the last export.
void gpu_desk::retire_gone(int questions)
{
    for (auto left = exports.live(); left > 0 && questions > 0; --left) {
        exported *entry = exports.next_for_sweep();
        if (nullptr == entry) {
            return;
        }
        const auto chunks = static_cast<int>(details_[entry->slot].chunks.size());
        questions -= std::max(chunks, 1);
        if (is_gone(*entry)) {
            exports.retire(entry);
        }
    }
}

// One interprocess event per device is enough: a peer that waits for it waits for its latest
// record, and that one is at or after the record made for the peer's message.
std::uint16_t gpu_desk::record_event(device &of)
{
    const segment_view &own = mca_btl_gpusm_component.node->own().view();
    if (of.index >= own.event_slots) {
        return no_event_slot;
    }
    CUevent event = nullptr;
    if (event_published_.size() <= of.index) {
        event_published_.resize(of.index + 1, 0);
    }
    event_slot &slot = own.events[of.index];
    if (0 == event_published_[of.index]) {
        CUipcEventHandle described;
        if (status::ok != export_event(driver, devices, of, &described)) {
            return no_event_slot;
        }
        std::memcpy(slot.event_handle, &described, sizeof(slot.event_handle));
        slot.ready.store(1, std::memory_order_release); // pairs with event_of
        event_published_[of.index] = 1;
    }
    if (status::ok != devices.ipc_event(of, &event)) {
        return no_event_slot;
    }
    const driver_scope scope(driver, of.context);
    return status::ok == driver.record_legacy_stream(event) ? static_cast<std::uint16_t>(of.index)
                                                            : no_event_slot;
}

} // namespace gpusm
