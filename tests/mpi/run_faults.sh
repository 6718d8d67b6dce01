#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_faults.sh: driver calls that fail. The data arrives all the same, by another way; where a copy
# itself fails, the message may report an error instead. Nothing hangs, and no data is wrong.
# shellcheck disable=SC2016,SC2034 # conditions are evaluated later
. "$(dirname "$0")/common.sh"

need_softcuda driver-faults || finish

# survives NAME FAULT [OPTION...]: with that fault in both ranks everything arrives
survives() {
    name=$1 fault=$2
    shift 2
    check "$name" 60 2 "$@" -x GPUSM_SOFTCUDA_FAIL="$fault" "$exchange" pairs --kinds HD --max-size 2M
}
survives no-handle-can-be-exported cuIpcGetMemHandle:0:801
survives first-export-fails cuIpcGetMemHandle:1:2
survives no-handle-can-be-opened cuIpcOpenMemHandle:0:217
survives first-open-fails cuIpcOpenMemHandle:1:2
survives third-open-fails cuIpcOpenMemHandle:3:2
survives host-memory-cannot-be-registered cuMemHostRegister:0:1
# accelerator/cuda of 5.0.7 frees memory twice then.
survives no-event-can-be-made cuEventCreate:0:2 --mca accelerator gpusm
survives no-buffer-id cuPointerGetAttribute:0:1
# A copy about which the driver answers with an error may run all the same. It must have ended before
# its message goes another way, or it overwrites what comes next.
for test in "pairs --kinds HD --max-size 2M" "locked --kinds D"; do
    # shellcheck disable=SC2086 # options
    check "late-copies-and-no-question-is-answered-${test%% *}" 60 2 \
        -x GPUSM_SOFTCUDA_DELAY_NONBLOCKING_US=5000 -x GPUSM_SOFTCUDA_FAIL=cuEventQuery:0:700 \
        "$exchange" $test
done

# One rank cannot open what the other exports, but the other can.
per_rank 1 GPUSM_SOFTCUDA_FAIL=cuIpcOpenMemHandle:0:217
check one-rank-cannot-open 60 2 "$work/per-rank-1" "$exchange" pairs --kinds HD --max-size 2M

# failing_calls NAME TEST MAY FUNCTION=N,N,...: that call of FUNCTION fails in rank 1 of the TEST, which
# may end with status 0 or MAY. Open MPI's own copies use the same functions; when the fault hit one of
# those, nothing about gpusm was learnt. Some of all must have hit gpusm.
failing_calls() {
    what=$1 failing_test=$2 may=$3
    shift 3
    need_gpusm "$what" || return 0
    hits=0
    for calls in "$@"; do
        function=${calls%=*}
        for n in $(echo "${calls#*=}" | tr , ' '); do
            per_rank 1 "GPUSM_SOFTCUDA_FAIL=$function:$n:700"
            # shellcheck disable=SC2086 # options
            logged log "$work/per-rank-1" "$exchange" $failing_test
            status=$?
            if [ "$(calls_in log "^${function}[_a-z0-9]* 700 $by_gpusm")" -gt 0 ]; then
                hits=$((hits + 1))
                [ $status -ne "$may" ] || status=0
                judge "$what-$function-$n-fails" 0 $status
            fi
        done
    done
    judge "$what-some-hit-gpusm" 0 0 '[ $hits -gt 0 ]' "no injected fault hit a call by gpusm"
}
copies=1,2,3,5,8,20,50
failing_calls failed-copies "pairs --kinds D --max-size 2M --allow-errors" 4 \
    cuMemcpyAsync=$copies cuEventRecord=$copies cuEventQuery=$copies
# Host memory for a device, of which a part is pulled: the copies of either part. The messages become
# longer and longer.
failing_calls pulled-host-memory "pairs --kinds HD --max-size 2M --allow-errors" 4 \
    cuMemcpyAsync=55,90,130,150,160,170,180,190 cuEventQuery=2,6,9,14,23,31

# Page-locked host memory is copied by its owner into memory of the reader. Whatever fails there, the
# messages go another way.
#
# locked_survives NAME DIRECTLY [OPTIONS OF MPIRUN]: DIRECTLY of the two ranks are written to
locked_survives() {
    name=$1 ranks_wanted=$2
    shift 2
    launch 60 2 "$@" "$exchange" locked --kinds D
    status=$?
    # Two lines of each rank.
    ranks=$(($(tr -d '\000' <"$work/output" | grep '^locked: into D: ' | grep -cv ': 0 of') / 2))
    judge "$name" 0 $status '[ $ranks -eq $ranks_wanted ]' \
        "$ranks ranks were written to, expected $ranks_wanted"
}
need_gpusm page-locked-memory || finish
locked_survives page-locked-memory 2
locked_survives page-locked-and-nothing-can-be-opened 0 \
    -x GPUSM_SOFTCUDA_FAIL=cuIpcOpenMemHandle:0:217
locked_survives page-locked-and-nothing-can-be-exported 0 \
    -x GPUSM_SOFTCUDA_FAIL=cuIpcGetMemHandle:0:801
per_rank 1 GPUSM_SOFTCUDA_FAIL=cuIpcOpenMemHandle:0:217
locked_survives page-locked-and-one-rank-cannot-open 1 "$work/per-rank-1"
locked_survives page-locked-and-no-question-is-answered 0 \
    -x GPUSM_SOFTCUDA_FAIL=cuPointerGetAttribute:0:1
locked_survives page-locked-and-no-peer-access 0 -x GPUSM_SOFTCUDA_PEERS=0
locked_survives page-locked-on-one-device 2 -x CUDA_VISIBLE_DEVICES=0

# Its owner can copy nothing at all, and stops to try for a while.
per_rank 1 GPUSM_SOFTCUDA_FAIL=cuMemcpyAsync:0:700
logged log "$work/per-rank-1" "$exchange" locked-one-way --kinds D
status=$?
failed_copies=$(calls_in log "^cuMemcpyAsync 700 $by_library")
judge page-locked-and-its-owner-cannot-copy 0 $status \
    'says "locked: into D: 0 of 30 directly\$"' "no message can have gone directly" \
    '[ $failed_copies -ge 4 ] && [ $failed_copies -lt 30 ]' \
    "$failed_copies copies were tried, expected 4 and one after each pause"

copies=8,12,13,14,15,18,20
failing_calls page-locked-copies "locked --kinds D" 0 cuMemcpyAsync=$copies cuEventQuery=$copies
finish
