# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# common.sh: what the drivers run_*.sh share. Sourced, never run. One line per case is printed,
# "PASS: name", "FAIL: name" or "SKIP: name: reason", and `finish` ends the driver.
#
# The environment, set by tests/environment under make check:
#   GPUSM_MPIRUN        an mpirun whose ranks find the components under test
#   GPUSM_PERF          the program gpusm_perf
#   GPUSM_CUDA_DRIVER   "real" or "softcuda"
#   GPUSM_TEST_COMPONENTS  "build" or "openmpi": whose components these are
# By hand:
#   GPUSM_TEST_BTL              value of --mca btl (default gpusm,self)
#   GPUSM_TEST_MPIRUN_ARGS      more options of mpirun
#   GPUSM_TEST_SLOWNESS         factor for all deadlines
# shellcheck shell=sh
# shellcheck disable=SC1091,SC2034,SC2016
set -u

if [ -z "${GPUSM_MPIRUN-}" ] && [ -r ../environment ]; then
    . ../environment
elif [ -z "${GPUSM_MPIRUN-}" ] && [ -r tests/environment ]; then
    . tests/environment
fi
GPUSM_MPIRUN=${GPUSM_MPIRUN:-mpirun}
GPUSM_BUILDDIR=${GPUSM_BUILDDIR:-.}
exchange=$GPUSM_BUILDDIR/tests/mpi/exchange
perf=${GPUSM_PERF:-$GPUSM_BUILDDIR/bench/gpusm_perf/gpusm_perf}
driver_kind=${GPUSM_CUDA_DRIVER:-softcuda}
btl=${GPUSM_TEST_BTL:-gpusm,self}
slowness=${GPUSM_TEST_SLOWNESS:-1}
processors=$(getconf _NPROCESSORS_ONLN)
crowd=$((processors / 2 * 2 + 2)) # ranks, in pairs, that are more than that
if [ -n "${GPUSM_SANITIZERS-}" ] && [ "${GPUSM_SANITIZERS-}" != no ]; then
    slowness=$((slowness * 5))
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

test_name=$(basename "$0" .sh)
work=$(mktemp -d "${TMPDIR:-/tmp}/gpusm-$test_name.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
passed=0
failed=0
skipped=0

pass() {
    echo "PASS: $test_name/$1"
    passed=$((passed + 1))
}

# fail NAME REASON: also shows what the last launch printed
fail() {
    if [ -s "$work/output" ]; then
        tr -d '\000' <"$work/output" | sed 's/^/    | /' | tail -n 60
    fi
    echo "    $2"
    echo "FAIL: $test_name/$1"
    failed=$((failed + 1))
}

skip() {
    echo "SKIP: $test_name/$1: $2"
    skipped=$((skipped + 1))
}

finish() {
    [ "$failed" -eq 0 ] || exit 1
    [ "$passed" -gt 0 ] || [ "$skipped" -eq 0 ] || exit 77
    exit 0
}

# launch SECONDS RANKS [OPTIONS OF MPIRUN] PROGRAM [ARGUMENTS]: runs it under a deadline; its output
# is in $work/output and its status is returned. An empty $btl leaves the choice to Open MPI. The
# program has a deadline of its own, a little earlier, so that it can say where it hung.
launch() {
    launch_limit=$(($1 * slowness))
    launch_ranks=$2
    shift 2
    if [ -n "$btl" ]; then
        set -- --mca btl "$btl" "$@"
    fi
    # shellcheck disable=SC2086 # a list of options
    GPUSM_TEST_DEADLINE=$launch_limit timeout -k 5 $((launch_limit + 5)) \
        "$GPUSM_MPIRUN" -n "$launch_ranks" ${GPUSM_TEST_MPIRUN_ARGS-} "$@" \
        >"$work/output" 2>&1 </dev/null
}

# wrapper NAME RANK WORDS: makes $work/NAME, which runs a program with those words before it, in that
# rank, or in all, and as it is in the others.
wrapper() {
    {
        echo '#!/bin/sh'
        [ "$2" = all ] || printf '[ "$OMPI_COMM_WORLD_RANK" = %s ] || exec "$@"\n' "$2"
        printf 'exec %s "$@"\n' "$3"
    } >"$work/$1"
    chmod 755 "$work/$1"
}
# per_rank RANK NAME=VALUE: $work/per-rank-RANK runs a program with that setting in that rank only
per_rank() {
    wrapper "per-rank-$1" "$1" "env '$2'"
}

# let_others_run: ranks that take turns need that where processors are few: whoever waits yields
let_others_run() {
    export OMPI_MCA_mpi_yield_when_idle=1
}

# logged FOLDER [OPTIONS OF MPIRUN] PROGRAM...: a launch of two ranks whose calls of the software driver
# are logged in that folder of $work
logged() {
    logged_in=$work/$1
    shift
    rm -rf "$logged_in"
    mkdir "$logged_in"
    launch 60 2 -x GPUSM_SOFTCUDA_LOG="$logged_in" "$@"
}
# What calls the driver for gpusm, as the call logs name it: components and their library or, where
# gpusm is linked into Open MPI's libraries, those. by_gpusm: as a pattern, btl/gpusm and the library.
by_gpusm='(mca_btl|libmca_common)_gpusm\.so' by_library='libmca_common_gpusm\.so' coll_file=mca_coll_gpusm.so
accelerator_file=mca_accelerator_gpusm.so linked_in=no
if [ "${GPUSM_TEST_COMPONENTS-}" = openmpi ] &&
    [ ! -e "${GPUSM_OMPI_COMPONENT_DIR-}/mca_btl_gpusm.so" ]; then
    accelerator_file=$(ldd "$exchange" | sed -n 's/.*\(libopen-pal\.so[.0-9]*\) =>.*/\1/p')
    coll_file=$(ldd "$exchange" | sed -n 's/.*\(libmpi\.so[.0-9]*\) =>.*/\1/p')
    case ${GPUSM_OMPI_VERSION-5} in
    5*) ;;
    *) coll_file=$(ldd "$exchange" | sed -n 's/.*\(libopen_mpi\.so[.0-9]*\) =>.*/\1/p') ;;
    esac
    by_library='libopen-pal\.so' by_gpusm=$by_library linked_in=yes
