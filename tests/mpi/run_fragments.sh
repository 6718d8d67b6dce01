#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_fragments.sh: messages take their fragments in turns, as many as there may be; and all bytes are
# right when there are few, or no more can be had.
. "$(dirname "$0")/common.sh"

need_gpusm fragments || finish

# round_case NAME BYTES MODE USED RANKS OPTIONS...: BYTES is what the processes say that a turn may
# take, and after MODE the one that has used most of its segment has used "much" or "little" of it, or
# "any"
round_case() {
    round_name=$1
    round_bytes=$2
    round_mode=$3
    round_wanted=$4
    round_ranks=$5
    shift 5
    case $round_mode in
    latency) round_sizes="8000 --iterations 1000" ;;
    *) round_sizes="3000,8000,30000 --iterations 20" ;;
    esac
    # shellcheck disable=SC2086
    launch 60 "$round_ranks" --mca btl_gpusm_cuda_ipc_verbose 20 "$@" "$perf" $round_mode \
        --src H --dst H --warmup 1 --no-limit -c --sizes $round_sizes
    round_status=$?
    round_right=$(grep -c "take fragments of up to $round_bytes bytes" "$work/output")
    round_used=$(sed -n 's/.* \([0-9]*\) bytes of the segment have been used.*/\1/p' "$work/output" |
        sort -n | tail -1)
    round_found=little
    [ "${round_used:-0}" -lt 4194304 ] || round_found=much
    if [ $round_status -ne 0 ]; then
        fail "$round_name" "$(explain $round_status)"
    elif [ "$round_right" -ne "$round_ranks" ]; then
        fail "$round_name" "$round_right of $round_ranks ranks say that it is $round_bytes bytes"
    elif [ -z "$round_used" ]; then
        fail "$round_name" "no rank says how much of its segment has been used"
    elif [ "$round_wanted" != any ] && [ "$round_wanted" != $round_found ]; then
        fail "$round_name" "$round_used bytes of a segment have been used"
    else
        pass "$round_name"
    fi
}
if [ "$processors" -ge 2 ]; then
    round_case rows-take-many-fragments 4194304 bw much 2
    round_case messages-to-and-fro-take-many-fragments 4194304 latency much 2
    round_case threads-take-many-fragments 4194304 latency much 2 -x OMPI_MPI_THREAD_LEVEL=3
    round_case fragments-as-the-user-says 100000 latency little 2 --mca btl_gpusm_round_bytes 100000
    round_case few-fragments-in-a-small-segment 262144 bw little 2 --mca btl_gpusm_segment_size 2M
    round_case when-no-more-fragments-can-be-had 4194304 bw any 2 \
        --mca btl_gpusm_free_list_max 8 --mca btl_gpusm_segment_size 64M
else
    skip rows-take-many-fragments "needs two processors"
fi
round_case few-fragments-with-more-ranks-than-processors 0 bw any "$crowd"

finish
