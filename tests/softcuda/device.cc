// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// device.cc: the driver's version, the names of its errors, and what devices say about themselves.
#include "driver.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

using namespace softcuda;

namespace {

#define SOFTCUDA_ERROR(code) std::pair<CUresult, const char *>(code, #code)
const std::pair<CUresult, const char *> error_names[] = {
    SOFTCUDA_ERROR(CUDA_SUCCESS),
    SOFTCUDA_ERROR(CUDA_ERROR_INVALID_VALUE),
    SOFTCUDA_ERROR(CUDA_ERROR_OUT_OF_MEMORY),
    SOFTCUDA_ERROR(CUDA_ERROR_NOT_INITIALIZED),
    SOFTCUDA_ERROR(CUDA_ERROR_DEINITIALIZED),
    SOFTCUDA_ERROR(CUDA_ERROR_NO_DEVICE),
    SOFTCUDA_ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE),
    SOFTCUDA_ERROR(CUDA_ERROR_INVALID_DEVICE),
    SOFTCUDA_ERROR(CUDA_ERROR_INVALID_IMAGE),
    SOFTCUDA_ERROR(CUDA_ERROR_INVALID_CONTEXT),
    SOFTCUDA_ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED),
    SOFTCUDA_ERROR(CUDA_ERROR_OPERATING_SYSTEM),
    SOFTCUDA_ERROR(CUDA_ERROR_INVALID_HANDLE),
    SOFTCUDA_ERROR(CUDA_ERROR_NOT_FOUND),
    SOFTCUDA_ERROR(CUDA_ERROR_NOT_READY),
    SOFTCUDA_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS),
    SOFTCUDA_ERROR(CUDA_ERROR_LAUNCH_FAILED),
    SOFTCUDA_ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
    SOFTCUDA_ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED),
    SOFTCUDA_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
    SOFTCUDA_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
    SOFTCUDA_ERROR(CUDA_ERROR_NOT_SUPPORTED),
    SOFTCUDA_ERROR(CUDA_ERROR_SYSTEM_NOT_READY),
    SOFTCUDA_ERROR(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH),
    SOFTCUDA_ERROR(CUDA_ERROR_ILLEGAL_STATE),
    SOFTCUDA_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    SOFTCUDA_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
    SOFTCUDA_ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
    SOFTCUDA_ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD),
    SOFTCUDA_ERROR(CUDA_ERROR_UNKNOWN),
};

// What GPUSM_SOFTCUDA_ATTRIBUTES says of all devices: "number:value,...".
std::optional<int> forced_attribute(int what)
{
    const char *list = std::getenv("GPUSM_SOFTCUDA_ATTRIBUTES");
    for (const char *at = list; at != nullptr; at = std::strchr(at, ',')) {
        at += ',' == *at ? 1 : 0;
        int number = 0;
        int value = 0;
        if (2 == std::sscanf(at, "%d:%d", &number, &value) && number == what) {
            return value;
        }
    }
    return std::nullopt;
}

// Where the device sits on the bus.
int pci_bus(CUdevice device)
{
    return 0x10 + state_of(device).physical;
}

} // namespace

SOFTCUDA_API(nothing, cuDriverGetVersion, (int *out), (out))
{
    return give(out, 13000);
}

SOFTCUDA_API(nothing, cuGetErrorName, (CUresult code, const char **out), (code, out))
{
    for (const auto &[each, name] : error_names) {
        if (each == code) {
            return give(out, name);
        }
    }
    *out = nullptr;
    return CUDA_ERROR_INVALID_VALUE;
}

SOFTCUDA_API(init, cuDeviceGetCount, (int *out), (out))
{
    return give(out, static_cast<int>(drv().devices.size()));
}

SOFTCUDA_API(init, cuDeviceGet, (CUdevice * out, int ordinal), (out, ordinal))
{
    REQUIRE(valid_device(ordinal), CUDA_ERROR_INVALID_DEVICE);
    return give(out, ordinal);
}

SOFTCUDA_API(init, cuDeviceGetName, (char *out, int len, CUdevice device), (out, len, device))
{
    REQUIRE(valid_device(device), CUDA_ERROR_INVALID_DEVICE);
    std::snprintf(out, static_cast<std::size_t>(len), "gpusm software device");
    return CUDA_SUCCESS;
}

// The same for every process, whatever CUDA_VISIBLE_DEVICES says.
SOFTCUDA_API(init, cuDeviceGetUuid_v2, (CUuuid * out, CUdevice device), (out, device))
{
    REQUIRE(valid_device(device), CUDA_ERROR_INVALID_DEVICE);
    std::memcpy(out->bytes, "gpusm-softcuda-", 15);
    out->bytes[15] = static_cast<char>(state_of(device).physical);
    return CUDA_SUCCESS;
}
// This one names the GPU of which the device may be an instance.
SOFTCUDA_API(init, cuDeviceGetUuid, (CUuuid * out, CUdevice device), (out, device))
{
    const CUresult result = do_cuDeviceGetUuid_v2(out, device);
    if (CUDA_SUCCESS == result && drv().one_gpu) {
        out->bytes[15] = 0;
    }
    return result;
}

SOFTCUDA_API(init, cuDeviceGetAttribute, (int *out, CUdevice_attribute what, CUdevice device),
             (out, what, device))
{
    REQUIRE(valid_device(device), CUDA_ERROR_INVALID_DEVICE);
    if (const auto forced = forced_attribute(static_cast<int>(what)); forced) {
        return give(out, *forced);
    }
    switch (static_cast<int>(what)) {
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        return give(out, pci_bus(device));
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return give(out, 9);
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
        return give(out, 1);
    default: // theirs: what nobody has asked for yet
        return give(out, 0);
    }
}

SOFTCUDA_API(init, cuDeviceTotalMem_v2, (size_t * out, CUdevice device), (out, device))
{
    REQUIRE(valid_device(device), CUDA_ERROR_INVALID_DEVICE);
    return give(out, device_bytes);
}

// All pairs are alike, and none has atomics.
SOFTCUDA_API(init, cuDeviceGetP2PAttribute,
             (int *out, CUdevice_P2PAttribute what, CUdevice from, CUdevice to),
             (out, what, from, to))
{
    REQUIRE(valid_device(from) && valid_device(to) && from != to, CUDA_ERROR_INVALID_DEVICE);
    return give(out, what == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED && drv().peers_connected);
}

SOFTCUDA_API(init, cuDeviceGetPCIBusId, (char *out, int len, CUdevice device), (out, len, device))
{
    REQUIRE(valid_device(device), CUDA_ERROR_INVALID_DEVICE);
    std::snprintf(out, static_cast<std::size_t>(len), "0000:%02X:00.0", pci_bus(device));
    return CUDA_SUCCESS;
}
