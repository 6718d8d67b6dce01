// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/accelerator/gpusm/accelerator.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace gpusm {

namespace {

constexpr std::size_t most_piece_bytes = std::size_t{4} << 20;

CUdeviceptr address_of(const void *at)
{
    return reinterpret_cast<CUdeviceptr>(at);
}

// By the kernel, which answers where a processor would crash: memory of a device whose context has
// ended looks like host memory, and cannot be reached.
status copy_on_host(void *to, const void *from, std::size_t len_bytes)
{
    iovec target = {to, len_bytes};
    iovec source = {const_cast<void *>(from), len_bytes};
    while (target.iov_len > 0) {
        const ssize_t done = process_vm_readv(getpid(), &target, 1, &source, 1, 0);
        if (done <= 0 && EFAULT == errno) {
            return status::system_failed;
        }
        if (done <= 0) { // forbidden
            std::memcpy(target.iov_base, source.iov_base, target.iov_len);
            break;
        }
        for (iovec *each : {&target, &source}) {
            each->iov_base = static_cast<unsigned char *>(each->iov_base) + done;
            each->iov_len -= static_cast<std::size_t>(done);
        }
    }
    return status::ok;
}

} // namespace

// Blocking streams: they order the copies behind the legacy stream, and behind no other one,
// without a call. (Copies on the legacy stream itself would wait for every blocking stream of the
// program's, where a kernel may wait for the message.)
accelerator::accelerator(const driver_api &driver)
    : driver_(driver), devices_(driver, CU_STREAM_DEFAULT)
{
}

status accelerator::device_for(int ordinal, device **out)
{
    const std::lock_guard guard(mutex_);
    return ordinal < 0 ? devices_.for_host(out) : devices_.for_memory(nullptr, ordinal, out);
}

// For a copy between those: null when a processor can do it.
status accelerator::device_for(const memory_place &a, const memory_place &b, device **out)
{
    *out = nullptr;
    if (!a.answered || !b.answered) {
        return driver_.report("cuPointerGetAttributes", CUDA_ERROR_UNKNOWN);
    }
    const memory_place &on = a.on_device ? a : b;
    if (!on.on_device) {
        return status::ok;
    }
    const std::lock_guard guard(mutex_);
    return devices_.for_memory(on.context, on.ordinal, out);
}

bool accelerator::is_alive(device *on)
{
    const std::lock_guard guard(mutex_);
    return on != nullptr && devices_.is_alive(*on);
}

// What the driver refuses it takes from and to memory of our own: memory without a context that is
// closed to the other device, and host memory that is page-locked in part.
status accelerator::copy(void *to, const void *from, std::size_t len_bytes)
{
    CUresult refused = CUDA_SUCCESS;
    status s = copy_directly(to, from, len_bytes, &refused);
    if (CUDA_SUCCESS == refused) {
        return s;
    }
    std::vector<unsigned char> between(std::min(len_bytes, most_piece_bytes));
    s = status::ok;
    for (std::size_t at = 0; status::ok == s && at < len_bytes; at += between.size()) {
        const std::size_t bytes = std::min(between.size(), len_bytes - at);
        s = copy_directly(between.data(), static_cast<const unsigned char *>(from) + at, bytes,
                          &refused);
        if (status::ok == s) {
            s = copy_directly(static_cast<unsigned char *>(to) + at, between.data(), bytes,
                              &refused);
        }
    }
    return CUDA_SUCCESS == refused ? s : driver_.report("cuMemcpyAsync", refused);
}

// *refused: why the driver has not begun.
status accelerator::copy_directly(void *to, const void *from, std::size_t len_bytes,
                                  CUresult *refused)
{
    *refused = CUDA_SUCCESS;
    device *on = nullptr;
    if (const status s = device_for(place_of(driver_, to), place_of(driver_, from), &on);
        status::ok != s) {
        return s;
    }
    if (nullptr == on) {
        return copy_on_host(to, from, len_bytes);
    }
    const driver_scope scope(driver_, on->context);
    if (!scope.entered()) {
        return status::driver_failed;
    }
    *refused = driver_.memcpy_async(address_of(to), address_of(from), len_bytes, on->stream);
    return CUDA_SUCCESS == *refused
               ? driver_.report("cuStreamSynchronize", driver_.stream_synchronize(on->stream))
               : status::driver_failed;
}

