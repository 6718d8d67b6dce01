// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/device.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <cstring>
#include <utility>

namespace gpusm {

namespace {

// The device of VMM memory that lies in host memory and that a device may use; -1: not such memory.
int device_of_host_chunk(const driver_api &driver, std::uint64_t address)
{
    CUmemGenericAllocationHandle chunk = 0;
    if (CUDA_SUCCESS !=
        driver.mem_retain_allocation_handle(&chunk, reinterpret_cast<void *>(address))) {
        return -1;
    }
    (void)driver.mem_release(chunk);
    int devices = 0;
    (void)driver.device_get_count(&devices);
    for (int i = 0; i < devices; ++i) {
        CUmemLocation device{};
        device.type = CU_MEM_LOCATION_TYPE_DEVICE;
        device.id = i;
        unsigned long long access = 0;
        if (CUDA_SUCCESS == driver.mem_get_access(&access, &device, address) &&
            CU_MEM_ACCESS_FLAGS_PROT_READWRITE == access) {
            return i;
        }
    }
    return -1;
}

// What is not in pointer_facts as the driver says it.
struct raw_answers {
    CUmemorytype type{};
    unsigned managed = 0;
    int legacy_ipc = 0;
    unsigned access = 0;
};
constexpr unsigned place_attributes = 4; // those of memory_place come first
constexpr unsigned all_attributes = 9;

// Asks for the first `attributes` of the list in one driver call, which answers 0 for what does not
// apply instead of failing. Returns the driver's answer; *out is empty unless that is CUDA_SUCCESS.
CUresult ask(const driver_api &driver, std::uint64_t address, unsigned attributes,
             pointer_facts *out, raw_answers *raw)
{
    CUpointer_attribute which[all_attributes] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_CONTEXT,          CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_BUFFER_ID,        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
    };
    void *values[all_attributes] = {&raw->type,    &raw->managed,   &out->context,
                                    &out->ordinal, &out->buffer_id, &raw->legacy_ipc,
                                    &out->start,   &out->len_bytes, &raw->access};
    const CUresult result = driver.pointer_get_attributes(attributes, which, values, address);
    if (CUDA_SUCCESS != result) {
        *out = {};
        return result;
    }
    out->answered = true;
    out->managed = 0 != raw->managed;
    out->known = out->managed || CUmemorytype{} != raw->type;
    out->on_device = out->managed || CU_MEMORYTYPE_DEVICE == raw->type;
    return result;
}

} // namespace

memory_place place_of(const driver_api &driver, const void *at)
{
    const auto address = reinterpret_cast<std::uint64_t>(at);
    pointer_facts place;
    raw_answers raw;
    const CUresult result = ask(driver, address, place_attributes, &place, &raw);
    if (CUDA_SUCCESS != result) {
        place.answered = driver_is_down(result) || CUDA_ERROR_INVALID_VALUE == result;
    } else if (CU_MEMORYTYPE_HOST == raw.type && !place.managed && nullptr == place.context) {
        // Page-locked memory has a context.
        place.ordinal = device_of_host_chunk(driver, address);
        place.on_device = place.ordinal >= 0;
    }
    return place;
}

pointer_facts inspect_pointer(const driver_api &driver, std::uint64_t address)
{
    pointer_facts facts;
    raw_answers raw;
    const CUresult result = ask(driver, address, all_attributes, &facts, &raw);
    facts.answered = CUDA_SUCCESS == result || CUDA_ERROR_NOT_INITIALIZED == result;
    facts.legacy_ipc = facts.on_device && !facts.managed && 0 != raw.legacy_ipc;
    facts.range_end = facts.start + facts.len_bytes;
    // Of VMM memory the range is the whole run of chunks, of which each lives for itself.
    if (facts.on_device && nullptr == facts.context) {
        if (CUDA_SUCCESS != driver.mem_get_address_range(&facts.start, &facts.len_bytes, address)) {
            facts.len_bytes = 0;
        }
        // The answer is about the device of the current context.
        CUdevice current = -1;
        facts.accessible = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE == raw.access &&
                           CUDA_SUCCESS == driver.ctx_get_device(&current) &&
                           current == facts.ordinal;
    }
    return facts;
}

bool is_still(const driver_api &driver, std::uint64_t address, unsigned long long buffer_id)
{
    unsigned long long id = 0;
    return CUDA_SUCCESS ==
               driver.pointer_get_attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address) &&
           id == buffer_id;
}

bool is_page_locked(const driver_api &driver, std::uint64_t address, std::size_t len_bytes)
{
    const auto is_host_memory = [&](std::uint64_t at) {
        CUmemorytype type{};
        return CUDA_SUCCESS ==
                   driver.pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) &&
               CU_MEMORYTYPE_HOST == type;
    };
    const std::uint64_t last = address + len_bytes - 1;
    if (0 == len_bytes || last < address || !is_host_memory(address) || !is_host_memory(last)) {
        return false;
    }
    // A driver that has no number for such memory answers neither question.
    unsigned long long of_first = 0;
    unsigned long long of_last = 0;
    (void)driver.pointer_get_attribute(&of_first, CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
    (void)driver.pointer_get_attribute(&of_last, CU_POINTER_ATTRIBUTE_BUFFER_ID, last);
    return of_first == of_last;
}

