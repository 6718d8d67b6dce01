#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_views.sh: messages of derived datatypes in device memory, in every way that MPI has to send
# and receive: all bytes arrive, and none is written in gaps and around.
# shellcheck disable=SC2154 # set by common.sh
. "$(dirname "$0")/common.sh"
need_gpusm views || finish

check host 120 2 "$exchange" views --kinds H --views
if need_gpu device; then
    check device 180 2 "$exchange" views --kinds D
    check device-and-host 400 2 "$exchange" views --kinds HD
    check device-and-managed 400 2 "$exchange" views --kinds DM
    let_others_run
    check four-ranks 400 4 "$exchange" views --kinds D
    check threads 120 2 "$exchange" views-threads --kinds D
    check threads-of-all-kinds 120 2 "$exchange" views-threads --kinds HDVMR
fi
finish
