// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// event.cc: events, here and across processes.
#include "event.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace softcuda {

namespace {

struct wire_event { // CUipcEventHandle
    std::uint32_t magic;
    std::int32_t pid;
    std::int32_t fd;
    std::uint32_t index;
    std::uint64_t inode;
    std::uint64_t reserved[5];
};
static_assert(sizeof(wire_event) == sizeof(CUipcEventHandle));
constexpr std::uint32_t wire_magic = 0x76657367;
constexpr std::size_t page_bytes = event_page::slots * sizeof(event_slot);

std::shared_ptr<event_page> current_page;

std::shared_ptr<event_page> map_page(int fd)
{
    auto page = std::make_shared<event_page>();
    struct stat st {};
    void *at = MAP_FAILED;
    if (fstat(fd, &st) == 0 && static_cast<std::size_t>(st.st_size) >= page_bytes) {
        at = mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (at == MAP_FAILED) {
        close(fd);
        return nullptr;
    }
    page->at = static_cast<event_slot *>(at);
    page->fd = fd;
    page->inode = st.st_ino;
    return page;
}

bool new_shared_slot(event_state *state)
{
    if (current_page == nullptr || current_page->next == event_page::slots) {
        int fd = memfd_create("softcuda-events", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, page_bytes) != 0) {
            if (fd >= 0) {
                close(fd);
            }
            return false;
        }
        current_page = map_page(fd);
    }
    if (current_page == nullptr) {
        return false;
    }
    state->page = current_page;
    state->index = current_page->next++;
    return true;
}

event *find_event(const hold &, CUevent handle)
{
    auto *e = reinterpret_cast<event *>(handle);
    return drv().events.count(e) != 0 ? e : nullptr;
}

CUresult record(CUevent handle, CUstream stream_handle)
{
    hold held(drv().lock);
    event *e = find_event(held, handle);
    stream_ref s;
    CUresult answer = find_stream(held, stream_handle, &s);
    if (e == nullptr || answer == CUDA_ERROR_INVALID_CONTEXT) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (answer != CUDA_SUCCESS) {
        return answer; // no events in graphs here
    }
    if (e->ctx != s->ctx) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    std::shared_ptr<event_state> state = e->state;
    state->slot().recorder.store(static_cast<std::uint32_t>(getpid()));
    std::uint64_t number = state->slot().recorded.fetch_add(1) + 1;
    operation op;
    op.run = [state, number] {
        auto now = std::chrono::steady_clock::now().time_since_epoch();
        state->done_at_ns.store(std::chrono::nanoseconds(now).count());
        auto &done = state->slot().done; // never backwards: two streams may record one event
        std::uint64_t seen = done.load();
        while (seen < number && !done.compare_exchange_weak(seen, number)) {
        }
    };
    submit(held, s, std::move(op));
    return CUDA_SUCCESS;
}

} // namespace

event_page::~event_page()
{
    munmap(at, page_bytes);
    close(fd);
}

bool event_state::reached(std::uint64_t number)
{
    if (slot().done.load(std::memory_order_acquire) >= number) {
        return true;
    }
    auto pid = static_cast<pid_t>(slot().recorder.load());
    return pid != getpid() && pid > 0 && kill(pid, 0) != 0 && errno == ESRCH;
}

} // namespace softcuda

using namespace softcuda;

