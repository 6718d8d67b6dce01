#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_reductions.sh: every reduction on device memory gives what it gives on host memory: blocking,
# non-blocking and persistent ones, in place, between two groups, where only some ranks have device
# memory, with types that have gaps, and from threads; on the devices and through host memory.
# shellcheck disable=SC2016,SC2154 # conditions are evaluated later; set by common.sh
. "$(dirname "$0")/common.sh"
need_gpu reductions || finish

# counted NAME SECONDS RANKS SUBTEST [OPTIONS OF MPIRUN]: and the number of operations is told
counted() {
    name=$1
    what=$4
    seconds=$2
    ranks=$3
    shift 4
    launch "$seconds" "$ranks" "$@" "$exchange" "$what" --kinds D
    judge "$name" 0 $? 'says "$what: passed, [1-9]"' "it does not tell how many it has checked"
    sed -n 's/^exchange .* \([0-9]*\) messages checked.*/    \1 operations checked/p' "$work/output"
}
counted two-ranks 300 2 reductions
if need_softcuda four-devices; then
    counted four-devices 300 4 reductions -x GPUSM_SOFTCUDA_DEVICES=4
fi
counted two-ranks-through-host-memory 300 2 reductions --mca coll_gpusm_use_devices 0
# Every operation on every type: on the devices, as the component counts.
for ranks in 2 3 9; do
    counted "types-of-$ranks-ranks" 120 "$ranks" reductions-types
done
# One rank does not use devices, or has no coll/gpusm: nobody waits for it.
launch 120 1 --mca coll_gpusm_use_devices 0 "$exchange" reductions --kinds D : \
    -n 2 "$exchange" reductions --kinds D
judge one-rank-uses-no-devices 0 $? 'says "reductions: passed, [1-9]"' "it does not pass"
launch 120 1 --mca coll ^gpusm "$exchange" pairs --kinds D --max-size 1 : \
    -n 1 "$exchange" pairs --kinds D --max-size 1
judge one-rank-has-no-coll-gpusm 0 $? 'says "pairs: passed, [1-9]"' "it does not pass"
# What a process cannot do now, none does; a launch that is refused is tried again.
if need_softcuda devices-that-cannot; then
    for call in cuIpcOpenMemHandle:2:2 cuModuleLoadData:1:2 cuIpcGetMemHandle:1:2 cuLaunchKernel:5:2; do
        counted "one-$call-fails" 120 3 reductions -x GPUSM_SOFTCUDA_FAIL="$call" \
            -x GPUSM_SOFTCUDA_FAIL_CALLER=libmca_common_gpusm.so
    done
fi
# Blocks come and go, and the large ones are not page-locked.
counted three-ranks-little-locked-memory 300 3 reductions --mca coll_gpusm_staging_bytes 300000
# With coll/cuda as the next component, which otherwise gets no communicator.
counted four-ranks-with-coll-cuda 300 4 reductions --mca coll_cuda_priority 78
# Of 40 MiB, in pieces that fit page-locked memory. Two ranks copy 54 pieces, if all calls are cut:
# twice 2 x 3 there and back again in allreduce, 9 in reduce, 12 in scan, 9 in exscan.
counted two-ranks-long 300 2 reductions-long --mca coll_gpusm_use_devices 0
counted three-ranks-long 300 3 reductions-long --mca coll_adapt_priority 100
for ranks in 2 3; do
    check "absolute-addresses-of-$ranks-ranks" 120 "$ranks" "$exchange" absolute-reductions --kinds HDM
    check "type-handles-of-$ranks-ranks" 60 "$ranks" "$exchange" type-handles --kinds HD
done
if need_softcuda long-reductions-go-in-pieces; then
    launch 120 2 --mca coll_gpusm_use_devices 0 -x GPUSM_SOFTCUDA_LOG="$work" "$exchange" \
        reductions-long --kinds D --rounds 1
    status=$?
    copies=$(cat "$work"/*.log | grep -c '^cuMemcpy[A-Za-z]* .* mca_accelerator_' || true)
    judge long-reductions-go-in-pieces 0 $status '[ "$copies" -ge 54 ]' \
        "there were $copies copies"
fi
# Components that know host memory only, above all others; the user's own choice of ours stays.
counted two-ranks-with-coll-adapt-above 300 2 reductions --mca coll_adapt_priority 100
counted threads-with-coll-sm-above 120 2 reductions-threads --mca coll_sm_priority 1000 \
    --mca coll_adapt_priority 99
launch 120 2 --mca coll_gpusm_priority 77 --mca coll_tuned_priority 80 --mca coll_base_verbose 9 \
    "$exchange" pairs --kinds D --max-size 1
judge priority-that-the-user-has-chosen 0 $? 'says "selecting *gpusm, priority  77, Enabled"' \
    "it is not kept" 'says "selecting *tuned, priority  80, Enabled"' "another one's is changed"
for ranks in 2 3 4; do
    counted "two-groups-of-$ranks-ranks" 120 "$ranks" reductions-inter
done
counted threads 120 2 reductions-threads
if need_gpu blocking-behind-started; then
    check blocking-behind-started 60 3 "$exchange" blocking-behind-started
    check started-ones-go-another-way 60 3 "$exchange" started-otherwise --kinds DW
fi
if need_softcuda one-of-several-cannot-begin; then
    counted one-of-several-cannot-begin 60 2 reductions-startall --mca coll_gpusm_use_devices 0 \
        -x GPUSM_SOFTCUDA_FAIL=cuMemcpyAsync:2:700 -x GPUSM_SOFTCUDA_FAIL_CALLER=mca_accelerator_cuda.so
fi
finish