fi
# calls_in FOLDER PATTERN: lines of the call logs there
calls_in() {
    cat "$work/$1"/*.log 2>/dev/null | grep -cE "$2" || true
}

# What a status of launch means, in words.
explain() {
    case $1 in
    3 | 124 | 137) echo "no end within $launch_limit s (status $1)" ;;
    139 | 134 | 135 | 138) echo "it crashed (status $1)" ;;
    *) echo "status $1" ;;
    esac
}

# judge NAME WANTED STATUS [CONDITION REASON]...: a case that passes when the status is the wanted one
# and every condition, which is evaluated, holds
judge() {
    judge_name=$1
    if [ "$3" -ne "$2" ]; then
        fail "$judge_name" "$(explain "$3")$([ "$2" -eq 0 ] || echo ", expected $2")"
        return
    fi
    shift 3
    while [ $# -gt 0 ]; do
        if ! eval "$1"; then
            fail "$judge_name" "$2"
            return
        fi
        shift 2
    done
    pass "$judge_name"
}

# Why the program of the last launch has ended with 77: what it said itself, before mpirun did.
reason_to_skip() {
    reason=$(sed -n 's/^exchange: skipped: //p' "$work/output" | head -n 1)
    echo "${reason:-$(tail -n 1 "$work/output")}"
}

# check NAME SECONDS RANKS ...: a case that passes when the launch ends with status 0
check() {
    check_name=$1
    shift
    launch "$@"
    check_status=$?
    case $check_status in
    0) pass "$check_name" ;;
    77) skip "$check_name" "$(reason_to_skip)" ;;
    *) fail "$check_name" "$(explain $check_status)" ;;
    esac
}

# The kinds of memory that exist here: all of them, or H when no CUDA driver can be loaded.
if gpu_name=$("$exchange" print-gpu 2>/dev/null); then
    have_gpu=yes
    kinds=HDRMVWA
else
    have_gpu=no
    kinds=H
fi

is_software() {
    case $gpu_name in
    *software*) return 0 ;;
    esac
    return 1
}

# need_gpu NAME: false, with the case skipped, when there is none
need_gpu() {
    [ "$have_gpu" = yes ] && return 0
    skip "$1" "$gpu_name"
    return 1
}

# need_two_gpus NAME: likewise for two devices
need_two_gpus() {
    need_gpu "$1" || return 1
    is_software || [ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge 2 ] && return 0
    skip "$1" "needs two devices"
    return 1
}

# need_softcuda NAME: likewise for what only the software driver can be asked to do
need_softcuda() {
    need_gpu "$1" || return 1
    is_software && return 0
    skip "$1" "needs the software CUDA driver, and this is $gpu_name"
    return 1
}

# need_files NAME: likewise for what tells gpusm's calls of the C library from Open MPI's by their file
need_files() {
    [ "$linked_in" = yes ] || return 0
    skip "$1" "gpusm is linked into Open MPI's libraries, whose own calls look the same"
    return 1
}

# need_gpusm NAME: likewise for what is true of btl/gpusm only
need_gpusm() {
    case ",$btl," in
    *,gpusm,*) return 0 ;;
    esac
    skip "$1" "the transport under test is $btl, not gpusm"
    return 1
}

# says TEXT: whether the last launch has printed it
says() {
    [ "$(count_in_output "$1")" -ne 0 ]
}

# How often a text stands in the output of the last launch.
count_in_output() {
    grep -c -e "$1" "$work/output" || true
}

# path_count VARIABLE...: what the ranks of gpusm_perf have counted by these performance variables
path_count() {
    for path_variable in "$@"; do
        sed -n "s/^rank [0-9]*: .*path {.*\"$path_variable\": \([0-9]*\).*/\1/p" "$work/output"
    done | awk '{ n += $1 } END { print n + 0 }'
}
# Those of messages from or to device memory that a rank has fetched, by their modes.
fetched="mapped_messages delegated_messages bounced_messages shared_messages pushed_messages pulled_messages device_ring_messages
    staged_ring_messages"

# makes_single_copies: whether host memory is read in single copies here
makes_single_copies() {
    launch 60 2 --mca btl_gpusm_cuda_ipc_verbose 20 "$perf" latency --src H --dst H --sizes 1M --iterations 2 --no-limit
    grep -q 'host memory of process . is read in a single copy' "$work/output"
}
# two_share_a_cache: whether long host messages may be streamed between two ranks: not where they are more
# than processors, nor between L3 caches
two_share_a_cache() {
    [ "$processors" -ge 2 ] &&
        [ "$(cat /sys/devices/system/cpu/cpu[01]/cache/index3/shared_cpu_list | sort -u | wc -l)" -eq 1 ]
}
