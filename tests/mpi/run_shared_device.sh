#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_shared_device.sh: where ranks share a device one of them copies for all, the lowest; not under
# MPS, nor when that is switched off; and the others copy by themselves when it cannot, is not in MPI,
# or has ended.
# shellcheck disable=SC2016 # conditions are evaluated later
. "$(dirname "$0")/common.sh"

one="-x CUDA_VISIBLE_DEVICES=0 --mca btl_gpusm_summary 1"
# Where processors are few rank 0 may take long to come into MPI.
waits="$one --mca btl_gpusm_delegate_wait 5000000"
# told RANK LINE: the summary of that rank has such a line
told() {
    tr -s ' ' <"$work/output" | awk -v rank="$1" -v line="$2" '
        /summary of rank/ { here = $0 ~ "btl/gpusm: summary of rank " rank "$" }
        here && $0 ~ line { found = 1 }
        END { exit !found }'
}
# shellcheck disable=SC2086 # options and their values
if need_gpu two-ranks; then
    case $driver_kind in softcuda) shared=DVA ;; *) shared=D ;; esac
    launch 60 2 $waits "$exchange" shared-device --kinds $shared
    judge two-ranks 0 $? 'told 1 "rank 0 delegated [1-9]"' "rank 0 copies nothing for rank 1" \
        'told 1 "itself delegated [1-9]"' "rank 1 copies what it sends to itself" \
        'told 0 "copies_for_others [1-9]"' "rank 0 does not count it" \
        '! told 0 delegated' "rank 0, which submits, asks another one"
    launch 90 4 $waits "$exchange" shared-device --kinds $shared
    judge four-ranks 0 $? 'told 1 "rank 0 delegated [1-9]" && told 2 "rank 1 delegated [1-9]" &&
        told 3 "rank 2 delegated [1-9]"' "one asks nobody" '! told 0 delegated' "rank 0 asks another one" \
        'told 0 "copies_for_others [1-9]"' "nobody asks rank 0"
    launch 60 3 $waits "$exchange" shared-device-contexts --kinds D
    judge two-contexts-in-the-submitter 0 $? '! says ILLEGAL_ADDRESS' "a kernel ran in the other context" \
        'told 2 "rank 1 delegated [1-9][0-9]"' "rank 0 copies nothing between the others"
    launch 60 2 $one --mca btl_gpusm_delegate_wait 0 "$exchange" shared-device --kinds D
    judge switched-off 0 $? '! says delegated && ! says copies_for_others' "it is done nevertheless"
    launch 60 2 $waits --mca btl_gpusm_kernel_blocks 0 "$exchange" shared-device --kinds D
    judge without-kernels 0 $? '! says delegated' "there is no kernel that could copy"
    launch 60 2 $waits --mca btl_gpusm_use_cuda_events 1 "$exchange" shared-device --kinds D
    judge with-events 0 $? '! says delegated' "nobody else may wait for the events"
    launch 60 3 $one --mca btl_gpusm_delegate_wait 100000 "$exchange" shared-device-away --kinds D
    judge the-submitter-is-not-in-MPI 0 $? 'told 1 "rank 2 mapped [1-9]" && told 2 "rank 1 mapped [1-9]"' \
        "nobody copies by itself" 'told 2 "rank 1 delegated [1-9]"' "nobody has asked rank 0"
    # Who looks for the submitter finds that rank 0 is gone, with which most have never had to do.
    launch 60 5 $one "$exchange" left-session --kinds D
    judge the-lowest-has-ended-its-session 0 $? '! says "messages to and from process"' "its end is taken for a failure"
fi
# shellcheck disable=SC2086
if need_two_gpus a-device-for-each; then
    launch 60 2 --mca btl_gpusm_summary 1 "$exchange" shared-device --kinds D
    judge a-device-for-each 0 $? '! says delegated' "there is a device for each"
fi
# shellcheck disable=SC2086
if need_softcuda under-mps; then
    launch 60 2 $waits -x GPUSM_SOFTCUDA_ATTRIBUTES=133:1 "$exchange" shared-device --kinds D
    judge under-mps 0 $? '! says delegated' "each can copy its own"
    # Every copy starts half a millisecond after it was asked for.
    launch 60 3 $waits -x GPUSM_SOFTCUDA_DELAY_US=500 "$exchange" shared-device --kinds D
    judge late-copies 0 $? 'told 2 "rank 1 delegated [1-9]"' "nobody has asked rank 0"
    per_rank 0 GPUSM_SOFTCUDA_FAIL=cuIpcOpenMemHandle:0:217
    launch 90 3 $waits "$work/per-rank-0" "$exchange" shared-device --kinds D
    judge the-submitter-can-open-nothing 0 $? '! told 0 copies_for_others' "it has copied nevertheless"
    # So its kernel cannot be loaded, or its flags cannot be written.
    for function in cuModuleLoadDataEx cuMemHostRegister; do
        per_rank 0 GPUSM_SOFTCUDA_FAIL=$function:0:801
        launch 90 3 $waits "$work/per-rank-0" "$exchange" shared-device --kinds D
        judge "the-submitter-fails-in-$function" 0 $?
    done
fi
finish
