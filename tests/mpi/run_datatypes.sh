#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_datatypes.sh: random datatypes arrive right over every way to start gpusm that the
# documentation names, and whatever the exclusivity of the transports is: gpusm has its peers
# alone, or leaves them alone. GPUSM_TEST_SEEDS: of host memory, so many each time (default 30).
# shellcheck disable=SC2016,SC2154,SC2034 # conditions are evaluated later; set by common.sh
. "$(dirname "$0")/common.sh"
need_gpusm random-datatypes || finish

seeds=${GPUSM_TEST_SEEDS:-30}
device_seeds=$((seeds / 2 + 1))
limit=$((45 + seeds))

# random NAME [OPTIONS OF MPIRUN]: random datatypes, in host memory and in every kind of memory
random() {
    name=$1
    shift
    check "$name-host" "$limit" 2 "$@" "$exchange" random-types --kinds H --rounds "$seeds"
    if [ "$have_gpu" = yes ]; then
        check "$name-device" $((limit * 2)) 2 "$@" "$exchange" random-types --kinds HDVMR \
            --rounds "$device_seeds"
    else
        skip "$name-device" "$gpu_name"
    fi
}
random gpusm
btl=gpusm,sm,self
random beside-sm
btl=
random nothing-said
btl=^smcuda
random without-smcuda
btl=^sm
random without-sm

# The plans that coll/gpusm makes of datatypes pack as MPI_Pack does. GPUSM_TEST_PLANS: of so many.
check plans 300 1 "$GPUSM_BUILDDIR/tests/mpi/plans" "${GPUSM_TEST_PLANS:-500}"

# alone NAME CONDITION REASON [OPTIONS OF MPIRUN]: the same where transports have been given
# exclusivities, and host messages are counted
alone() {
    name=$1 condition=$2 reason=$3
    shift 3
    launch "$limit" 2 "$@" "$exchange" random-types --kinds H --rounds 8
    judge "$name-right" 0 $? "$condition" "$reason"
    launch 60 2 "$@" "$perf" latency --src H --dst H --sizes 8,1M --iterations 20 --warmup 0
    counted=$?
    messages=$(path_count host_fragments_messages single_copy_messages both_copy_messages host_ring_messages)
    judge "$name-counted" 0 "$counted" '[ "$messages" -eq 0 ] || [ "$messages" -ge 80 ]' \
        "of 80 messages and more, gpusm has carried $messages"
}
# btl/sm has 65536 by itself, gpusm 65538.
warned='says "have the same exclusivity"'
quiet='! says "have the same exclusivity"'
btl=
alone as-installed "$quiet" "gpusm warns of nothing"
alone gpusm-as-sm "$warned" "nothing tells that both have one exclusivity" \
    --mca btl_gpusm_exclusivity 65536
alone sm-as-gpusm "$warned" "nothing tells that both have one exclusivity" \
    --mca btl_sm_exclusivity 65538
alone tcp-as-gpusm "$warned" "nothing tells that both have one exclusivity" \
    --mca btl_tcp_exclusivity 65538 --mca btl_tcp_if_include lo
alone sm-above-gpusm "$quiet" "gpusm warns of nothing" --mca btl_sm_exclusivity 70000
# The highest there is: nobody can be above it.
alone sm-and-gpusm-highest 'says "leaves the other processes to"' \
    "nothing tells that gpusm stands back" \
    --mca btl_sm_exclusivity 4294967295 --mca btl_gpusm_exclusivity 4294967295
alone sm-with-more-flags "$quiet" "gpusm warns of nothing" \
    --mca btl_sm_flags send,put,get,inplace,atomics,fetching-atomics
alone gpusm-with-less-flags "$quiet" "gpusm warns of nothing" --mca btl_gpusm_flags 1
if [ "${GPUSM_OMPI_CUDA_AWARE-yes}" = yes ]; then
    alone smcuda-as-gpusm "$warned" "nothing tells that both have one exclusivity" \
        --mca btl_smcuda_exclusivity 65538
else
    skip smcuda-as-gpusm "this Open MPI was built without it"
fi
finish
