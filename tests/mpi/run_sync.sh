#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_sync.sh: btl_gpusm_check_sync finds every buffer that a program gives to MPI while its work on
# a device still writes it, says where, and says nothing about programs that wait for their work.
# shellcheck disable=SC2016 # conditions are evaluated later
. "$(dirname "$0")/common.sh"

# late_writes RANK: how many its summary tells
late_writes() {
    awk -v rank="$1" '
        /summary of rank/ { here = $0 ~ "btl/gpusm: summary of rank " rank "$" }
        here && $1 == "late_writes" { found = $2 }
        END { print found + 0 }' "$work/output"
}
# all_found: what each rank has planted; where a collective goes by messages, its buffer is found
# once more in these
all_found() {
    for rank in 0 1; do
        planted=$(sed -n "s/^exchange: rank $rank has planted //p" "$work/output")
        [ "${planted:-0}" -gt 0 ] && [ "$(late_writes "$rank")" -ge "$planted" ] || return 1
    done
}
nothing_found() {
    ! grep -q 'check_sync:' "$work/output" && [ "$(late_writes 0)" -eq 0 ] &&
        [ "$(late_writes 1)" -eq 0 ] && grep -q '^  checked_buffers  *[1-9]' "$work/output"
}

if need_gpusm late && need_gpu late; then
    check="--mca btl_gpusm_check_sync 1 --mca btl_gpusm_summary 1"
    # shellcheck disable=SC2086 # options and their values
    {
        for kind in D R V A; do
            launch 90 2 $check "$exchange" written-late --kinds $kind
            judge "late-$kind" 0 $? all_found "not all that was planted has been found"
        done
        launch 90 2 $check "$exchange" written-late --kinds D
        judge says-where 0 $? '
            for call in MPI_Send MPI_Isend MPI_Recv MPI_Irecv MPI_Start MPI_Allreduce MPI_Iallreduce \
                MPI_Alltoall MPI_Bcast MPI_Put MPI_Accumulate MPI_Get; do
                grep -q "check_sync: rank [01] gave $call device memory.*0x.* bytes" "$work/output" ||
                    exit 1
            done' "a call is missing"
        judge says-what 0 0 'grep -q "check_sync: rank 0 gave MPI_Send .*, 65536 bytes, tag 171, rank 1 of" \
            "$work/output" && grep -q "check_sync:   .*exchange" "$work/output"' \
            "tag, rank or backtrace are missing"
        launch 90 2 $check "$exchange" written-in-time --kinds DRVA
        judge in-time 0 $? nothing_found "it is said of a program that waits"
        launch 90 2 $check --mca coll_gpusm_use_views 0 --mca coll_gpusm_use_devices 0 \
            "$exchange" written-late --kinds D
        judge late-by-messages 0 $? all_found "not all that was planted has been found"
        for sub in pairs views random-types collectives reductions windows self; do
            launch 300 2 $check "$exchange" $sub --kinds DHR --rounds 2
            judge "quiet-$sub" 0 $? nothing_found "it is said of a program that waits"
        done
        # Several processes write what the owner sends and receives for them.
        launch 180 2 $check "$exchange" windows-atomics --kinds M
        judge quiet-owners 0 $? nothing_found "it is said of messages that are not the program's"
    }
    # shellcheck disable=SC2086
    {
        launch 60 2 $check --mca coll ^gpusm --mca osc ^gpusm "$exchange" pairs --kinds D
        judge without-coll 0 $? '[ "$(count_in_output "check_sync: rank [01]: no buffer was looked at")" -eq 2 ]' \
            "it is not told that nothing is checked"
        launch 60 2 $check "$exchange" context-destroyed --kinds D
        judge context-destroyed 0 $? '! grep -q "still writing" "$work/output"' \
            "a context that is gone was used"
    }
    launch 60 2 "$exchange" written-late --kinds D
    judge off 0 $? '! grep -q "check_sync:" "$work/output"' "it is done unasked"
fi

finish
