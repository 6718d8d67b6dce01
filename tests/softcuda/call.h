// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// call.h: the frame around every exported driver function: who may call now (initialised, a
// current context, not after exit), which call is made to fail, what is written to the log.
#ifndef GPUSM_SOFTCUDA_CALL_H
#define GPUSM_SOFTCUDA_CALL_H

// Shows the declarations of every version of a function, and none of the renaming macros.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <atomic>

namespace softcuda {

// What a call needs before its body runs.
enum class need {
    nothing, // answers even before cuInit
    init,    // cuInit was called
    context, // and this thread has a live context
};

struct fault; // one entry of GPUSM_SOFTCUDA_FAIL

// One per exported function; written once, by the first call.
struct call_site {
    const char *symbol;
    std::atomic<bool> looked_up{false};
    fault *forced = nullptr;
    bool capture_unsafe = false;
};

// True when the body may run; false when *answer is the call's answer already.
bool enter(call_site &site, need what, CUresult *answer) noexcept;

// Writes the log line. `caller` is an address inside the code that called.
void leave(const call_site &site, CUresult answer, const void *caller) noexcept;

extern std::atomic<bool> log_on;

// Stream capture (capture.h). Whether the public name is that of a call that a capture may forbid,
// and whether one forbids it to this thread now; the captures that do are over then.
extern std::atomic<int> captures_running;
bool capture_unsafe(const char *name) noexcept;
bool capture_forbids() noexcept;

// The public name: without _v2, _ptsz and the like.
void base_name(const char *symbol, char *out, unsigned long out_bytes) noexcept;

} // namespace softcuda

// Defines the exported function `name`; the braces that follow are its body, which other
// functions of the same file may call as do_<name>.
#define SOFTCUDA_API(what, name, params, args)                                                     \
    static CUresult do_##name params;                                                              \
    extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI name params                 \
    {                                                                                              \
        static softcuda::call_site site{#name};                                                    \
        CUresult answer = CUDA_SUCCESS;                                                            \
        if (softcuda::enter(site, softcuda::need::what, &answer)) {                                \
            answer = do_##name args;                                                               \
        }                                                                                          \
        if (softcuda::log_on.load(std::memory_order_relaxed)) {                                    \
            softcuda::leave(site, answer, __builtin_return_address(0));                            \
        }                                                                                          \
        return answer;                                                                             \
    }                                                                                              \
    static CUresult do_##name params

// Another version of a function: `args` are its own, `inner` those of do_<as>.
#define SOFTCUDA_SAME(what, name, as, params, args, inner)                                         \
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wunused-parameter\"")        \
        SOFTCUDA_API(what, name, params, args)                                                     \
    {                                                                                              \
        return do_##as inner;                                                                      \
    }                                                                                              \
    _Pragma("GCC diagnostic pop")

#endif
