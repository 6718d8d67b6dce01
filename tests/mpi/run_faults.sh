#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_faults.sh: driver calls that fail. The data arrives all the same, by another way; where a copy
# itself fails, the message may report an error instead. Nothing hangs, and no data is wrong.
. "$(dirname "$0")/common.sh"

need_softcuda driver-faults || finish

# survives NAME FAULT: with that fault in both ranks everything arrives
survives() {
    check "$1" 60 2 -x GPUSM_SOFTCUDA_FAIL="$2" "$exchange" pairs --kinds HD --max-size 2M
}
survives no-handle-can-be-exported cuIpcGetMemHandle:0:801
survives first-export-fails cuIpcGetMemHandle:1:2
survives no-handle-can-be-opened cuIpcOpenMemHandle:0:217
survives first-open-fails cuIpcOpenMemHandle:1:2
survives third-open-fails cuIpcOpenMemHandle:3:2
survives host-memory-cannot-be-registered cuMemHostRegister:0:1
survives no-event-can-be-made cuEventCreate:0:2
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

# failing_call NAME FUNCTION N: the N-th call of FUNCTION fails in rank 1 of $failing_test. Open MPI's
# own copies use the same functions; when the fault hit one of those, nothing about gpusm was learnt.
hits=0
failing_test="pairs --kinds D --max-size 2M --allow-errors"
failing_may=4 # the status that is good, too
failing_call() {
    rm -rf "$work/log"
    mkdir "$work/log"
    per_rank 1 "GPUSM_SOFTCUDA_FAIL=$2:$3:700"
    # shellcheck disable=SC2086 # options
    launch 60 2 -x GPUSM_SOFTCUDA_LOG="$work/log" "$work/per-rank-1" "$exchange" $failing_test
    status=$?
    if ! grep -h "^$2[_a-z0-9]* 700 mca_btl_gpusm\.so" "$work"/log/*.log >/dev/null 2>&1; then
        return
    fi
    hits=$((hits + 1))
    case $status in
    0 | "$failing_may") pass "$1" ;;
    *) fail "$1" "call $3 of $2 by gpusm failed: $(explain $status)" ;;
    esac
}
if need_gpusm failed-copies; then
    for n in 1 2 3 5 8 20 50; do
        failing_call "copy-$n-fails" cuMemcpyAsync $n
        failing_call "event-record-$n-fails" cuEventRecord $n
        failing_call "event-query-$n-fails" cuEventQuery $n
    done
    rm -f "$work/output"
    if [ $hits -eq 0 ]; then
        fail failed-copies "no injected fault hit a call by gpusm"
    fi
fi

# Host memory for a device, of which a part is pulled: the copies of either part.
if need_gpusm pulled-host-memory; then
    hits=0
    failing_test="pairs --kinds HD --max-size 2M --allow-errors"
    failing_may=4
    for n in 55 90 130 150 160 170 180 190; do # the messages become longer and longer
        failing_call "copy-$n-of-host-memory-fails" cuMemcpyAsync $n
    done
    for n in 2 6 9 14 23 31; do
        failing_call "event-query-$n-of-host-memory-fails" cuEventQuery $n
    done
    rm -f "$work/output"
    if [ $hits -eq 0 ]; then
        fail pulled-host-memory "no injected fault hit a call by gpusm"
    fi
fi

# Page-locked host memory is copied by its owner into memory of the reader. Whatever fails there, the
# messages go another way.
#
# locked_survives NAME DIRECTLY [OPTIONS OF MPIRUN]: DIRECTLY of the two ranks are written to
locked_survives() {
    name=$1
    shift
    ranks_wanted=$1
    shift
    launch 60 2 "$@" "$exchange" locked --kinds D
    status=$?
    # Two lines of each rank.
    ranks=$(($(tr -d '\000' <"$work/output" | grep '^locked: into D: ' | grep -cv ': 0 of') / 2))
    if [ $status -ne 0 ]; then
        fail "$name" "$(explain $status)"
    elif [ $ranks -ne "$ranks_wanted" ]; then
        fail "$name" "$ranks ranks were written to, expected $ranks_wanted"
    else
        pass "$name"
    fi
}
if need_gpusm page-locked-memory; then
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

    # Its owner can copy nothing at all, and stops to try.
    name=page-locked-and-its-owner-cannot-copy
    rm -rf "$work/log"
    mkdir "$work/log"
    per_rank 1 GPUSM_SOFTCUDA_FAIL=cuMemcpyAsync:0:700
    launch 60 2 -x GPUSM_SOFTCUDA_LOG="$work/log" "$work/per-rank-1" "$exchange" locked-one-way --kinds D
    status=$?
    failed_copies=$(cat "$work"/log/*.log | grep -c '^cuMemcpyAsync 700 mca_btl_gpusm\.so')
    if [ $status -ne 0 ]; then
        fail $name "$(explain $status)"
    elif ! tr -d '\000' <"$work/output" | grep -q '^locked: into D: 0 of 30 directly$'; then
        fail $name "no message can have gone directly"
    elif [ "$failed_copies" -ne 4 ]; then
        fail $name "$failed_copies copies were tried, expected 4"
    else
        pass $name
    fi

    hits=0
    failing_test="locked --kinds D"
    failing_may=0
    for n in 8 12 13 14 15 18 20; do
        failing_call "page-locked-copy-$n-fails" cuMemcpyAsync $n
        failing_call "page-locked-event-query-$n-fails" cuEventQuery $n
    done
    rm -f "$work/output"
    if [ $hits -eq 0 ]; then
        fail page-locked-copies "no injected fault hit a call by gpusm"
    fi
fi
finish
