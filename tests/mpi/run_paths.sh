#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_paths.sh: messages go the way that they should: device memory by get, and host memory without
# a single driver call by gpusm.
. "$(dirname "$0")/common.sh"

if need_gpusm device-messages-by-get && need_gpu device-messages-by-get; then
    check device-messages-by-get 60 2 "$exchange" counters
    grep 'by get' "$work/output" || true
fi
if need_gpusm every-kind-by-its-way && need_gpu every-kind-by-its-way; then
    check every-kind-by-its-way 60 2 "$exchange" ways --kinds DVACWPMR
fi

# ring_case NAME USED UNUSED [OPTIONS OF MPIRUN]: managed memory, which cannot be exported, goes through
# the ring that the counter USED is about, and not through the other one
ring_case() {
    name=$1
    used=$2
    unused=$3
    shift 3
    launch 60 2 "$@" "$perf" bw --src M --dst D --sizes 16K,1M,3000001 --window 16 --iterations 3 \
        --no-limit --check
    status=$?
    if [ $status -ne 0 ]; then
        fail "$name" "$(explain $status)"
    elif [ "$(path_count "$used")" -eq 0 ] || [ "$(path_count "$unused")" -ne 0 ]; then
        fail "$name" "$used: $(path_count "$used"), $unused: $(path_count "$unused")"
    else
        pass "$name"
    fi
}
if need_gpusm memory-without-an-export && need_gpu memory-without-an-export; then
    ring_case through-a-ring-on-the-device device_ring_bytes host_ring_bytes
    ring_case through-a-small-ring-on-the-device device_ring_bytes host_ring_bytes \
        --mca btl_gpusm_staging_device_bytes 4M
    ring_case through-a-ring-in-host-memory host_ring_bytes device_ring_bytes \
        --mca btl_gpusm_staging_device_bytes 0
fi

# locked NAME WANTED [OPTIONS OF MPIRUN]: page-locked host memory into device memory of every kind that
# can be exported, and back. WANTED: "all" of what is long enough goes directly, or "none".
locked() {
    name=$1
    wanted=$2
    shift 2
    launch 60 2 "$@" "$exchange" locked --kinds DVCA
    status=$?
    tr -d '\000' <"$work/output" | grep '^locked: into ' >"$work/lines"
    sort "$work/lines" | uniq -c
    if [ $status -ne 0 ]; then
        fail "$name" "$(explain $status)"
    elif ! awk -v wanted="$wanted" '{ good += wanted == "all" ? $4 == $6 : $4 == 0 }
            END { exit 16 == NR && NR == good ? 0 : 1 }' "$work/lines"; then
        fail "$name" "wanted: $wanted of the messages directly, in 16 lines"
    else
        pass "$name"
    fi
}
if need_gpusm page-locked-memory-directly && need_gpu page-locked-memory-directly; then
    locked page-locked-memory-directly all
    locked page-locked-memory-in-pieces none --mca btl_gpusm_use_direct_host 0
    check memory-page-locked-in-part 60 2 "$exchange" locked-in-part --kinds D
    check memory-page-locked-later 60 2 "$exchange" locked-later --kinds D
fi

# staged_only NAME [OPTIONS OF MPIRUN]: device memory that the receiver cannot map is fetched all the
# same, and the user is told why it is slow
staged_only() {
    name=$1
    shift
    launch 60 2 "$@" "$perf" bw --src D --dst D \
        --sizes 16K,1M --iterations 5 --no-limit --check
    status=$?
    by_get=$(path_count get_messages)
    if [ $status -ne 0 ]; then
        fail "$name" "$(explain $status)"
    elif [ "$(count_in_output 'cannot read the device memory of this process')" -eq 0 ]; then
        fail "$name" "nothing says that it is slow"
    elif [ "$by_get" -lt 1280 ]; then # two sizes, five times two windows of 64
        fail "$name" "$by_get messages came by get"
    else
        pass "$name"
    fi
}
name=devices-without-peer-access
if need_gpusm $name && need_softcuda $name; then
    staged_only $name -x GPUSM_SOFTCUDA_PEERS=0
    check pool-memory-of-devices-without-peer-access 60 2 -x GPUSM_SOFTCUDA_PEERS=0 "$perf" bw \
        --src A --dst A --sizes 64K,1M --iterations 5 --no-limit --check
    staged_only opening-fails-for-good -x GPUSM_SOFTCUDA_FAIL=cuIpcOpenMemHandle:0:217
