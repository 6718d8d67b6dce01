#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_matching.sh: order of messages, unexpected ones, probes, any source, truncation, many at once,
# derived datatypes; with host memory only, and with every kind.
. "$(dirname "$0")/common.sh"
let_others_run

for set in H $([ "$kinds" = H ] || echo "$kinds"); do
    suffix=$([ "$set" = H ] && echo host || echo every-kind)
    check "any-source-in-order-$suffix" 60 4 "$exchange" any-source --kinds "$set"
    check "unexpected-in-order-$suffix" 60 2 "$exchange" unexpected --kinds "$set"
    check "thousand-messages-$suffix" 60 2 "$exchange" many --kinds "$set"
    check "truncation-is-an-error-$suffix" 120 2 "$exchange" truncation --kinds "$set"
    check "derived-datatypes-$suffix" 90 2 "$exchange" datatypes --kinds "$set"
done
if need_gpusm truncation-of-what-is-offered; then
    # The receiver asks for what is offered in several gets; it streams; it gets all in fragments.
    check truncation-of-what-is-offered 120 2 --mca btl_gpusm_get_limit 20000 \
        "$exchange" truncation --kinds "$kinds"
    check truncation-of-what-is-streamed 120 2 --mca btl_gpusm_stream_host_after 0 \
        "$exchange" truncation --kinds "$kinds"
    check truncation-of-fragments 120 2 --mca btl_gpusm_use_single_copy 0 --mca btl_gpusm_use_cuda_ipc 0 \
        "$exchange" truncation --kinds "$kinds"
    # In every Open MPI, also in one that writes behind a buffer.
    check truncation-harms-no-other-allocation 120 2 "$exchange" truncation-at-end --kinds "$kinds"
fi
[ "$kinds" != H ] || skip every-kind "$gpu_name"
finish
