// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/driver.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <dlfcn.h>
#include <type_traits>

namespace gpusm {

namespace {

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
    const char *missing = driver_fill(&api, library, dlsym);
    if (missing != nullptr) {
        log_line(log_level::info, "the CUDA driver is too old: it has no %s", missing);
        return nullptr;
    }
    return &api;
}

// To use the legacy stream would end the capture; to ask whether there is one does not.
bool legacy_stream_is_barred(const driver_api &driver)
{
    CUstreamCaptureStatus capturing{};
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ==
           driver.stream_is_capturing(CU_STREAM_LEGACY, &capturing);
}

} // namespace

// Two steps, so that cuda.h's macro turns the function into its versioned name first.
#define GPUSM_STRING_OF(text) #text
#define GPUSM_SYMBOL_OF(function) GPUSM_STRING_OF(function)

const char *driver_fill(driver_api *out, void *library,
                        void *(*find)(void *library, const char *symbol))
{
    const auto load = [&](auto *member, const char *symbol) {
        *member = reinterpret_cast<std::remove_pointer_t<decltype(member)>>(find(library, symbol));
        return *member != nullptr;
    };
    const char *missing = nullptr;
#define GPUSM_LOAD(member, function)                                                               \
    missing = load(&out->member, GPUSM_SYMBOL_OF(function)) ? missing : GPUSM_SYMBOL_OF(function);
    GPUSM_DRIVER_FUNCTIONS(GPUSM_LOAD)
#undef GPUSM_LOAD
    (void)load(&out->ctx_set_flags, "cuCtxSetFlags");
    // Before CUDA 13 cuda.h means the first version, which names the GPU, not the instance of it.
    if (decltype(out->device_get_uuid) of_instance = nullptr;
        load(&of_instance, "cuDeviceGetUuid_v2")) {
        out->device_get_uuid = of_instance;
    }
#if GPUSM_HAVE_BATCH_COPY
    (void)(load(&out->batch_copy, "cuMemcpyBatchAsync_v2") ||
           load(&out->batch_copy_12_8, "cuMemcpyBatchAsync"));
#endif
    return missing;
}

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

status driver_api::record_legacy_stream(CUevent event) const
{
    return legacy_stream_is_barred(*this)
               ? status::ok
               : report("cuEventRecord", event_record(event, CU_STREAM_LEGACY));
}

status driver_api::wait_for_legacy_stream() const
{
    return legacy_stream_is_barred(*this)
               ? status::not_ready
               : report("cuStreamSynchronize", stream_synchronize(CU_STREAM_LEGACY));
}

bool driver_api::legacy_stream_is_idle() const
{
    return !legacy_stream_is_barred(*this) && CUDA_SUCCESS == stream_query(CU_STREAM_LEGACY);
}

status driver_api::report(const char *what, CUresult result) const
{
    if (CUDA_SUCCESS == result) {
        return status::ok;
    }
    if (!driver_is_down(result)) {
        log_line(log_level::warn, "%s failed: %s", what, error_name(result));
    }
    return status::driver_failed;
}

status driver_api::answer(const char *what, CUresult result) const
{
    switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
    case CUDA_ERROR_TOO_MANY_PEERS: // as many as a device can have
        return status::no_memory;
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
        return status::unsupported;
    default: // CUresult is the driver's enum, and grows
        return report(what, result);
    }
}

driver_scope::driver_scope(const driver_api &driver)
    : driver_(driver), relaxed_(CUDA_SUCCESS == driver.exchange_capture_mode(&mode_)),
      entered_(relaxed_)
{
}

driver_scope::driver_scope(const driver_api &driver, CUcontext context) : driver_scope(driver)
{
    CUcontext current = nullptr;
    if (nullptr == context || !relaxed_) {
        entered_ = false;
    } else if (CUDA_SUCCESS != driver_.ctx_get_current(&current) || current != context) {
        entered_ = pushed_ = CUDA_SUCCESS == driver_.ctx_push_current(context);
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
