// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/ipc/memory_kind.h"

#include <cstddef>

namespace gpusm {

share_kind kind_of(const driver_api &driver, const pointer_facts &facts, std::uint64_t address)
{
    if (facts.legacy_ipc) {
        return share_kind::legacy;
    }
    if (!facts.on_device || facts.managed) {
        return share_kind::none;
    }
    // Pools first: were a driver to name the allocations behind a pool, sharing them would share
    // what else the pool hands out, and no number would tell when that changes.
    bool exportable = false;
    if (is_pool_memory(driver, address, &exportable)) {
        return exportable ? share_kind::pool : share_kind::none;
    }
    return can_export_chunk(driver, address) ? share_kind::descriptors : share_kind::none;
}

status make_copies_synchronous(const driver_api &driver, const device &of)
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
    CUresult result = driver.ctx_get_flags(&flags);
    if (CUDA_SUCCESS != result) {
        return driver.report("cuCtxGetFlags", result);
    }
    // Only once: setting them locks the context, which another thread may hold for long in a
    // kernel launch.
    if (0 != (flags & sync_memops)) {
        return status::ok;
    }
    result = driver.ctx_set_flags(flags | sync_memops);
    if (CUDA_SUCCESS != result) {
        return driver.answer("cuCtxSetFlags", result);
    }
    // The flag holds for later copies. One that returned just before may still be on its way.
    return driver.wait_for_legacy_stream();
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
