#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_campaign.sh: a sample of each campaign. The whole of them takes hours: collectives, faults,
# kills, random-types, and `exchange soak` and `exchange stress` with more.
# shellcheck disable=SC2154 # set by common.sh
. "$(dirname "$0")/../mpi/common.sh"

need_gpusm campaign || finish
folder=$(dirname "$0")

# sample NAME PROGRAM OPTIONS: a Python program that judges many jobs by itself
sample() {
    sampled=$1 program=$2
    shift 2
    "$folder/$program" "$@" --keep "$work/$sampled" >"$work/output" 2>&1
    judge "$sampled" 0 $?
    tail -n 1 "$work/output"
}
sample random-types random-types --cases 60 --parts 3-ranks,threads-8-ranks
sample killed-ranks kills --count 12 --kinds "H,$kinds"
sample killed-ranks-that-survivors-go-on-without kills --ulfm --count 8 --kinds "H,$kinds"
if need_gpu killed-ranks-on-one-device; then
    sample killed-ranks-on-one-device kills --ulfm --one-device --count 6 --kinds "D,HDV"
    sample killed-ranks-under-stress kills --stress --count 6 --kinds DVP,DH
fi
if need_gpu collectives; then
    sample collectives-of-killed-ranks collectives --parts killed,survive,revoked --count 6
fi
if need_softcuda collectives-with-failing-calls; then
    sample collectives-with-failing-calls collectives --parts faults,recover --every 100
    check one-rank-alone-has-memory-that-others-cannot-map 60 3 "$exchange" collectives-alone --kinds MWPHR
fi
if [ "${GPUSM_SANITIZERS:-no}" != no ]; then
    skip failing-calls "failing_calls.so and the sanitizer would both replace the allocator"
elif need_softcuda failing-calls && need_files failing-calls; then
    sample failing-calls faults --sets HD,VA --every 24
    sample failing-calls-that-once-hung faults --sets D,HV --functions posix_fallocate,recvmsg
fi

# soak NAME RANKS SUBTEST KINDS MESSAGES
soak() {
    check "$1" 120 "$2" "$exchange" "$3" --kinds "$4" --rounds "$5"
    grep 'every byte right' "$work/output"
}
soak soak-host-8-ranks 8 soak H 400000
soak soak-host-4-threads 2 soak-threads H 100000
soak soak-every-kind 4 soak "$kinds" 20000
# What an application does with its devices; for long: `exchange stress --seconds 600`.
if need_gpu stress; then
    case $driver_kind in softcuda) stressed=DVAMPW ;; *) stressed=DVP ;; esac # docs/memory.md says why no A
    for place in a-device-for-each one-device; do
        case $place in one-device) only='-x CUDA_VISIBLE_DEVICES=0' ;; *) only= ;; esac
        # shellcheck disable=SC2086 # an option and its value
        check "stress-$place" 120 3 $only "$exchange" stress --kinds $stressed
    done
fi
finish
