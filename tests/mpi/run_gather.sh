#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_gather.sh: windows of many messages from device memory, which are gathered into one launch of
# a kernel or one call of the driver, arrive with every setting and whatever of it the driver
# refuses; and go the way that the setting says.
# shellcheck disable=SC2016,SC2034 # conditions are evaluated later
. "$(dirname "$0")/common.sh"

need_gpusm gather || finish
need_gpu gather || finish

# number_behind WORD: from the line in which `exchange gather` says what it counted
number_behind() {
    sed -n "s/.*submissions: .*$1:\{0,1\} \([0-9]*\).*/\1/p" "$work/output" | tail -n 1
}

# gathers NAME CONDITION [OPTIONS OF MPIRUN]: everything arrives, and then the condition holds, in
# which $single, $batch and $kernel are numbers of submissions
gathers() {
    gathers_name=$1
    gathers_condition=$2
    shift 2
    # shellcheck disable=SC2086 # subtest and options
    launch 60 2 "$@" "$exchange" ${gathers_test:-gather --kinds D}
    gathers_status=$?
    single=$(number_behind single)
    batch=$(number_behind batch)
    kernel=$(number_behind kernel)
    judge "$gathers_name" 0 $gathers_status '[ -n "$single$batch$kernel" ]' "the counters were not printed" \
        "$gathers_condition" "single $single, batch $batch, kernel $kernel, but not: $gathers_condition"
}

by_kernel='[ $kernel -gt 0 ]'
not_by_kernel='[ $kernel -eq 0 ] && [ $((single + batch)) -gt 0 ]'
one_by_one='[ $kernel -eq 0 ] && [ $batch -eq 0 ] && [ $single -gt 0 ]'
no_batch='[ $kernel -gt 0 ] && [ $batch -eq 0 ]'
gathers by-default "$by_kernel"
gathers without-the-kernel "$not_by_kernel" --mca btl_gpusm_kernel_blocks 0
gathers without-batches "$no_batch" --mca btl_gpusm_use_batch_copies 0
gathers without-kernel-and-batches "$one_by_one" --mca btl_gpusm_kernel_blocks 0 \
    --mca btl_gpusm_use_batch_copies 0
gathers one-block "$by_kernel" --mca btl_gpusm_kernel_blocks 1
gathers most-blocks "$by_kernel" --mca btl_gpusm_kernel_blocks 1024
gathers open-mpis-own-pointer-check "$by_kernel" --mca btl_gpusm_quick_pointer_check 0
# What may go inline by that limit must go another way where device memory is not to.
for limit in 80 4096 65536; do
    check "accelerator-eager-limit-of-$limit" 60 2 --mca btl_gpusm_accelerator_eager_limit $limit \
        "$exchange" pairs --kinds D --max-size 2M
done
launch 60 2 --mca btl_gpusm_accelerator_eager_limit 1048576 "$exchange" pairs --kinds D
judge accelerator-eager-limit-above-all-fragments 0 0 \
    'says "Parameter: btl_gpusm_accelerator_eager_limit"' "it is not said which parameter is wrong"
# One limit alone, without the tests' own: those that must not be lower follow it.
(
    unset OMPI_MCA_btl_gpusm_eager_limit OMPI_MCA_btl_gpusm_max_send_size
    launch 60 2 --mca btl_gpusm_eager_limit 16640 "$exchange" pairs --kinds DH --max-size 1M &&
        launch 60 2 --mca btl_gpusm_max_send_size 262144 "$exchange" pairs --kinds DH --max-size 1M
)
judge one-limit-alone 0 $?
gathers_test="gather --kinds $kinds"
gathers into-every-kind-of-memory "$by_kernel"
# Managed memory moves between the devices and the host, so it is left to the driver.
gathers_test="gather --kinds M"
gathers into-other-memory-not-by-kernel "$not_by_kernel"
# Over the bus: the registered pages between are for the kernel like device memory. (M needs the GPU
# to be there, and is none for the kernel.)
gathers_test="gather --kinds HM"
gathers into-host-memory "$by_kernel"
gathers into-host-memory-by-the-driver "$not_by_kernel" --mca btl_gpusm_kernel_blocks 0
gathers_test="gather-from-host --kinds D"
gathers from-host-memory "$by_kernel"
gathers from-host-memory-by-the-driver "$not_by_kernel" --mca btl_gpusm_kernel_blocks 0
gathers from-host-memory-without-pulls "$by_kernel" --mca btl_gpusm_use_single_copy 0
gathers_test="gather-from-host --kinds M"
gathers from-host-into-other-memory-not-by-kernel "$not_by_kernel"
gathers_test=

