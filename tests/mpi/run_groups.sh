#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_groups.sh: 2, 3, 4 and 8 ranks, everyone with everyone, messages and MPI_Alltoall; and
# communicators that are made beside collectives.
. "$(dirname "$0")/common.sh"

for ranks in 2 3 4 8; do
    check "host-$ranks-ranks" 60 $ranks "$exchange" alltoall --kinds H
    if need_gpu "device-$ranks-ranks"; then
        check "device-$ranks-ranks" 90 $ranks "$exchange" alltoall --kinds DH
    fi
done
# More senders to each rank than it has rings on its device.
if need_gpu streamed-8-ranks; then
    check streamed-8-ranks 90 8 "$exchange" alltoall --kinds MH
    check streamed-through-host-memory-8-ranks 90 8 --mca btl_gpusm_staging_device_bytes 0 \
        "$exchange" alltoall --kinds M
fi
if need_gpu every-kind-3-ranks; then
    check every-kind-3-ranks 90 3 "$exchange" alltoall --kinds "$kinds"
fi
for sub in idup idup-threads rooted-between-groups; do
    check "$sub-host" 60 3 "$exchange" $sub --kinds H
    if need_gpu "$sub-device"; then
        check "$sub-device" 60 3 "$exchange" $sub --kinds D
    fi
done
finish