SOFTCUDA_API(context, cuEventCreate, (CUevent * out, unsigned flags), (out, flags))
{
    if (out == nullptr || flags > 7 ||
        ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    hold held(drv().lock);
    auto made = std::make_unique<event>();
    made->ctx = current_context();
    made->flags = flags;
    made->state = std::make_shared<event_state>();
    if ((flags & CU_EVENT_INTERPROCESS) != 0 && !new_shared_slot(made->state.get())) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    event *e = made.release();
    drv().events.insert(e);
    *out = reinterpret_cast<CUevent>(e);
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuEventDestroy_v2, (CUevent handle), (handle))
{
    hold held(drv().lock);
    event *e = find_event(held, handle);
    if (e == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    drv().events.erase(e);
    delete e; // work that waits for it holds the state
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuEventRecord, (CUevent e, CUstream s), (e, s))
{
    return record(e, s);
}
SOFTCUDA_API(context, cuEventRecord_ptsz, (CUevent e, CUstream s), (e, s))
{
    return record(e, per_thread(s));
}
SOFTCUDA_API(context, cuEventRecordWithFlags, (CUevent e, CUstream s, unsigned flags),
             (e, s, flags))
{
    return flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(e, s);
}
SOFTCUDA_API(context, cuEventRecordWithFlags_ptsz, (CUevent e, CUstream s, unsigned flags),
             (e, s, flags))
{
    return flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(e, per_thread(s));
}

SOFTCUDA_API(init, cuEventQuery, (CUevent handle), (handle))
{
    hold held(drv().lock);
    event *e = find_event(held, handle);
    if (e == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (e->ctx->sticky != CUDA_SUCCESS) {
        return e->ctx->sticky;
    }
    if (e->state->reached(e->state->slot().recorded.load())) {
        return CUDA_SUCCESS;
    }
    held.unlock();
    sched_yield(); // a caller that spins here must not keep the worker from the processor
    return CUDA_ERROR_NOT_READY;
}

SOFTCUDA_API(init, cuEventSynchronize, (CUevent handle), (handle))
{
    hold held(drv().lock);
    event *e = find_event(held, handle);
    if (e == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    context *ctx = e->ctx;
    std::shared_ptr<event_state> state = e->state;
    std::uint64_t number = state->slot().recorded.load();
    while (!state->reached(number)) {
        ++drv().finished_waiters;
        if (state->page != nullptr) { // perhaps recorded by another process
            drv().finished.wait_for(held, std::chrono::microseconds(50));
        } else {
            drv().finished.wait(held);
        }
        --drv().finished_waiters;
    }
    return ctx->sticky;
}

SOFTCUDA_API(init, cuEventElapsedTime, (float *out, CUevent from, CUevent to), (out, from, to))
{
    hold held(drv().lock);
    event *a = find_event(held, from);
    event *b = find_event(held, to);
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (a == nullptr || b == nullptr || ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING) != 0 ||
        a->state->slot().recorded.load() == 0 || b->state->slot().recorded.load() == 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (event *e : {a, b}) {
        if (!e->state->reached(e->state->slot().recorded.load())) {
            return CUDA_ERROR_NOT_READY;
        }
    }
    *out = static_cast<float>(b->state->done_at_ns.load() - a->state->done_at_ns.load()) / 1e6F;
    return CUDA_SUCCESS;
}
SOFTCUDA_SAME(init, cuEventElapsedTime_v2, cuEventElapsedTime,
              (float *out, CUevent from, CUevent to), (out, from, to), (out, from, to))

static CUresult wait_event(CUstream stream_handle, CUevent handle, unsigned flags)
{
    hold held(drv().lock);
    event *e = find_event(held, handle);
    stream_ref s;
    if (flags > 1) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult answer = find_stream(held, stream_handle, &s);
    if (e == nullptr || answer == CUDA_ERROR_INVALID_CONTEXT) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (answer != CUDA_SUCCESS) {
        return answer;
    }
    std::shared_ptr<event_state> state = e->state;
    std::uint64_t number = state->slot().recorded.load(); // what is recorded now, not later
    operation op;
    op.ready = [state, number] { return state->reached(number); };
    op.polled = state->page != nullptr;
    submit(held, s, std::move(op));
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuStreamWaitEvent, (CUstream s, CUevent e, unsigned flags), (s, e, flags))
{
    return wait_event(s, e, flags);
}
SOFTCUDA_API(context, cuStreamWaitEvent_ptsz, (CUstream s, CUevent e, unsigned flags),
             (s, e, flags))
{
    return wait_event(per_thread(s), e, flags);
}

SOFTCUDA_API(context, cuIpcGetEventHandle, (CUipcEventHandle * out, CUevent handle), (out, handle))
{
    hold held(drv().lock);
    event *e = find_event(held, handle);
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (e == nullptr || (e->flags & CU_EVENT_INTERPROCESS) == 0 || e->imported) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    wire_event h{};
    h.magic = wire_magic;
    h.pid = getpid();
    h.fd = e->state->page->fd;
    h.index = e->state->index;
    h.inode = e->state->page->inode;
    std::memcpy(out, &h, sizeof(h));
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuIpcOpenEventHandle, (CUevent * out, CUipcEventHandle handle), (out, handle))
{
    wire_event h;
    std::memcpy(&h, &handle, sizeof(h));
    if (out == nullptr || h.magic != wire_magic || h.index >= event_page::slots) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (h.pid == getpid()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    hold held(drv().lock);
    int fd = open_foreign(h.pid, h.fd, h.inode);
    if (fd < 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    auto made = std::make_unique<event>();
    made->ctx = current_context();
    made->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    made->imported = true;
    made->state = std::make_shared<event_state>();
    made->state->page = map_page(fd);
    made->state->index = h.index;
    if (made->state->page == nullptr) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    event *e = made.release();
    drv().events.insert(e);
    *out = reinterpret_cast<CUevent>(e);
    return CUDA_SUCCESS;
}
