#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_single_copy.sh: long messages between host memories are streamed, or read in single copies by one or both
# sides where the machine lets us; and all bytes are right where these are refused, all of them or some.
# shellcheck disable=SC2016,SC2034 # conditions are evaluated later
. "$(dirname "$0")/common.sh"

need_gpusm single-copy || finish
export OMPI_MCA_btl_gpusm_eager_limit=8448
refuse=$GPUSM_BUILDDIR/tests/mpi/refuse_single_copy.so

# path_says VARIABLE...: yes or no, whether any of them is more than 0 in what gpusm_perf's ranks say
path_says() {
    [ "$(path_count "$@")" -eq 0 ] && echo no || echo yes
}
# host_case NAME WANTED OPTIONS...: WANTED says whether messages are read in single copies
host_case() {
    host_name=$1 host_wanted=$2
    shift 2
    launch 90 2 "$@" "$perf" "${host_mode:-bw}" --src H --dst H --sizes 7,8K,9000,65537,1M,3000001 \
        --offset 3,5 --window 16 --iterations 3 --warmup 1 --no-limit -c
    host_status=$?
    single=$(path_says single_copy_messages both_copy_messages)
    judge "$host_name" 0 $host_status '[ $single = $host_wanted ]' "single copies: $single, expected $host_wanted"
}

can=yes
if ! makes_single_copies; then
    skip long-messages-in-one-copy "Open MPI's framework smsc cannot be used here"
    can=no
fi
no_single="--mca btl_gpusm_use_single_copy 0"
export OMPI_MCA_btl_gpusm_stream_host_after=1073741824 # the default is not the same everywhere
# shellcheck disable=SC2086 # lists of options
{
    host_case as-the-machine-says $can
    host_mode=bibw host_case both-ways $can
    host_case in-gets-of-a-part-each $can --mca btl_gpusm_get_limit 20000
    host_case with-threads $can -x OMPI_MPI_THREAD_LEVEL=3
    host_case through-a-small-segment $can --mca btl_gpusm_segment_size 2M
    host_case where-the-system-has-none no --mca smsc ^cma,xpmem,knem
    host_case switched-off no $no_single
    host_mode=bibw host_case switched-off-both-ways no $no_single
    host_case switched-off-with-threads no $no_single -x OMPI_MPI_THREAD_LEVEL=3
    host_case switched-off-through-a-small-segment no $no_single --mca btl_gpusm_segment_size 2M
    check by-many 90 "$crowd" "$exchange" pairs --kinds H --max-size 2M
    check by-many-switched-off 90 "$crowd" $no_single "$exchange" pairs --kinds H --max-size 2M
}
per_rank 1 OMPI_MCA_btl_gpusm_use_single_copy=0
check one-rank-has-them-switched-off 60 2 "$work/per-rank-1" "$exchange" pairs --kinds H --max-size 2M
if [ $can = yes ] && [ "$kinds" != H ]; then
    let_others_run
    check more-silent-senders-than-rings 120 11 "$exchange" silent-senders --kinds D
fi

# Process numbers of other PID namespaces are other processes here. In namespaces of their own all ranks
# have the same number, and who reads memory of that process reads its own, at the same addresses.
apart="unshare --pid --fork --kill-child --mount-proc setarch -R"
# shellcheck disable=SC2086 # a list of words
if ! $apart true 2>/dev/null; then
    skip pid-namespaces "this user may not make a PID namespace, mount its /proc or choose addresses"
