// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// context.cc: driver start, contexts, the current-context stack of each thread, peers.
#include "stream.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

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
    return text == nullptr || *text == 0 ? otherwise : std::strtoull(text, nullptr, 10);
}

// CUDA_VISIBLE_DEVICES: ordinals; the list ends at the first that does not exist.
std::vector<int> visible_list(int physical)
{
    std::vector<int> out;
    const char *text = std::getenv("CUDA_VISIBLE_DEVICES");
    if (text == nullptr) {
        out.resize(static_cast<std::size_t>(physical));
        std::iota(out.begin(), out.end(), 0);
        return out;
    }
    while (*text != 0) {
        char *end = nullptr;
        const auto n = static_cast<int>(std::strtol(text, &end, 10));
        if (end == text || n < 0 || n >= physical ||
            std::find(out.begin(), out.end(), n) != out.end()) {
            break;
        }
        out.push_back(n);
        text = *end == ',' ? end + 1 : end;
    }
    return out;
}

context *make_context(const hold &held, int device, unsigned flags)
{
    auto *ctx = new context;
    ctx->device = device;
    ctx->flags = flags;
    ctx->legacy = make_stream(held, ctx, 0);
    ctx->legacy->legacy = true;
    drv().contexts.insert(ctx);
    return ctx;
}

context *find_context(const hold &, CUcontext handle)
{
    auto *ctx = reinterpret_cast<context *>(handle);
    return drv().contexts.count(ctx) != 0 ? ctx : nullptr;
}

// Gives memory and mappings of a context back. Waits for its streams first.
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
    ctx->streams.clear();
    ctx->peers.clear();
}

CUresult push(context *ctx)
{
    REQUIRE(stack.depth < 64, CUDA_ERROR_OUT_OF_MEMORY);
    stack.at[stack.depth++] = ctx;
    return CUDA_SUCCESS;
}

} // namespace

driver &drv()
{
    return *the_driver;
}

CUresult driver_start()
{
    const auto n = static_cast<int>(number_from_environment("GPUSM_SOFTCUDA_DEVICES", 2));
    const std::vector<int> visible = visible_list(std::clamp(n, 0, max_devices));
    REQUIRE(!visible.empty(), CUDA_ERROR_NO_DEVICE);
    rlimit files{}; // one descriptor per block: what the system allows
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    auto *d = new driver;
    the_driver = d;
    d->delay_us = number_from_environment("GPUSM_SOFTCUDA_DELAY_US", 0);
    d->delay_nonblocking_us =
        number_from_environment("GPUSM_SOFTCUDA_DELAY_NONBLOCKING_US", d->delay_us);
    d->peers_connected = number_from_environment("GPUSM_SOFTCUDA_PEERS", 1) != 0;
    d->page_bytes = number_from_environment("GPUSM_SOFTCUDA_PAGE_BYTES", d->page_bytes);
    d->one_gpu = number_from_environment("GPUSM_SOFTCUDA_INSTANCES", 0) != 0;
    hold held(d->lock);
    for (const int physical : visible) {
        const int ordinal = static_cast<int>(d->devices.size());
        context *primary = make_context(held, ordinal, 0);
        primary->primary = true;
        primary->alive = false;
        d->devices.push_back({physical, primary, make_pool(held, ordinal, 0)});
    }
    return CUDA_SUCCESS;
}

context *current_context() noexcept
{
    return stack.depth > 0 ? stack.at[stack.depth - 1] : nullptr;
}

CUresult current_context_state() noexcept
{
    context *ctx = current_context();
    REQUIRE(ctx != nullptr, CUDA_ERROR_INVALID_CONTEXT);
    hold held(drv().lock);
    return ctx->alive ? ctx->sticky : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

bool valid_device(CUdevice device)
{
    return device >= 0 && device < static_cast<int>(drv().devices.size());
}

device_state &state_of(CUdevice device)
{
    return drv().devices[static_cast<std::size_t>(device)];
}

int visible_device(int physical)
{
    for (int i = 0; valid_device(i); ++i) {
        if (state_of(i).physical == physical) {
            return i;
        }
    }
    return -1;
}

} // namespace softcuda

using namespace softcuda;

SOFTCUDA_LOCKED(init_uncaptured, cuCtxCreate_v2, (CUcontext * out, unsigned flags, CUdevice device),
                (out, flags, device))
{
    REQUIRE(valid_device(device), CUDA_ERROR_INVALID_DEVICE);
    context *ctx = make_context(held, device, flags);
    *out = reinterpret_cast<CUcontext>(ctx);
    return push(ctx);
}
#if CUDA_VERSION >= 12050
SOFTCUDA_LOCKED(init_uncaptured, cuCtxCreate_v4,
                (CUcontext * out, CUctxCreateParams *params, unsigned flags, CUdevice device),
                (out, params, flags, device))
{
    return do_cuCtxCreate_v2(held, out, flags, device);
}
#endif

