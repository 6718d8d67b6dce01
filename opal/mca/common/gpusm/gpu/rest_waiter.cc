// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/rest_waiter.h"

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include <csignal>
#include <dlfcn.h>

namespace gpusm {

struct rest_waiter::shared {
    enum class state { idle, asked, answered, over };

    std::mutex lock;
    std::condition_variable changed;
    state now = state::idle;
    CUcontext context = nullptr;
    CUresult answer = CUDA_SUCCESS;
};

namespace {

// The library must not be unloaded under a thread that the driver does not let go.
void keep_library()
{
    Dl_info object;
    if (0 != dladdr(reinterpret_cast<const void *>(&keep_library), &object)) {
        (void)dlopen(object.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
    }
}

// Starts a thread that gets none of the program's signals. False: there can be none.
template <typename Body> bool start_thread(Body body)
{
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = true;
    try {
        std::thread(std::move(body)).detach();
    } catch (const std::system_error &) {
        started = false;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
}

} // namespace

rest_waiter::rest_waiter(const driver_api &driver) : driver_(driver)
{
}

rest_waiter::~rest_waiter()
{
    if (with_ != nullptr) {
        const std::lock_guard guard(with_->lock);
        with_->now = shared::state::over;
        with_->changed.notify_all();
    }
}

status rest_waiter::wait(CUcontext context, std::chrono::milliseconds at_most)
{
    using state = shared::state;
    if (nullptr == with_) {
        keep_library();
        auto made = std::make_shared<shared>();
        const bool started = start_thread([made, &driver = driver_] {
            std::unique_lock guard(made->lock);
            for (;;) {
                made->changed.wait(
                    guard, [&] { return state::asked == made->now || state::over == made->now; });
                if (state::over == made->now) {
                    return;
                }
                CUcontext in = made->context;
                guard.unlock();
                const CUresult answer =
                    in_context(driver, in, [&] { return driver.ctx_synchronize(); });
                guard.lock();
                made->answer = answer;
                if (state::asked == made->now) {
                    made->now = state::answered;
                    made->changed.notify_all();
                }
            }
        });
        if (!started) {
            return status::no_memory;
        }
        with_ = std::move(made);
    }
    std::unique_lock guard(with_->lock);
    if (state::asked == with_->now) {
        return status::busy; // an earlier call's
    }
    with_->now = state::asked;
    with_->context = context;
    with_->changed.notify_all();
    if (!with_->changed.wait_for(guard, at_most, [&] { return state::answered == with_->now; })) {
        return status::busy;
    }
    return CUDA_SUCCESS == with_->answer ? status::ok : status::driver_failed;
}

} // namespace gpusm
