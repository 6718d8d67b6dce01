// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// accelerator_gpusm_openmpi6.cc: what the table has from Open MPI 6 on.
#include "opal/mca/accelerator/gpusm/accelerator_gpusm_calls.h"
#include "opal/mca/accelerator/gpusm/accelerator_gpusm_versions.h"

#include <cstdint>
#include <cstring>

extern "C" {

#ifdef GPUSM_ACCELERATOR_OF_6

using gpusm::accelerator;
using gpusm::lazy;
using gpusm::to_opal;

static int sync_stream(opal_accelerator_stream_t *stream)
{
    if (nullptr == stream) {
        return OPAL_ERR_BAD_PARAM;
    }
    accelerator *driven = gpusm::accelerator_here();
    return nullptr == driven ? OPAL_SUCCESS : to_opal(driven->synchronize(lazy(stream)));
}

static int wait_event(int, opal_accelerator_event_t *event, opal_accelerator_stream_t *stream)
{
    if (nullptr == event || nullptr == stream) {
        return OPAL_ERR_BAD_PARAM;
    }
    accelerator *driven = gpusm::accelerator_here();
    return nullptr == driven ? OPAL_SUCCESS
                             : to_opal(driven->wait_event(lazy(stream), lazy(event)));
}

// Those of a stream wait for what is before them in it, and for themselves.
static int mem_move_async(int to_device, int from_device, void *to, const void *from,
                          std::size_t len_bytes, opal_accelerator_stream_t *stream,
                          opal_accelerator_transfer_type_t type)
{
    const int rc = sync_stream(stream);
    return OPAL_SUCCESS == rc ? mca_accelerator_gpusm_module.mem_move(to_device, from_device, to,
                                                                      from, len_bytes, type)
                              : rc;
}

static int mem_alloc_stream(int dev_id, void **out, std::size_t len_bytes,
                            opal_accelerator_stream_t *)
{
    return mca_accelerator_gpusm_module.mem_alloc(dev_id, out, len_bytes);
}

static int mem_release_stream(int dev_id, void *allocated, opal_accelerator_stream_t *stream)
{
    const int rc = sync_stream(stream);
    return OPAL_SUCCESS == rc ? mca_accelerator_gpusm_module.mem_release(dev_id, allocated) : rc;
}

// What other processes are to map, the BTL exports by itself. So smsc/accelerator stays away.
static bool is_ipc_enabled()
{
    return false;
}

static int get_ipc_handle(int, void *, opal_accelerator_ipc_handle_t *)
{
    return OPAL_ERR_NOT_SUPPORTED;
}

static int import_ipc_handle(int, std::uint8_t *, opal_accelerator_ipc_handle_t *)
{
    return OPAL_ERR_NOT_SUPPORTED;
}

static int open_ipc_handle(int, opal_accelerator_ipc_handle_t *, void **)
{
    return OPAL_ERR_NOT_SUPPORTED;
}

static int compare_ipc_handles(std::uint8_t *one, std::uint8_t *other)
{
    return std::memcmp(one, other, IPC_MAX_HANDLE_SIZE);
}

static int get_ipc_event_handle(opal_accelerator_event_t *, opal_accelerator_ipc_event_handle_t *)
{
    return OPAL_ERR_NOT_SUPPORTED;
}

static int import_ipc_event_handle(std::uint8_t *, opal_accelerator_ipc_event_handle_t *)
{
    return OPAL_ERR_NOT_SUPPORTED;
}

static int open_ipc_event_handle(opal_accelerator_ipc_event_handle_t *, opal_accelerator_event_t *)
{
    return OPAL_ERR_NOT_SUPPORTED;
}

static int num_devices(int *count)
{
    *count = 0;
    const gpusm::driver_api *driver = gpusm::driver_load();
    return nullptr == driver
               ? OPAL_SUCCESS
               : to_opal(driver->answer("cuDeviceGetCount", driver->device_get_count(count)));
}

static int get_mem_bw(int, float *)
{
    return OPAL_ERR_NOT_SUPPORTED;
}

// Open MPI frees the names.
static void get_memkind(ompi_memkind_t *out)
{
    *out = {.im_name = strdup("cuda"),
            .im_no_restrictors = false,
            .im_num_restrictors = 3,
            .im_restrictors = {strdup("host"), strdup("device"), strdup("managed")}};
}

void mca_accelerator_gpusm_complete(void)
{
    opal_accelerator_base_module_t &table = mca_accelerator_gpusm_module;
    table.sync_stream = sync_stream;
    table.wait_event = wait_event;
    table.mem_move_async = mem_move_async;
    table.mem_alloc_stream = mem_alloc_stream;
    table.mem_release_stream = mem_release_stream;
    table.is_ipc_enabled = is_ipc_enabled;
    table.get_ipc_handle = get_ipc_handle;
    table.import_ipc_handle = import_ipc_handle;
    table.open_ipc_handle = open_ipc_handle;
    table.compare_ipc_handles = compare_ipc_handles;
    table.get_ipc_event_handle = get_ipc_event_handle;
    table.import_ipc_event_handle = import_ipc_event_handle;
    table.open_ipc_event_handle = open_ipc_event_handle;
    table.num_devices = num_devices;
    table.get_mem_bw = get_mem_bw;
    table.get_memkind = get_memkind;
}

#else

void mca_accelerator_gpusm_complete(void)
{
}

#endif

} // extern "C"
