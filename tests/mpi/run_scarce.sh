#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_scarce.sh: little shared memory: few fragments, a segment as small as can be, a file system that is full
# before the job starts or becomes full later. Random messages between memory of every kind arrive all the
# same, or the job ends at its start and says why. Nothing hangs, and little is logged.
# shellcheck disable=SC2016,SC2034,SC2086 # conditions are evaluated later; options are lists of words
. "$(dirname "$0")/common.sh"

let_others_run

need_gpusm scarce-memory || finish

random="$exchange random --kinds $kinds"

# Control messages wait outside the segment, and many fragments at once for room in a FIFO.
few="--mca btl_gpusm_free_list_max 8 --mca btl_gpusm_fifo_size 16 --mca btl_gpusm_staging_host_bytes 262144"
check few-fragments-3-ranks 60 3 $few --mca btl_gpusm_fast_box_max 0 $random --rounds 40
check few-fragments-and-fast-boxes-4-ranks 60 4 $few $random --rounds 30
check few-fragments-no-rings-on-devices-3-ranks 60 3 $few --mca btl_gpusm_fast_box_max 0 \
    --mca btl_gpusm_staging_device_bytes 0 $random
check few-fragments-streamed-3-ranks 60 3 $few --mca btl_gpusm_stream_host_after 0 $random

check no-descriptors-for-a-while-3-ranks 60 3 "$exchange" out-of-reach --kinds H
check no-descriptors-for-a-while-no-single-copies-3-ranks 60 3 --mca btl_gpusm_use_single_copy 0 \
    "$exchange" out-of-reach --kinds H

smallest="--mca btl_gpusm_segment_size 1048576"
check smallest-segment-3-ranks 60 3 $smallest $random
check smallest-segment-no-single-copies-3-ranks 60 3 $smallest --mca btl_gpusm_use_single_copy 0 $random
if need_gpu smallest-segment-few-kinds-3-ranks; then
    check smallest-segment-few-kinds-3-ranks 60 3 $smallest "$exchange" random --kinds HDW
    check smallest-segment-managed-3-ranks 60 3 $smallest "$exchange" random --kinds HDWM
fi

# refuses NAME OPTIONS...: the job does not start, and says once why not
refuses() {
    refused=$1
    shift
    launch "$@"
    status=$?
    case $status in
    0 | 3 | 124 | 13[4-9]) ;;
    *) status=1 ;;
    esac
    judge "$refused" 1 $status \
        '[ "$(count_in_output "could not make its shared memory segment")" -eq 1 ]' "no reason is given once" \
        '[ "$(count_in_output "btl/gpusm:")" -eq 0 ]' "something else is logged"
}
refuses segment-too-small-for-its-fragments 60 3 $smallest --mca btl_gpusm_fifo_size 65536 \
    --mca btl_gpusm_eager_limit 131072 --mca btl_gpusm_max_send_size 131072 $random

# on_tmpfs NAME SIZE: false, with the case skipped, when no file system of that size can be mounted at $full
full=$work/full
trap 'umount -l "$full" 2>/dev/null; rm -rf "$work"' EXIT
on_tmpfs() {
    umount -l "$full" 2>/dev/null
    mkdir -p "$full"
    why_not=$(mount -t tmpfs -o "size=$2" gpusm-test "$full" 2>&1) && return 0
    skip "$1" "a tmpfs cannot be mounted here: $why_not"
    return 1
}

on_tmpfs full-before-the-start 64k &&
    refuses full-before-the-start 60 2 --mca btl_gpusm_backing_directory "$full" $random

# fills_up NAME SIZE RANKS KINDS OPTIONS...: it is full before the first message, and now and then later.
# Every rank says so once and nothing else.
fills_up() {
    on_tmpfs "$1" "$2" || return
    filled=$1 ranks=$3 kinds_there=$4
    shift 4
    launch 60 "$ranks" --mca btl_gpusm_backing_directory "$full" "$@" \
        "$exchange" random --kinds "$kinds_there" --rounds 60 --fill "$full"
    judge "$filled" 0 $? \
        '[ "$(count_in_output "btl/gpusm: cannot put more memory behind")" -eq "$ranks" ]' "not all were short of memory" \
        '[ "$(count_in_output "btl/gpusm:")" -eq "$ranks" ]' "something else is logged"
}
for size in 256k 8m 64m; do
    fills_up fills-up-$size-4-ranks $size 4 $kinds
done
fills_up fills-up-host-2-ranks 1m 2 H
fills_up fills-up-fragments-only-4-ranks 2m 4 $kinds --mca btl_gpusm_use_single_copy 0 \
    --mca btl_gpusm_fast_box_max 0 --mca btl_gpusm_fifo_size 16
need_gpu fills-up-and-device-messages-go-by-get && on_tmpfs fills-up-and-device-messages-go-by-get 1m &&
    check fills-up-and-device-messages-go-by-get 60 2 --mca btl_gpusm_backing_directory "$full" \
        "$exchange" persistent --fill "$full"
need_gpu fills-up-one-kind-4-ranks && for kind in M V W; do
    fills_up fills-up-$kind-4-ranks 12m 4 $kind
done

finish
