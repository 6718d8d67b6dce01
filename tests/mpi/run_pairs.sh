#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_pairs.sh: between two ranks every pair of memory kinds arrives byte for byte, blocking and
# not, of every size, at odd addresses too, on two devices and on one.
. "$(dirname "$0")/common.sh"

check every-pair-of-kinds 180 2 "$exchange" pairs --kinds "$kinds"
check three-ranks-two-talk 60 3 "$exchange" pairs --kinds H --max-size 64K
if need_gpu both-ranks-on-one-device; then
    if [ "$driver_kind" = softcuda ]; then
        check both-ranks-on-one-device 60 2 -x CUDA_VISIBLE_DEVICES=0 \
            "$exchange" pairs --kinds HDV --max-size 2M
    else
        # Real GPUs take turns between two processes, so fewer messages will do.
        check both-ranks-on-one-device 90 2 -x CUDA_VISIBLE_DEVICES=0 \
            "$exchange" pairs --kinds HD --max-size 64K
    fi
fi
if need_gpu chunks-and-the-default-pool; then
    # Messages that lie across the end of one chunk of an address range.
    check chunks-and-the-default-pool 90 2 "$exchange" pairs --kinds DCPR --max-size 2M
fi
if need_softcuda late-copies; then
    # Every copy starts half a millisecond after it was asked for.
    check late-copies 90 2 -x GPUSM_SOFTCUDA_DELAY_US=500 \
        "$exchange" pairs --kinds HRD --max-size 64K
fi
# And what Open MPI makes of messages.
check other-calls 120 2 "$exchange" calls --kinds "$kinds"
check other-calls-of-three-ranks 60 3 "$exchange" calls --kinds "$(echo "$kinds" | tr -cd HDM)"
finish
