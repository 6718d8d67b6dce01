// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// device.cc: the devices and what they say about themselves.
#include "driver.h"

#include <cstdio>
#include <cstring>

using namespace softcuda;

namespace {

int physical_of(CUdevice device)
{
    return drv().devices[static_cast<std::size_t>(device)].physical;
}

// CU_DEVICE_ATTRIBUTE_MAX has grown with every release; beyond this nothing is known.
constexpr int attribute_end = 160;

int attribute(int what, CUdevice device)
{
    switch (what) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
        return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
        return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
        return 0x7fffffff;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
        return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
        return 49152;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
        return 65536;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
        return 1000000;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return 8;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        return 2048;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return 9;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        return 3;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        return 0x10 + physical_of(device);
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
    case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:
        return 512;
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES: // file descriptors
    case 92:                                                 // stream memory operations, version 1
    case 125:                                                // IPC_EVENT_SUPPORTED
        return 1;
    default: // theirs, and absent here
        return 0;
    }
}

} // namespace

SOFTCUDA_API(init, cuDeviceGetCount, (int *out), (out))
{
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = static_cast<int>(drv().devices.size());
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuDeviceGet, (CUdevice * out, int ordinal), (out, ordinal))
{
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!valid_device(ordinal)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *out = ordinal;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuDeviceGetName, (char *out, int len, CUdevice device), (out, len, device))
{
    if (out == nullptr || len <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!valid_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    std::snprintf(out, static_cast<std::size_t>(len), "gpusm software device");
    return CUDA_SUCCESS;
}

// The same for every process, whatever CUDA_VISIBLE_DEVICES says.
SOFTCUDA_API(init, cuDeviceGetUuid_v2, (CUuuid * out, CUdevice device), (out, device))
{
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!valid_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    std::memcpy(out->bytes, "gpusm-softcuda-", 15);
    out->bytes[15] = static_cast<char>(physical_of(device));
    return CUDA_SUCCESS;
}
SOFTCUDA_SAME(init, cuDeviceGetUuid, cuDeviceGetUuid_v2, (CUuuid * out, CUdevice device),
              (out, device), (out, device))

SOFTCUDA_API(init, cuDeviceTotalMem_v2, (size_t * out, CUdevice device), (out, device))
{
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!valid_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *out = drv().memory_bytes;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuDeviceGetAttribute, (int *out, CUdevice_attribute what, CUdevice device),
             (out, what, device))
{
    auto which = static_cast<int>(what);
    if (out == nullptr || which <= 0 || which >= attribute_end) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!valid_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *out = attribute(which, device);
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuDeviceComputeCapability, (int *major, int *minor, CUdevice device),
             (major, minor, device))
{
    if (!valid_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuDeviceGetPCIBusId, (char *out, int len, CUdevice device), (out, len, device))
{
    if (out == nullptr || len < 13) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!valid_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    std::snprintf(out, static_cast<std::size_t>(len), "0000:%02X:00.0", 0x10 + physical_of(device));
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuDeviceGetByPCIBusId, (CUdevice * out, const char *text), (out, text))
{
    unsigned domain = 0;
    unsigned bus = 0;
    if (out == nullptr || text == nullptr ||
        (std::sscanf(text, "%x:%x:", &domain, &bus) != 2 && std::sscanf(text, "%x:", &bus) != 1)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int device = visible_device(static_cast<int>(bus) - 0x10);
    if (device < 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *out = device;
    return CUDA_SUCCESS;
}
