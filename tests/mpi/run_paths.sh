#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_paths.sh: messages go the way that they should: device memory by get, and host memory without
# a single driver call by gpusm.
# shellcheck disable=SC2016,SC2154,SC2034 # conditions are evaluated later
. "$(dirname "$0")/common.sh"

need_gpusm paths || finish
if need_gpu device-messages; then
    check every-kind-by-its-way 60 2 "$exchange" ways --kinds HDVACWPMR
fi

# ring_case NAME USED UNUSED [OPTIONS OF MPIRUN]: managed memory, which cannot be exported, goes through
# the ring that the counter USED is about, and not through the other one
ring_case() {
    name=$1 used=$2 unused=$3
    shift 3
    launch 60 2 "$@" "$perf" bw --src M --dst D --sizes 16K,1M,3000001 --window 16 --iterations 3 \
        --no-limit --check
    judge "$name" 0 $? '[ "$(path_count "$used")" -gt 0 ]' "nothing is counted as $used" \
        '[ "$(path_count "$unused")" -eq 0 ]' "something is counted as $unused"
}
if need_gpu memory-without-an-export; then
    ring_case through-a-ring-on-the-device device_ring_bytes staged_ring_bytes
    ring_case through-a-small-ring-on-the-device device_ring_bytes staged_ring_bytes \
        --mca btl_gpusm_staging_device_bytes 4M
    ring_case through-a-ring-in-host-memory staged_ring_bytes device_ring_bytes \
        --mca btl_gpusm_staging_device_bytes 0
fi

# locked NAME WANTED [OPTIONS OF MPIRUN]: page-locked host memory into device memory of every kind that
# can be exported, and back. WANTED: "all" of what is long enough goes directly, or "none".
locked() {
    name=$1 wanted=$2
    shift 2
    launch 60 2 "$@" "$exchange" locked --kinds DVCA
    status=$?
    tr -d '\000' <"$work/output" | grep '^locked: into ' >"$work/lines"
    sort "$work/lines" | uniq -c
    judge "$name" 0 $status 'awk -v wanted="$wanted" "{ good += wanted == \"all\" ? \$4 == \$6 : \$4 == 0 }
            END { exit 16 == NR && NR == good ? 0 : 1 }" "$work/lines"' \
        "wanted: $wanted of the messages directly, in 16 lines"
}
if need_gpu page-locked-memory-directly; then
    locked page-locked-memory-directly all
    locked page-locked-memory-in-pieces none --mca btl_gpusm_use_direct_host 0
    check memory-page-locked-in-part 60 2 "$exchange" locked-in-part --kinds D
    check memory-page-locked-later 60 2 "$exchange" locked-later --kinds D
fi
need_softcuda devices-without-peer-access-and-driver-calls || finish

# staged_only NAME [OPTIONS OF MPIRUN]: device memory that the receiver cannot map is fetched all the
# same, and the user is told why it is slow
staged_only() {
    name=$1
    shift
    launch 60 2 "$@" "$perf" bw --src D --dst D \
        --sizes 16K,1M --iterations 5 --no-limit --check
    # Two sizes, five times two windows of 64.
    judge "$name" 0 $? 'says "cannot read the device memory of this process"' \
        "nothing says that it is slow" \
        '[ "$(path_count $fetched)" -ge 1280 ]' "not all messages came by get"
}
staged_only devices-without-peer-access -x GPUSM_SOFTCUDA_PEERS=0
check pool-memory-of-devices-without-peer-access 60 2 -x GPUSM_SOFTCUDA_PEERS=0 "$perf" bw \
    --src A --dst A --sizes 64K,1M --iterations 5 --no-limit --check
staged_only opening-fails-for-good -x GPUSM_SOFTCUDA_FAIL=cuIpcOpenMemHandle:0:217

by_gpusm=" $by_gpusm"
by_open_mpi=' mca_accelerator_cuda\.so'
unchecked="--mca btl_gpusm_quick_pointer_check 0"

# Open MPI asks about every buffer whether it is device memory. gpusm answers that with one driver
# call; host messages make no other, and none if the question is left to Open MPI.
# shellcheck disable=SC2086 # options
{
    logged device "$exchange" many --kinds D # that the log would show such calls is shown first
    logged theirs $unchecked "$exchange" pairs --kinds H
    judge host-only-program-makes-no-driver-call 0 $? \
        '[ "$(calls_in device "$by_gpusm")" -gt 0 ]' "the log shows no call for device memory either" \
        '[ "$(calls_in theirs "$by_gpusm")" -eq 0 ]' "gpusm calls the driver"
    if [ "${OMPI_MCA_accelerator:-cuda}" != cuda ] || [ "${GPUSM_OMPI_CUDA_AWARE-yes}" != yes ]; then
        skip quick-pointer-check "it is for accelerator/cuda; run_accelerator.sh is about ours"
        finish
    fi
    logged ours "$exchange" pairs --kinds H
    status=$?
    calls=$(calls_in ours "$by_gpusm")
    questions=$(calls_in theirs "^cuPointerGetAttributes .*$by_open_mpi")
    judge host-buffers-cost-one-driver-call 0 $status \
        '[ "$(calls_in ours "^cuPointerGetAttributes .*$by_gpusm")" -eq "$calls" ]' \
        "gpusm asks the driver about more than buffers" \
        '[ "$calls" -gt 0 ] && [ "$calls" -le $((questions * 11 / 10)) ]' \
        "$calls driver calls by gpusm, where Open MPI asks $questions questions" \
        '[ "$(calls_in ours "$by_open_mpi")" -le $((questions / 10)) ]' \
        "Open MPI asks the driver all the same"
    # Host memory that the driver knows is left to Open MPI, in programs that use devices, too.
    logged theirs-locked $unchecked "$exchange" pairs --kinds HR --max-size 64K
    logged ours-locked "$exchange" pairs --kinds HR --max-size 64K
    status=$?
    ours=$(calls_in ours-locked "^cuPointerGetAttributes .*$by_open_mpi")
    theirs=$(calls_in theirs-locked "^cuPointerGetAttributes .*$by_open_mpi")
    judge page-locked-buffers-are-open-mpis-question 0 $status \
        '[ "$ours" -gt 0 ] && [ "$ours" -le $((theirs * 3 / 4)) ]' \
        "Open MPI is asked $ours times, without gpusm's check $theirs times"
}
finish