SOFTCUDA_LOCKED(init_uncaptured, cuCtxDestroy_v2, (CUcontext handle), (handle))
{
    context *ctx = find_context(held, handle);
    REQUIRE(ctx != nullptr && !ctx->primary, CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(ctx->alive, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    release_context(held, ctx);
    ctx->legacy->destroyed = true;
    ctx->legacy->work.notify_one();
    if (current_context() == ctx) {
        --stack.depth;
    }
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(init, cuCtxPushCurrent_v2, (CUcontext handle), (handle))
{
    context *ctx = find_context(held, handle);
    REQUIRE(ctx != nullptr && ctx->alive, CUDA_ERROR_INVALID_CONTEXT);
    return push(ctx);
}

SOFTCUDA_API(init, cuCtxPopCurrent_v2, (CUcontext * out), (out))
{
    REQUIRE(stack.depth > 0, CUDA_ERROR_INVALID_CONTEXT);
    context *ctx = stack.at[--stack.depth];
    if (out != nullptr) {
        *out = reinterpret_cast<CUcontext>(ctx);
    }
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(init, cuCtxSetCurrent, (CUcontext handle), (handle))
{
    context *ctx = find_context(held, handle);
    REQUIRE(handle == nullptr || (ctx != nullptr && ctx->alive), CUDA_ERROR_INVALID_CONTEXT);
    stack.depth -= stack.depth > 0 ? 1 : 0;
    return handle == nullptr ? CUDA_SUCCESS : push(ctx);
}

SOFTCUDA_API(init, cuCtxGetCurrent, (CUcontext * out), (out))
{
    return give(out, reinterpret_cast<CUcontext>(current_context()));
}

SOFTCUDA_API(context, cuCtxGetDevice, (CUdevice * out), (out))
{
    return give(out, current_context()->device);
}

SOFTCUDA_API(context, cuCtxGetFlags, (unsigned *out), (out))
{
    return give(out, current_context()->flags);
}

SOFTCUDA_LOCKED(context, cuCtxSetFlags, (unsigned flags), (flags))
{
    REQUIRE((flags & ~0xffu) == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(flags == current_context()->flags || !spoil_captures_of(held, current_context()),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    current_context()->flags = flags;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context_uncaptured, cuCtxSynchronize, (void), ())
{
    hold held(drv().lock);
    context *ctx = current_context();
    REQUIRE(!spoil_captures_of(held, ctx), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    wait_for_context(held, ctx);
    return ctx->sticky;
}

// ---------------------------------------------------------------- primary contexts

SOFTCUDA_LOCKED(init, cuDevicePrimaryCtxRetain, (CUcontext * out, CUdevice device), (out, device))
{
    REQUIRE(valid_device(device), CUDA_ERROR_INVALID_DEVICE);
    context *ctx = state_of(device).primary;
    if (ctx->retained++ == 0) { // another context, though its handle is the same
        ctx->alive = true;
        ctx->sticky = CUDA_SUCCESS;
        ctx->flags = 0;
    }
    return give(out, reinterpret_cast<CUcontext>(ctx));
}

SOFTCUDA_LOCKED(init_uncaptured, cuDevicePrimaryCtxRelease_v2, (CUdevice device), (device))
{
    REQUIRE(valid_device(device), CUDA_ERROR_INVALID_DEVICE);
    context *ctx = state_of(device).primary;
    REQUIRE(ctx->retained > 0, CUDA_ERROR_INVALID_CONTEXT);
    if (--ctx->retained == 0) {
        release_context(held, ctx);
    }
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(init_uncaptured, cuDevicePrimaryCtxReset_v2, (CUdevice device), (device))
{
    REQUIRE(valid_device(device), CUDA_ERROR_INVALID_DEVICE);
    context *ctx = state_of(device).primary;
    if (ctx->alive) {
        release_context(held, ctx);
    }
    ctx->retained = 0;
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(init, cuDevicePrimaryCtxGetState, (CUdevice device, unsigned *flags, int *active),
                (device, flags, active))
{
    REQUIRE(valid_device(device), CUDA_ERROR_INVALID_DEVICE);
    *flags = 0;
    *active = state_of(device).primary->alive ? 1 : 0;
    return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- peers

SOFTCUDA_API(init, cuDeviceCanAccessPeer, (int *out, CUdevice device, CUdevice peer),
             (out, device, peer))
{
    REQUIRE(valid_device(device) && valid_device(peer), CUDA_ERROR_INVALID_DEVICE);
    *out = device != peer && drv().peers_connected ? 1 : 0;
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(context, cuCtxEnablePeerAccess, (CUcontext handle, unsigned flags), (handle, flags))
{
    const context *peer = find_context(held, handle);
    context *ctx = current_context();
    REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(peer != nullptr && peer->alive && peer != ctx, CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(peer->device != ctx->device && drv().peers_connected,
            CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    REQUIRE(ctx->peers.insert(peer->device).second, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    return CUDA_SUCCESS;
}
