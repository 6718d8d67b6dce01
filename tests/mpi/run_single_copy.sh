#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_single_copy.sh: long messages between host memories are read in one copy where the machine lets
# us, and go in fragments where it does not: no component of smsc, switched off, refused by the system.
. "$(dirname "$0")/common.sh"

need_gpusm single-copy || finish
refuse=$GPUSM_BUILDDIR/tests/mpi/refuse_single_copy.so

# perf_case NAME WANTED OPTIONS...: runs gpusm_perf with content checks; WANTED says whether messages
# were read in one copy
perf_case() {
    perf_name=$1
    perf_wanted=$2
    shift 2
    launch 60 2 --mca btl_gpusm_cuda_ipc_verbose 20 "$@" "$perf" bw --src H --dst H \
        --sizes 7,8K,65537,1M --iterations 3 --warmup 1 --no-limit -c
    perf_status=$?
    if [ $perf_status -ne 0 ]; then
        fail "$perf_name" "$(explain $perf_status)"
    elif [ "$(in_one_copy)" != "$perf_wanted" ]; then
        fail "$perf_name" "messages in one copy: $(in_one_copy), expected $perf_wanted"
    else
        pass "$perf_name"
    fi
}

in_one_copy() {
    if [ "$(path_count single_copy_messages)" -gt 0 ]; then echo yes; else echo no; fi
}

launch 60 2 --mca btl_gpusm_cuda_ipc_verbose 20 "$perf" latency --src H --dst H --sizes 1M \
    --iterations 2 --no-limit
if ! grep -q 'host memory of process . is read in a single copy' "$work/output"; then
    skip long-messages-in-one-copy "Open MPI's framework smsc cannot be used here"
    can=no
else
    can=yes
    perf_case long-messages-in-one-copy yes
fi
perf_case without-smsc no --mca smsc ^cma,xpmem,knem
perf_case switched-off no --mca btl_gpusm_use_single_copy 0
per_rank 1 OMPI_MCA_btl_gpusm_use_single_copy=0
check one-rank-has-it-switched-off 60 2 "$work/per-rank-1" "$exchange" pairs --kinds H --max-size 2M

# Where a single copy takes long, longer messages go in two copies: the limit is what the machine makes
# it, unless the user says otherwise. A message of 12 KiB is beyond the least limit.
# limit_case NAME LEAST MOST SINGLE OPTIONS...: every rank's limit, and whether 12 KiB go in one copy;
# "few": samples, of where such messages go to
limit_case() {
    limit_name=$1
    limit_least=$2
    limit_most=$3
    limit_single=$4
    shift 4
    launch 60 2 --mca btl_gpusm_cuda_ipc_verbose 20 "$@" "$perf" bw --src H --dst H --sizes 12K \
        --iterations 3 --warmup 1 --no-limit -c
    limit_status=$?
    single=$(path_count single_copy_messages)
    right=$(sed -n 's/.*go in two copies up to \([0-9]*\) bytes$/\1/p' "$work/output" |
        awk -v least="$limit_least" -v most="$limit_most" '$1 >= least && $1 <= most' | wc -l)
    if [ $limit_status -ne 0 ]; then
        fail "$limit_name" "$(explain $limit_status)"
    elif [ "$right" -ne 2 ]; then
        fail "$limit_name" "$right of 2 ranks say that the limit is $limit_least to $limit_most"
    elif [ "$limit_single" = no ] && [ "$single" -ne 0 ]; then
        fail "$limit_name" "$single messages of 12 KiB in one copy"
    elif [ "$limit_single" = few ] && [ "$single" -gt 20 ]; then
        fail "$limit_name" "$single of 256 messages of 12 KiB in one copy"
    else
        pass "$limit_name"
    fi
}
limit_case two-copies-as-far-as-the-machine-says 8448 33024 either
limit_case two-copies-of-8-KiB-without-single-copies 8448 8448 no --mca btl_gpusm_use_single_copy 0
limit_case two-copies-no-longer-than-a-fragment 8000 8000 either --mca btl_gpusm_max_send_size 8000
launch 60 2 --mca btl_gpusm_cuda_ipc_verbose 20 --mca btl_gpusm_eager_limit 4096 "$perf" bw --src H \
    --dst H --sizes 5000 --iterations 3 --warmup 1 --no-limit -c
