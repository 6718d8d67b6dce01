#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_environment.sh: parameters out of range, a full /dev/shm, and what is left behind. Each gets
# one clear message, and no crash. And that every program of a job finds gpusm.
# shellcheck disable=SC2016,SC2034 # conditions are evaluated later
. "$(dirname "$0")/common.sh"

need_gpusm environment || finish
sh_pairs="$exchange pairs --kinds H --max-size 64K"

# With the choice left to Open MPI the program must run although gpusm does not. (A list of
# transports that names gpusm would be an order, and Open MPI ends when it cannot be obeyed.)
# refused NAME TEXT OPTIONS...: gpusm says TEXT and stays away
refused() {
    refused_name=$1
    refused_text=$2
    shift 2
    refused_btl=$btl
    btl=
    # shellcheck disable=SC2086 # a command
    launch 60 2 "$@" $sh_pairs
    refused_status=$?
    btl=$refused_btl
    judge "$refused_name" 0 $refused_status 'says "$refused_text"' "no message with the text '$refused_text'"
}
refused parameter-too-small btl_gpusm_eager_limit --mca btl_gpusm_eager_limit 1
refused backing-directory-missing /nonexistent/folder \
    --mca btl_gpusm_backing_directory /nonexistent/folder
refused layout-of-another-open-mpi "opal_bitmap_t has" \
    -x LD_PRELOAD="$GPUSM_BUILDDIR/tests/mpi/other_layout.so"

# With --mca btl gpusm,self each process needs to find gpusm; a process of another program does.
# shellcheck disable=SC2086 # a command
launch 60 1 $sh_pairs : -n 1 $sh_pairs
judge two-programs-in-one-job 0 $? 'says "pairs: passed, [1-9]"' "no message was checked"

# left_behind NAME FOLDER: nothing is in it
left_behind() {
    left=$(ls -A "$2")
    judge "$1" 0 0 '[ -z "$left" ]' "left behind: $left"
}
name=shared-memory-full
mkdir "$work/full"
if mount -t tmpfs -o size=48k tmpfs "$work/full" 2>/dev/null; then
    refused $name "$work/full" --mca btl_gpusm_backing_directory "$work/full"
    left_behind "$name-leaves-nothing" "$work/full"
    umount "$work/full"
else
    skip $name "mounting a small tmpfs needs root"
fi

# In a folder of its own, because other jobs use /dev/shm too.
segments=$(mktemp -d /dev/shm/gpusm-test.XXXXXX) || exit 1
trap 'rm -rf "$segments" "$work"' EXIT
# shellcheck disable=SC2086 # a command
launch 60 2 --mca btl_gpusm_backing_directory "$segments" $sh_pairs
judge normal-end 0 $?
left_behind normal-end-leaves-nothing "$segments"
launch 60 3 --mca btl_gpusm_backing_directory "$segments" "$exchange" killed --kinds "${kinds%MVWA}"
status=$?
case $status in
0 | 3 | 124) fail killed-rank-ends-the-job "$(explain $status)" ;;
*) pass killed-rank-ends-the-job ;;
esac
# What the killed process left, if anything, the next job on this node clears away.
# shellcheck disable=SC2086 # a command
launch 60 2 --mca btl_gpusm_backing_directory "$segments" $sh_pairs
left_behind killed-rank-leaves-nothing-after-the-next-job "$segments"

finish
