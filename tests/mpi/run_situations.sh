#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_situations.sh: what programs do with contexts, threads, devices, handles and processes, and what
# must work all the same, by the way that exchange_tools.cc expects. See also run_late.sh (CUDA that
# is used late, different devices, threads with a context) and run_lifetime.sh (contexts that end
# while something is in flight).
# shellcheck disable=SC2016,SC2034 # conditions are evaluated later
. "$(dirname "$0")/common.sh"

let_others_run

need_gpusm situations || finish
need_gpu situations || finish

check threads-without-a-context 60 2 "$exchange" threads-without-context
check context-switched-after-init 60 2 "$exchange" context-switched
# Copies and fills that return before they are done, unless their context is marked. What is taken of
# the devices is compared, so processes beside these do not count.
for kind in D V W C A P M; do
    check "context-of-two-destroyed-$kind" 60 2 -x GPUSM_SOFTCUDA_DELAY_US=5000 -x GPUSM_SOFTCUDA_GROUP=$$ \
        "$exchange" context-of-two-destroyed --kinds $kind
done
check context-of-host-messages-destroyed 60 2 "$exchange" host-context-destroyed
check device-switched-after-init 60 2 "$exchange" device-switched
check two-devices-in-one-rank 60 2 "$exchange" two-devices
# The ranks have both devices, and can only map memory of the one that they copy on: what fails is
# remembered, and not tried with every message.
name=two-devices-that-cannot-reach-each-other
if need_softcuda $name; then
    mkdir "$work/reach"
    per_rank 1 CUDA_VISIBLE_DEVICES=1,0 # so that the first messages stay on one device
    check $name 60 2 -x GPUSM_TEST_ANY_WAY=1 -x GPUSM_SOFTCUDA_PEERS=0 \
        -x GPUSM_SOFTCUDA_LOG="$work/reach" \
        "$work/per-rank-1" "$exchange" two-devices
    # Of 2560 messages 16, and 4 more after 1, 2, 4 ... seconds, when it is tried again.
    tries=$(calls_in reach "^cuIpcOpenMemHandle 217 $by_library")
    judge $name-is-remembered 0 0 '[ $tries -gt 0 ] && [ $tries -le 48 ]' \
        "$tries handles could not be opened"
fi
check a-rank-that-never-uses-cuda 60 2 "$exchange" never --kinds DMVWACP
if need_softcuda no-context-on-devices-of-others; then
    # More devices than are used by anybody.
    check no-context-on-devices-of-others 60 2 -x GPUSM_SOFTCUDA_DEVICES=4 \
        "$exchange" elsewhere --kinds DMVWACP
else
    check no-context-on-the-peers-device 60 2 "$exchange" elsewhere --kinds DMVWACP
fi
# Each rank sees one device, and both call it 0. The software driver opens no handle of a device that
# the process does not see, so there only the data can be right: run_late.sh.
if is_software; then
    skip one-visible-device-each-by-get "the software driver refuses it; see run_late.sh"
elif need_two_gpus one-visible-device-each-by-get; then
    per_rank 0 CUDA_VISIBLE_DEVICES=0
    per_rank 1 CUDA_VISIBLE_DEVICES=1
    check one-visible-device-each-by-get 60 2 "$work/per-rank-0" "$work/per-rank-1" \
        "$exchange" ways --kinds D
fi
for set in D V C R DVACWPM; do
    check "stream-capture-in-another-thread-$set" 60 2 "$exchange" capture --kinds $set
done
# Calls of the driver wait for kernels that run, and such a kernel for a message.
check work-that-waits-for-a-message 60 2 "$exchange" work-waits --kinds DRPVMH
check work-that-waits-on-one-device 60 2 -x CUDA_VISIBLE_DEVICES=0 "$exchange" work-waits --kinds DRPV
for kind in D V A; do
    check "work-that-waits-for-the-first-message-$kind" 60 2 "$exchange" work-waits-first --kinds $kind
