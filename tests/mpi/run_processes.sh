#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_processes.sh: ways in which processes start and meet: ports, sessions, threads of sessions, forks, a user without privileges, few file
# descriptors, a temporary folder that cannot be written to, two jobs side by side.
# shellcheck disable=SC2154 # set by common.sh
. "$(dirname "$0")/common.sh"

few=${kinds%"${kinds#HD}"}

for what in connect sessions forks; do
    for each in H $few; do
        check "$what-$each" 30 2 "$exchange" $what --kinds "$each"
    done
done

# Of children that have ended nothing is kept. A larger number by hand: 300 take a minute.
for each in H $few; do
    check "children-$each" 60 1 "$exchange" children --kinds "$each" --rounds "${GPUSM_TEST_CHILDREN:-24}"
done
check children-and-threads 60 1 "$exchange" children-and-threads --kinds "${few:-H}"

# One that is killed is told to who waits for it, whatever the runtime does about another job's processes.
# After it has disconnected it is nobody's failure. mpirun's status is that of the child.
launch 30 1 "$exchange" lost-child --kinds "${few:-H}"
judge child-killed-while-it-is-waited-for $? $? 'says "btl/gpusm: messages to and from process 0 have ended"' \
    "the parent is not told" '! says DEADLINE' "the parent waits on"
launch 30 1 --with-ft ulfm "$exchange" lost-child --kinds "${few:-H}"
status=$?
if says "could be used for iagree"; then # docs/upstream/open-mpi-6.md
    skip child-killed-while-it-is-waited-for-ulfm "this Open MPI makes no intercommunicators with ULFM"
else
    judge child-killed-while-it-is-waited-for-ulfm $status $status 'says "lost child: all requests have ended"' \
        "the parent is not told" '! says FAILED' "it is told something else"
fi
launch 30 1 "$exchange" lost-segment
judge child-whose-segment-is-gone $? $? 'says "messages from process 1 of job .* are dropped"' "they are not lost" \
    '! says "lost segment:"' "the parent goes on" '! says DEADLINE' "a process has waited until its deadline"
launch 30 1 "$exchange" left-child --kinds H
judge child-killed-after-it-has-disconnected $? $? 'says "left child: the parent lives"' "the parent has ended, too" \
    'says "exchange left-child: passed"' "the parent has failed"

# What a process has sent arrives though it ends before its receiver has mapped its segment, or while it waits for
# room there. Who ends waits neither for another one that ends nor for one that dies.
little="--mca btl_gpusm_fifo_size 16"
check early-children 30 1 "$exchange" early-children
check early-session 30 7 "$exchange" early-session
# shellcheck disable=SC2086 # an option and its value
{
    check early-children-little-room 30 1 $little "$exchange" early-children --rounds 300
    check early-session-little-room 30 3 $little "$exchange" early-session --rounds 300
    check early-receiver-little-room 30 2 $little --mca btl_gpusm_fast_box_max 0 "$exchange" early-receiver --rounds 60
    check early-receiver-few-fragments 30 2 $little --mca btl_gpusm_fast_box_max 0 --mca btl_gpusm_free_list_max 8 \
        "$exchange" early-receiver --rounds 60
    check unread-by-both 30 2 $little "$exchange" unread --rounds 300
    launch 30 1 --with-ft ulfm $little "$exchange" unread-by-the-dead --rounds 300
    status=$?
}
if says "could be used for iagree"; then
    skip unread-by-one-that-dies "this Open MPI makes no intercommunicators with ULFM"
else
    judge unread-by-one-that-dies $status $status 'says "MPI has ended for the parent"' "the parent waits on" \
        '! says DEADLINE' "a process has waited until its deadline"
fi

# Open MPI's threads of sessions, with and without one before that has none; what is wrong shows in most runs, not in all.
sessions='session-threads session-threads-later two-session-threads'
case ${GPUSM_OMPI_VERSION-5} in
5*) ;;
*)
    sessions='session-threads two-session-threads'
    skip session-threads-later "Open MPI 6 gives no later session more than MPI_THREAD_SERIALIZED"
    ;;
esac
for run in 1 2 3; do
    for what in $sessions; do
        check "$what-$run" 30 2 "$exchange" $what --kinds H
    done
done

plain="$exchange pairs --max-size 64K --kinds $kinds"
# in_a_rank NAME COMMAND: every kind, in ranks whose shell has run that before
in_a_rank() {
    # shellcheck disable=SC2086 # a command
    check "$1" 30 2 sh -c "$2; exec \"\$@\"" sh $plain
}
# The real driver has many open itself.
descriptors=128
[ "$driver_kind" != softcuda ] || descriptors=24
in_a_rank few-descriptors "ulimit -n $descriptors"

temporary=$work/temporary && mkdir "$temporary"
trap 'umount -l "$temporary" 2>/dev/null; rm -rf "$work"' EXIT
for options in ro size=4k; do
    name=temporary-folder-$options
    if ! mount -t tmpfs -o $options gpusm-test "$temporary" 2>/dev/null; then
        skip "$name" "a tmpfs cannot be mounted here"
        continue
    fi
    [ $options = ro ] || head -c 8192 /dev/zero >"$temporary/full" 2>/dev/null
    in_a_rank "$name" "export TMPDIR=$temporary"
    umount -l "$temporary"
done

name=user-without-privileges
as_nobody="setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/ TMPDIR=/tmp"
# Others may not look into a home folder, where Open MPI may be, but do where the job has it laid over itself.
home=$(echo "$GPUSM_OMPI_PREFIX" | cut -d / -f -2)
if ! $as_nobody test -x "$home" 2>/dev/null; then
    echo "mount -t tmpfs gpusm-test $temporary && mkdir -m 755 $temporary/1 $temporary/2 && mount -t overlay \
        gpusm-test -o lowerdir=$home,upperdir=$temporary/1,workdir=$temporary/2 $home && exec \"\$@\"" >"$work/opened"
    as_nobody="unshare --mount sh $work/opened $as_nobody"
fi
if ! $as_nobody test -x "$exchange" 2>/dev/null || ! $as_nobody test -x "$GPUSM_OMPI_PREFIX/bin/mpirun"; then
    skip $name "this is not root, or others cannot read the build folder or Open MPI"
else
    wrapper mpirun all "$as_nobody $GPUSM_MPIRUN"
    chmod 755 "$work"
    # shellcheck disable=SC2086 # a command
    GPUSM_MPIRUN=$work/mpirun check $name 30 2 $plain
fi

# Two jobs: each finds its own peers only, and clears away nothing of the other.
"$GPUSM_MPIRUN" -n 2 --mca btl "$btl" "$exchange" forks --kinds "$kinds" >"$work/other" 2>&1 </dev/null & other=$!
check two-jobs-one 30 2 "$exchange" forks --kinds "$kinds"
wait $other; status=$?
cp "$work/other" "$work/output"
judge two-jobs-the-other 0 $status
finish