status accelerator::move(void *to, const void *from, std::size_t len_bytes)
{
    const std::uint64_t target = address_of(to);
    const std::uint64_t source = address_of(from);
    if (target - source >= len_bytes && source - target >= len_bytes) {
        return copy(to, from, len_bytes); // apart
    }
    device *on = nullptr;
    const status s = device_for(place_of(driver_, to), place_of(driver_, from), &on);
    if (status::ok != s || target == source) {
        return s;
    }
    if (nullptr == on) {
        std::memmove(to, from, len_bytes);
        return status::ok;
    }
    const driver_scope scope(driver_, on->context);
    return scope.entered() ? move_on(*on, target, source, len_bytes) : status::driver_failed;
}

// By pieces through memory of the device, from the end that is not overwritten first. That context
// is current.
status accelerator::move_on(const device &on, CUdeviceptr to, CUdeviceptr from,
                            std::size_t len_bytes)
{
    const std::size_t piece_bytes = std::min(len_bytes, most_piece_bytes);
    CUdeviceptr between = 0;
    if (const CUresult result = driver_.mem_alloc(&between, piece_bytes); CUDA_SUCCESS != result) {
        return driver_.answer("cuMemAlloc", result);
    }
    CUresult result = CUDA_SUCCESS;
    for (std::size_t done = 0; CUDA_SUCCESS == result && done < len_bytes;) {
        const std::size_t bytes = std::min(piece_bytes, len_bytes - done);
        const std::size_t at = to < from ? done : len_bytes - done - bytes;
        result = driver_.memcpy_async(between, from + at, bytes, on.stream);
        if (CUDA_SUCCESS == result) {
            result = driver_.memcpy_async(to + at, between, bytes, on.stream);
        }
        done += bytes;
    }
    const CUresult waited = driver_.stream_synchronize(on.stream);
    (void)driver_.report("cuMemFree", driver_.mem_free(between));
    return CUDA_SUCCESS == result ? driver_.report("cuStreamSynchronize", waited)
                                  : driver_.report("cuMemcpyAsync", result);
}

// Of a context that the program has destroyed, the stream has gone with it.
status accelerator::stream_on(device *on, lazy_stream *stream)
{
    const std::lock_guard guard(mutex_);
    if (stream->on != nullptr && devices_.is_alive(*stream->on)) {
        return status::ok;
    }
    CUstream made = nullptr;
    const status s = driver_.report("cuStreamCreate", in_context(driver_, on->context, [&] {
                                        return driver_.stream_create(&made, CU_STREAM_DEFAULT, 0);
                                    }));
    if (status::ok == s) {
        *stream = {on, made};
    }
    return s;
}

status accelerator::copy_async(void *to, const void *from, std::size_t len_bytes,
                               lazy_stream *stream)
{
    device *on = nullptr;
    status s = device_for(place_of(driver_, to), place_of(driver_, from), &on);
    if (status::ok == s && nullptr == on) {
        s = synchronize(stream); // what was before it
        return status::ok == s ? copy_on_host(to, from, len_bytes) : s;
    }
    if (status::ok == s) {
        s = stream_on(on, stream);
    }
    return status::ok != s
               ? s
               : driver_.report("cuMemcpyAsync", in_context(driver_, stream->on->context, [&] {
                                    return driver_.memcpy_async(address_of(to), address_of(from),
                                                                len_bytes, stream->handle);
                                }));
}

status accelerator::record(lazy_event *event, lazy_stream *stream)
{
    event->recorded = false;
    if (!is_alive(stream->on)) {
        return status::ok;
    }
    const CUcontext context = stream->on->context;
    if (event->on != stream->on) {
        destroy(event);
        const status s =
            driver_.report("cuEventCreate", in_context(driver_, context, [&] {
                               return driver_.event_create(&event->handle, CU_EVENT_DISABLE_TIMING);
                           }));
        if (status::ok != s) {
            return s;
        }
        event->on = stream->on;
    }
    const status s = driver_.report("cuEventRecord", in_context(driver_, context, [&] {
                                        return driver_.event_record(event->handle, stream->handle);
                                    }));
    event->recorded = status::ok == s;
    return s;
}

status accelerator::query(lazy_event *event)
{
    if (!event->recorded) {
        return status::ok;
    }
    if (!is_alive(event->on)) {
        return status::driver_failed;
    }
    const CUresult result =
        in_context(driver_, event->on->context, [&] { return driver_.event_query(event->handle); });
    return CUDA_ERROR_NOT_READY == result ? status::busy : driver_.report("cuEventQuery", result);
}

status accelerator::synchronize(lazy_stream *stream)
{
    return is_alive(stream->on)
               ? driver_.report(
                     "cuStreamSynchronize",
                     in_context(driver_, stream->on->context,
                                [&] { return driver_.stream_synchronize(stream->handle); }))
               : status::ok;
}