fi

# calls_in DIR PATTERN: lines of the call logs there
calls_in() {
    cat "$1"/*.log 2>/dev/null | grep -c "$2" || true
}
by_gpusm=' mca_btl_gpusm\.so'
by_open_mpi=' mca_accelerator_cuda\.so'

# Open MPI asks about every buffer whether it is device memory. gpusm answers that with one driver
# call; host messages make no other, and none if the question is left to Open MPI.
name=host-only-program-makes-no-driver-call
if need_gpusm $name && need_softcuda $name; then
    mkdir "$work/ours" "$work/theirs" "$work/device"
    # That the log would show such calls is shown first.
    launch 60 2 -x GPUSM_SOFTCUDA_LOG="$work/device" "$exchange" many --kinds D
    launch 60 2 -x GPUSM_SOFTCUDA_LOG="$work/theirs" --mca btl_gpusm_quick_pointer_check 0 \
        "$exchange" pairs --kinds H
    status=$?
    calls=$(calls_in "$work/theirs" "$by_gpusm")
    if [ "$(calls_in "$work/device" "$by_gpusm")" -eq 0 ]; then
        fail $name "the call log shows no call by gpusm for device memory either"
    elif [ $status -ne 0 ]; then
        fail $name "$(explain $status)"
    elif [ "$calls" -ne 0 ]; then
        cat "$work"/theirs/*.log | grep "$by_gpusm" | sort | uniq -c >"$work/output"
        fail $name "$calls driver calls by gpusm"
    else
        pass $name
    fi
    name=host-buffers-cost-one-driver-call
    launch 60 2 -x GPUSM_SOFTCUDA_LOG="$work/ours" "$exchange" pairs --kinds H
    status=$?
    calls=$(calls_in "$work/ours" "$by_gpusm")
    questions=$(calls_in "$work/theirs" "^cuPointerGetAttributes .*$by_open_mpi")
    if [ $status -ne 0 ]; then
        fail $name "$(explain $status)"
    elif [ "$(calls_in "$work/ours" "^cuPointerGetAttributes .*$by_gpusm")" -ne "$calls" ]; then
        cat "$work"/ours/*.log | grep "$by_gpusm" | sort | uniq -c >"$work/output"
        fail $name "gpusm asks the driver about more than buffers"
    elif [ "$calls" -eq 0 ] || [ "$calls" -gt $((questions * 11 / 10)) ]; then
        fail $name "$calls driver calls by gpusm, where Open MPI asks $questions questions"
    elif [ "$(calls_in "$work/ours" "$by_open_mpi")" -gt $((questions / 10)) ]; then
        fail $name "Open MPI asks the driver all the same"
    else
        pass $name
    fi
    # Host memory that the driver knows is left to Open MPI, in programs that use devices, too.
    name=page-locked-buffers-are-open-mpis-question
    rm -rf "$work/ours" "$work/theirs"
    mkdir "$work/ours" "$work/theirs"
    launch 60 2 -x GPUSM_SOFTCUDA_LOG="$work/theirs" --mca btl_gpusm_quick_pointer_check 0 \
        "$exchange" pairs --kinds HR --max-size 64K
    launch 60 2 -x GPUSM_SOFTCUDA_LOG="$work/ours" "$exchange" pairs --kinds HR --max-size 64K
    status=$?
    ours=$(calls_in "$work/ours" "^cuMemRetainAllocationHandle .*$by_open_mpi")
    theirs=$(calls_in "$work/theirs" "^cuMemRetainAllocationHandle .*$by_open_mpi")
    if [ $status -ne 0 ]; then
        fail $name "$(explain $status)"
    elif [ "$ours" -eq 0 ] || [ "$ours" -gt $((theirs * 3 / 4)) ]; then
        fail $name "Open MPI is asked $ours times, without gpusm's check $theirs times"
    else
        pass $name
    fi
fi
finish
