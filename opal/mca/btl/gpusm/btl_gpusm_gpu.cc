// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"

#include "opal/mca/btl/gpusm/base/log.h"
#include "opal/mca/btl/gpusm/gpu/ipc_handle.h"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace gpusm {

namespace {

// What export_range hands through the table to publish.
struct description {
    exported_memory memory;
    device_uuid uuid;
};

// Exports whose memory is looked at in one sweep.
constexpr int exports_per_sweep = 1;

static_assert(sizeof(CUipcMemHandle) == ipc_handle_bytes);
static_assert(sizeof(CUipcEventHandle) == ipc_handle_bytes);

copy_limits limits_from_parameters()
{
    copy_limits limits;
    limits.depth = mca_btl_gpusm_component.copy_depth;
    limits.batch_copies = mca_btl_gpusm_component.copy_batch;
    limits.batch_bytes = mca_btl_gpusm_component.copy_batch_bytes;
    limits.early_bytes = mca_btl_gpusm_component.copy_early_bytes;
    limits.kernel_bytes = mca_btl_gpusm_component.kernel_max_bytes;
    limits.kernel_blocks = mca_btl_gpusm_component.kernel_blocks;
    limits.batches = mca_btl_gpusm_component.use_batch_copies;
    return limits;
}

} // namespace

gpu_desk *gpu()
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    const std::lock_guard guard(*component.lock);
    if (nullptr == component.gpu && component.use_cuda_ipc) {
        if (const driver_api *driver = driver_load(); driver != nullptr) {
            component.gpu = new gpu_desk(*driver, component.threads);
            install_pointer_check(*driver);
        }
    }
    return component.gpu;
}

gpu_desk::gpu_desk(const driver_api &api, bool threads)
    : lock(threads), driver(api), devices(api), copies(api, limits_from_parameters()),
      exports({this, publish, retire}, mca_btl_gpusm_component.max_exports),
      imports({this, open_mapping, close_mapping},
              {mca_btl_gpusm_component.cache_max_entries, mca_btl_gpusm_component.cache_max_bytes})
{
}

gpu_desk::~gpu_desk()
{
    remove_pointer_check();
    (void)copies.cancel_all();
    for (const opened_event &each : events_) {
        const driver_scope scope(driver, devices.all()[each.device]->context);
        (void)driver.event_destroy(each.event);
    }
    for (const auto &[start, from] : registrations_) {
        const driver_scope scope(driver, from->context);
        const CUresult result = driver.mem_host_unregister(start);
        if (CUDA_SUCCESS != result && scope.entered()) {
            (void)driver.report("cuMemHostUnregister", result);
        }
    }
}

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
    std::memcpy(slot.device_uuid, what.uuid.data(), sizeof(slot.device_uuid));
    std::memcpy(slot.memory_handle, &what.memory.handle, sizeof(slot.memory_handle));
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
    // The fields were those of that generation if it is still the same one.
    std::atomic_thread_fence(std::memory_order_acquire);
    return handle.generation == slot.generation.load(std::memory_order_relaxed) &&
           handle.base == out->base && handle.len_bytes == out->len_bytes;
}

