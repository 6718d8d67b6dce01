// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// accelerator_gpusm_calls.h: what the functions of the table share.
#ifndef ACCELERATOR_GPUSM_CALLS_H
#define ACCELERATOR_GPUSM_CALLS_H

#include "opal/mca/accelerator/gpusm/accelerator_gpusm.h"

namespace gpusm {

// Null without a driver: then all memory is host memory.
accelerator *accelerator_here();

int to_opal(status s);

inline lazy_stream *lazy(opal_accelerator_stream_t *stream)
{
    return &reinterpret_cast<mca_accelerator_gpusm_stream_t *>(stream)->lazy;
}

inline lazy_event *lazy(opal_accelerator_event_t *event)
{
    return &reinterpret_cast<mca_accelerator_gpusm_event_t *>(event)->lazy;
}

} // namespace gpusm

#endif
