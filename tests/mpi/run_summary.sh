#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_summary.sh: btl_gpusm_summary tells at the end which messages went to and came from whom, in
# which modes, by numbers that are those of what was sent; and why some took another way.
# shellcheck disable=SC2016 # conditions are evaluated later
. "$(dirname "$0")/common.sh"

summary="--mca btl_gpusm_summary 1"
# summed RANK PEER MODE MESSAGES BYTES: that line is in the summary of that rank, once
summed() {
    [ "$(tr -s ' ' <"$work/output" | awk -v rank="$1" -v line=" $2 $3 $4 messages $5 bytes" '
        /summary of rank/ { here = $0 ~ "btl/gpusm: summary of rank " rank "$" }
        here && $0 == line { ++found }
        END { print found + 0 }')" -eq 1 ]
}
# fell_back RANK PEER REASON: that rank tells it of that peer
fell_back() {
    awk -v rank="$1" -v line="$2 *fell back: $3: [1-9]" '
        /summary of rank/ { here = $0 ~ "btl/gpusm: summary of rank " rank "$" }
        here && $0 ~ line { found = 1 }
        END { exit !found }' "$work/output"
}
# every_mode_equal RANK: what gpusm_perf has read of the performance variables when it was done is
# what the summary says; of fragments, in which it has sent some more since, at least as much
every_mode_equal() {
    sed -n "s/^rank $1: .*path {\(.*\)}/\1/p" "$work/output" | tr ',' '\n' | tr -d '": ' |
        sed -n 's/_messages\([0-9]*\)$/ \1/p' >"$work/path"
    [ -s "$work/path" ] || return 1
    while read -r mode messages; do
        told=$(tr -s ' ' <"$work/output" | awk -v rank="$1" -v mode="$mode" '
            /summary of rank/ { here = $0 ~ "btl/gpusm: summary of rank " rank "$" }
            here && $3 == mode && $5 == "messages" { sum += $4 }
            here && $2 == mode && $4 == "messages" { sum += $3 }
            END { print sum + 0 }')
        case $mode in
        host_fragments) [ "$told" -ge "$messages" ] || return 1 ;;
        *) [ "$told" -eq "$messages" ] || return 1 ;;
        esac
    done <"$work/path"
}

# sent MODE FROM TO BYTES OPTIONS...: of 12 messages to rank 1 its summary tells that mode, that number
# and those bytes. Two at most, before the peers know enough of each other, may go in the mode `or`.
sent() {
    sent_mode=$1 sent_from=$2 sent_to=$3 sent_bytes=$4
    shift 4
    launch 60 2 $summary "$@" "$perf" bw --src "$sent_from" --dst "$sent_to" --sizes "$sent_bytes" \
        --iterations 12 --warmup 0 --window 1 --no-limit
    sent_status=$?
    told=$(awk -v mode="$sent_mode" -v or="${or-}" '
        /summary of rank/ { here = /btl\/gpusm: summary of rank 1$/ }
        here && $1 == "rank" && $2 == 0 && $5 == "messages" && $3 != "host_fragments" {
            if ($3 == mode || $3 == or) { messages += $4; bytes += $6 } else { print $3 }
            most = $3 == mode && $4 >= 10 ? "most" : most
        }
        END { printf "%s %d messages %d bytes", most, messages, bytes }' "$work/output")
    judge "sent-$sent_mode" 0 $sent_status '[ "$told" = "most 12 messages $((12 * sent_bytes)) bytes" ]' "it tells $told"
    or='' # some shells keep what stands before the call of a function
}

one="--iterations 4 --warmup 0 --window 8 --no-limit"
# shellcheck disable=SC2086 # options and their values
{
    launch 60 2 $summary "$perf" bw --src H --dst H --sizes 64 $one
    judge host 0 $? 'every_mode_equal 0 && every_mode_equal 1' \
        "it is not what the performance variables say"
    single=no
    makes_single_copies && single=yes
    if [ $single = yes ] && two_share_a_cache; then
        or=single_copy sent both_copy H H 1048576 --bind-to core --mca btl_gpusm_stream_host_after 1073741824
        sent single_copy H H 65536 --bind-to core --mca btl_gpusm_stream_host_after 1073741824
        sent host_ring H H 1048576 --bind-to core --mca btl_gpusm_stream_host_after 0
    else
        skip sent-host_ring "needs single copies, and two processors with an L3 cache"
    fi
    if [ "$have_gpu" = yes ]; then
        sent mapped D D 1048576
        sent bounced D H 65536
        or=pulled sent pushed R D 1048576
        sent staged_ring H D 65536
        sent device_ring M D 1048576
        or=mapped sent delegated D D 65536 -x CUDA_VISIBLE_DEVICES=0 --mca btl_gpusm_delegate_wait 5000000
        if [ $single = yes ]; then
            sent shared D H 1048576
            sent pulled H D 1048576
        else
            skip sent-shared "needs single copies"
        fi
        launch 60 2 $summary "$perf" bw --src D --dst D --sizes 1M $one
        judge device 0 $? 'summed 1 "rank 0" mapped 32 33554432' "the 32 messages are not told"
        judge mappings 0 $? 'grep -q "^  mapping_misses  *1$" "$work/output" &&
            grep -q "^  mapping_hits  *31$" "$work/output"' "one allocation, 32 messages"
        launch 180 2 $summary "$perf" check --sizes 64,5000,300K,4M
        judge every-mode 0 $? 'every_mode_equal 0 && every_mode_equal 1' \
            "it is not what the performance variables say"
        launch 60 2 $summary "$perf" bw --src M --dst D --sizes 5000 $one
        judge not-mappable 0 $? 'fell_back 0 "rank 1" "memory that no peer can map goes in fragments: not supported"' \
            "no reason is told"
        per_rank 1 OMPI_MCA_btl_gpusm_use_cuda_ipc=0
        launch 60 2 $summary "$work/per-rank-1" "$perf" bw --src D --dst D --sizes 5000 $one
        judge refused 0 $? 'fell_back 0 "rank 1" "the peer has refused to fetch device memory" &&
            fell_back 1 "rank 0" "btl_gpusm_use_cuda_ipc is 0"' "no reason is told"
        launch 60 1 $summary "$exchange" self --kinds D
        judge itself 0 $? 'tr -s " " <"$work/output" | grep -q "^ itself self [1-9][0-9]* messages"' \
            "messages to itself are not told"
        launch 60 2 $summary "$exchange" reductions --kinds D
        judge collectives 0 $? 'grep -q "coll/gpusm: summary of rank 0" "$work/output" &&
            grep -q "^  device_reductions [1-9]" "$work/output"' "reductions are not told"
        launch 60 2 $summary "$exchange" windows --kinds D
        judge windows 0 $? 'grep -q "osc/gpusm: summary of rank 1" "$work/output" &&
            grep -q "^  device_copies [1-9]" "$work/output"' "windows are not told"
    fi
    launch 60 2 "$perf" bw --src H --dst H --sizes 64 $one
    judge off 0 $? '! grep -q "summary of rank" "$work/output"' "it is told unasked"
}

finish
