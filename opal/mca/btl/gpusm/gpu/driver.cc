// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/gpu/driver.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <dlfcn.h>

namespace gpusm {

namespace {

// Two steps, so that cuda.h's macro turns the function into its versioned name first.
#define GPUSM_STRING_OF(text) #text
#define GPUSM_SYMBOL_OF(function) GPUSM_STRING_OF(function)

const driver_api *load_once()
{
    // By soname: the very library that the program uses, however it came in. Never closed:
    // the driver does not survive that.
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (nullptr == library) {
        log_line(log_level::info, "no CUDA driver: %s", dlerror());
        return nullptr;
    }
    static driver_api api;
    const char *missing = nullptr;
#define GPUSM_LOAD(member, function)                                                               \
    api.member =                                                                                   \
        reinterpret_cast<decltype(api.member)>(dlsym(library, GPUSM_SYMBOL_OF(function)));         \
    missing = nullptr == api.member ? GPUSM_SYMBOL_OF(function) : missing;
    GPUSM_DRIVER_FUNCTIONS(GPUSM_LOAD)
#undef GPUSM_LOAD
#if GPUSM_HAVE_BATCH_COPY
    api.batch_copy = reinterpret_cast<batch_copy_fn>(dlsym(library, "cuMemcpyBatchAsync_v2"));
    if (nullptr == api.batch_copy) {
        api.batch_copy_12_8 =
            reinterpret_cast<batch_copy_12_8_fn>(dlsym(library, "cuMemcpyBatchAsync"));
    }
#endif
    if (missing != nullptr) {
        log_line(log_level::info, "the CUDA driver is too old: it has no %s", missing);
        return nullptr;
    }
    return &api;
}

} // namespace

const driver_api *driver_load()
{
    static const driver_api *const api = load_once();
    return api;
}

bool driver_is_down(CUresult result)
{
    return CUDA_ERROR_DEINITIALIZED == result || CUDA_ERROR_NOT_INITIALIZED == result ||
           CUDA_ERROR_CONTEXT_IS_DESTROYED == result;
}

const char *driver_api::error_name(CUresult result) const
{
    const char *name = nullptr;
    return CUDA_SUCCESS == get_error_name(result, &name) && name != nullptr ? name
                                                                            : "an unknown error";
}

CUresult driver_api::copy_batch(CUdeviceptr *destinations, CUdeviceptr *sources, size_t *sizes,
                                size_t count, CUstream stream) const
{
#if GPUSM_HAVE_BATCH_COPY
    CUmemcpyAttributes in_stream_order{};
    in_stream_order.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    size_t from_the_first_on = 0;
    if (batch_copy != nullptr) {
        return batch_copy(destinations, sources, sizes, count, &in_stream_order, &from_the_first_on,
                          1, stream);
    }
    if (batch_copy_12_8 != nullptr) {
        size_t failed = 0;
        return batch_copy_12_8(destinations, sources, sizes, count, &in_stream_order,
                               &from_the_first_on, 1, &failed, stream);
    }
#else
    (void)destinations, (void)sources, (void)sizes, (void)count, (void)stream;
#endif
    return CUDA_ERROR_NOT_SUPPORTED;
}

status driver_api::report(const char *what, CUresult result) const
{
    if (!driver_is_down(result)) {
        log_line(log_level::warn, "%s failed: %s", what, error_name(result));
    }
    return status::driver_failed;
}

driver_scope::driver_scope(const driver_api &driver, CUcontext context) : driver_(driver)
{
    relaxed_ = CUDA_SUCCESS == driver_.exchange_capture_mode(&mode_);
    if (!relaxed_) {
        return;
    }
    CUcontext current = nullptr;
    entered_ = CUDA_SUCCESS == driver_.ctx_get_current(&current) && current == context;
    if (!entered_) {
        pushed_ = CUDA_SUCCESS == driver_.ctx_push_current(context);
        entered_ = pushed_;
    }
}

driver_scope::~driver_scope()
{
    if (pushed_) {
        CUcontext ours = nullptr;
        (void)driver_.ctx_pop_current(&ours);
    }
    if (relaxed_) {
        (void)driver_.exchange_capture_mode(&mode_);
    }
}

} // namespace gpusm