status accelerator::wait_event(lazy_stream *stream, lazy_event *event)
{
    if (!event->recorded) {
        return status::ok;
    }
    if (!is_alive(event->on)) {
        return status::driver_failed;
    }
    const status s = stream_on(event->on, stream);
    return status::ok != s
               ? s
               : driver_.report("cuStreamWaitEvent", in_context(driver_, stream->on->context, [&] {
                                    return driver_.stream_wait_event(stream->handle, event->handle,
                                                                     0);
                                }));
}

void accelerator::destroy(lazy_event *event)
{
    if (is_alive(event->on)) {
        (void)driver_.report("cuEventDestroy", in_context(driver_, event->on->context, [&] {
                                 return driver_.event_destroy(event->handle);
                             }));
    }
    *event = {};
}

void accelerator::destroy(lazy_stream *stream)
{
    if (is_alive(stream->on)) {
        (void)driver_.report("cuStreamDestroy", in_context(driver_, stream->on->context, [&] {
                                 return driver_.stream_destroy(stream->handle);
                             }));
    }
    *stream = {};
}

status accelerator::allocate(int ordinal, std::size_t len_bytes, void **out)
{
    device *on = nullptr;
    if (const status s = device_for(ordinal, &on); status::ok != s) {
        return s;
    }
    CUdeviceptr made = 0;
    const CUresult result =
        in_context(driver_, on->context, [&] { return driver_.mem_alloc(&made, len_bytes); });
    if (CUDA_SUCCESS == result) {
        *out = reinterpret_cast<void *>(made);
    }
    return driver_.answer("cuMemAlloc", result);
}

status accelerator::release(void *allocated)
{
    return driver_.report("cuMemFree",
                          in_context(driver_, place_of(driver_, allocated).context,
                                     [&] { return driver_.mem_free(address_of(allocated)); }));
}

status accelerator::range_of(const void *address, void **base, std::size_t *len_bytes)
{
    device *on = nullptr;
    const memory_place place = place_of(driver_, address);
    if (const status s = device_for(place, place, &on); status::ok != s || nullptr == on) {
        return status::ok != s ? s : status::not_found;
    }
    CUdeviceptr start = 0;
    const status s = driver_.report("cuMemGetAddressRange", in_context(driver_, on->context, [&] {
                                        return driver_.mem_get_address_range(&start, len_bytes,
                                                                             address_of(address));
                                    }));
    *base = reinterpret_cast<void *>(start);
    return s;
}

status accelerator::buffer_id(const void *address, unsigned long long *out)
{
    if (CUDA_SUCCESS !=
        driver_.pointer_get_attribute(out, CU_POINTER_ATTRIBUTE_BUFFER_ID, address_of(address))) {
        return status::not_found;
    }
    const unsigned on = 1; // refused for VMM memory
    (void)driver_.pointer_set_attribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address_of(address));
    return status::ok;
}

status accelerator::lock_host(int ordinal, void *address, std::size_t len_bytes)
{
    device *on = nullptr;
    const status s = device_for(ordinal, &on);
    return status::ok != s
               ? s
               : driver_.answer("cuMemHostRegister", in_context(driver_, on->context, [&] {
                                    return driver_.mem_host_register(address, len_bytes,
                                                                     CU_MEMHOSTREGISTER_PORTABLE);
                                }));
}

// Open MPI also gives back what could not be locked.
status accelerator::unlock_host(int ordinal, void *address)
{
    device *on = nullptr;
    if (const status s = device_for(ordinal, &on); status::ok != s) {
        return s;
    }
    const CUresult result =
        in_context(driver_, on->context, [&] { return driver_.mem_host_unregister(address); });
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED == result
               ? status::not_found
               : driver_.report("cuMemHostUnregister", result);
}

status accelerator::current_device(int *ordinal)
{
    device *on = nullptr;
    const status s = device_for(-1, &on);
    if (status::ok == s) {
        *ordinal = on->ordinal;
    }
    return s;
}

status accelerator::pci_of(int ordinal, pci_place *out)
{
    const std::pair<CUdevice_attribute, int *> parts[] = {
        {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, &out->domain},
        {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, &out->bus},
        {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, &out->device},
    };
    CUresult result = CUDA_SUCCESS;
    for (const auto &[what, to] : parts) {
        result = CUDA_SUCCESS == result ? driver_.device_get_attribute(to, what, ordinal) : result;
    }
    return driver_.answer("cuDeviceGetAttribute", result);
}

status accelerator::can_access_peer(int ordinal, int peer, bool *out)
{
    int yes = 0;
    const CUresult result = driver_.device_can_access_peer(&yes, ordinal, peer);
    *out = 0 != yes;
    return driver_.answer("cuDeviceCanAccessPeer", result);
}

} // namespace gpusm
