// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// driver_api.cc: loading of the driver table and choice of the device.
#include "bench/common/driver_api.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace gpusm::bench {

namespace {

struct loaded_driver {
    driver_api table;
    std::string error; // empty when the table is complete
};

loaded_driver load()
{
    loaded_driver result;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (nullptr == library) {
        result.error = "no CUDA driver: libcuda.so.1 could not be loaded";
        return result;
    }
    const char *missing = nullptr;
    auto symbol = [&](const char *name) {
        void *address = dlsym(library, name);
        if (nullptr == address && nullptr == missing) {
            missing = name;
        }
        return address;
    };
#define GPUSM_BENCH_LOAD(field, name, ...)                                                         \
    result.table.field = reinterpret_cast<decltype(result.table.field)>(symbol(name));
    GPUSM_BENCH_DRIVER_FUNCTIONS(GPUSM_BENCH_LOAD)
#undef GPUSM_BENCH_LOAD
    if (nullptr != missing) {
        result.error = std::string("the CUDA driver is too old: it has no function ") + missing;
    }
    return result;
}

} // namespace

const driver_api *load_driver(std::string *why)
{
    static const loaded_driver loaded = load();
    if (!loaded.error.empty()) {
        *why = loaded.error;
        return nullptr;
    }
    return &loaded.table;
}

std::string driver_error(const driver_api &driver, const char *function, CUresult result)
{
    const char *name = nullptr;
    if (CUDA_SUCCESS != driver.get_error_name(result, &name) || nullptr == name) {
        name = "unknown error";
    }
    return std::string(function) + ": " + name;
}

std::unique_ptr<device> device::open(int local_rank, std::string *why)
{
    const driver_api *driver = load_driver(why);
    if (nullptr == driver) {
        return nullptr;
    }
    CUresult result = driver->init(0);
    if (CUDA_SUCCESS != result) {
        *why = driver_error(*driver, "cuInit", result);
        return nullptr;
    }
    int count = 0;
    result = driver->device_get_count(&count);
    if (CUDA_SUCCESS != result || count <= 0) {
        *why = "the CUDA driver reports no device";
        return nullptr;
    }
    CUdevice handle = 0;
    result = driver->device_get(&handle, local_rank % count);
    if (CUDA_SUCCESS != result) {
        *why = driver_error(*driver, "cuDeviceGet", result);
        return nullptr;
    }
    std::unique_ptr<device> opened(new device(*driver, handle));
    result = driver->primary_retain(&opened->context_, handle);
    if (CUDA_SUCCESS != result) {
        opened->context_ = nullptr;
        *why = driver_error(*driver, "cuDevicePrimaryCtxRetain", result);
        return nullptr;
    }
    *why = opened->make_current();
    if (!why->empty()) {
        return nullptr;
    }
    char name[128] = "";
    if (CUDA_SUCCESS == driver->device_get_name(name, sizeof(name) - 1, handle)) {
        opened->name_ = name;
    }
    CUuuid uuid = {};
    if (CUDA_SUCCESS == driver->device_get_uuid(&uuid, handle)) {
        auto byte = [&](int i) { return static_cast<unsigned char>(uuid.bytes[i]); };
        char digits[24];
        std::snprintf(digits, sizeof(digits), "GPU-%02x%02x%02x%02x..%02x%02x", byte(0), byte(1),
                      byte(2), byte(3), byte(14), byte(15));
        opened->uuid_ = digits;
    }
    if (CUDA_SUCCESS != driver->driver_get_version(&opened->version_)) {
        opened->version_ = 0;
    }
    int bytes = 0;
    if (CUDA_SUCCESS ==
            driver->device_get_attribute(&bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, handle) &&
        bytes > 0) {
        opened->l2_cache_bytes_ = static_cast<std::size_t>(bytes);
    }
    return opened;
}

device::~device()
{
    // A driver that is already shutting down answers with an error here; nothing is left to undo.
    if (nullptr != context_) {
        (void)driver_.primary_release(handle_);
    }
}

std::string device::make_current() const
{
    CUresult result = driver_.ctx_set_current(context_);
    return CUDA_SUCCESS == result ? std::string()
                                  : driver_error(driver_, "cuCtxSetCurrent", result);
}

int local_rank_from_environment()
{
    const char *text = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    int rank = nullptr == text ? 0 : std::atoi(text);
    return rank < 0 ? 0 : rank;
}

} // namespace gpusm::bench
