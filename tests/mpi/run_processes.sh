#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_processes.sh: ways in which processes start and meet: ports, sessions, forks, a user without privileges, few file
# descriptors, a temporary folder that cannot be written to, two jobs side by side.
# shellcheck disable=SC2154 # set by common.sh
. "$(dirname "$0")/common.sh"

few=${kinds%"${kinds#HD}"}

for what in connect sessions forks; do
    for each in H $few; do
        [ "$each" = H ] && name=$what-host || name=$what-device
        check "$name" 30 2 "$exchange" $what --kinds "$each"
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

temporary=$work/temporary
mkdir "$temporary"
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
if ! $as_nobody test -x "$exchange" 2>/dev/null || ! $as_nobody test -x "$GPUSM_OMPI_PREFIX/bin/mpirun"; then
    skip $name "this is not root, or others cannot read the build folder or Open MPI"
else
    real_mpirun=$GPUSM_MPIRUN
    wrapper mpirun all "$as_nobody $GPUSM_MPIRUN"
    chmod 755 "$work"
    GPUSM_MPIRUN=$work/mpirun
    # shellcheck disable=SC2086 # a command
    check $name 30 2 $plain
    GPUSM_MPIRUN=$real_mpirun
fi

# Two jobs: each finds its own peers only, and clears away nothing of the other.
"$GPUSM_MPIRUN" -n 2 --mca btl "$btl" "$exchange" forks --kinds "$kinds" >"$work/other" 2>&1 </dev/null &
other=$!
check two-jobs-one 30 2 "$exchange" forks --kinds "$kinds"
wait $other
status=$?
cp "$work/other" "$work/output"
judge two-jobs-the-other 0 $status
finish
