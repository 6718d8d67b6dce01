// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/peer_pages.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/base/pages.h"
#include "opal/mca/common/gpusm/gpu_side.h"

#include <algorithm>

namespace gpusm {

peer_pages::~peer_pages()
{
    for (const auto &[pages, in] : registered_) {
        unregister(pages, *in);
    }
}

void peer_pages::unregister(std::uint64_t pages, const device &in) const
{
    (void)side_.driver.report("cuMemHostUnregister", in_context(side_.driver, in.context, [&] {
                                  return side_.driver.mem_host_unregister(
                                      reinterpret_cast<void *>(pages));
                              }));
}

bool peer_pages::registers(std::uint64_t address, std::size_t bytes, device &in)
{
    const std::size_t page = system_page_bytes();
    const std::uint64_t pages = address / page * page;
    if (std::any_of(registered_.begin(), registered_.end(),
                    [&](const auto &each) { return each.first == pages; })) {
        return true;
    }
    if (!refused_.may_try(pages)) {
        return false;
    }
    const CUresult result = in_context(side_.driver, in.context, [&] {
        return side_.driver.mem_host_register(reinterpret_cast<void *>(pages),
                                              in_system_pages(address + bytes - pages),
                                              CU_MEMHOSTREGISTER_PORTABLE);
    });
    if (CUDA_SUCCESS == result) {
        registered_.emplace_back(pages, &in);
        (void)refused_.worked(pages);
    } else if (refused_.failed(pages, status::driver_failed)) {
        log_line(log_level::info,
                 "memory of a peer's segment stays unregistered with the driver: %s",
                 side_.driver.error_name(result));
    }
    return CUDA_SUCCESS == result;
}

bool peer_pages::forget(const unsigned char *begin, std::size_t len_bytes)
{
    bool all = true;
    std::erase_if(registered_, [&](const auto &each) {
        const auto &[pages, in] = each;
        const bool is_there = pages - reinterpret_cast<std::uint64_t>(begin) < len_bytes;
        if (!is_there || !side_.devices.is_alive(*in)) {
            return is_there;
        }
        if (!side_.may_wait_for_kernels(*in)) {
            all = false;
            return false;
        }
        unregister(pages, *in);
        return true;
    });
    return all;
}

} // namespace gpusm
