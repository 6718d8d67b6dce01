#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_coexistence.sh: with gpusm where Open MPI finds it, the stock transports work as before, and so
# does the choice that Open MPI makes by itself. That gpusm shares no peer: run_datatypes.sh.
. "$(dirname "$0")/common.sh"

some=$([ "$have_gpu" = yes ] && echo HD || echo H)
btl=sm,self
check sm 60 2 "$exchange" pairs --kinds "$some" --max-size 2M
check sm-alltoall 60 4 "$exchange" alltoall --kinds "$some"
if [ "${GPUSM_OMPI_CUDA_AWARE-yes}" != yes ]; then
    skip smcuda "this Open MPI was built without it"
elif need_gpu smcuda; then
    btl=smcuda,self
    # Without a pinned 128 MiB segment smcuda says so, and works.
    check smcuda 90 2 "$exchange" pairs --kinds HD --max-size 2M
    check smcuda-alltoall 90 4 "$exchange" alltoall --kinds HD
    if [ -e components-rcache/mca_rcache_gpusm.so ]; then
        GPUSM_TEST_RCACHE=ours
        export GPUSM_TEST_RCACHE
        check smcuda-with-our-rcache 90 2 "$exchange" pairs --kinds HD --max-size 2M
        unset GPUSM_TEST_RCACHE
    else
        skip smcuda-with-our-rcache "ours is for Open MPI 5.0"
    fi
fi
btl=
check default-choice 60 2 "$exchange" pairs --kinds "$some" --max-size 2M
check default-choice-alltoall 60 4 "$exchange" alltoall --kinds "$some"
btl=gpusm,sm,self
check beside-sm 60 2 "$exchange" pairs --kinds "$some" --max-size 2M
check beside-sm-alltoall 60 4 "$exchange" alltoall --kinds "$some"
# smsc/accelerator of Open MPI 6 asks for handles, and passes host memory on without them.
btl=gpusm,self
name=host-copies-beside-smsc-accelerator
single='says "\(single\|both\)_copy_messages"'
case ${GPUSM_OMPI_VERSION-5} in
5*) ;;
*)
    launch 60 2 "$GPUSM_PERF" latency --src H --dst H --sizes 1M
    if ! eval "$single"; then
        skip $name "nothing is copied at once on this machine"
    else
        launch 60 2 --mca smsc_accelerator_priority 100 "$GPUSM_PERF" latency --src H --dst H --sizes 1M
        judge $name 0 $? "$single" "all went in fragments"
    fi
    ;;
esac
finish
