#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_collectives.sh: the collectives that move data bring what each rank sends, on device memory and
# mixed, by kernels and by messages, and their counter tells which.
# shellcheck disable=SC2016,SC2154 # conditions are evaluated later; set by common.sh
. "$(dirname "$0")/common.sh"
need_gpu collectives || finish

# passes NAME RANKS SUBTEST [OPTIONS OF MPIRUN]
passes() {
    name=$1
    ranks=$2
    what=$3
    shift 3
    launch 120 "$ranks" "$@" "$exchange" "$what" --kinds D
    judge "$name" 0 $? 'says "$what: passed, [1-9]"' "it does not pass"
}
for ranks in 1 2 3 4 9; do
    passes "$ranks-ranks" "$ranks" collectives
done
if need_softcuda a-device-for-each-rank; then
    for ranks in 3 4; do
        passes "$ranks-devices" "$ranks" collectives -x GPUSM_SOFTCUDA_DEVICES="$ranks"
    done
fi
passes one-device 2 collectives -x CUDA_VISIBLE_DEVICES=0
passes with-events 2 collectives-content --mca btl_gpusm_use_cuda_events 1
passes by-messages 2 collectives-content --mca coll_gpusm_use_devices 0
# Of ranks that share a device one launches for all, but in a communicator's first call, in which they
# find out.
if need_softcuda one-launches-for-all; then
    logged shared -x CUDA_VISIBLE_DEVICES=0 "$exchange" collectives-content --kinds D
    status=$?
    # The two logs by their number of launches.
    launches=$(for log in "$work"/shared/*.log; do grep -c '^cuLaunchKernel .*libmca_common_gpusm' "$log" || true; done | sort -n | tr '\n' ' ')
    judge one-launches-for-all 0 $status '[ "$(echo "$launches" | cut -d " " -f 2)" -gt $((3 * ${launches%% *})) ]' \
        "both launch: $launches"
fi
# The root of a long one launches nothing, all others do. These map what the three others have, and an anchor of each;
# who only reads the root's memory maps that, and its anchor.
each_rank() { # PATTERN: how many of each rank's calls are so, the fewest first
    grep -c "$1" "$folder"/*.log | sed 's/.*://' | sort -n | tr '\n' ' '
}
if need_softcuda long-ones-spare-the-root; then
    for operation in reduce bcast; do
        folder=$work/$operation
        mkdir "$folder"
        launch 60 4 -x GPUSM_SOFTCUDA_DEVICES=4 -x GPUSM_SOFTCUDA_LOG="$folder" \
            "$GPUSM_BUILDDIR/bench/coll_bench/coll_bench" --no-nccl --sizes 4M --iterations 5 "$operation"
        status=$?
        launches=$(each_rank "^cuLaunchKernel .*$by_library")
        opened=$(each_rank "^cuIpcOpenMemHandle .*$by_library")
        judge "a-long-$operation-spares-the-root" 0 $status 'case $launches in "0 "[1-9]*) ;; *) false ;; esac' \
            "launches: $launches" '[ "$(echo "$launches" | cut -d " " -f 2)" -ge 5 ]' "launches: $launches" \
            '[ "$(echo "$opened" | cut -d " " -f 2)" -ge 5 ]' "mappings: $opened"
    done
fi
# Who takes no part keeps nobody waiting.
launch 120 1 --mca coll_gpusm_use_devices 0 "$exchange" collectives-content --kinds D : \
    -n 2 "$exchange" collectives-content --kinds D
judge one-rank-uses-no-devices 0 $? 'says "collectives-content: passed, [1-9]"' "it does not pass"
# What a process cannot do now, none does; a launch that is refused is tried again.
if need_softcuda devices-that-cannot; then
    for call in cuIpcOpenMemHandle:2:2 cuModuleLoadData:1:2 cuIpcGetMemHandle:1:2 cuLaunchKernel:5:2; do
        passes "one-$call-fails" 3 collectives-content -x GPUSM_SOFTCUDA_FAIL="$call" \
            -x GPUSM_SOFTCUDA_FAIL_CALLER=libmca_common_gpusm.so
    done
fi
finish