status=$?
if [ $status -ne 0 ]; then
    fail two-copies-as-far-as-the-user-says "$(explain $status)"
elif [ "$(count_in_output 'go in two copies up to')" -ne 0 ]; then
    fail two-copies-as-far-as-the-user-says "another limit was chosen"
elif [ $can = yes ] && [ "$(in_one_copy)" = no ]; then
    fail two-copies-as-far-as-the-user-says "messages of 5000 bytes went in two copies"
else
    pass two-copies-as-far-as-the-user-says
fi

# Messages to all peers at once take memory, so with many of them the limit is lower.
launch 60 26 --mca btl_gpusm_cuda_ipc_verbose 20 "$perf" bw --src H --dst H --sizes 8K \
    --iterations 1 --warmup 1 --no-limit -c
status=$?
right=$(count_in_output 'go in two copies up to 7864 bytes')
if [ $status -ne 0 ]; then
    fail two-copies-with-many-peers "$(explain $status)"
elif [ "$right" -ne 26 ]; then
    fail two-copies-with-many-peers "$right of 26 ranks say that the limit is 192 KiB / 25"
else
    pass two-copies-with-many-peers
fi

# Messages in rows go in two copies up to another limit, where single ones can be had.
# rows_case NAME LAST OPTIONS... -- ARGUMENTS OF GPUSM_PERF: the last limit that the sender says it
# has changed to, none if it says nothing
rows_case() {
    rows_name=$1
    rows_last=$2
    shift 2
    launch 60 2 --mca btl_gpusm_cuda_ipc_verbose 20 "$@" --iterations "$rows_iterations" --warmup 1 \
        --no-limit $rows_check
    rows_status=$?
    rows_found=$(sed -n 's/.*from now on host messages of up to \([0-9]*\) bytes.*/\1/p' \
        "$work/output" | tail -n 1)
    if [ $rows_status -ne 0 ]; then
        fail "$rows_name" "$(explain $rows_status)"
    elif [ "${rows_found:-none}" != "$rows_last" ]; then
        fail "$rows_name" "the limit became ${rows_found:-none}, expected $rows_last"
    else
        pass "$rows_name"
    fi
}
rows_iterations=40
rows_check=-c
raised=none
[ $can = yes ] && raised=16640
lone="--mca btl_gpusm_eager_limit 8448"
rows="$lone --mca btl_gpusm_eager_limit_in_rows 16640"
# shellcheck disable=SC2086 # lists of options
{
    rows_case rows-go-in-two-copies $raised $rows "$perf" bw --src H --dst H --sizes 16000
    rows_case rows-both-ways-go-in-two-copies $raised $rows "$perf" bibw --src H --dst H --sizes 16000
    rows_case messages-alone-do-not none $rows "$perf" latency --src H --dst H --sizes 16000
    rows_case longer-rows-do-not none $rows "$perf" bw --src H --dst H --sizes 17000
    rows_case rows-are-left-alone-where-the-user-sets-the-limit none $lone "$perf" bw --src H \
        --dst H --sizes 16000
    rows_case rows-are-switched-off none $lone --mca btl_gpusm_eager_limit_in_rows 0 "$perf" bw \
        --src H --dst H --sizes 16000
    # In check each message has its own contents.
    written="$lone --mca btl_gpusm_eager_limit_if_written 16640"
    rows_iterations=100
    rows_case written-messages-go-in-two-copies $raised $written "$perf" check --src H --dst H \
        --sizes 16000
    rows_case longer-written-messages-do-not none $written "$perf" check --src H --dst H --sizes 17000
    rows_case written-messages-where-the-user-sets-the-limit none $lone "$perf" check --src H \
        --dst H --sizes 16000
    rows_check=
    rows_case unwritten-messages-do-not none $written "$perf" latency --src H --dst H --sizes 16000
    rows_check=-c
    if [ $can = yes ] && need_gpu written-messages-into-a-device-do-not; then
        rows_case written-messages-into-a-device-do-not none $written "$perf" check --src H --dst D \
            --sizes 16000
    fi
    rows_iterations=40
    if [ $can = yes ] && need_gpu rows-into-a-device-do-not; then
        rows_case rows-into-a-device-do-not 8448 $rows "$perf" bw --src H --dst D --sizes 16000
    fi
    fetched="$lone --mca btl_gpusm_eager_limit_in_device_rows 4352"
    if [ $can = yes ] && need_gpu short-rows-into-a-device-are-fetched; then
        rows_case short-rows-into-a-device-are-fetched 4352 $fetched "$perf" bw --src H --dst D --sizes 8000
        path="$(path_count get_messages) $(path_count host_messages)"
        if [ "${path%% *}" -gt "${path##* }" ]; then
            pass short-rows-into-a-device-are-fetched-most-of-them
        else
            fail short-rows-into-a-device-are-fetched-most-of-them "fetched and sent: $path"
        fi
        rows_case short-rows-into-a-device-where-the-user-sets-the-limit none $lone "$perf" bw --src H \
            --dst D --sizes 8000
        rows_case shorter-rows-into-a-device-are-not none $fetched "$perf" bw --src H --dst D --sizes 4000
        rows_iterations=600
        rows_case short-messages-alone-into-a-device-are-not 8448 $fetched "$perf" latency --src H --dst D \
            --sizes 8000
    fi
    # Of either limit's lengths, with and without a header, single messages are samples.
    rows_iterations=100
    rows_case short-rows-into-host-memory-are-not none $fetched "$perf" bw --src H --dst H \
        --sizes 4000,4096,4280,4340,4352,4400,8192
    single=$(path_count single_copy_messages)
    if [ "$single" -gt 400 ]; then
        fail samples-are-few "of 90000 messages $single went in a single copy"
    else
        pass samples-are-few
    fi
}
# The sender's limit goes back, where the machine has made it higher; which of the two is the sender's
# is not said.
if [ $can = yes ] && need_gpu messages-into-a-device-lower-the-limit; then
    name=messages-into-a-device-lower-the-limit
    launch 60 2 --mca btl_gpusm_cuda_ipc_verbose 20 --mca btl_gpusm_eager_limit_in_rows 0 "$perf" bw \
        --src H --dst D --sizes 9000 --iterations 40 --warmup 1 --no-limit -c
    status=$?
    higher=$(grep 'go in two copies up to' "$work/output" | grep -cv 'up to 8448 ')
    last=$(sed -n 's/.*from now on host messages of up to \([0-9]*\) bytes.*/\1/p' "$work/output" | tail -n 1)
    case $status/$higher/${last:-none} in
    0/0/none | 0/1/none | 0/1/8448 | 0/2/8448) pass $name ;;
    0/*) fail $name "$higher of 2 limits were higher than 8448, and the last one is ${last:-as it was}" ;;
    *) fail $name "$(explain $status)" ;;
    esac
fi

# path_says VARIABLE...: yes or no, whether any of them is more than 0 in what gpusm_perf's ranks say
path_says() {
    for variable in "$@"; do
        [ "$(path_count "$variable")" -eq 0 ] || { echo yes && return; }
    done
    echo no
}
# judge NAME STATUS FOUND WANTED WHAT: by the status of the run, and what path_says has found
judge() {
    if [ "$2" -ne 0 ]; then
        fail "$1" "$(explain "$2")"
    elif [ "$3" != "$4" ]; then
        fail "$1" "$5: $3, expected $4"
    else
        pass "$1"
    fi
}

# joint_case NAME WANTED OPTIONS...: WANTED says whether the sender has copied a part of what went in
# single copies. It may be that it never comes to it, so some attempts are made.
joint_usual="--sizes 8K,16385,32769,65537,1M,3000001 --offset 3,5 --window 16 --iterations 3 --warmup 1"
joint_perf=$joint_usual
joint_case() {
    joint_name=$1
    joint_wanted=$2
    shift 2
    for attempt in 1 2 3 4 5; do
        # shellcheck disable=SC2086 # options
        launch 60 2 "$@" "$perf" bw --src H --dst H --no-limit -c $joint_perf
        joint_status=$?
        joint=$(path_says joint_copy_bytes)
        if [ $joint_status -ne 0 ] || [ $joint = "$joint_wanted" ] || [ "$joint_wanted" = no ]; then
            break
        fi
    done
    judge "$joint_name" $joint_status $joint "$joint_wanted" \
        "the sender has copied a part in $attempt attempts"
}
can_joint=$can
if [ "$processors" -lt 2 ]; then
    can_joint=no # and says so by reading alone
fi
joint_case both-sides-copy $can_joint
joint_case both-sides-copy-short-ones-too $can_joint --mca btl_gpusm_joint_copy_min_bytes 8K
joint_case one-side-copies no --mca btl_gpusm_joint_copy_min_bytes 4M
joint_case both-sides-copy-without-smsc no --mca smsc ^cma,xpmem,knem
if [ $can = yes ] && [ $can_joint = no ]; then
    skip the-sender-is-away "needs two processors"
else
    check the-sender-is-away 90 2 "$exchange" joint-late
fi
# The same messages by one pair, by more ranks than there are processors, and by more than they may
# use. The latter give up the processor while they wait, or the test would take minutes.
#
# pairs_case RANKS NAME WANTED WORDS...: with these before the program
pairs_case() {
    pairs_ranks=$1
    pairs_name=$2
    pairs_wanted=$3
    shift 3
    launch 60 "$pairs_ranks" "$@" "$perf" bw --src H --dst H --sizes 100K --window 8 --iterations 20 \
        --warmup 1 --no-limit -c
    judge "$pairs_name" $? "$(path_says joint_copy_bytes)" "$pairs_wanted" \
        "the sender has copied a part"
}
pairs_case 2 one-pair-copies-together $can_joint
pairs_case 2 one-pair-that-is-not-bound-copies-together $can_joint --bind-to none
pairs_case 2 a-pair-on-one-processor-copies-alone no --bind-to none --mca mpi_yield_when_idle 1 \
    taskset -c "$(taskset -pc $$ | sed 's/.*: *\([0-9]*\).*/\1/')"
