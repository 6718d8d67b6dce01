#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_accelerator.sh: Open MPI with accelerator/gpusm: messages of every kind of memory, by btl/gpusm and
# by btl/sm, which copies all of them through the accelerator; what it costs; when it stands back; its
# end. The other tests run with it, too: OMPI_MCA_accelerator=gpusm make check.
# shellcheck disable=SC2016,SC2034,SC2154 # conditions are evaluated later; set by common.sh
. "$(dirname "$0")/common.sh"

let_others_run

name=stands-back-for-another-one
if [ "${GPUSM_OMPI_CUDA_AWARE-}" = yes ] && [ -z "${OMPI_MCA_accelerator-}" ]; then
    launch 60 2 --mca accelerator_base_verbose 20 "$exchange" pairs --kinds H --max-size 64
    judge $name 0 $? 'says "stands back for accelerator/cuda"' "it does not" \
        'says "selected cuda"' "accelerator/cuda is not selected"
else
    skip $name "there is no other one"
fi

# sessions_crash_without_us: do they, in a process that gpusm has no part in?
sessions_crash_without_us() {
    (
        work=$work/without-us btl=self
        mkdir -p "$work"
        export OMPI_MCA_accelerator=null GPUSM_MPIRUN_COMPONENTS="$work"
        launch 20 1 --mca coll ^gpusm --mca osc ^gpusm "$exchange" sessions --rounds 20 --kinds H
        [ $? -ge 128 ]
    )
}

export OMPI_MCA_accelerator=gpusm
few=${kinds%"${kinds#HD}"}
for each in H $few; do
    # Open MPI keeps a pointer to the component over the end of a session. (Now and then, with any
    # component, a further session does not open, because a fence of PMIx does not end.)
    for try in 1 2 3 4 5; do
        launch 20 1 "$exchange" sessions --rounds 20 --kinds "$each"
        status=$?
        [ $status -eq 3 ] || [ $status -eq 124 ] || break
    done
    if [ $status -ge 128 ] && sessions_crash_without_us; then # docs/upstream/open-mpi-5.md
        skip "twenty-sessions-$each" "this Open MPI crashes in a second session, without gpusm, too"
        continue
    fi
    judge "twenty-sessions-$each" 0 "$status"
done
name=silent-without-a-driver
if [ "$driver_kind" = softcuda ] && ! LD_LIBRARY_PATH='' "$exchange" print-gpu >/dev/null 2>&1; then
    launch 60 2 -x LD_LIBRARY_PATH= "$exchange" pairs --kinds H --max-size 64K
    # Components of Open MPI's own that are linked with libcuda are another matter.
    judge $name 0 $? '! grep -q -i accelerator "$work/output"' "it is not"
else
    skip $name "there is a driver on this machine"
fi
need_gpu device-messages || finish

check every-pair-of-kinds 180 2 "$exchange" pairs --kinds "${kinds}P" --max-size 2M
for subtest in unexpected truncation datatypes; do
    check $subtest 90 2 "$exchange" $subtest --kinds HDRMVA
done
for subtest in threads threads-without-context context-switched device-switched two-devices \
    context-destroyed; do
    check $subtest 60 2 "$exchange" $subtest
done
tested=$btl
btl=sm,self
check copied-by-the-accelerator 180 2 "$exchange" pairs --kinds "$kinds" --max-size 256K
check copied-by-the-accelerator-in-threads 60 2 "$exchange" threads
btl=$tested

need_softcuda driver-calls || finish
need_gpusm driver-calls || finish
# calls FOLDER WHO WHAT [OPTIONS OF MPIRUN] PROGRAM...: driver calls by that caller of that name
calls() {
    folder=$1 pattern="^$3 [0-9]* $2"
    shift 3
    logged "$folder" "$@" && calls_in "$folder" "$pattern"
}
# latency MESSAGES FOLDER WHO WHAT: the same of so many messages of 8 bytes
latency() {
    calls "$2" "$3" "$4" "$perf" latency --src D --dst D --sizes 8 --warmup 0 \
        --iterations $(($1 / 2)) --no-limit
}
# The sender asks twice what its buffer is, and the receiver once. Both make sure of one allocation by
# its number besides, which is not counted here, because housekeeping asks for numbers, too.
if [ "${GPUSM_OMPI_CUDA_AWARE-}" = yes ]; then
    start=$(latency 100 start '.*' cuPointerGetAttributes)
    end=$(latency 1100 end '.*' cuPointerGetAttributes)
    status=$?
    judge questions-about-an-8-byte-message 0 $status \
        '[ $((end - start)) -le 3100 ]' "$((end - start)) questions about 1000 messages" \
        '[ $((end - start)) -ge 3000 ]' "the log has $((end - start)) questions about 1000 messages"
fi
asked=$(calls host "$accelerator_file" '.*' "$exchange" pairs --kinds H --max-size 64K)
status=$?
once=$(calls_in host "^cuPointerGetAttributes .* $accelerator_file")
judge host-buffers-cost-one-driver-call 0 $status \
    '[ "$asked" -gt 0 ] && [ "$asked" -eq "$once" ]' "$asked calls, $once questions"
finish
