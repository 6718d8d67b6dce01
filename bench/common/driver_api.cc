// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// driver_api.cc: loading of the driver table and choice of the device.
#include "bench/common/driver_api.h"

#include <dlfcn.h>

#include <algorithm>
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
#define GPUSM_BENCH_NAME(name) #name
#define GPUSM_BENCH_LOAD(field, name)                                                              \
    result.table.field =                                                                           \
        reinterpret_cast<decltype(result.table.field)>(symbol(GPUSM_BENCH_NAME(name)));
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
    CUdevice handle = 0;
    int count = 0;
    const CUresult started = driver->init(0);
    if (CUDA_SUCCESS != started) {
        *why = driver_error(*driver, "cuInit", started);
        return nullptr;
    }
    if (CUDA_SUCCESS != driver->device_get_count(&count) || count <= 0 ||
        CUDA_SUCCESS != driver->device_get(&handle, local_rank % count)) {
        *why = "the CUDA driver reports no device";
        return nullptr;
    }
    std::unique_ptr<device> opened(new device(*driver, handle));
    *why = opened->judge("cuDevicePrimaryCtxRetain",
                         driver->primary_retain(&opened->context_, handle));
    *why = why->empty() ? opened->make_current() : *why;
    if (!why->empty()) {
        return nullptr;
    }
    char name[128] = "";
    CUuuid uuid = {};
    int version = 0;
    (void)driver->device_get_name(name, sizeof(name) - 1, handle);
    (void)driver->device_get_uuid(&uuid, handle);
    (void)driver->driver_get_version(&version);
    char text[256];
    auto byte = [&](int i) { return static_cast<unsigned char>(uuid.bytes[i]); };
    std::snprintf(text, sizeof(text), "GPU-%02x%02x%02x%02x..%02x%02x", byte(0), byte(1), byte(2),
                  byte(3), byte(14), byte(15));
    opened->name_ = name;
    opened->uuid_ = text;
    std::snprintf(text, sizeof(text), "device %d, %s, %s, CUDA %d.%d", opened->ordinal(), name,
                  opened->uuid_.c_str(), version / 1000, version % 1000 / 10);
    opened->text_ = text;
    int bytes = 0;
    (void)driver->device_get_attribute(&bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, handle);
    opened->l2_cache_bytes_ = static_cast<std::size_t>(std::max(0, bytes));
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
    return judge("cuCtxSetCurrent", driver_.ctx_set_current(context_));
}

int local_rank_from_environment()
{
    const char *text = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    int rank = nullptr == text ? 0 : std::atoi(text);
    return rank < 0 ? 0 : rank;
}

} // namespace gpusm::bench