pairs_case "$crowd" more-ranks-than-processors-copy-alone no

# Of host memory for a device the receiver pulls a part by a single copy, while the sender copies the
# rest. Of device memory for host memory the sender pushes a part.
#
# shared_case NAME FROM TO WANTED OPTIONS...: WANTED says whether anything is pulled, or pushed
shared_case() {
    shared_name=$1
    shared_from=$2
    shared_to=$3
    shared_wanted=$4
    shift 4
    launch 60 2 "$@" "$perf" bw --src "$shared_from" --dst "$shared_to" \
        --sizes 60K,128K,1M,3000001 --offset 3,5 --window 16 --iterations 3 --warmup 1 --no-limit -c
    judge "$shared_name" $? "$(path_says pulled_host_bytes pushed_host_bytes)" "$shared_wanted" "pulled or pushed"
}
pull_case() {
    pull_name=$1
    pull_wanted=$2
    shift 2
    shared_case "$pull_name" "${pull_from:-H}" D "$pull_wanted" "$@"
}
push_case() {
    push_name=$1
    push_wanted=$2
    shift 2
    shared_case "$push_name" D "${push_to:-H}" "$push_wanted" "$@"
}
if need_gpu pulled-host-memory; then
    pull_case pulled-host-memory $can
    pull_case pulled-host-memory-none no --mca btl_gpusm_stage_pull 0
    pull_case pulled-host-memory-through-a-small-ring $can --mca btl_gpusm_stage_host_bytes 256K \
        --mca btl_gpusm_stage_host_piece 64K
    pull_case pulled-host-memory-of-any-length $can --mca btl_gpusm_stage_pull_min_bytes 8K
    pull_case pulled-host-memory-too-short no --mca btl_gpusm_stage_pull_min_bytes 4M
    pull_case pulled-host-memory-without-smsc no --mca smsc ^cma,xpmem,knem
    pull_case pulled-host-memory-switched-off no --mca btl_gpusm_use_single_copy 0
    pull_case pulled-host-memory-without-registered-pages no --mca btl_gpusm_register_segments 0
    pull_from=R
    pull_case page-locked-memory-is-not-pulled no
    pull_case page-locked-memory-in-pieces-is $can --mca btl_gpusm_use_direct_host 0
    pull_from=