done
check work-that-waits-during-a-get 60 2 "$exchange" work-waits-window --kinds DHV
check work-that-waits-during-a-collective 60 2 "$exchange" work-waits-collective --kinds DV
check work-that-waits-in-a-stream-of-its-own 60 2 --mca btl_gpusm_kernel_blocks 0 "$exchange" work-waits --kinds D --rounds 1
check work-that-waits-while-a-process-ends 60 2 "$exchange" work-waits-child-ends --kinds M
launch 60 2 "$exchange" capture-first --kinds V
judge stream-capture-before-the-first-message 0 $? \
    '[ "$(count_in_output "^capture-first: the capture was ended")" -eq 0 ] ||
        [ "$(count_in_output "a stream capture of this program has been ended")" -ge 1 ]' "no word about it"
check stream-capture-in-another-thread-and-events 60 2 --mca btl_gpusm_use_cuda_events 1 \
    "$exchange" capture --kinds DW
for bytes in 1 0; do
    check "handles-that-the-program-opens-itself-cache-of-$bytes-bytes" 60 2 \
        --mca btl_gpusm_cache_max_bytes $bytes "$exchange" foreign
done

# What the last launch printed besides what the program says, and besides one paragraph of Open MPI's
# own: its accelerator component cannot destroy the stream that it made in a context that is gone.
unexpected_output() {
    tr -d '\000' <"$work/output" | awk '
        /^-----/ { if (inside && text !~ /cuStreamDestroy/) { print text }
                   inside = !inside; text = ""; next }
        inside { text = text $0 "\n"; next }
        !/^exchange/ && !/^ *$/ { print }
        END { if (inside) { print text } }'
}

# ends_well NAME SUBTEST [TEXT TIMES]: status 0, and nothing is printed but what the program says,
# TEXT so many times
ends_well() {
    text=${3-} times=${4-0}
    launch 60 2 "$exchange" "$2"
    judge "$1" 0 $? \
        '[ -z "$(unexpected_output)" ]' "something was printed: $(unexpected_output | head -n 3)" \
        '[ -z "$text" ] || [ "$(count_in_output "$text")" -eq $times ]' "not $times times: $text"
}
ends_well context-destroyed-before-finalize context-destroyed
if ! is_software; then
    skip primary-context-reset-or-released \
        "Open MPI's accelerator/cuda crashes, because it destroys events in a context that is gone"
else
    ends_well primary-context-reset-before-finalize primary-reset
    ends_well primary-context-released-before-finalize primary-released
    ends_well primary-context-renewed-before-finalize primary-renewed
    ends_well primary-context-reset-and-used-again primary-again
fi
deinitialized=$(is_software && echo 4 || echo '[0-9]*')
ends_well driver-gone-before-finalize finalize-at-exit \
    "finalized at exit, with a driver that answered $deinitialized\$" 2

# Rank 1 in a PID namespace of its own. Descriptors need no process numbers; CUDA IPC handles do, so
# device memory goes by the way that is left, and arrives.
# With a /proc of its own, as in a container: without one the real driver does not start.
name=pid-namespaces
apart="unshare --pid --fork --kill-child --mount-proc"
starts_cuda='import ctypes, sys; sys.exit(ctypes.CDLL("libcuda.so.1").cuInit(0))'
# shellcheck disable=SC2086 # a list of words
if ! $apart true 2>/dev/null; then
    skip $name "this user may not make a PID namespace, or not mount its /proc"
elif ! timeout 20 $apart python3 -c "$starts_cuda"; then
    skip $name "the driver does not start in a PID namespace of its own (cuInit)"
else
    wrapper own-namespace 1 "$apart"
    own="$work/own-namespace $exchange"
    check $name-descriptors 60 2 $own ways --kinds V
    check $name-chunks 60 2 $own ways --kinds C
    check $name-device-memory 60 2 $own pairs --kinds HD --max-size 2M
    check $name-every-kind 60 2 $own pairs --kinds DVAWM --max-size 64K
fi
finish
