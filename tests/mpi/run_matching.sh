#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_matching.sh: order of messages, unexpected ones, probes, any source, truncation, many at once,
# derived datatypes; with host memory only, and with every kind.
. "$(dirname "$0")/common.sh"

for set in H $([ "$kinds" = H ] || echo "$kinds"); do
    suffix=$([ "$set" = H ] && echo host || echo every-kind)
    check "any-source-in-order-$suffix" 60 4 "$exchange" any-source --kinds "$set"
    check "unexpected-in-order-$suffix" 60 2 "$exchange" unexpected --kinds "$set"
    check "thousand-messages-$suffix" 60 2 "$exchange" many --kinds "$set"
    check "truncation-is-an-error-$suffix" 60 2 "$exchange" truncation --kinds "$set"
    check "derived-datatypes-$suffix" 90 2 "$exchange" datatypes --kinds "$set"
done
# Of a message that is offered the receiver asks for fewer bytes, in several gets.
if need_gpusm truncation-of-what-is-offered; then
    check truncation-of-what-is-offered 60 2 --mca btl_gpusm_get_limit 20000 "$exchange" truncation --kinds H
fi
[ "$kinds" != H ] || skip every-kind "$gpu_name"
finish
