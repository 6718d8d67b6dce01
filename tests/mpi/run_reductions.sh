#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_reductions.sh: every reduction on device memory gives what it gives on host memory: blocking,
# non-blocking and persistent ones, in place, between two groups, where only some ranks have device
# memory, with types that have gaps, and from threads.
. "$(dirname "$0")/common.sh"
need_gpu reductions || finish
reductions=$GPUSM_BUILDDIR/tests/mpi/reductions

# counted NAME SECONDS RANKS WHAT [OPTIONS OF MPIRUN]: and the number of operations is told
counted() {
    name=$1
    what=$4
    seconds=$2
    ranks=$3
    shift 4
    launch "$seconds" "$ranks" "$@" "$reductions" "$what"
    judge "$name" 0 $? 'says "operations checked"' "it does not tell how many it has checked"
    # shellcheck disable=SC2154 # set by common.sh
    sed -n 's/^reductions: \([0-9]*\) /    \1 /p' "$work/output"
}
counted two-ranks 300 2 intra
# Blocks come and go, and the large ones are not page-locked.
counted three-ranks-little-locked-memory 300 3 intra --mca coll_gpusm_staging_bytes 300000
# Without coll/cuda, which otherwise is the next component.
counted four-ranks-without-coll-cuda 300 4 intra --mca coll ^cuda
for ranks in 2 3 4; do
    counted "two-groups-of-$ranks-ranks" 120 "$ranks" inter
done
counted threads 120 2 threads
finish