status make_stream(const driver_api &driver, CUstream *out, CUstream_flags flags)
{
    constexpr int highest_priority = -100; // the driver clamps it to what the device has
    return driver.report("cuStreamCreateWithPriority",
                         driver.stream_create(out, flags, highest_priority));
}

device_table::~device_table()
{
    for (const auto &each : devices_) {
        if (!is_alive(*each)) {
            continue;
        }
        const driver_scope scope(driver_, each->context);
        if (scope.entered()) {
            if (0 != each->canary) {
                (void)driver_.mem_free(each->canary);
            }
            if (each->ipc_event != nullptr) {
                (void)driver_.event_destroy(each->ipc_event);
            }
            (void)driver_.stream_destroy(each->stream);
        }
        if (each->retained_primary) {
            (void)driver_.primary_ctx_release(each->ordinal);
        }
    }
}

status device_table::for_memory(CUcontext context, int ordinal, device **out)
{
    if (context != nullptr) {
        return for_context(context, out);
    }
    // Memory without a context of its own: any context on its device will do, the thread's
    // first, then one that we know, then the primary one if the program has made it active.
    CUcontext current = nullptr;
    CUdevice of_current = -1;
    if (CUDA_SUCCESS == driver_.ctx_get_current(&current) && current != nullptr &&
        CUDA_SUCCESS == driver_.ctx_get_device(&of_current) &&
        (of_current == ordinal || ordinal < 0)) {
        return for_context(current, out);
    }
    for (const auto &each : devices_) {
        if (each->ordinal == ordinal && is_alive(*each)) {
            *out = each.get();
            return status::ok;
        }
    }
    unsigned flags = 0;
    int active = 0;
    if (ordinal >= 0 && CUDA_SUCCESS == driver_.primary_ctx_get_state(ordinal, &flags, &active) &&
        0 != active && CUDA_SUCCESS == driver_.primary_ctx_retain(&current, ordinal)) {
        const status s = for_context(current, out);
        if (status::ok == s) {
            (*out)->retained_primary = true;
        } else {
            (void)driver_.primary_ctx_release(ordinal);
        }
        return s;
    }
    return status::not_ready;
}

status device_table::for_shared(int ordinal, device **on)
{
    CUcontext current = nullptr;
    CUdevice of_current = -1;
    if (nullptr == *on || !is_alive(**on)) {
        return for_memory(nullptr, ordinal, on);
    }
    const bool is_other = CUDA_SUCCESS == driver_.ctx_get_current(&current) && current != nullptr &&
                          current != (*on)->context &&
                          CUDA_SUCCESS == driver_.ctx_get_device(&of_current) &&
                          of_current == ordinal;
    return is_other ? for_context(current, on) : status::ok;
}

device_table::allocation &device_table::look_up(std::uint64_t address, bool asked)
{
    for (allocation &each : seen_) {
        if (each.holds(address) && (asked || is_still(driver_, address, each.buffer_id))) {
            return each;
        }
    }
    const pointer_facts facts = inspect_pointer(driver_, address);
    if (!facts.on_device) {
        return other_ = {facts};
    }
    for (allocation &each : seen_) {
        if (each.holds(address) || each.holds(facts.start) || facts.holds(each.start)) {
            each = {};
        }
    }
    return seen_[next_seen_++ % seen_.size()] = {facts};
}

status device_table::for_address(std::uint64_t address, device **out, std::uint64_t *plain_bytes,
                                 bool asked)
{
    allocation &of = look_up(address, asked);
    *plain_bytes = 0;
    *out = nullptr;
    if (!of.answered) {
        return status::driver_failed; // the processor must not touch what may be device memory
    }
    if (!of.on_device) {
        return status::ok;
    }
    status s = status::ok;
    if (nullptr == of.context) {
        s = for_shared(of.ordinal, &of.on);
    } else if (nullptr == of.on) {
        s = for_context(of.context, &of.on);
    }
    *out = of.on;
    if (status::ok == s) {
        ask_for_access(&of, address);
        *plain_bytes = of.plain() && of.holds(address) ? of.len_bytes - (address - of.start) : 0;
    }
    return s;
}

// Of memory without a context the driver tells it to a thread on the device only, which the thread
// that has asked first need not be.
void device_table::ask_for_access(allocation *of, std::uint64_t address)
{
    if (of->context != nullptr || of->managed || of->accessible || of->is_access_known) {
        return;
    }
    of->is_access_known = true;
    const driver_scope scope(driver_, of->on->context);
    const pointer_facts facts = scope.entered() ? inspect_pointer(driver_, address) : *of;
    if (facts.buffer_id == of->buffer_id) {
        static_cast<pointer_facts &>(*of) = facts;
    }
}

