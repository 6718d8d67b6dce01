#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_environment.sh: parameters out of range, a full /dev/shm, and what is left behind. Each gets
# one clear message, and no crash.
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
    if [ $refused_status -ne 0 ]; then
        fail "$refused_name" "$(explain $refused_status)"
    elif [ "$(count_in_output "$refused_text")" -eq 0 ]; then
        fail "$refused_name" "no message with the text '$refused_text'"
    else
        pass "$refused_name"
    fi
}
refused parameter-too-small btl_gpusm_eager_limit --mca btl_gpusm_eager_limit 1
refused backing-directory-missing /nonexistent/folder \
    --mca btl_gpusm_backing_directory /nonexistent/folder

name=shared-memory-full
mkdir "$work/full"
if mount -t tmpfs -o size=48k tmpfs "$work/full" 2>/dev/null; then
    refused $name "$work/full" --mca btl_gpusm_backing_directory "$work/full"
    left=$(ls -A "$work/full")
    umount "$work/full"
    if [ -n "$left" ]; then
        fail "$name-leaves-nothing" "left behind: $left"
    else
        pass "$name-leaves-nothing"
    fi
else
    skip $name "mounting a small tmpfs needs root"
fi

# A topology that the runtime is told about, of as many processors as there are here.
# places NAME TOPOLOGY BINDING TEXT-OF-ONE TEXT-OF-ANOTHER SAME: one process says the one text, the
# other one the other, and SAME times "on the same NUMA node" is said of a peer.
places() {
    (
        export HWLOC_SYNTHETIC="$2" HWLOC_THISSYSTEM=1
        # shellcheck disable=SC2086 # a command
        launch 60 2 --map-by core --bind-to "$3" --mca btl_gpusm_cuda_ipc_verbose 20 $sh_pairs
    )
    places_status=$?
    if [ $places_status -ne 0 ]; then
        fail "$1" "$(explain $places_status)"
    elif [ "$(count_in_output "$4")" -eq 0 ] || [ "$(count_in_output "$5")" -eq 0 ] ||
        [ "$(count_in_output 'on the same NUMA node')" -ne "$6" ]; then
        fail "$1" "not both of '$4' and '$5', or not $6 processes are on the same node"
    else
        pass "$1"
    fi
}
if [ "$(nproc)" -ge 2 ]; then
    places on-two-numa-nodes "node:2 core:1 pu:1" core 'bound to NUMA node 0,' 'bound to NUMA node 1,' 0
    places on-one-numa-node "node:1 core:2 pu:1" core 'bound to NUMA node 0,' 'bound to NUMA node 0,' 2
    places on-any-numa-node "node:2 core:1 pu:1" none 'not bound' 'not bound' 0
else
    skip on-numa-nodes "needs two processors to be bound to"
fi

# In a folder of its own, because other jobs use /dev/shm too.
segments=$(mktemp -d /dev/shm/gpusm-test.XXXXXX) || exit 1
trap 'rm -rf "$segments" "$work"' EXIT
left_behind() {
    left=$(ls -A "$segments")
    if [ -n "$left" ]; then
        fail "$1" "left behind: $left"
    else
        pass "$1"
    fi
}
# shellcheck disable=SC2086 # a command
launch 60 2 --mca btl_gpusm_backing_directory "$segments" $sh_pairs
status=$?
if [ $status -ne 0 ]; then
    fail normal-end-leaves-nothing "$(explain $status)"
else
    left_behind normal-end-leaves-nothing
fi
launch 60 3 --mca btl_gpusm_backing_directory "$segments" "$exchange" killed --kinds "${kinds%MVWA}"
status=$?
case $status in
0 | 3 | 124) fail killed-rank-ends-the-job "$(explain $status)" ;;
*) pass killed-rank-ends-the-job ;;
esac
# What the killed process left, if anything, the next job on this node clears away.
# shellcheck disable=SC2086 # a command
launch 60 2 --mca btl_gpusm_backing_directory "$segments" $sh_pairs
left_behind killed-rank-leaves-nothing-after-the-next-job

name=nothing-in-dev-shm
# shellcheck disable=SC2016 # expanded by the inner shell
if unshare --mount sh -c 'mount -t tmpfs tmpfs /dev/shm' 2>/dev/null; then
    cat >"$work/private" <<'END'
#!/bin/sh
mount -t tmpfs tmpfs /dev/shm && "$@"
status=$?
ls -A /dev/shm | sed 's/^/LEFT: /'
exit $status
END
    chmod +x "$work/private"
    GPUSM_MPIRUN_REAL=$GPUSM_MPIRUN
    printf '#!/bin/sh\nexec unshare --mount "%s" "%s" "$@"\n' "$work/private" \
        "$GPUSM_MPIRUN_REAL" >"$work/mpirun"
    chmod +x "$work/mpirun"
    GPUSM_MPIRUN=$work/mpirun
    # shellcheck disable=SC2086 # a command
    launch 60 2 $sh_pairs
    status=$?
    if [ $status -ne 0 ] || [ "$(count_in_output '^LEFT: ')" -ne 0 ]; then
        fail $name "$(explain $status), or files left in /dev/shm"
    else
        pass $name
    fi
    GPUSM_MPIRUN=$GPUSM_MPIRUN_REAL
else
    skip $name "a private /dev/shm needs root"
fi
finish