fi
if need_gpu pushed-device-memory; then
    push_case pushed-device-memory $can
    push_case pushed-device-memory-none no --mca btl_gpusm_stage_push 0
    push_case pushed-device-memory-too-short no --mca btl_gpusm_stage_pull_min_bytes 4M
    push_case pushed-device-memory-without-smsc no --mca smsc ^cma,xpmem,knem
    push_case pushed-device-memory-without-registered-pages no --mca btl_gpusm_register_segments 0
    push_case pushed-device-memory-in-a-small-segment $can --mca btl_gpusm_segment_size 5M
    push_case pushed-device-memory-in-a-tiny-segment no --mca btl_gpusm_segment_size 2M
    push_case pushed-device-memory-with-events no --mca btl_gpusm_use_cuda_events 1
    push_to=R
    push_case nothing-is-pushed-into-page-locked-memory no
    push_to=
fi

if [ $can = no ] || [ "${GPUSM_SANITIZERS-no}" != no ]; then
    skip refused "needs single copies, and a program without sanitizers"
    finish
fi

limit_case two-copies-where-one-is-slow 28928 28928 few -x LD_PRELOAD="$refuse" \
    -x GPUSM_TEST_REFUSE_EVERY=1000000 -x GPUSM_TEST_REFUSE_DELAY=20