status gpu_desk::export_range(std::uint64_t address, std::size_t len_bytes,
                              unsigned long long buffer_id, exported **out, remote_handle *handle)
{
    device *of = nullptr;
    exported *entry = exports.find(address, len_bytes);
    if (entry != nullptr) {
        // Is it still the allocation that was exported? The one question per message.
        const bool known = buffer_id != 0 ||
                           CUDA_SUCCESS == driver.pointer_get_attribute(
                                               &buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
        if (!known || buffer_id != entry->memory.buffer_id) {
            exports.retire(entry);
            entry = nullptr;
        }
    }
    if (nullptr == entry || mca_btl_gpusm_component.use_cuda_events) {
        const pointer_facts facts = inspect_pointer(driver, address);
        if (!facts.legacy_ipc) {
            return status::unsupported;
        }
        if (const status s = devices.for_memory(facts, &of); status::ok != s) {
            return s;
        }
        if (nullptr == entry) {
            description described{{}, of->uuid};
            status s = export_memory(driver, *of, address, &described.memory);
            if (status::ok == s) {
                const allocation memory{described.memory.base, described.memory.len_bytes,
                                        facts.buffer_id};
                s = exports.insert(memory, &described, &entry);
            }
            if (status::ok != s) {
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
    handle->generation = entry->generation;
    handle->base = entry->memory.base;
    handle->len_bytes = entry->memory.len_bytes;
    exports.add_reference(entry);
    *out = entry;
    return status::ok;
}

// One interprocess event per device is enough: a peer that waits for it waits for its latest
// record, and that one is at or after the record made for the peer's message.
std::uint32_t gpu_desk::record_event(device &of)
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
    const CUresult result = driver.event_record(event, CU_STREAM_LEGACY);
    if (CUDA_SUCCESS != result) {
        (void)driver.report("cuEventRecord", result);
        return no_event_slot;
    }
    return of.index;
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

status gpu_desk::import(const mca_btl_base_endpoint_t &from, const remote_handle &handle,
                        device &into, mapping **out)
{
    const mapping_key key{from.number, handle.slot, handle.generation, into.index, 0};
    const import_request request{&from, &handle, &into};
    return imports.acquire(key, handle.base, handle.len_bytes, &request, out);
}

status gpu_desk::open_mapping(void *self, const mapping_key &, std::uint64_t,
                              std::uint64_t len_bytes, const void *request,
                              std::uint64_t *local_base)
{
    const driver_api &driver = static_cast<gpu_desk *>(self)->driver;
    const auto &wanted = *static_cast<const import_request *>(request);
    export_slot entry{};
    if (!read_export(wanted.from->peer->shared(), *wanted.handle, &entry)) {
        return status::not_found;
    }
    CUipcMemHandle handle;
    std::memcpy(&handle, entry.memory_handle, sizeof(handle));
    const status opened = open_memory(driver, *wanted.into, handle, local_base);
    if (status::ok != opened) {
        return opened;
    }
    // The length is the peer's word, and a kernel that reads behind the mapping takes the whole
    // context down.
    CUdeviceptr start = 0;
    std::size_t mapped_bytes = 0;
    const driver_scope scope(driver, wanted.into->context);
    const CUresult known = driver.mem_get_address_range(&start, &mapped_bytes, *local_base);
    if (CUDA_SUCCESS == known && *local_base - start <= mapped_bytes &&
        len_bytes <= mapped_bytes - (*local_base - start)) {
        return status::ok;
    }
    close_memory(driver, *wanted.into, *local_base);
    return CUDA_SUCCESS == known ? status::bad_peer : driver.report("cuMemGetAddressRange", known);
}

void gpu_desk::close_mapping(void *self, const mapping_key &key, std::uint64_t local_base)
{
    auto &desk = *static_cast<gpu_desk *>(self);
    close_memory(desk.driver, *desk.devices.all()[key.device], local_base);
}

void gpu_desk::sweep()
{
    for (int i = 0; i < exports_per_sweep; ++i) {
        exported *entry = exports.next_for_sweep();
        unsigned long long buffer_id = 0;
        if (nullptr == entry) {
            break;
        }
        if (CUDA_SUCCESS != driver.pointer_get_attribute(&buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                                         entry->memory.base) ||
            buffer_id != entry->memory.buffer_id) {
            exports.retire(entry);
        }
    }
    close_stale_mappings();
    register_segment();
}

void gpu_desk::close_stale_mappings()
{
    for (std::size_t i = 0;; ++i) {
        mca_btl_base_endpoint_t *each = nullptr;
        {
            const std::lock_guard guard(*mca_btl_gpusm_component.lock);
            if (i >= mca_btl_gpusm_component.endpoints->size()) {
                return;
            }
            each = (*mca_btl_gpusm_component.endpoints)[i];
        }
        if (!each->peer->attached()) {
            continue;
        }
        const peer_segment &shared = each->peer->shared();
        const std::uint64_t epoch =
            shared.view().header->retire_epoch.load(std::memory_order_acquire);
        if (epoch == each->retire_epoch) {
            continue;
        }
        each->retire_epoch = epoch;
        imports.invalidate(
            each->number,
            [](void *segment, const mapping_key &key) {
                const segment_view &view = static_cast<const peer_segment *>(segment)->view();
                return key.slot >= view.export_slots ||
                       key.generation !=
                           view.exports[key.slot].generation.load(std::memory_order_acquire);
            },
            const_cast<peer_segment *>(&shared));
    }
}

// Pinned fragments make the staged path several times faster. A refusal costs that, no more.
void gpu_desk::register_segment()
{
    segment &own = mca_btl_gpusm_component.node->own();
    device *any = nullptr;
    if (!mca_btl_gpusm_component.register_segments || registration_failed_ ||
        status::ok != devices.for_host(&any)) {
        return;
    }
    // The fragments only: what is before them has holes, which registering would fill. And whole
    // fragments only: the driver refuses a copy whose host side is registered in part.
    const std::size_t from = std::max<std::size_t>(registered_to_, own.view().frag_offset);
    std::size_t to = from;
    {
        const std::lock_guard guard(*mca_btl_gpusm_component.lock);
        to = own.seal();
    }
    if (to <= from) {
        return;
    }
    const driver_scope scope(driver, any->context);
    const CUresult result =
        driver.mem_host_register(own.base() + from, to - from, CU_MEMHOSTREGISTER_PORTABLE);
    if (CUDA_SUCCESS != result) {
        registration_failed_ = true;
        log_line(log_level::info, "the segment stays unregistered with the driver: %s",
                 driver.error_name(result));
        return;
    }
    registrations_.emplace_back(own.base() + from, any);
    registered_to_ = to;
}

} // namespace gpusm
