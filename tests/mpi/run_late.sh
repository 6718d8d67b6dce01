#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_late.sh: CUDA that is used late, by one rank only, by ranks that see different devices, and by
# several threads; processes that are spawned.
. "$(dirname "$0")/common.sh"

if need_gpusm cuda-after-init && need_gpu cuda-after-init; then
    check first-messages 60 2 "$exchange" first --kinds D
    check cuda-after-init 60 2 "$exchange" late-pairs --kinds HD --max-size 2M
    # Not pool memory: Open MPI 5.0 has counted the devices before CUDA was there, does not know
    # pool memory for what it is, and loses the thread's context over it.
    check one-rank-starts-cuda-later 60 2 "$exchange" late --kinds HDRMVW
fi
if need_two_gpus different-visible-devices; then
    per_rank 0 CUDA_VISIBLE_DEVICES=0
    per_rank 1 CUDA_VISIBLE_DEVICES=1
    check different-visible-devices 60 2 "$work/per-rank-0" "$work/per-rank-1" \
        "$exchange" pairs --kinds HDV --max-size 2M
    per_rank 1 CUDA_VISIBLE_DEVICES=1,0
    check the-same-devices-in-another-order 60 2 "$work/per-rank-1" \
        "$exchange" pairs --kinds HD --max-size 2M
fi
check threads-host 60 2 "$exchange" threads --kinds H
if need_gpu threads-device; then
    check threads-device 90 2 "$exchange" threads --kinds HDR
fi

# btl/sm does not reach processes of another job; TCP does.
alone=$btl
btl="$btl,tcp"
check spawn-host 30 2 "$exchange" spawn --kinds H
if need_gpu spawn-device; then
    check spawn-device 30 2 "$exchange" spawn --kinds HD
fi
name=spawn-without-tcp
if need_gpusm $name; then
    btl=$alone
    launch 15 2 "$exchange" spawn --kinds "${kinds%MVWA}"
    status=$?
    if [ $status -ne 0 ] && says 'unable to reach each other'; then
        skip $name "this gpusm does not reach processes of another job"
    else
        judge $name 0 $status
    fi
fi
finish
