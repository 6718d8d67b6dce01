#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_perf.sh: gpusm_perf measures in every mode with every byte checked, and answers bad input with
# one line and status 2.
. "$(dirname "$0")/common.sh"

some="--sizes 0,1,4K,300K --iterations 4 --warmup 2 -c"
# shellcheck disable=SC2086 # lists of options
for set in H:H $([ "$have_gpu" = yes ] && echo D:D D:H H:D M:V W:A); do
    from=${set%:*}
    to=${set#*:}
    check "latency-$from-$to" 60 2 "$perf" latency --src $from --dst $to $some
    check "bw-$from-$to" 60 2 "$perf" bw --src $from --dst $to --window 8 $some
    check "bibw-$from-$to" 60 2 "$perf" bibw --src $from --dst $to --window 8 $some
    check "mbw_mr-$from-$to" 60 4 "$perf" mbw_mr --src $from --dst $to --window 8 $some
done
if need_gpusm table-says-get && need_gpu table-says-get; then
    launch 60 2 "$perf" latency --src D --dst D --sizes 8,4K,1M --iterations 20 --late-cuda
    status=$?
    if [ $status -eq 0 ] &&
        grep -q '^path: get [1-9][0-9]*, staged 0, host path' "$work/output"; then
        pass table-says-get
    else
        fail table-says-get "$(explain $status), or messages were not sent by get"
    fi
fi
launch 60 2 "$perf" bw --sizes 8,1K --iterations 2 --repeat 2 --json "$work/rows.json"
if ! command -v python3 >/dev/null 2>&1; then
    skip json "no python3 to read it"
elif python3 -c 'import json, sys; assert len(json.load(open(sys.argv[1]))["rows"]) == 2' \
    "$work/rows.json"; then
    pass json
else
    fail json "the file is not what it should be"
fi

# bad NAME RANKS ARGUMENTS...: status 2 and exactly one line that begins with "gpusm_perf:"
bad() {
    bad_name=$1
    bad_ranks=$2
    shift 2
    launch 30 "$bad_ranks" "$perf" "$@"
    bad_status=$?
    if [ $bad_status -ne 2 ]; then
        fail "$bad_name" "$(explain $bad_status), expected 2"
    elif [ "$(count_in_output '^gpusm_perf:')" -ne 1 ]; then
        fail "$bad_name" "not exactly one line of explanation"
    elif [ "$(count_in_output 'MPI_ABORT\|Signal:\|Segmentation')" -ne 0 ]; then
        fail "$bad_name" "it did not end in an orderly way"
    else
        pass "$bad_name"
    fi
}
bad unknown-kind 2 bw --src X
bad kind-of-two-letters 2 bw --src DD
bad unknown-mode 2 throughput
bad no-mode 2
bad bad-size 2 bw --sizes 4Q
bad empty-size 2 bw --sizes 1,,2
bad size-too-large 2 bw --sizes 2G
bad range-backwards 2 bw --sizes 8:4
bad unknown-option 2 bw --fast
bad missing-value 2 bw --window
bad window-of-zero 2 bw --window 0
bad json-not-writable 2 bw --json /nonexistent/rows.json
bad one-rank 1 latency
bad three-ranks 3 latency
bad odd-ranks 3 mbw_mr
if need_softcuda no-device; then
    GPUSM_TEST_MPIRUN_ARGS="${GPUSM_TEST_MPIRUN_ARGS-} -x GPUSM_SOFTCUDA_FAIL=cuInit:0:100" \
        bad no-device 2 bw --src D
fi
if [ "$("$perf" --help | grep -c '^usage:')" -eq 1 ]; then
    pass help
else
    fail help "no usage line"
fi
finish
