// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/ipc/legacy.h"

namespace gpusm {

status export_memory(const driver_api &driver, const device &of, std::uint64_t address,
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
    exported_memory made;
    result = driver.ipc_get_mem_handle(&made.handle, base);
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
    // The mark holds for later copies. One that returned just before may still be on its way.
    if (const status s = driver.wait_for_legacy_stream(); status::ok != s) {
        return s;
    }
    made.base = base;
    made.len_bytes = len_bytes;
    *out = made;
    return status::ok;
}

status open_memory(const driver_api &driver, const device &into, const CUipcMemHandle &handle,
                   std::uint64_t *local_base)
{
    CUdeviceptr opened = 0;
    const CUresult result = in_context(driver, into.context, [&] {
        return driver.ipc_open_mem_handle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    });
    if (CUDA_SUCCESS == result) {
        *local_base = opened;
    }
    return driver.answer("cuIpcOpenMemHandle", result);
}

void close_memory(const driver_api &driver, const device &into, std::uint64_t local_base)
{
    (void)driver.answer("cuIpcCloseMemHandle", in_context(driver, into.context, [&] {
                            return driver.ipc_close_mem_handle(local_base);
                        }));
}

status export_event(const driver_api &driver, device_table &table, device &of,
                    CUipcEventHandle *out)
{
    CUevent event = nullptr;
    const status s = table.ipc_event(of, &event);
    return status::ok != s
               ? s
               : driver.answer("cuIpcGetEventHandle", in_context(driver, of.context, [&] {
                                   return driver.ipc_get_event_handle(out, event);
                               }));
}

status open_event(const driver_api &driver, const device &into, const CUipcEventHandle &handle,
                  CUevent *out)
{
    return driver.answer("cuIpcOpenEventHandle", in_context(driver, into.context, [&] {
                             return driver.ipc_open_event_handle(out, handle);
                         }));
}

} // namespace gpusm
