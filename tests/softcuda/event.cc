// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// event.cc: events, here and across processes. The state of an event is when it was last recorded
// and how far the work has come; that of an interprocess event lies in a file of its own, which
// other processes map.
#include "stream.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>

namespace softcuda {

namespace {

// Writers: whoever records (recorded) and the worker that runs the record (done).
struct event_slot {
    std::atomic<std::uint64_t> recorded; // number of the newest record
    std::atomic<std::uint64_t> done;     // newest record that is complete
    std::atomic<std::uint32_t> recorder; // process of the newest record
    std::uint32_t reserved;
};
static_assert(sizeof(event_slot) == 24 && std::atomic<std::uint64_t>::is_always_lock_free);

struct event_state {
    event_slot own{};
    event_slot *slot = &own; // or in the file
    int fd = -1;

    ~event_state()
    {
        if (fd >= 0) {
            munmap(slot, sizeof(event_slot));
            close(fd);
        }
    }
    bool share(int file)
    {
        void *at = mmap(nullptr, sizeof(event_slot), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (at == MAP_FAILED) {
            close(file);
            return false;
        }
        slot = static_cast<event_slot *>(at);
        fd = file;
        return true;
    }
    // Also when the recording process is dead.
    bool reached(std::uint64_t number) const
    {
        if (slot->done.load(std::memory_order_acquire) >= number) {
            return true;
        }
        const auto pid = static_cast<pid_t>(slot->recorder.load());
        return pid != getpid() && pid > 0 && kill(pid, 0) != 0 && errno == ESRCH;
    }
    bool reached() const { return reached(slot->recorded.load()); }
};

constexpr std::uint32_t wire_magic = 0x76657367;

} // namespace

struct event {
    context *ctx = nullptr;
    std::shared_ptr<event_state> state = std::make_shared<event_state>();
};

namespace {

event *find_event(const hold &, CUevent handle)
{
    auto *e = reinterpret_cast<event *>(handle);
    return drv().events.count(e) != 0 ? e : nullptr;
}

// An event of the current context. The file of one that processes share is taken over; else -1.
CUresult make_event(const hold &, int file, CUevent *out)
{
    auto made = std::make_unique<event>();
    made->ctx = current_context();
    REQUIRE(file < 0 || made->state->share(file), CUDA_ERROR_OUT_OF_MEMORY);
    drv().events.insert(made.get());
    return give(out, reinterpret_cast<CUevent>(made.release()));
}

} // namespace

} // namespace softcuda

using namespace softcuda;

SOFTCUDA_LOCKED(context, cuEventCreate, (CUevent * out, unsigned flags), (out, flags))
{
    const bool shared = (flags & CU_EVENT_INTERPROCESS) != 0;
    REQUIRE(flags <= 7 && (!shared || (flags & CU_EVENT_DISABLE_TIMING) != 0),
            CUDA_ERROR_INVALID_VALUE);
    const int file = shared ? memfd_create("softcuda-event", MFD_CLOEXEC) : -1;
    REQUIRE(!shared || (file >= 0 && ftruncate(file, sizeof(event_slot)) == 0),
            CUDA_ERROR_OUT_OF_MEMORY);
    return make_event(held, file, out);
}

SOFTCUDA_LOCKED(init, cuEventDestroy_v2, (CUevent handle), (handle))
{
    event *e = find_event(held, handle);
    REQUIRE(e != nullptr, CUDA_ERROR_INVALID_HANDLE);
    drv().events.erase(e);
    delete e; // work that waits for it holds the state
    return CUDA_SUCCESS;
}

// There are no events in graphs here.
SOFTCUDA_LOCKED(context, cuEventRecord, (CUevent handle, CUstream where), (handle, where))
{
    const event *e = find_event(held, handle);
    stream_ref s;
    REQUIRE(e != nullptr, CUDA_ERROR_INVALID_HANDLE);
    TRY(find_stream(held, where, &s));
    REQUIRE(e->ctx == s->ctx, CUDA_ERROR_INVALID_HANDLE);
    const std::shared_ptr<event_state> state = e->state;
    state->slot->recorder.store(static_cast<std::uint32_t>(getpid()));
    const std::uint64_t number = state->slot->recorded.fetch_add(1) + 1;
    const auto arrive = [state, number] {
        auto &done = state->slot->done; // never backwards: two streams may record one event
        std::uint64_t seen = done.load();
        while (seen < number && !done.compare_exchange_weak(seen, number)) {
        }
    };
    submit(held, s, {.run = arrive});
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(init_uncaptured, cuEventQuery, (CUevent handle), (handle))
{
    const event *e = find_event(held, handle);
    REQUIRE(e != nullptr, CUDA_ERROR_INVALID_HANDLE);
    TRY(e->ctx->sticky);
    REQUIRE(!e->state->reached(), CUDA_SUCCESS);
    held.unlock();
    sched_yield(); // a caller that spins here must not keep the worker from the processor
    return CUDA_ERROR_NOT_READY;
}

SOFTCUDA_LOCKED(init_uncaptured, cuEventSynchronize, (CUevent handle), (handle))
{
    const event *e = find_event(held, handle);
    REQUIRE(e != nullptr, CUDA_ERROR_INVALID_HANDLE);
    const context *ctx = e->ctx;
    const std::shared_ptr<event_state> state = e->state;
    const std::uint64_t number = state->slot->recorded.load();
    while (!state->reached(number)) {
        wait_for_any(held, state->fd >= 0); // perhaps recorded by another process
    }
    return ctx->sticky;
}

SOFTCUDA_LOCKED(context, cuStreamWaitEvent, (CUstream where, CUevent handle, unsigned flags),
                (where, handle, flags))
{
    const event *e = find_event(held, handle);
    stream_ref s;
    REQUIRE(flags <= 1, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(e != nullptr, CUDA_ERROR_INVALID_HANDLE);
    TRY(find_stream(held, where, &s));
    const std::shared_ptr<event_state> state = e->state;
    const std::uint64_t number = state->slot->recorded.load(); // what is recorded now, not later
    const auto reached = [state, number] { return state->reached(number); };
    submit(held, s, {.ready = reached, .polled = state->fd >= 0});
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(context, cuIpcGetEventHandle, (CUipcEventHandle * out, CUevent handle),
                (out, handle))
{
    const event *e = find_event(held, handle);
    struct stat st {};
    REQUIRE(e != nullptr && fstat(e->state->fd, &st) == 0, CUDA_ERROR_INVALID_HANDLE);
    const wire_place h{wire_magic, getpid(), e->state->fd, 0, st.st_ino, 0, sizeof(event_slot), {}};
    return give(out, std::bit_cast<CUipcEventHandle>(h));
}

SOFTCUDA_LOCKED(context, cuIpcOpenEventHandle, (CUevent * out, CUipcEventHandle handle),
                (out, handle))
{
    const auto h = std::bit_cast<wire_place>(handle);
    REQUIRE(h.magic == wire_magic, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(h.pid != getpid(), CUDA_ERROR_INVALID_CONTEXT);
    const int fd = open_foreign(h.pid, h.fd, h.inode);
    REQUIRE(fd >= 0, CUDA_ERROR_INVALID_HANDLE);
    return make_event(held, fd, out);
}
