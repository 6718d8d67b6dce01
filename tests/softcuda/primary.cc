// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// primary.cc: primary contexts, context-wide waiting and limits, peer access.
#include "capture.h"

using namespace softcuda;

namespace {

device_state &state_of(CUdevice device)
{
    return drv().devices[static_cast<std::size_t>(device)];
}

} // namespace

SOFTCUDA_API(init, cuDevicePrimaryCtxRetain, (CUcontext * out, CUdevice device), (out, device))
{
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!valid_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    hold held(drv().lock);
    context *ctx = state_of(device).primary;
    if (ctx->retained++ == 0) {
        ctx->alive = true;
        ctx->sticky = CUDA_SUCCESS;
        ctx->id = drv().next_id++; // another context, though its handle is the same
        ctx->flags = state_of(device).primary_flags;
    }
    *out = reinterpret_cast<CUcontext>(ctx);
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuDevicePrimaryCtxRelease_v2, (CUdevice device), (device))
{
    if (!valid_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    hold held(drv().lock);
    context *ctx = state_of(device).primary;
    if (ctx->retained == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (--ctx->retained == 0) {
        release_context(held, ctx);
    }
    return CUDA_SUCCESS;
}
SOFTCUDA_SAME(init, cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice device),
              (device), (device))

SOFTCUDA_API(init, cuDevicePrimaryCtxReset_v2, (CUdevice device), (device))
{
    if (!valid_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    hold held(drv().lock);
    context *ctx = state_of(device).primary;
    if (ctx->alive) {
        release_context(held, ctx);
    }
    ctx->retained = 0;
    return CUDA_SUCCESS;
}
SOFTCUDA_SAME(init, cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, (CUdevice device),
              (device), (device))

SOFTCUDA_API(init, cuDevicePrimaryCtxGetState, (CUdevice device, unsigned *flags, int *active),
             (device, flags, active))
{
    if (!valid_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    hold held(drv().lock);
    *flags = state_of(device).primary_flags;
    *active = state_of(device).primary->alive ? 1 : 0;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned flags),
             (device, flags))
{
    if (!valid_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    hold held(drv().lock);
    state_of(device).primary_flags = flags;
    return CUDA_SUCCESS;
}
SOFTCUDA_SAME(init, cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2,
              (CUdevice device, unsigned flags), (device, flags), (device, flags))

SOFTCUDA_API(context, cuCtxSynchronize, (void), ())
{
    hold held(drv().lock);
    context *ctx = current_context();
    if (spoil_captures_of(held, ctx)) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    wait_for_context(held, ctx);
    return ctx->sticky;
}

#if CUDA_VERSION >= 13000
SOFTCUDA_API(init, cuCtxSynchronize_v2, (CUcontext handle), (handle))
{
    hold held(drv().lock);
    auto *ctx = handle == nullptr ? current_context() : reinterpret_cast<context *>(handle);
    if (drv().contexts.count(ctx) == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (spoil_captures_of(held, ctx)) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    wait_for_context(held, ctx);
    return ctx->sticky;
}
#endif

SOFTCUDA_API(context, cuCtxGetStreamPriorityRange, (int *least, int *greatest), (least, greatest))
{
    if (least != nullptr) {
        *least = 0;
    }
    if (greatest != nullptr) {
        *greatest = -5;
    }
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuCtxGetLimit, (size_t * out, CUlimit limit), (out, limit))
{
    (void)limit;
    *out = 1024;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuCtxSetLimit, (CUlimit limit, size_t value), (limit, value))
{
    (void)limit;
    (void)value;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuDeviceCanAccessPeer, (int *out, CUdevice device, CUdevice peer),
             (out, device, peer))
{
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!valid_device(device) || !valid_device(peer)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *out = device != peer && drv().peers_connected ? 1 : 0;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuDeviceGetP2PAttribute,
             (int *out, CUdevice_P2PAttribute what, CUdevice device, CUdevice peer),
             (out, what, device, peer))
{
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!valid_device(device) || !valid_device(peer) || device == peer) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *out = what != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK && drv().peers_connected ? 1 : 0;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuCtxEnablePeerAccess, (CUcontext handle, unsigned flags), (handle, flags))
{
    hold held(drv().lock);
    auto *peer = reinterpret_cast<context *>(handle);
    context *ctx = current_context();
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (drv().contexts.count(peer) == 0 || !peer->alive || peer == ctx) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (peer->device == ctx->device || !drv().peers_connected) {
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    }
    return ctx->peers.insert(peer->device).second ? CUDA_SUCCESS
                                                  : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

SOFTCUDA_API(context, cuCtxDisablePeerAccess, (CUcontext handle), (handle))
{
    hold held(drv().lock);
    auto *peer = reinterpret_cast<context *>(handle);
    if (drv().contexts.count(peer) == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return current_context()->peers.erase(peer->device) != 0 ? CUDA_SUCCESS
                                                             : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