if need_softcuda what-the-driver-refuses; then
    gathers no-module-can-be-loaded "$not_by_kernel" -x GPUSM_SOFTCUDA_FAIL=cuModuleLoadDataEx:0:222
    gathers no-function-is-found "$not_by_kernel" -x GPUSM_SOFTCUDA_FAIL=cuModuleGetFunction:0:500
    gathers no-memory-for-flags "$not_by_kernel" -x GPUSM_SOFTCUDA_FAIL=cuMemHostRegister:0:801
    gathers first-launch-refused "$by_kernel" -x GPUSM_SOFTCUDA_FAIL=cuLaunchKernel:1:701
    gathers third-launch-refused "$by_kernel" -x GPUSM_SOFTCUDA_FAIL=cuLaunchKernel:3:701
    gathers every-launch-refused "$not_by_kernel" -x GPUSM_SOFTCUDA_FAIL=cuLaunchKernel:0:701
    gathers_test="gather-from-host --kinds D"
    gathers rings-that-are-not-registered-are-not-for-the-kernel "$not_by_kernel" \
        -x GPUSM_SOFTCUDA_FAIL=cuMemHostRegister:0:801
    # One question is about the flags of the kernel; the others are asked a few times, with pauses.
    gathers unknown-addresses-on-the-device-are-not-for-the-kernel "$not_by_kernel" \
        -x GPUSM_SOFTCUDA_FAIL="$(seq -f cuMemHostGetDevicePointer:%g:1 -s , 2 50)"
    gathers addresses-on-the-device-are-asked-for-again "$by_kernel" \
        -x GPUSM_SOFTCUDA_FAIL=cuMemHostGetDevicePointer:1:1
    gathers every-launch-of-host-memory-refused "$not_by_kernel" \
        -x GPUSM_SOFTCUDA_FAIL=cuLaunchKernel:0:701
    gathers_test=
    per_rank 1 GPUSM_SOFTCUDA_FAIL=cuModuleLoadDataEx:0:222
    gathers one-rank-cannot-load "$by_kernel" "$work/per-rank-1"

    # A kernel that writes where nothing is takes the context down with it, and everything after it
    # fails. What would leave the allocation goes in fragments instead, and the program ends because
    # Open MPI ends it when it cannot copy either.
    launch 60 2 "$exchange" behind-end --kinds D
    status=$?
    # Whatever ends it, but no deadline.
    judge message-behind-its-buffer-is-not-for-the-kernel 0 0 \
        '[ $status -ne 124 ] && [ $status -ne 3 ]' "$(explain $status)" \
        'says "accelerator.memcpy"' "Open MPI did not copy it" \
        '! says ILLEGAL_ADDRESS' "the context was taken down"
fi

# Values out of range: gpusm says which one, and stays away; the program runs without it.
gathers_btl=$btl
btl=
for bad in kernel_blocks=1025 staging_device_bytes=1 staging_host_bytes=0; do
    parameter=${bad%=*}
    launch 60 2 --mca "btl_gpusm_$parameter" "${bad#*=}" "$exchange" pairs --kinds H --max-size 256
    judge "refused-$parameter-of-${bad#*=}" 0 $? \
        'says "Parameter: btl_gpusm_$parameter\$" && says "Value:     ${bad#*=}\$"' \
        "the help text does not name the parameter and its value"
done
btl=$gathers_btl
finish
