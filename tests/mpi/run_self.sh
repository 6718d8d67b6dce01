#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_self.sh: messages of a process to itself; with everything that the docs say is enough to type,
# where the direct way fails, and where it is switched off.
. "$(dirname "$0")/common.sh"
let_others_run

need_gpusm self || finish
few=$(echo "$kinds" | tr -cd HDMVPR)
check every-pair-of-kinds 120 1 "$exchange" self --kinds "$kinds"
check beside-other-ranks 120 3 "$exchange" self --kinds "$few"
saved=$btl
for btl in gpusm gpusm,sm,self ^tcp; do
    check "with-btl-$btl" 90 2 "$exchange" self --kinds "$(echo "$few" | tr -d MVR)"
done
btl=$saved
if need_gpu self-on-devices; then
    few=$(echo "$few" | tr -d R)
    check without-the-kernel 90 1 --mca btl_gpusm_kernel_blocks 0 "$exchange" self --kinds "$few"
    check all-through-the-host 90 1 -x GPUSM_TEST_ANY_WAY=1 --mca btl_gpusm_use_cuda_ipc 0 \
        "$exchange" self --kinds "$few"
    check without-the-module 90 1 -x GPUSM_TEST_ANY_WAY=1 --mca btl_gpusm_use_self 0 "$exchange" self --kinds H
fi
# Open MPI's own component takes ten driver calls to say what an address is; gpusm answers in its place.
if need_softcuda self-driver-calls && [ "${GPUSM_OMPI_CUDA_AWARE-}" = yes ]; then
    mkdir "$work/short"
    launch 30 1 -x GPUSM_SOFTCUDA_LOG="$work/short" "$exchange" self-short --rounds 200
    judge short-messages-are-not-asked-about-by-the-component 0 $? \
        '[ "$(calls_in short "^cuPointerGetAttributes ")" -ge 1 ]' "the log has no questions" \
        '[ "$(calls_in short "^cuPointerGetAttributes .*(accelerator_cuda|libopen-pal)")" -le 10 ]' \
        "$(calls_in short "^cuPointerGetAttributes .*(accelerator_cuda|libopen-pal)") questions by the component"
fi
finish
