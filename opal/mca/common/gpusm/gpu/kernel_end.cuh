// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/kernel_end.cuh: how a launch of one of the kernels tells the host that it has ended. Device
// code only.
#ifndef GPUSM_GPU_KERNEL_END_CUH
#define GPUSM_GPU_KERNEL_END_CUH

#include <stdint.h>

namespace gpusm {

// Called by all threads of all blocks, as the last thing they do. Of the arguments: `done`, the
// device address of a uint32_t in host memory, into which done_value goes; and `slot`, whose member
// of finished_blocks counts the blocks of this launch that have ended, and is 0 before and after.
//
// The last block to finish tells the host. A fence before each block's count and one behind the
// last count put the bytes of all blocks before the flag. Between the blocks the device's scope is
// enough, and takes less time than the system's; what is known to the last block is known to whom
// it tells.
template <typename arguments_type>
__device__ __forceinline__ void tell_end(const arguments_type &arguments, unsigned *finished_blocks)
{
    __syncthreads();
    if (threadIdx.x != 0) {
        return;
    }
    if (gridDim.x > 1) {
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
        unsigned *finished = &finished_blocks[arguments.slot];
        if (atomicAdd(finished, 1) != gridDim.x - 1) {
            return;
        }
        *finished = 0;
    }
    asm volatile("fence.acq_rel.sys;\n\t"
                 "st.relaxed.sys.global.u32 [%0], %1;" ::"l"(arguments.done),
                 "r"(arguments.done_value)
                 : "memory");
}

} // namespace gpusm

#endif