else
    wrapper apart all "$apart"
    wrapper rank-1-apart 1 "$apart"
    wrapper job-apart all "$apart $GPUSM_MPIRUN"
    host_case pid-namespaces-of-their-own no "$work/apart"
    host_mode=bibw host_case pid-namespaces-of-their-own-both-ways no "$work/apart"
    host_case pid-namespace-of-one-rank no "$work/rank-1-apart"
    GPUSM_MPIRUN=$work/job-apart host_case pid-namespace-of-the-job $can
    launch 60 2 --mca btl_gpusm_cuda_ipc_verbose 20 "$work/rank-1-apart" "$perf" latency --src H --dst H --sizes 1M \
        --iterations 2 --no-limit
    told_status=$? told=$([ $can = no ] && echo 0 || echo 2)
    judge pid-namespaces-are-told 0 $told_status '! says "in a single copy"' "read in a single copy" \
        '[ $(count_in_output "in another PID namespace") -eq $told ]' "not both have said so"
fi

# What is longer than the eager limit is offered, whatever the user makes it.
host_case a-small-eager-limit $can --mca btl_gpusm_eager_limit 1024 --mca btl_gpusm_rndv_eager_limit 1024
host_case a-large-eager-limit $can --mca btl_gpusm_eager_limit 65536 --mca btl_gpusm_max_send_size 65536 \
    --mca btl_gpusm_rndv_eager_limit 4096

# stream_case NAME WANTED OPTIONS...: WANTED says whether messages come through rings
stream_case() {
    stream_name=$1 stream_wanted=$2
    shift 2
    launch 90 2 --mca btl_gpusm_stream_host_after 0 "$@" "$perf" "${host_mode:-bw}" --src H --dst H \
        --sizes 8K,9000,16385,65537,1M,3000001 --offset 3,5 --window 16 --iterations 3 --warmup 1 --no-limit -c
    stream_status=$?
    streamed=$(path_says host_ring_written_bytes)
    judge "$stream_name" 0 $stream_status '[ $streamed = $stream_wanted ]' "through rings: $streamed, expected $stream_wanted"
}
can_stream=$can bound="--bind-to core"
two_share_a_cache || can_stream=no
# shellcheck disable=SC2086 # lists of options
{
    stream_case streamed $can_stream $bound
    host_mode=bibw stream_case streamed-both-ways $can_stream $bound
    stream_case streamed-with-threads $can_stream $bound -x OMPI_MPI_THREAD_LEVEL=3
    stream_case streamed-in-gets-of-a-part-each $can_stream $bound --mca btl_gpusm_get_limit 20000
    stream_case not-streamed-through-a-segment-without-room no $bound --mca btl_gpusm_segment_size 2M
    stream_case not-streamed-by-unbound-processes no --bind-to none
    # Each way, with -c, 24 MiB in short messages and 8 MiB in 250 of 1040 long ones: the others are streamed.
    launch 60 2 $bound --mca btl_gpusm_stream_host_after 33554432 "$perf" latency --src H --dst H --sizes 8K,16K,32K \
        --iterations 520 --warmup 0 --no-limit -c
    judge streamed-when-some-have-come 0 $? '[ $can_stream = no ] || [ "$(path_count host_ring_messages)" -gt 1300 ]' \
        "too few" '[ "$(path_count host_ring_messages)" -lt 1900 ]' "$(path_count host_ring_messages) are streamed" \
        '[ $can_stream = no ] || [ "$(path_count single_copy_messages both_copy_messages host_ring_messages)" -lt 2200 ]' \
        "those of two fragments are offered"
    stream_case not-streamed-without-single-copies no $bound $no_single
    [ $can_stream = no ] || check the-sender-of-a-stream-is-away 90 2 $bound --mca btl_gpusm_stream_host_after 0 \
        "$exchange" cooperative-late
}

