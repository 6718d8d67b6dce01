#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_lifetime.sh: peers, memory and contexts that end while something still names them: a message,
# a persistent request, copies in flight, what gpusm has made in a context.
# shellcheck disable=SC2016,SC2034 # conditions are evaluated later
. "$(dirname "$0")/common.sh"

need_gpusm lifetime || finish

# A peer that has been closed ends the job: nobody waits for it for ever.
launch 30 2 --mca btl_gpusm_eager_limit 8448 "$exchange" closed
[ $? -ne 0 ] && ended=0 || ended=1
judge closed-peer-ends-the-job 0 $ended \
    'says "process 1 .* sent a message that makes no sense"' "the peer was not closed" \
    'says "messages to and from process 1 have ended"' "Open MPI was not told" \
    '! says DEADLINE' "a rank has waited until its deadline"

need_gpu lifetime || finish

# persistent NAME [OPTIONS OF MPIRUN]: one case for all lengths; skipped when the driver never gave
# the address of a freed allocation again
persistent() {
    name=$1
    shift
    launch 60 2 "$@" "$exchange" persistent --kinds D
    status=$?
    if [ $status -eq 0 ] && says 'the same address in 0 of'; then
        skip "$name" "$(grep 'the same address in 0 of' "$work/output" | head -n 1)"
    else
        judge "$name" 0 $status '[ "$(count_in_output "the same address in")" -eq 3 ]' \
            "the program did not say how often the address was the same"
    fi
}
persistent persistent-send-of-replaced-memory
persistent persistent-send-with-open-mpis-own-pointer-check --mca btl_gpusm_quick_pointer_check 0

# lost NAME [OPTIONS OF MPIRUN]: no crash and no hang; either the program goes on, or Open MPI ends it
# because it cannot copy what gpusm could not
lost() {
    name=$1
    shift
    # With the delay the copies are in flight when the context ends.
    launch 60 2 -x GPUSM_SOFTCUDA_DELAY_US=20000 "$@" "$exchange" context-lost --kinds D
    status=$?
    wanted=4
    ending='context-lost: rank 1 lives on'
    if says 'accelerator.memcpy'; then
        wanted=134
        ending='accelerator.memcpy'
    fi
    judge "$name" $wanted $status \
        '! says "Signal: \(Segmentation\|Bus\)"' "it crashed" \
        '[ "$(count_in_output "context-lost: copies are in flight")" -eq 1 ]' "no copy was in flight" \
        'says "$ending"' "the end is not: $ending"
}
if need_softcuda context-lost-with-copies-in-flight; then
    lost context-lost-with-copies-in-flight
    lost context-lost-without-the-kernel --mca btl_gpusm_kernel_blocks 0
fi
finish
