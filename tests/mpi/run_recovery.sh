#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_recovery.sh: calls that fail five times and then never again: after some seconds messages go the
# ways that they go where nothing has failed. A sample of campaign/recovery, with a clock that makes
# the seconds short. And nobody waits for the user to be told what has failed.
# shellcheck disable=SC2016,SC2154,SC2034 # conditions are evaluated later; set by common.sh
. "$(dirname "$0")/common.sh"

need_gpusm recovery || finish
need_softcuda recovery || finish

mkdir "$work/help"
launch 60 2 -x GPUSM_SOFTCUDA_PEERS=0 -x GPUSM_TEST_HELP="$work/help" \
    -x LD_PRELOAD="$GPUSM_BUILDDIR/tests/mpi/slow_help.so" "$exchange" told
judge threads-go-on-while-the-user-is-told 0 $? '[ "$(ls "$work/help" | grep -c inside)" -gt 0 ]' \
    "the user was told nothing"

if [ "${GPUSM_SANITIZERS:-no}" != no ]; then
    skip recovery "failing_calls.so and the sanitizer would both replace the allocator"
    finish
fi

# recovers KINDS FUNCTION,...
recovers() {
    "$(dirname "$0")/../campaign/recovery" --fast --sets "$1" --functions "$2" --keep "$work/$1" \
        >"$work/output" 2>&1
    judge "recovery-of-$1" 0 $?
    tail -n 1 "$work/output"
}
if need_files recovery-of-failed-calls; then
    recovers HDR cuIpcOpenMemHandle,cuMemHostRegister,process_vm_readv
    recovers DM cuMemAlloc
    recovers DV recvmsg
fi

# Staging memory of reductions, which coll/gpusm page-locks.
faults=
for n in 1 2 3 4 5; do
    faults="$faults,cuMemHostRegister:$n:2"
done
logged log -x LD_PRELOAD="$GPUSM_BUILDDIR/tests/mpi/fast_clock.so" \
    -x GPUSM_SOFTCUDA_FAIL="${faults#,}" \
    -x GPUSM_SOFTCUDA_FAIL_CALLER="$coll_file" "$exchange" reductions-threads
judge reductions-lock-their-memory-again 0 $? \
    '[ "$(calls_in log "^cuMemHostRegister 2 $coll_file")" -eq 10 ]' \
    "not all of ten calls have failed" \
    '[ "$(calls_in log "^cuMemHostRegister 0 $coll_file")" -gt 0 ]' \
    "nothing is page-locked after them"
finish