# cooperative_case NAME WANTED OPTIONS...: WANTED says whether the sender has copied a part of what went in
# single copies. It may be that it never comes to it, so some attempts are made.
cooperative_case() {
    cooperative_name=$1 cooperative_wanted=$2
    shift 2
    for attempt in $(seq 20); do
        # shellcheck disable=SC2086 # options
        launch 60 2 "$@" "$perf" bw --src H --dst H --no-limit -c \
            --sizes 8K,16385,262145,1M,3000001 --offset 3,5 --window 16 --iterations 3 --warmup 1
        cooperative_status=$?
        cooperative=$(path_says both_copy_written_bytes)
        if [ $cooperative_status -ne 0 ] || [ $cooperative = "$cooperative_wanted" ] || [ "$cooperative_wanted" = no ]; then
            break
        fi
    done
    judge "$cooperative_name" 0 $cooperative_status '[ $cooperative = $cooperative_wanted ]' \
        "the sender has copied a part in $attempt attempts: $cooperative, expected $cooperative_wanted"
}
can_cooperative=$can
if [ "$processors" -lt 2 ]; then
    can_cooperative=no # and says so by reading alone
fi
cooperative_case both-sides-copy $can_cooperative
if [ $can = yes ] && [ $can_cooperative = no ]; then
    skip the-sender-is-away "needs two processors"
else
    check the-sender-is-away 90 2 "$exchange" cooperative-late
fi
# Of host memory for a device the receiver pulls a part by a single copy, while the sender copies the
# rest. Of device memory for host memory the sender pushes a part.
#
# shared_case NAME FROM TO WANTED OPTIONS...: WANTED says whether anything is pulled, or pushed
shared_case() {
    shared_name=$1 shared_from=$2 shared_to=$3 shared_wanted=$4
    shift 4
    launch 60 2 "$@" "$perf" bw --src "$shared_from" --dst "$shared_to" \
        --sizes "${shared_sizes:-60K,128K,1M,3000001}" --offset 3,5 --gaps "${shared_gaps:-0,0}" \
        --window 16 --iterations 3 --warmup 1 --no-limit -c
    judge "$shared_name" 0 $? '[ "$(path_says pulled_read_bytes shared_written_bytes)" = $shared_wanted ]' \
        "pulled or pushed is not: $shared_wanted"
}
if need_gpu pulled-host-memory; then
    shared_case pulled-host-memory H D $can
    shared_case pulled-host-memory-through-a-small-ring H D $can --mca btl_gpusm_staging_host_bytes 256K
    shared_sizes=60K,131071
    shared_case pulled-host-memory-too-short H D no
    shared_sizes=
    shared_case pulled-host-memory-without-smsc H D no --mca smsc ^cma,xpmem,knem
    shared_case pulled-host-memory-switched-off H D no --mca btl_gpusm_use_single_copy 0
    shared_case pulled-host-memory-without-registered-pages H D no --mca btl_gpusm_register_segments 0
    shared_case page-locked-memory-is-not-pulled R D no
    shared_case page-locked-memory-in-pieces-is R D $can --mca btl_gpusm_use_direct_host 0
fi
if need_gpu pushed-device-memory; then
    shared_case pushed-device-memory D H $can
    shared_case pushed-device-memory-switched-off D H no --mca btl_gpusm_use_single_copy 0
    shared_sizes=60K,131071
    shared_case pushed-device-memory-too-short D H no
    shared_sizes=
    shared_case pushed-device-memory-without-smsc D H no --mca smsc ^cma,xpmem,knem
    shared_case pushed-device-memory-without-registered-pages D H no --mca btl_gpusm_register_segments 0
    shared_case pushed-device-memory-in-a-small-segment D H $can --mca btl_gpusm_segment_size 5M
    shared_case pushed-device-memory-in-a-tiny-segment D H no --mca btl_gpusm_segment_size 2M
    shared_case pushed-device-memory-with-events D H no --mca btl_gpusm_use_cuda_events 1
    shared_case nothing-is-pushed-into-page-locked-memory D R no
    shared_sizes=128K,1M shared_gaps=64,0
    shared_case pushed-blocks D H $can
    shared_case pushed-blocks-in-gets-of-a-part-each D H $can --mca btl_gpusm_get_limit 300000
    shared_case pushed-blocks-without-registered-pages D H no --mca btl_gpusm_register_segments 0
    shared_sizes='' shared_gaps=''
