// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// context.cc: driver start and end, contexts, the current-context stack of each thread, peers.
#include "capture.h"
#include "pool.h"
#include "vmm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

namespace softcuda {

namespace {

driver *the_driver = nullptr;

// Plain data: no destructor runs when a thread ends, whenever that is.
struct context_stack {
    context *at[64];
    int depth;
};
thread_local context_stack stack;

unsigned long long number_from_environment(const char *name, unsigned long long otherwise)
{
    const char *text = std::getenv(name);
    if (text == nullptr || *text == 0) {
        return otherwise;
    }
    char *end = nullptr;
    unsigned long long value = std::strtoull(text, &end, 10);
    return end == text ? otherwise : value;
}

// CUDA_VISIBLE_DEVICES: ordinals; the list ends at the first that does not exist.
std::vector<int> visible_list(int physical)
{
    std::vector<int> out;
    const char *text = std::getenv("CUDA_VISIBLE_DEVICES");
    if (text == nullptr) {
        for (int i = 0; i < physical; ++i) {
            out.push_back(i);
        }
        return out;
    }
    while (*text != 0) {
        char *end = nullptr;
        long n = std::strtol(text, &end, 10);
        if (end == text || n < 0 || n >= physical ||
            std::find(out.begin(), out.end(), static_cast<int>(n)) != out.end()) {
            break;
        }
        out.push_back(static_cast<int>(n));
        text = *end == ',' ? end + 1 : end;
    }
    return out;
}

context *make_context(const hold &held, int device, unsigned flags)
{
    auto *ctx = new context;
    ctx->device = device;
    ctx->flags = flags;
    ctx->id = drv().next_id++;
    ctx->legacy = make_stream(held, ctx, 0, 0);
    ctx->legacy->legacy = true;
    drv().contexts.insert(ctx);
    return ctx;
}

bool known(const hold &, context *ctx)
{
    return drv().contexts.count(ctx) != 0;
}

} // namespace

driver &drv()
{
    return *the_driver;
}

CUresult driver_start()
{
    auto n = static_cast<int>(number_from_environment("GPUSM_SOFTCUDA_DEVICES", 2));
    std::vector<int> visible = visible_list(std::clamp(n, 0, max_devices));
    if (visible.empty()) {
        return CUDA_ERROR_NO_DEVICE;
    }
    auto *d = new driver;
    the_driver = d;
    d->memory_bytes = number_from_environment("GPUSM_SOFTCUDA_MEMORY_MB", 16384) << 20;
    d->delay_us = number_from_environment("GPUSM_SOFTCUDA_DELAY_US", 0);
    d->delay_nonblocking_us =
        number_from_environment("GPUSM_SOFTCUDA_DELAY_NONBLOCKING_US", d->delay_us);
    d->peers_connected = number_from_environment("GPUSM_SOFTCUDA_PEERS", 1) != 0;
    d->early_return = number_from_environment("GPUSM_SOFTCUDA_EARLY_RETURN", 1) != 0;
    d->taken.open();
    hold held(d->lock);
    for (int physical : visible) {
        device_state state;
        state.physical = physical;
        d->devices.push_back(state);
    }
    for (int i = 0; i < static_cast<int>(d->devices.size()); ++i) {
        device_state &state = d->devices[static_cast<std::size_t>(i)];
        state.primary = make_context(held, i, 0);
        state.primary->primary = true;
        state.primary->alive = false;
        state.default_pool = state.current_pool = make_default_pool(held, i);
    }
    return CUDA_SUCCESS;
}

void driver_exit()
{
    the_driver->taken.close();
}

context *current_context() noexcept
{
    return stack.depth > 0 ? stack.at[stack.depth - 1] : nullptr;
}

CUresult current_context_state() noexcept
{
    context *ctx = current_context();
    if (ctx == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    hold held(drv().lock);
    return ctx->alive ? ctx->sticky : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void set_sticky(context *ctx, CUresult error)
{
    hold held(drv().lock);
    if (ctx->sticky == CUDA_SUCCESS) {
        ctx->sticky = error;
    }
}

bool valid_device(CUdevice device)
{
    return device >= 0 && device < static_cast<int>(drv().devices.size());
}

int visible_device(int physical)
{
    for (std::size_t i = 0; i < drv().devices.size(); ++i) {
        if (drv().devices[i].physical == physical) {
            return static_cast<int>(i);
        }
    }
    return -1;
}

void release_context(hold &held, context *ctx)
{
    wait_for_context(held, ctx);
    ctx->alive = false;
    std::vector<std::uint64_t> mine;
    for (auto &[base, r] : drv().space.all()) {
        if (r.ctx == ctx) {
            mine.push_back(base);
        }
    }
    for (std::uint64_t base : mine) {
        release_range(held, drv().space.find_base(base));
    }
    for (const stream_ref &s : ctx->streams) {
        s->destroyed = true;
        s->work.notify_one();
        drv().streams.erase(s.get());
    }
    drop_captures(held, ctx);
    ctx->streams.clear();
    ctx->peers.clear();
}

} // namespace softcuda

using namespace softcuda;

SOFTCUDA_API(init, cuCtxCreate_v2, (CUcontext * out, unsigned flags, CUdevice device),
             (out, flags, device))
{
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!valid_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (stack.depth >= 64) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    hold held(drv().lock);
    context *ctx = make_context(held, device, flags);
    stack.at[stack.depth++] = ctx;
    *out = reinterpret_cast<CUcontext>(ctx);
    return CUDA_SUCCESS;
}

SOFTCUDA_SAME(init, cuCtxCreate_v3, cuCtxCreate_v2,
              (CUcontext * out, CUexecAffinityParam *params, int count, unsigned flags,
               CUdevice device),
              (out, params, count, flags, device), (out, flags, device))

#if CUDA_VERSION >= 12050
SOFTCUDA_SAME(init, cuCtxCreate_v4, cuCtxCreate_v2,
              (CUcontext * out, CUctxCreateParams *params, unsigned flags, CUdevice device),
              (out, params, flags, device), (out, flags, device))
#endif

SOFTCUDA_API(init, cuCtxDestroy_v2, (CUcontext handle), (handle))
{
    hold held(drv().lock);
    auto *ctx = reinterpret_cast<context *>(handle);
    if (!known(held, ctx) || ctx->primary) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!ctx->alive) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    release_context(held, ctx);
    ctx->legacy->destroyed = true;
    ctx->legacy->work.notify_one();
    if (current_context() == ctx) {
        --stack.depth;
    }
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuCtxPushCurrent_v2, (CUcontext handle), (handle))
{
    hold held(drv().lock);
    auto *ctx = reinterpret_cast<context *>(handle);
    if (!known(held, ctx) || !ctx->alive) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (stack.depth >= 64) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stack.at[stack.depth++] = ctx;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuCtxPopCurrent_v2, (CUcontext * out), (out))
{
    if (stack.depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    context *ctx = stack.at[--stack.depth];
    if (out != nullptr) {
        *out = reinterpret_cast<CUcontext>(ctx);
    }
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuCtxSetCurrent, (CUcontext handle), (handle))
{
    hold held(drv().lock);
    auto *ctx = reinterpret_cast<context *>(handle);
    if (ctx == nullptr) {
        stack.depth -= stack.depth > 0 ? 1 : 0;
        return CUDA_SUCCESS;
    }
    if (!known(held, ctx) || !ctx->alive) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (stack.depth == 0) {
        stack.depth = 1;
    }
    stack.at[stack.depth - 1] = ctx;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuCtxGetCurrent, (CUcontext * out), (out))
{
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = reinterpret_cast<CUcontext>(current_context());
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuCtxGetDevice, (CUdevice * out), (out))
{
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = current_context()->device;
    return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 13000
SOFTCUDA_API(init, cuCtxGetDevice_v2, (CUdevice * out, CUcontext handle), (out, handle))
{
    hold held(drv().lock);
    auto *ctx = handle == nullptr ? current_context() : reinterpret_cast<context *>(handle);
    if (!known(held, ctx)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *out = ctx->device;
    return CUDA_SUCCESS;
}
#endif

SOFTCUDA_API(init, cuCtxGetId, (CUcontext handle, unsigned long long *out), (handle, out))
{
    hold held(drv().lock);
    auto *ctx = handle == nullptr ? current_context() : reinterpret_cast<context *>(handle);
    if (!known(held, ctx)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!ctx->alive) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    *out = ctx->id;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuCtxGetFlags, (unsigned *out), (out))
{
    *out = current_context()->flags;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuCtxSetFlags, (unsigned flags), (flags))
{
    if ((flags & ~0xffu) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    hold held(drv().lock);
    current_context()->flags = flags;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuCtxGetApiVersion, (CUcontext handle, unsigned *out), (handle, out))
{
    (void)handle;
    *out = 3020;
    return CUDA_SUCCESS;
}
