// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// engine.cc: the workers behind stream.h.
#include "stream.h"

#include <signal.h>

#include <algorithm>
#include <thread>

namespace softcuda {

namespace {

using clock = std::chrono::steady_clock;

bool may_run(operation &op)
{
    while (!op.after.empty()) {
        const dependency &d = op.after.back();
        if (d.on->completed < d.number) {
            return false;
        }
        op.after.pop_back();
    }
    return !op.ready || op.ready();
}

void worker(stream_ref s)
{
    hold held(drv().lock);
    for (;;) {
        if (s->queue.empty()) {
            if (s->destroyed) {
                return;
            }
            s->work.wait(held);
            continue;
        }
        operation &head = s->queue.front(); // only this thread removes it
        auto now = clock::now();
        if (now < head.not_before) {
            held.unlock();
            std::this_thread::sleep_for(head.not_before - now);
            held.lock();
            continue;
        }
        if (!may_run(head)) {
            wait_for_any(held, head.polled);
            continue;
        }
        operation op = std::move(head);
        held.unlock();
        if (op.run) {
            op.run();
        }
        op = operation{}; // what it kept alive goes before anybody is told
        held.lock();
        s->queue.pop_front();
        ++s->completed;
        if (drv().finished_waiters > 0) {
            drv().finished.notify_all();
        }
    }
}

void start_worker(const stream_ref &s)
{
    // The application's signals are not for this thread.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread(worker, s).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void order_after(operation &op, const stream_ref &s)
{
    if (s->completed < s->submitted) {
        op.after.push_back({s, s->submitted});
    }
}

} // namespace

void wait_for_any(hold &held, bool polled)
{
    driver &d = drv();
    ++d.finished_waiters;
    if (polled) {
        d.finished.wait_for(held, std::chrono::microseconds(50));
    } else {
        d.finished.wait(held);
    }
    --d.finished_waiters;
}

stream_ref make_stream(const hold &, context *ctx, unsigned flags)
{
    auto s = std::make_shared<stream>();
    s->ctx = ctx;
    s->flags = flags;
    return s;
}

std::uint64_t submit(const hold &, const stream_ref &s, operation op)
{
    if (s->legacy) {
        for (const stream_ref &other : s->ctx->streams) {
            if (other->blocking()) {
                order_after(op, other);
            }
        }
    } else if (s->blocking() && s->ctx->legacy != nullptr) {
        order_after(op, s->ctx->legacy);
    }
    const bool waits_for_legacy = s->legacy || s->blocking();
    op.not_before =
        clock::now() +
        std::chrono::microseconds(waits_for_legacy ? drv().delay_us : drv().delay_nonblocking_us);
    s->queue.push_back(std::move(op));
    if (!s->started) {
        s->started = true;
        start_worker(s);
    }
    s->work.notify_one();
    return ++s->submitted;
}

void wait_for(hold &held, const stream_ref &s, std::uint64_t number)
{
    while (s->completed < number) {
        wait_for_any(held, false);
    }
}

void wait_for_context(hold &held, context *ctx)
{
    std::vector<dependency> all;
    if (ctx->legacy != nullptr) {
        all.push_back({ctx->legacy, ctx->legacy->submitted});
    }
    for (const stream_ref &s : ctx->streams) {
        all.push_back({s, s->submitted});
    }
    for (const dependency &d : all) {
        wait_for(held, d.on, d.number);
    }
}

bool stream_idle(const hold &, const stream_ref &s)
{
    if (s->completed < s->submitted) {
        return false;
    }
    if (s->legacy) {
        return std::all_of(s->ctx->streams.begin(), s->ctx->streams.end(), [](const stream_ref &o) {
            return !o->blocking() || o->completed == o->submitted;
        });
    }
    return true;
}

} // namespace softcuda