fi

if [ $can = no ] || [ "${GPUSM_SANITIZERS-no}" != no ]; then
    skip refused "needs single copies, and a program without sanitizers"
    finish
fi

# Data arrives although the copies fail half-way, all of them or some, on one side or on both.
check refused 60 2 -x LD_PRELOAD="$refuse" "$exchange" pairs --kinds H --max-size 2M
check every-third-is-refused 60 2 -x LD_PRELOAD="$refuse" -x GPUSM_TEST_REFUSE_EVERY=3 "$exchange" pairs --kinds H \
    --max-size 2M
per_rank 0 LD_PRELOAD="$refuse"
check refused-on-one-side 60 2 "$work/per-rank-0" "$exchange" pairs --kinds H --max-size 2M
[ $can_cooperative = no ] || check the-sender-is-away-and-some-are-refused 90 2 -x GPUSM_TEST_REFUSE_EVERY=7 \
    "$work/per-rank-0" "$exchange" cooperative-late
cooperative_case some-cooperative-copies-are-refused $can_cooperative -x LD_PRELOAD="$refuse" -x GPUSM_TEST_REFUSE_EVERY=7
cooperative_case all-cooperative-copies-are-refused no -x LD_PRELOAD="$refuse"

if need_gpu refused-pulls; then
    check refused-pulls 60 2 -x LD_PRELOAD="$refuse" "$exchange" pairs --kinds HD --max-size 2M
    check every-third-pull-is-refused 60 2 -x LD_PRELOAD="$refuse" -x GPUSM_TEST_REFUSE_EVERY=3 \
        "$exchange" pairs --kinds HD --max-size 2M
    shared_case some-pulls-are-refused H D yes -x LD_PRELOAD="$refuse" -x GPUSM_TEST_REFUSE_EVERY=7
    shared_case all-pulls-are-refused H D no -x LD_PRELOAD="$refuse"
    shared_case some-pushes-are-refused D H yes -x LD_PRELOAD="$refuse" -x GPUSM_TEST_REFUSE_EVERY=7
    shared_case all-pushes-are-refused D H no -x LD_PRELOAD="$refuse"
    shared_sizes=128K,1M shared_gaps=64,0
    shared_case some-pushes-of-blocks-are-refused D H yes -x LD_PRELOAD="$refuse" -x GPUSM_TEST_REFUSE_EVERY=7
    shared_sizes='' shared_gaps=''
fi

# Nobody tries for ever: four attempts each to read and, of what both sides copy, to write; and those
# that were under way.
name=refused-copies-are-given-up
rm -f "$work/log"
launch 60 2 -x LD_PRELOAD="$refuse" -x GPUSM_TEST_REFUSE_LOG="$work/log" "$perf" latency --src H \
    --dst H --sizes 64K --iterations 50 --no-limit -c
status=$?
tries=$(wc -l <"$work/log")
judge $name 0 $status '[ $tries -ge 2 ] && [ $tries -le 20 ]' "$tries attempts"

# killed_case NAME FROM: the sender is killed while it writes into the receiver's memory, and the job
# ends for that reason, which mpirun is told by the system or by the receiver, whoever is first
killed_case() {
    launch 60 2 -x LD_PRELOAD="$refuse" -x GPUSM_TEST_REFUSE_EVERY=1000000 \
        -x GPUSM_TEST_REFUSE_KILL=9 "$perf" bw --src "$2" --dst H --sizes 1M --window 16 \
        --iterations 2000 --no-limit
    killed_status=$?
    if [ $killed_status -eq 14 ] && grep -q "process 0 of job .* has ended with messages on the way" "$work/output"; then
        killed_status=137
    fi
    judge "$1" 137 $killed_status # that of a killed process
}
[ $can_cooperative = no ] || killed_case killed-while-both-sides-copy H
if need_gpu killed-while-it-pushes; then
    killed_case killed-while-it-pushes D
fi
finish
