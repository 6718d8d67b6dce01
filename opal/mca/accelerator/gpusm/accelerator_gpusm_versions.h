// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// accelerator_gpusm_versions.h: what the accelerator framework has changed between Open MPI 5.0 and
// 6: the table has more functions, and an event is told whether other processes are to open it.
#ifndef GPUSM_ACCELERATOR_VERSIONS_H
#define GPUSM_ACCELERATOR_VERSIONS_H

#include "opal/mca/accelerator/gpusm/accelerator_gpusm_opal.h"

#ifdef IPC_MAX_HANDLE_SIZE
#define GPUSM_ACCELERATOR_OF_6 1
#define GPUSM_ACCELERATOR_EVENT int, opal_accelerator_event_t **event, bool
#else
#define GPUSM_ACCELERATOR_EVENT int, opal_accelerator_event_t **event
#endif

#endif
