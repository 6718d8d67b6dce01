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
#include <type_traits>
#include <utility>

namespace softcuda {

// What a call needs before its body runs.
enum class need {
    nothing, // answers even before cuInit
    init,    // cuInit was called
    context, // and this thread has a live context
    // Likewise, of calls that may wait for other work, or change what it can reach: no stream
    // capture that minds this thread is running. The documentation names no list; that cuMemAlloc,
    // cuEventQuery and the synchronising calls belong to it is known from reports.
    init_uncaptured,
    context_uncaptured,
};

struct forced_answers; // GPUSM_SOFTCUDA_FAIL for one function

// One per exported function, made by its first call. Never destroyed: calls may come during exit.
struct call_site {
    explicit call_site(const char *symbol);
    char name[64]; // the public one, without _v2 and the like
    forced_answers *forced = nullptr;
};

// True when the body may run; false when *answer is the call's answer already. `caller` is an
// address inside the code that called.
bool enter(call_site &site, need what, CUresult *answer, const void *caller) noexcept;

// Writes the log line.
void leave(const call_site &site, CUresult answer, const void *caller) noexcept;

// Stream capture (stream.h). Whether one forbids such calls to this thread now; the captures that
// do are over then.
extern std::atomic<int> captures_running;
bool capture_forbids() noexcept;

// The last line of a body that has something to tell.
template <class T> CUresult give(T *out, std::type_identity_t<T> value)
{
    *out = std::move(value);
    return CUDA_SUCCESS;
}

} // namespace softcuda

// Checks at the begin of a body: the function ends with that answer, or with what the other
// function answers unless that is success.
#define REQUIRE(condition, answer)                                                                 \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            return answer;                                                                         \
        }                                                                                          \
    } while (false)
#define TRY(call)                                                                                  \
    do {                                                                                           \
        const CUresult tried = (call);                                                             \
        REQUIRE(CUDA_SUCCESS == tried, tried);                                                     \
    } while (false)

// Defines the exported function `name`; the braces that follow are its body, which other
// functions of the same file may call as do_<name>.
#define SOFTCUDA_API(what, name, params, args)                                                     \
    static CUresult do_##name params;                                                              \
    SOFTCUDA_FRAME(what, name, params, answer = do_##name args)                                    \
    static CUresult do_##name params

// Likewise; the body has `hold &held` before its own parameters, which holds drv().lock.
#define SOFTCUDA_LOCKED(what, name, params, args)                                                  \
    static CUresult do_##name(softcuda::hold &held, SOFTCUDA_LIST params);                         \
    SOFTCUDA_FRAME(what, name, params, softcuda::hold held(softcuda::drv().lock);                  \
                   answer = do_##name(held, SOFTCUDA_LIST args))                                   \
    static CUresult do_##name(softcuda::hold &held, SOFTCUDA_LIST params)

#define SOFTCUDA_LIST(...) __VA_ARGS__
#define SOFTCUDA_FRAME(what, name, params, run)                                                    \
    extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI name params                 \
    {                                                                                              \
        static softcuda::call_site site(#name);                                                    \
        CUresult answer = CUDA_SUCCESS;                                                            \
        const void *const caller = __builtin_return_address(0);                                    \
        if (softcuda::enter(site, softcuda::need::what, &answer, caller)) {                        \
            run;                                                                                   \
        }                                                                                          \
        softcuda::leave(site, answer, caller);                                                     \
        return answer;                                                                             \
    }

#endif
