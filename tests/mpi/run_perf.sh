#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_perf.sh: gpusm_perf measures in every mode with every byte checked, at any address and length,
# notices a wrong one wherever it is, takes no figure above the link, and answers bad input with one
# line and status 2; what is made of its figures.
. "$(dirname "$0")/common.sh"

some="--sizes 0,1,4K,300K --iterations 4 --warmup 2 -c"
floats="--sizes 0,4,4K,300K,1025K --offset 4,12 --iterations 4 --warmup 2 -c"
# shellcheck disable=SC2086 # lists of options
for set in H:H $([ "$have_gpu" = yes ] && echo D:D D:H H:D R:D M:V W:A); do
    from=${set%:*}
    to=${set#*:}
    check "latency-$from-$to" 60 2 "$perf" latency --src $from --dst $to $some
    check "bw-$from-$to" 60 2 "$perf" bw --src $from --dst $to --window 8 $some
    check "bibw-$from-$to" 60 2 "$perf" bibw --src $from --dst $to --window 8 $some
    check "mbw_mr-$from-$to" 60 4 "$perf" mbw_mr --src $from --dst $to --window 8 $some
    check "alltoall-$from-$to" 60 3 "$perf" alltoall --src $from --dst $to $some
    check "allreduce-$from-$to" 60 3 "$perf" allreduce --src $from --dst $to $floats
done
# shellcheck disable=SC2086
for kind in H $([ "$have_gpu" = yes ] && echo D); do
    check "alltoall-of-2-$kind" 60 2 "$perf" alltoall --src $kind --dst $kind $some
    check "alltoall-of-4-$kind" 60 4 "$perf" alltoall --src $kind --dst $kind $some
    check "allreduce-of-2-$kind" 60 2 "$perf" allreduce --src $kind --dst $kind $floats
    check "allreduce-of-4-$kind" 60 4 "$perf" allreduce --src $kind --dst $kind $floats
done
odd="--sizes 7,1001,65537,1048577 --offset 1,3 --iterations 3 --warmup 2 -c"
# shellcheck disable=SC2086
for set in H:H $([ "$have_gpu" = yes ] && echo D:D H:D); do
    from=${set%:*}
    to=${set#*:}
    check "odd-latency-$from-$to" 60 2 "$perf" latency --src $from --dst $to $odd
    check "odd-bw-$from-$to" 60 2 "$perf" bw --src $from --dst $to --window 8 $odd
    check "odd-bibw-$from-$to" 60 2 "$perf" bibw --src $from --dst $to --window 8 $odd
    check "odd-mbw_mr-$from-$to" 60 4 "$perf" mbw_mr --src $from --dst $to --window 8 $odd
    check "blocks-latency-$from-$to" 60 2 "$perf" latency --blocks 64 --src $from --dst $to $odd
    check "blocks-bw-$from-$to" 60 2 "$perf" bw --blocks 1000 --src $from --dst $to --window 8 $odd
    check "blocks-bibw-$from-$to" 60 2 "$perf" bibw --blocks 999 --src $from --dst $to --window 4 $odd
    check "odd-alltoall-$from-$to" 60 3 "$perf" alltoall --src $from --dst $to $odd
done
# More in one window than there are places for.
check shared-places 60 2 "$perf" bw --sizes 96M --window 3 --iterations 1 --warmup 0 --no-limit -c
# shellcheck disable=SC2086
for places in 1 3; do
    check "places-$places" 60 2 "$perf" bw --places $places --window 8 $some
done

# By NCCL: here a library that has its names.
nccl=$GPUSM_BUILDDIR/tests/mpi/nccl_by_mpi.so
if need_gpu nccl; then
    # shellcheck disable=SC2086
    for mode in latency bw bibw; do
        check "nccl-$mode" 60 2 "$perf" $mode --src D --dst D --nccl "$nccl" $some
    done
    # shellcheck disable=SC2086
    check nccl-mbw_mr 60 4 "$perf" mbw_mr --src D --dst D --nccl "$nccl" $some
    # shellcheck disable=SC2086
    check nccl-alltoall 60 3 "$perf" alltoall --src D --dst D --nccl "$nccl" $some
    # shellcheck disable=SC2086
    check nccl-allreduce 60 3 "$perf" allreduce --src D --dst D --nccl "$nccl" $floats
    if [ "$(count_in_output 'btl: .*; messages by NCCL 2\.99\.1,')" -eq 1 ]; then
        pass nccl-is-in-the-header
    else
        fail nccl-is-in-the-header "no line that says NCCL and its version"
    fi
fi

# spoilt NAME RANK CALL:OFFSET WHERE MODE OPTIONS...: that rank gets one wrong byte, which ends the
# run with status 1 and a line that says where it was.
spoilt() {
    spoilt_name=$1
    spoilt_where="$2, .*iteration 0[:,] $4 is 0x.*, expected 0x"
    per_rank "$2" "GPUSM_TEST_SPOIL=$3"
    spoilt_program="$work/per-rank-$2"
    shift 4
    launch 60 2 -x LD_PRELOAD="$spoil" "$spoilt_program" "$perf" "$@" --sizes 4K --iterations 2 \
        --warmup 0 --no-limit -c
    spoilt_status=$?
    if [ $spoilt_status -ne 1 ]; then
        fail "$spoilt_name" "$(explain $spoilt_status), expected 1"
    elif [ "$(count_in_output "^gpusm_perf: CORRUPT DATA: 4096 bytes, rank $spoilt_where")" -ne 1 ]; then
        fail "$spoilt_name" "no line that fits rank $spoilt_where"
    else
        pass "$spoilt_name"
    fi
}
# Calls count from the first one: what they say is also that the lead-in comes first.
spoil=$GPUSM_BUILDDIR/tests/mpi/spoil_message.so
if [ "${GPUSM_SANITIZERS:-no}" != no ]; then
    skip spoilt "a sanitizer's run time does not bear another library preloaded before it"
else
    window="--window 4"
    # shellcheck disable=SC2086 # an option and its value
    for mode in bw bibw mbw_mr; do
        spoilt "spoilt-$mode-lead-in" 1 1:0 'lead-in message 3: byte 0' $mode $window
        spoilt "spoilt-$mode" 1 2:4095 'message 3: byte 4095' $mode $window
        spoilt "spoilt-$mode-lead-in-guard" 1 1:4096 'guard byte 0 after lead-in message 3' \
            $mode $window
        spoilt "spoilt-$mode-guard" 1 2:-1 'guard byte 255 after message 2' $mode $window
    done
    # shellcheck disable=SC2086
    for mode in bw mbw_mr; do
        spoilt "spoilt-$mode-lead-in-reply" 0 1:1 'lead-in reply: byte 1' $mode $window
        spoilt "spoilt-$mode-reply" 0 2:3 'reply: byte 3' $mode $window
    done
    for rank in 0 1; do
        spoilt "spoilt-latency-lead-in-$rank" $rank 1:7 'lead-in message 0: byte 7' latency
        spoilt "spoilt-latency-last-lead-in-$rank" $rank 3:4095 'lead-in message 2: byte 4095' latency
        spoilt "spoilt-latency-$rank" $rank 4:0 'message 0: byte 0' latency
        spoilt "spoilt-latency-guard-$rank" $rank 4:4096 'guard byte 0 after message 0' latency
    done
    spoilt spoilt-alltoall-lead-in 1 1:4096 'lead-in block from rank 1: byte 0' alltoall
    spoilt spoilt-alltoall 1 2:4095 'block from rank 0: byte 4095' alltoall
    spoilt spoilt-alltoall-guard 1 2:8192 'guard byte 0 after block from rank 1' alltoall
    for rank in 0 1; do
        spoilt "spoilt-allreduce-lead-in-$rank" $rank 1:4095 'lead-in message 0: byte 4095' allreduce
        spoilt "spoilt-allreduce-$rank" $rank 2:0 'message 0: byte 0' allreduce
        spoilt "spoilt-allreduce-guard-$rank" $rank 2:-1 'guard byte 0 before message 0' allreduce
    done
fi

# above NAME MODE RANKS OPTIONS...: a link taken for much slower than it is makes the run fail, with
# a line that names the size.
above() {
    above_name=$1
    above_mode=$2
    above_ranks=$3
    shift 3
    launch 60 "$above_ranks" "$perf" "$above_mode" "$@" --sizes 64K --iterations 4 --link-scale 1e-6
    above_status=$?
    if [ $above_status -ne 1 ]; then
        fail "$above_name" "$(explain $above_status), expected 1"
    elif [ "$(count_in_output '^gpusm_perf: ABOVE THE LINK: 65536 bytes ')" -ne 1 ]; then
        fail "$above_name" "no line that says which size was above the link"
    else
        pass "$above_name"
    fi
}
if need_gpu above-link; then
    above above-link-latency latency 2 --src D --dst D
    above above-link-bw bw 2 --src D --dst D
    above above-link-bibw bibw 2 --src D --dst D
    above above-link-alltoall alltoall 3 --src D --dst D
    above above-link-from-host bw 2 --src H --dst D
    check below-link 60 2 "$perf" bw --src D --dst D --sizes 64K --iterations 4 --link-scale 1e3
fi
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

# The tables and the picture, of figures that take no time to get.
bench=${GPUSM_SRCDIR:-.}/bench
if ! command -v python3 >/dev/null 2>&1; then
    skip compare "no python3 to run it"
    skip plot "no python3 to run it"
else
    for mode in bw alltoall allreduce; do
        # What compare prints is what a failure should show.
        timeout -k 5 $((120 * slowness)) python3 "$bench/compare" --rounds 2 --btl "${btl%,self}" \
            --ranks 2 --mpirun "$GPUSM_MPIRUN ${GPUSM_TEST_MPIRUN_ARGS-}" --perf "$perf" \
            --json "$work/$mode.json" --markdown "$work/$mode.md" \
            $mode --sizes 8,8K --iterations 2 >"$work/output" 2>&1
        status=$?
        if [ $status -eq 0 ] && grep -q '^| 8 | ' "$work/$mode.md" &&
            grep -q '^| 8K | ' "$work/$mode.md"; then
            pass "compare-$mode"
        else
            fail "compare-$mode" "$(explain $status), or there is no table"
        fi
    done
    # Another MPI, with a gpusm_perf of its own; here it is this one over again.
    name=compare-other
    mpicxx=$GPUSM_OMPI_PREFIX/bin/mpicxx
    if [ "${GPUSM_SANITIZERS-no}" != no ]; then
        skip $name "needs a program without sanitizers"
    elif ! make -C "$GPUSM_BUILDDIR/bench" other-perf OTHER_MPICXX="$mpicxx" \
        OTHER_PERF="$work/other_perf" >"$work/output" 2>&1; then
        fail $name "other-perf cannot be built"
    elif ! timeout -k 5 $((120 * slowness)) python3 "$bench/compare" --rounds 1 --btl sm,again \
        --mpirun "$GPUSM_MPIRUN" --perf "$perf" --markdown "$work/other.md" \
        --other again="$GPUSM_MPIRUN -n 2 --mca btl sm,self $work/other_perf" \
        latency --src H --dst H --sizes 8 --iterations 2 --no-limit >"$work/output" 2>&1; then
        fail $name "$(explain $?)"
    elif ! grep -q '^| size | limit | sm | sm / limit | again | ' "$work/other.md"; then
        fail $name "no column of the other one"
    else
        pass $name
    fi
    if grep -q '^| size .* messages/s |$' "$work/bw.md"; then
        pass compare-message-rate
    else
        fail compare-message-rate "no column with messages per second"
    fi
    if python3 "$bench/plot" -o "$work/plot.svg" "$work/bw.json" "$work/alltoall.json" \
        "$work/allreduce.json" &&
        python3 -c 'import sys, xml.dom.minidom as dom
lines = dom.parse(sys.argv[1]).getElementsByTagName("polyline")
assert len(lines) == 5, len(lines)' "$work/plot.svg"; then
        pass plot
    else
        fail plot "not a picture with a curve for the transport and, but for allreduce, one for the limit per file"
    fi
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
bad places-none 2 bw --places 0
bad blocks-none 2 bw --blocks 0
bad blocks-in-a-collective 2 alltoall --blocks 64
bad nccl-with-host-memory 2 bw --src D --nccl "$nccl"
if need_gpu nccl-not-there; then
    bad nccl-not-there 2 bw --src D --dst D --nccl /nonexistent/libnccl.so.2
    bad nccl-that-is-none 2 bw --src D --dst D --nccl libdl.so.2
    GPUSM_TEST_MPIRUN_ARGS="${GPUSM_TEST_MPIRUN_ARGS-} -x NCCL_BY_MPI_FAIL=ncclCommInitRank" \
        bad nccl-without-communicator 2 bw --src D --dst D --nccl "$nccl"
    launch 60 2 -x NCCL_BY_MPI_FAIL=ncclSend "$perf" bw --src D --dst D --sizes 8 --nccl "$nccl"
    status=$?
    if [ $status -ne 0 ] && [ $status -ne 124 ] &&
        [ "$(count_in_output '^gpusm_perf: ncclSend: not by MPI')" -gt 0 ]; then
        pass nccl-failing
    else
        fail nccl-failing "$(explain $status), or no line that says which call failed"
    fi
fi
bad offset-of-one-number 2 bw --offset 3
bad offset-of-three-numbers 2 bw --offset 1,2,3
bad offset-not-a-number 2 bw --offset 1,x
bad offset-negative 2 bw --offset -1,0
bad offset-too-large 2 bw --offset 0,2M
bad link-scale-of-zero 2 bw --link-scale 0
bad link-scale-not-a-number 2 bw --link-scale fast
bad unknown-option 2 bw --fast
bad missing-value 2 bw --window
bad window-of-zero 2 bw --window 0
bad json-not-writable 2 bw --json /nonexistent/rows.json
bad one-rank 1 latency
bad three-ranks 3 latency
bad odd-ranks 3 mbw_mr
bad alltoall-alone 1 alltoall
bad allreduce-alone 1 allreduce
bad allreduce-of-half-a-float 2 allreduce --sizes 4,6
bad allreduce-at-half-a-float 2 allreduce --offset 0,2
if need_gpu allreduce-without-coll-cuda; then
    GPUSM_TEST_MPIRUN_ARGS="${GPUSM_TEST_MPIRUN_ARGS-} --mca coll ^cuda,accelerator" \
        bad allreduce-without-coll-cuda 2 allreduce --src D
fi
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
