// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ipc/legacy.h: device memory and events as handles that another process can open.
#ifndef GPUSM_IPC_LEGACY_H
#define GPUSM_IPC_LEGACY_H

#include "opal/mca/btl/gpusm/base/status.h"
#include "opal/mca/btl/gpusm/gpu/device.h"
#include "opal/mca/btl/gpusm/gpu/driver.h"

#include <cstdint>

namespace gpusm {

// One allocation of this process, as its exporter describes it.
struct exported_memory {
    std::uint64_t base = 0;
    std::uint64_t len_bytes = 0;
    CUipcMemHandle handle{};
};

// Describes the allocation around `address`, device memory of `of`. Marks it so that
// synchronous copies into it are complete when they return to the program (SYNC_MEMOPS), and
// waits for those that have returned already: without that, data that the program believes
// written could still be on its way when a peer reads. `unsupported`: this kind of memory has no
// such handle; `driver_failed`.
status export_memory(const driver_api &driver, const device &of, std::uint64_t address,
                     exported_memory *out);

// Maps a peer's memory for work in the context of `into`. The result is given back with
// close_memory. `unsupported`: these two devices cannot share memory; `no_memory`; else
// `driver_failed`. The caller reports.
status open_memory(const driver_api &driver, const device &into, const CUipcMemHandle &handle,
                   std::uint64_t *local_base);
void close_memory(const driver_api &driver, const device &into, std::uint64_t local_base);

// The handle of `of`'s interprocess event, which is made if there is none yet.
status export_event(const driver_api &driver, device_table &table, device &of,
                    CUipcEventHandle *out);
// A peer's event, opened in the context of `into`; owned by the caller.
status open_event(const driver_api &driver, const device &into, const CUipcEventHandle &handle,
                  CUevent *out);

} // namespace gpusm

#endif
