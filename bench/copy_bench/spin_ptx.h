// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// spin_ptx.h: the kernel that stands for an application's: each block holds its place for a number
// of clock cycles and touches no memory. Every 16th block has the same number, so that blocks that
// begin together need not end together.
#ifndef GPUSM_COPY_BENCH_SPIN_PTX_H
#define GPUSM_COPY_BENCH_SPIN_PTX_H

namespace gpusm::copy_bench {

inline constexpr const char *spin_name = "gpusm_copy_bench_spin";

// Block b spins for cycles + b % 16 * spread clock cycles.
inline constexpr const char *spin_ptx = R"(.version 7.0
.target sm_70
.address_size 64

.visible .entry gpusm_copy_bench_spin(.param .u64 cycles, .param .u64 spread)
{
    .reg .pred more;
    .reg .u32 block;
    .reg .u64 begin, passed, wanted, step, nth;

    mov.u64 begin, %clock64;
    ld.param.u64 wanted, [cycles];
    ld.param.u64 step, [spread];
    mov.u32 block, %ctaid.x;
    and.b32 block, block, 15;
    cvt.u64.u32 nth, block;
    mad.lo.u64 wanted, nth, step, wanted;
again:
    mov.u64 passed, %clock64;
    sub.u64 passed, passed, begin;
    setp.lt.u64 more, passed, wanted;
    @more bra again;
    ret;
}
)";

} // namespace gpusm::copy_bench

#endif
