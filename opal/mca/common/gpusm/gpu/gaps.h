// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/gaps.h: addresses that stand for the packed bytes of device memory with gaps (views.h), as
// the copy engine sees them: a copy from or to one is made by the strided kernel, which is told of
// both sides by whoever knows what the addresses stand for.
#ifndef GPUSM_GPU_GAPS_H
#define GPUSM_GPU_GAPS_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/copy_list.h"
#include "opal/mca/common/gpusm/gpu/strided_arguments.h"

#include <cstdint>

namespace gpusm {

// The reserved range: addresses that no processor with 57 bits of them or less has, so nobody is
// given one. To a CUDA driver they are unknown memory.
inline constexpr std::uint64_t view_range = std::uint64_t{1} << 62;

constexpr bool is_view_address(std::uint64_t address)
{
    return address - view_range < view_range >> 4;
}

inline bool has_gaps(const copy_request &request)
{
    return is_view_address(request.source) || is_view_address(request.destination);
}

// What the engine needs of others for such copies.
class gap_services {
  public:
    // What a launch is told. Anything but `ok`: no kernel can make this copy now.
    virtual status describe(const copy_request &request, strided_copy *out) = 0;
    // Makes it in another way, and returns when that is done.
    virtual status copy_otherwise(const copy_request &request) = 0;

  protected:
    ~gap_services() = default;
};

} // namespace gpusm

#endif