bool device_table::can_hold(std::uint64_t address, std::size_t len_bytes)
{
    const allocation &of = look_up(address, true);
    return !of.on_device || address >= of.range_end || len_bytes <= of.range_end - address;
}

bool device_table::kernel_touches_managed(device &on, std::uint64_t address, std::size_t len_bytes)
{
    const allocation &of = look_up(address, true);
    if (!of.managed || !of.holds(address) || len_bytes > of.len_bytes - (address - of.start)) {
        return false;
    }
    if (!on.shares_managed) {
        int answer = 0;
        if (CUDA_SUCCESS !=
            driver_.device_get_attribute(&answer, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
                                         on.ordinal)) {
            return false;
        }
        on.shares_managed = 0 != answer;
    }
    return *on.shares_managed;
}

status device_table::for_host(device **out)
{
    CUcontext current = nullptr;
    if (CUDA_SUCCESS == driver_.ctx_get_current(&current) && current != nullptr) {
        return for_context(current, out);
    }
    if (last_ != nullptr && is_alive(*last_)) {
        *out = last_;
        return status::ok;
    }
    return status::not_ready;
}

status device_table::for_context(CUcontext context, device **out)
{
    for (const auto &each : devices_) {
        if (each->context == context && is_alive(*each)) {
            *out = last_ = each.get();
            return status::ok;
        }
    }
    auto made = std::make_unique<device>();
    made->index = static_cast<std::uint32_t>(devices_.size());
    made->context = context;
    if (const status s = make(made.get()); status::ok != s) {
        return s;
    }
    devices_.push_back(std::move(made));
    *out = last_ = devices_.back().get();
    log_line(log_level::info, "using the CUDA context of device %d", (*out)->ordinal);
    return status::ok;
}

// All but what is known of the context before.
status device_table::make(device *in)
{
    const driver_scope scope(driver_, in->context);
    if (!scope.entered()) {
        return driver_.report("entering a context", CUDA_ERROR_INVALID_CONTEXT);
    }
    CUuuid uuid{};
    status s = driver_.report("cuCtxGetDevice", driver_.ctx_get_device(&in->ordinal));
    if (status::ok == s) {
        s = driver_.report("cuDeviceGetUuid", driver_.device_get_uuid(&uuid, in->ordinal));
    }
    if (status::ok == s) {
        s = make_stream(driver_, &in->stream, flags_);
    }
    if (status::ok != s) {
        return s;
    }
    static_assert(sizeof(uuid.bytes) == sizeof(in->uuid));
    std::memcpy(in->uuid.data(), uuid.bytes, in->uuid.size());
    if (CUDA_SUCCESS != driver_.device_total_mem(&in->memory_bytes, in->ordinal)) {
        in->memory_bytes = 0;
    }
    // CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which headers and drivers before CUDA 12 lack.
    constexpr auto mps_attribute = static_cast<CUdevice_attribute>(133);
    int answer = 0;
    in->under_mps =
        CUDA_SUCCESS == driver_.device_get_attribute(&answer, mps_attribute, in->ordinal) &&
        0 != answer;
    make_canary(in);
    return status::ok;
}

// In its context, which is current. Done without where it fails.
void device_table::make_canary(device *in)
{
    constexpr std::size_t few_bytes = 512;
    if (CUDA_SUCCESS != driver_.mem_alloc(&in->canary, few_bytes)) {
        in->canary = 0;
    } else if (CUDA_SUCCESS != driver_.pointer_get_attribute(
                                   &in->canary_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, in->canary)) {
        (void)driver_.mem_free(std::exchange(in->canary, 0));
    }
}

void device_table::look_at_contexts(std::int64_t second)
{
    for (const auto &each : devices_) {
        if (is_alive(*each) && 0 == each->canary &&
            second != std::exchange(each->canary_second, second)) {
            const driver_scope scope(driver_, each->context);
            if (scope.entered()) {
                make_canary(each.get());
            }
        }
    }
}

bool device_table::is_alive(device &of)
{
    if (0 != of.canary && !is_still(driver_, of.canary, of.canary_id)) {
        log_line(log_level::info, "a CUDA context of device %d has been destroyed", of.ordinal);
        of.context = nullptr;
        of.stream = nullptr;
        of.ipc_event = nullptr;
        of.canary = 0;
    }
    return of.context != nullptr;
}

CUevent device_table::record_ipc_event(device &of)
{
    const driver_scope scope(driver_, of.context);
    if (!scope.entered()) {
        return nullptr;
    }
    status s = status::ok;
    if (nullptr == of.ipc_event) {
        CUevent made = nullptr;
        s = driver_.report(
            "cuEventCreate",
            driver_.event_create(&made, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
        of.ipc_event = status::ok == s ? made : nullptr;
    }
    if (status::ok == s && status::ok == driver_.record_legacy_stream(of.ipc_event)) {
        return of.ipc_event;
    }
    (void)driver_.wait_for_legacy_stream();
    return nullptr;
}

} // namespace gpusm
