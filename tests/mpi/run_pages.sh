#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_pages.sh: where pages have 64 KiB, as in some systems for aarch64, nothing that is page-locked shares a page
# with something else that is: the driver would refuse it.
# shellcheck disable=SC2016,SC2154 # conditions are evaluated later; set by common.sh
. "$(dirname "$0")/common.sh"
need_gpusm pages || finish
need_softcuda pages || finish
need_files pages || finish

# locks NAME LEAST SUBTEST OPTIONS...: registers at least so often, and is never refused
locks() {
    name=$1
    least=$2
    shift 2
    logged "$name" -x LD_PRELOAD="$GPUSM_BUILDDIR/tests/mpi/large_pages.so" -x GPUSM_SOFTCUDA_PAGE_BYTES=65536 "$@"
    judge "$name" 0 $? '[ "$(calls_in "$name" "^cuMemHostRegister [1-9]")" -eq 0 ]' "the driver has refused to page-lock" \
        '[ "$(calls_in "$name" "^cuMemHostRegister 0 .*_gpusm.so|^cuMemHostRegister 0 .*_accelerator")" -ge "$least" ]' \
        "less is page-locked than expected"
}
# In each of two ranks: the flags of the kernel, and one registration by MPI_Init.
locks two-contexts 4 "$exchange" context-switched --kinds D
# Memory between a device and pageable memory.
locks gather-from-and-to-host 10 "$exchange" gather --kinds DH
# Rings of the peer, too.
locks rings 12 --mca btl_gpusm_staging_device_bytes 0 "$exchange" pairs --kinds HDW --max-size 2M
locks reductions 12 "$exchange" reductions-threads --kinds D
finish
