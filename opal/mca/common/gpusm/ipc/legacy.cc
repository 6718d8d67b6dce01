// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/ipc/legacy.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <bit>

namespace gpusm {

status export_memory(const driver_api &driver, device &of, std::uint64_t address,
                     exported_memory *out)
{
    const driver_scope scope(driver, of.context);
    if (!scope.entered()) {
        return status::driver_failed;
    }
    CUdeviceptr base = 0;
    size_t len_bytes = 0;
    CUresult result = driver.mem_get_address_range(&base, &len_bytes, address);
    if (CUDA_SUCCESS != result) {
        return driver.report("cuMemGetAddressRange", result);
    }
    CUipcMemHandle handle;
    result = driver.ipc_get_mem_handle(&handle, base);
    if (CUDA_ERROR_INVALID_VALUE == result || CUDA_ERROR_NOT_SUPPORTED == result) {
        return status::unsupported;
    }
    if (CUDA_SUCCESS != result) {
        return driver.report("cuIpcGetMemHandle", result);
    }
    const unsigned on = 1;
    result = driver.pointer_set_attribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, base);
    if (CUDA_SUCCESS != result) {
        return driver.report("setting SYNC_MEMOPS", result);
    }
    *out = {base, len_bytes, std::bit_cast<memory_handle>(handle), ++of.marks.last};
    return status::ok;
}

status wait_for_earlier_copies(const driver_api &driver, device &of, std::uint64_t mark)
{
    if (mark <= of.marks.waited_for) {
        return status::ok;
    }
    const std::uint64_t last = of.marks.last;
    const driver_scope scope(driver, of.context);
    const status s = scope.entered() ? driver.wait_for_legacy_stream() : status::driver_failed;
    of.marks.waited_for = status::ok == s ? last : of.marks.waited_for;
    return status::not_ready == s ? status::ok : s;
}

status open_memory(const driver_api &driver, const device &into, const memory_handle &handle,
                   std::uint64_t *local_base)
{
    CUdeviceptr opened = 0;
    const CUresult result = in_context(driver, into.context, [&] {
        return driver.ipc_open_mem_handle(&opened, std::bit_cast<CUipcMemHandle>(handle),
                                          CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    });
    if (CUDA_SUCCESS == result) {
        *local_base = opened;
    }
    return CUDA_ERROR_ALREADY_MAPPED == result ? status::not_found
                                               : driver.answer("cuIpcOpenMemHandle", result);
}

void close_memory(const driver_api &driver, const device &into, std::uint64_t local_base)
{
    (void)driver.answer("cuIpcCloseMemHandle", in_context(driver, into.context, [&] {
                            return driver.ipc_close_mem_handle(local_base);
                        }));
}

status make_copies_synchronous(const driver_api &driver, device &of)
{
    constexpr unsigned sync_memops = 0x80; // CU_CTX_SYNC_MEMOPS, which headers before 12.1 lack
    if (nullptr == driver.ctx_set_flags) {
        return status::unsupported;
    }
    const driver_scope scope(driver, of.context);
    if (!scope.entered()) {
        return status::driver_failed;
    }
    unsigned flags = 0;
    status s = driver.report("cuCtxGetFlags", driver.ctx_get_flags(&flags));
    // Only once: setting them locks the context, which another thread may hold for long in a
    // kernel launch.
    if (status::ok != s || 0 != (flags & sync_memops)) {
        return s;
    }
    if (!of.marks.marking.may_try()) {
        return status::driver_failed;
    }
    const CUresult result = driver.ctx_set_flags(flags | sync_memops);
    if (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED == result) {
        if (of.marks.marking.refused(status::driver_failed)) {
            log_line(log_level::warn,
                     "a stream capture of this program has been ended by the CUDA driver, because "
                     "the first message from memory that is not cuMemAlloc's marks its context "
                     "(CU_CTX_SYNC_MEMOPS): send one before capturing. Tried again later");
        }
        return status::driver_failed;
    }
    s = driver.answer("cuCtxSetFlags", result);
    if (status::driver_failed == s) {
        (void)of.marks.marking.failed(s);
    }
    of.marks.of_context = status::ok == s ? ++of.marks.last : of.marks.of_context;
    return s;
}

status alloc_device(const driver_api &driver, const device &into, std::uint64_t len_bytes,
                    std::uint64_t *out)
{
    CUdeviceptr made = 0;
    const CUresult result =
        in_context(driver, into.context, [&] { return driver.mem_alloc(&made, len_bytes); });
    if (CUDA_SUCCESS == result) {
        *out = made;
    }
    return driver.answer("cuMemAlloc", result);
}

void free_device(const driver_api &driver, const device &into, std::uint64_t address)
{
    (void)driver.answer("cuMemFree",
                        in_context(driver, into.context, [&] { return driver.mem_free(address); }));
}

status check_mapped_length(const driver_api &driver, const device &into, std::uint64_t local_base,
                           std::uint64_t len_bytes)
{
    CUdeviceptr start = 0;
    std::size_t mapped_bytes = 0;
    const CUresult result = in_context(driver, into.context, [&] {
        return driver.mem_get_address_range(&start, &mapped_bytes, local_base);
    });
    if (CUDA_SUCCESS != result) {
        return driver.report("cuMemGetAddressRange", result);
    }
    const std::uint64_t before = local_base - start;
    return before <= mapped_bytes && len_bytes <= mapped_bytes - before ? status::ok
                                                                        : status::bad_peer;
}

} // namespace gpusm
