#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_namespaces.sh: ranks that the kernel keeps apart as containers do. Every message arrives, or the user is
# told why there is no way. Namespaces of process numbers alone: run_single_copy.sh, run_situations.sh.
# shellcheck disable=SC2016,SC2034 # conditions are evaluated later
. "$(dirname "$0")/common.sh"

need_gpusm namespaces || finish
sets=H
[ "$have_gpu" = no ] || sets=HD

# Words that give what follows namespaces of its own.
cat >"$work/own-shm" <<'END'
#!/bin/sh
mount -t tmpfs gpusm-test /dev/shm && exec "$@"
END
chmod 755 "$work/own-shm"
own_shm="unshare --mount $work/own-shm"
own_ipc="unshare --ipc"
own_user="unshare --user --map-root-user"
own_pids="unshare --pid --fork --kill-child --mount-proc"
container="$own_ipc $own_pids $own_shm"

# may NAME WORDS: false, with the case skipped, when this user may not do that, or the driver does not start there
starts_cuda='import ctypes, sys; sys.exit(ctypes.CDLL("libcuda.so.1").cuInit(0))'
may() {
    # shellcheck disable=SC2086 # a list of words
    if ! $2 true 2>"$work/refused"; then
        skip "$1" "this user may not do it: $(head -n 1 "$work/refused")"
        return 1
    fi
    # shellcheck disable=SC2086
    if [ "$have_gpu" = yes ] && ! is_software && ! timeout 20 $2 python3 -c "$starts_cuda"; then
        skip "$1" "the driver does not start there (cuInit)"
        return 1
    fi
}

# arrive NAME WORDS OPTIONS...: with the words before all ranks, or one, all messages between two ranks are right
arrive() {
    arrive_name=$1 arrive_words=$2
    shift 2
    may "$arrive_name" "$arrive_words" || return
    wrapper apart all "$arrive_words"
    wrapper one-apart 1 "$arrive_words"
    check "$arrive_name-all-ranks" 60 2 "$@" "$work/apart" "$exchange" pairs --kinds $sets --max-size 2M
    check "$arrive_name-one-rank" 60 2 "$@" "$work/one-apart" "$exchange" pairs --kinds $sets --max-size 2M
    check "$arrive_name-windows" 60 2 "$@" "$work/apart" "$exchange" windows --kinds $sets
}

# --- what keeps processes apart, but not their memory ---------------------------------------------------
arrive ipc-namespaces "$own_ipc"
arrive ipc-and-pid-namespaces "$own_ipc $own_pids"
name=ipc-namespaces-mapped-all-the-same
if need_softcuda $name && may $name "$own_ipc"; then
    wrapper apart all "$own_ipc"
    launch 60 2 "$work/apart" "$perf" latency --src D --dst D --sizes 8,1M --iterations 5 --no-limit -c
    judge $name 0 $? '[ "$(path_count mapped_messages)" -gt 0 ]' "device memory is not mapped"
fi
arrive user-namespaces "$own_user"
# Segments in a folder that all see, as where containers are given one volume.
name=containers-with-one-volume
mkdir "$work/volume"
trap 'umount -l "$work/volume" 2>/dev/null; rm -rf "$work"' EXIT
if mount -t tmpfs gpusm-test "$work/volume" 2>/dev/null; then
    arrive $name "$container" --mca btl_gpusm_backing_directory "$work/volume"
    left=$(ls -A "$work/volume")
    judge $name-leaves-nothing 0 0 '[ -z "$left" ]' "left behind: $left"
else
    skip $name "a tmpfs cannot be mounted here"
fi

# --- one container for all ranks of a node --------------------------------------------------------------
name=all-ranks-in-one-container
if may $name "$container"; then
    wrapper mpirun all "$container $GPUSM_MPIRUN"
    GPUSM_MPIRUN=$work/mpirun check $name 60 2 "$exchange" pairs --kinds $sets --max-size 2M
        GPUSM_MPIRUN=$work/mpirun check $name-collectives 60 2 "$exchange" collectives --kinds $sets
    GPUSM_MPIRUN=$work/mpirun check $name-windows 60 2 "$exchange" windows --kinds $sets
fi

# --- a /dev/shm each: gpusm reaches nobody, and other transports have the peers ---------------------------
name=own-shared-memory
if may $name "$own_shm"; then
    wrapper apart all "$own_shm"
    wrapper one-apart 1 "$own_shm"
    btl=gpusm,tcp,self
    for which in apart one-apart; do
        launch 60 2 --mca btl_gpusm_cuda_ipc_verbose 20 "$work/$which" "$exchange" pairs --kinds $sets --max-size 64K
        judge $name-$which-by-another-transport 0 $? 'says "pairs: passed, [1-9]"' "no message was checked" \
            'says "segment that cannot be reached from here"' "verbosity 20 does not say why gpusm is not used"
    done
    btl=gpusm,self
    launch 60 2 "$work/one-apart" "$exchange" pairs --kinds $sets --max-size 64K
    status=$?
    case $status in
    0) fail $name-without-another-transport "messages have arrived, and nobody knows how" ;;
    *) judge $name-without-another-transport $status $status 'says "unreachable"' "it is not said that a process is unreachable" \
        '[ $status -ne 139 ] && [ $status -ne 124 ] && [ $status -ne 3 ]' "$(explain $status)" ;;
    esac
fi
finish
