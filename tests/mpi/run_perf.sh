#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_perf.sh: gpusm_perf measures in every mode with every byte checked, at any address and length,
# notices a wrong one wherever it is, takes no figure above the link, and answers bad input with one
# line and status 2.
# shellcheck disable=SC2016,SC2034 # conditions are evaluated later
. "$(dirname "$0")/common.sh"

some="--sizes 0,1,4K,300K --iterations 4 --warmup 2 -c"
odd="--sizes 7,1001,65537,1048577 --offset 1,3 --iterations 3 --warmup 2 -c"
# in_every_mode PREFIX FROM:TO OPTIONS: with two ranks, and in one mode with two pairs of them
# shellcheck disable=SC2086 # lists of options
in_every_mode() {
    options="--src ${2%:*} --dst ${2#*:} $3" suffix=${2%:*}-${2#*:}
    check "$1latency-$suffix" 60 2 "$perf" latency $options
    check "$1bw-$suffix" 60 4 "$perf" bw --window 8 $options
    check "$1bibw-$suffix" 60 2 "$perf" bibw --window 8 $options
}
for set in H:H $([ "$have_gpu" = yes ] && echo D:D D:H H:D R:D M:V W:A); do
    in_every_mode '' "$set" "$some"
done
for set in H:H $([ "$have_gpu" = yes ] && echo D:D H:D); do
    in_every_mode odd- "$set" "$odd"
done
# shellcheck disable=SC2086 # options
[ "$have_gpu" != yes ] || check kernels 60 2 "$perf" kernels --kernel 20 --src D --dst D $some
gaps="--sizes 768,96K,1536K --iterations 3 --warmup 2 -c --no-limit"
for set in H:H $([ "$have_gpu" = yes ] && echo D:D D:H H:D D:V); do
    in_every_mode gaps- "$set" "$gaps --gaps 64,24"
done
in_every_mode gaps-of-one-side- H:H "$gaps --gaps 0,3"
# More in one window than there are places for.
check shared-places 60 2 "$perf" bw --sizes 96M --window 3 --iterations 1 --warmup 0 --no-limit -c
# shellcheck disable=SC2086
check places-3 60 2 "$perf" bw --places 3 --window 8 $some

# Every kind of memory there is, and one verdict.
launch 180 2 "$perf" check
judge check 0 $? 'tail -n 1 "$work/output" | grep -q "^check: OK, [1-9].* every byte right$"' \
    "the last line is no verdict"

# spoilt NAME RANK CALL:OFFSET WHERE MODE OPTIONS...: that rank gets one wrong byte, which ends the
# run with status 1 and a line that says where it was. Two calls are timed, and two checked.
spoilt() {
    spoilt_name=$1
    spoilt_where="$2, from rank .*, $4 is 0x.*, expected 0x"
    per_rank "$2" "GPUSM_TEST_SPOIL=$3"
    spoilt_program="$work/per-rank-$2"
    shift 4
    launch 60 2 -x LD_PRELOAD="$spoil" "$spoilt_program" "$perf" "$@" --sizes 4K --iterations 2 \
        --warmup 0 --no-limit -c
    judge "$spoilt_name" 1 $? '[ "$(count_in_output "^gpusm_perf: CORRUPT DATA: 4096 bytes, rank $spoilt_where")" -eq 1 ]' \
        "no line that fits rank $spoilt_where"
}
spoil=$GPUSM_BUILDDIR/tests/mpi/spoil_message.so
if [ "${GPUSM_SANITIZERS:-no}" != no ]; then
    skip spoilt "a sanitizer's run time does not bear another library preloaded before it"
else
    window="--window 4"
    # shellcheck disable=SC2086 # an option and its value
    for mode in bw bibw; do
        spoilt "spoilt-$mode-timed" 1 2:0 'message 3: byte 0' $mode $window
        spoilt "spoilt-$mode" 1 3:4095 'iteration 0: message 3: byte 4095' $mode $window
        spoilt "spoilt-$mode-last" 1 4:0 'iteration 1: message 3: byte 0' $mode $window
        spoilt "spoilt-$mode-guard" 1 3:-1 'iteration 0: guard byte 255 after message 2' $mode $window
    done
    # shellcheck disable=SC2086
    spoilt spoilt-answer 0 3:3 'iteration 0: message 0: byte 3' bw $window
    for rank in 0 1; do
        spoilt "spoilt-latency-timed-$rank" $rank 2:7 'message 0: byte 7' latency
        spoilt "spoilt-latency-$rank" $rank 3:0 'iteration 0: message 0: byte 0' latency
        spoilt "spoilt-latency-guard-$rank" $rank 4:4096 'iteration 1: guard byte 0 after message 0' latency
    done
    per_rank 1 GPUSM_TEST_SPOIL=3:5
    launch 60 2 -x LD_PRELOAD="$spoil" "$work/per-rank-1" "$perf" check --src H --dst H --sizes 4K
    judge spoilt-check 1 $? \
        '[ "$(count_in_output "^check: FAILED, .*H -> H, 4096 bytes, rank 1, .*byte 5 is")" -eq 1 ]' \
        "no verdict that says where"
fi

# above NAME MODE OPTIONS...: a link taken for much slower than it is makes the run fail, with a line
# that names the size.
above() {
    above_name=$1
    shift
    launch 60 2 "$perf" "$@" --sizes 64K --iterations 4 --link 0.001
    judge "$above_name" 1 $? '[ "$(count_in_output "^gpusm_perf: ABOVE THE LINK: 65536 bytes ")" -eq 1 ]' \
        "no line that says which size was above the link"
}
above above-link-host bw --src H --dst H
if need_gpu above-link; then
    above above-link-latency latency --src D --dst D
    above above-link-bibw bibw --src D --dst D
    above above-link-from-host bw --src H --dst D
    check below-link 60 2 "$perf" bw --src D --dst D --sizes 64K --iterations 4 --link 100000
fi
if need_gpusm table-says-get && need_gpu table-says-get; then
    launch 60 2 "$perf" latency --src D --dst D --sizes 8,4K,1M --iterations 20
    judge table-says-get 0 $? \
        '[ "$(path_count mapped_messages)" -ge 120 ] && [ "$(path_count device_fragments_messages)" -eq 0 ]' \
        "messages were not sent by get" \
        '[ "$(count_in_output "^rank [01]: 8 [0-9.]* us, 4K .* us, path .*mapped_messages")" -eq 2 ]' \
        "a rank does not say so"
fi
launch 60 2 "$perf" bw --preset --iterations 1 --warmup 0 --window 1 --no-limit --json "$work/rows.json"
if ! command -v python3 >/dev/null 2>&1; then
    skip json "no python3 to read it"
else
    python3 -c 'import json, sys
report = json.load(open(sys.argv[1]))
assert [row["bytes"] for row in report["rows"]][::9] == [256, 100 << 20], report
assert len(report["ranks"]) == 2 == len(report["rows"][0]["rank_mean_us"])' "$work/rows.json"
    judge json 0 $?
fi

# bad NAME RANKS ARGUMENTS...: status 2 and exactly one line that begins with "gpusm_perf:"
bad() {
    bad_name=$1
    bad_ranks=$2
    shift 2
    launch 30 "$bad_ranks" "$perf" "$@"
    judge "$bad_name" 2 $? \
        '[ "$(count_in_output "^gpusm_perf:")" -eq 1 ]' "not exactly one line of explanation" \
        '! says "MPI_ABORT\|Signal:\|Segmentation"' "it did not end in an orderly way"
}
bad unknown-kind 2 bw --src X
bad kind-of-two-letters 2 bw --src DD
bad unknown-mode 2 throughput
bad no-mode 2
bad two-modes 2 bw latency
bad bad-size 2 bw --sizes 4Q
bad empty-size 2 bw --sizes 1,,2
bad size-too-large 2 bw --sizes 2G
bad range-backwards 2 bw --sizes 8:4
bad offset-of-one-number 2 bw --offset 3
bad offset-too-large 2 bw --offset 0,2M
bad gaps-of-one-number 2 bw --gaps 8
bad part-of-a-block 2 bw --gaps 8,12 --sizes 8
bad link-of-zero 2 bw --link 0
bad unknown-option 2 bw --fast
bad missing-value 2 bw --window
bad window-of-zero 2 bw --window 0
bad json-not-writable 2 bw --json /nonexistent/rows.json
bad one-rank 1 latency
bad three-ranks 3 bw
if need_softcuda no-device; then
    GPUSM_TEST_MPIRUN_ARGS="${GPUSM_TEST_MPIRUN_ARGS-} -x GPUSM_SOFTCUDA_FAIL=cuInit:0:100" \
        bad no-device 2 bw --src D
    GPUSM_TEST_MPIRUN_ARGS="${GPUSM_TEST_MPIRUN_ARGS-} -x GPUSM_SOFTCUDA_FAIL=cuInit:0:100" \
        check check-without-device 60 2 "$perf" check
fi
"$perf" --help >"$work/output"
judge help 0 $? '[ "$(count_in_output "^usage:")" -eq 1 ]' "no usage line"
finish