# Where two copies turn out to be slow, the limit goes down. (That it goes up again when they are not
# any more is unit_two_copies' business: here they may be slow by nature.)
# slow_copies_case NAME WATCHED OPTIONS...: yes or no, whether that is seen
slow_copies_case() {
    slow_name=$1
    slow_watched=$2
    shift 2
    launch 60 2 --mca btl_gpusm_cuda_ipc_verbose 20 -x LD_PRELOAD="$slow" "$@" "$perf" bw --src H --dst H \
        --sizes 8000 --iterations 60 --warmup 1 --no-limit -c
    slow_status=$?
    changes=$(count_in_output 'from now on host messages of up to')
    if [ $slow_status -ne 0 ]; then
        fail "$slow_name" "$(explain $slow_status)"
    elif [ "$slow_watched" = no ] && [ "$changes" -gt 0 ]; then
        fail "$slow_name" "the limit has changed $changes times"
    elif [ "$slow_watched" = yes ] && [ "$changes" -eq 0 ]; then
        fail "$slow_name" "the limit has not changed"
    elif [ "$slow_watched" = yes ] && [ "$(in_one_copy)" = no ]; then
        fail "$slow_name" "no message went in a single copy"
    else
        pass "$slow_name"
    fi
}
slow=$GPUSM_BUILDDIR/tests/mpi/slow_memcpy.so
slow_copies_case two-copies-that-are-slow yes
slow_copies_case two-copies-that-are-slow-in-a-program-with-threads yes -x OMPI_MPI_THREAD_LEVEL=3
slow_copies_case two-copies-that-are-slow-and-the-user-says no --mca btl_gpusm_eager_limit 8448
slow_copies_case two-copies-that-are-slow-without-single-copies no --mca btl_gpusm_use_single_copy 0

# There short messages of a row are not shared either. (One that comes alone would have to be longer.)
joint_perf="--sizes 8000,30000 --iterations 20 --warmup 10"
joint_case short-messages-are-not-shared-where-lines-are-slow no -x LD_PRELOAD="$slow"
joint_case short-messages-are-shared-where-nobody-looks $can_joint -x LD_PRELOAD="$slow" \
    --mca btl_gpusm_eager_limit 8448
joint_perf=$joint_usual

# Data arrives although the copies fail half-way, all of them or some, on one side or on both.
check refused 60 2 -x LD_PRELOAD="$refuse" "$exchange" pairs --kinds H --max-size 2M
check every-third-is-refused 60 2 -x LD_PRELOAD="$refuse" -x GPUSM_TEST_REFUSE_EVERY=3 \
    "$exchange" pairs --kinds H --max-size 2M
per_rank 0 LD_PRELOAD="$refuse"
check refused-on-one-side 60 2 "$work/per-rank-0" "$exchange" pairs --kinds H --max-size 2M

joint_case some-joint-copies-are-refused $can_joint -x LD_PRELOAD="$refuse" -x GPUSM_TEST_REFUSE_EVERY=7
joint_case all-joint-copies-are-refused no -x LD_PRELOAD="$refuse"
per_rank 0 LD_PRELOAD="$refuse"
[ $can_joint = no ] || check the-sender-is-away-and-some-are-refused 90 2 -x GPUSM_TEST_REFUSE_EVERY=7 \
    "$work/per-rank-0" "$exchange" joint-late

if need_gpu refused-pulls; then
    check refused-pulls 60 2 -x LD_PRELOAD="$refuse" "$exchange" pairs --kinds HD --max-size 2M
    check every-third-pull-is-refused 60 2 -x LD_PRELOAD="$refuse" -x GPUSM_TEST_REFUSE_EVERY=3 \
        "$exchange" pairs --kinds HD --max-size 2M
    pull_case some-pulls-are-refused yes -x LD_PRELOAD="$refuse" -x GPUSM_TEST_REFUSE_EVERY=7
    pull_case all-pulls-are-refused no -x LD_PRELOAD="$refuse"
    push_case some-pushes-are-refused yes -x LD_PRELOAD="$refuse" -x GPUSM_TEST_REFUSE_EVERY=7
    push_case all-pushes-are-refused no -x LD_PRELOAD="$refuse"
fi

# Nobody tries for ever: four attempts each to read and, of what both sides copy, to write; and those
# that were under way.
name=refused-copies-are-given-up
rm -f "$work/log"
launch 60 2 -x LD_PRELOAD="$refuse" -x GPUSM_TEST_REFUSE_LOG="$work/log" "$perf" latency --src H \
    --dst H --sizes 64K --iterations 50 --no-limit -c
status=$?
tries=$(wc -l <"$work/log")
if [ $status -ne 0 ]; then
    fail $name "$(explain $status)"
elif [ "$tries" -lt 2 ] || [ "$tries" -gt 20 ]; then
    fail $name "$tries attempts"
else
    pass $name
fi

# killed_case NAME FROM: the sender is killed while it writes into the receiver's memory, and the job
# ends for that reason
killed_case() {
    launch 60 2 -x LD_PRELOAD="$refuse" -x GPUSM_TEST_REFUSE_EVERY=1000000 \
        -x GPUSM_TEST_REFUSE_KILL=9 "$perf" bw --src "$2" --dst H --sizes 1M --window 16 \
        --iterations 200 --no-limit
    status=$?
    if [ $status -eq 137 ]; then
        pass "$1"
    else
        fail "$1" "status $status instead of 137, that of a killed process"
    fi
}
[ $can_joint = no ] || killed_case killed-while-both-sides-copy H
if need_gpu killed-while-it-pushes; then
    killed_case killed-while-it-pushes D
fi
finish
