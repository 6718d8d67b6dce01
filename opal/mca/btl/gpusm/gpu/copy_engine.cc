// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/gpu/copy_engine.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <algorithm>
#include <utility>

namespace gpusm {

namespace {

// A kernel says that it is done by a flag. Whether it will ever be is for the driver to say; so
// the driver is asked after that many looks at the flag.
constexpr std::uint32_t looks_before_asking = 1024;

// Rounds in which a busy caller does not ask the driver, which takes longer than one message.
constexpr std::uint32_t rounds_before_asking = 8;

// After so many refusals one behind the other the kernel is not tried again.
constexpr std::uint32_t refusals_in_a_row = 8;

// When a kernel that has not finished is worth a line in the log.
constexpr std::chrono::seconds late{5};

} // namespace

void copy_engine::chain::append(copy_request *request)
{
    request->next = nullptr;
    (nullptr == first ? first : last->next) = request;
    last = request;
}

void copy_engine::chain::append(chain &other)
{
    if (other.first != nullptr) {
        (nullptr == first ? first : last->next) = other.first;
        last = other.last;
        other = {};
    }
}

copy_engine::copy_engine(const driver_api &driver, copy_limits limits)
    : driver_(driver), limits_(limits), batches_(limits.batches)
{
    destinations_.reserve(limits.batch_copies);
    sources_.reserve(limits.batch_copies);
    sizes_.reserve(limits.batch_copies);
    copies_.reserve(limits.batch_copies);
}

copy_engine::~copy_engine()
{
    for (lane &each : lanes_) {
        if (nullptr == each.on) {
            continue;
        }
        const driver_scope scope(driver_, each.on->context);
        if (!scope.entered()) {
            each.kernel.abandon();
            continue;
        }
        for (submission &slot : each.slots) {
            if (slot.done != nullptr) {
                (void)driver_.event_destroy(slot.done);
            }
        }
        unload_kernel(each);
    }
}

copy_engine::lane *copy_engine::lane_of(device &on)
{
    while (lanes_.size() <= on.index) {
        lanes_.emplace_back(driver_, limits_.kernel_blocks);
    }
    lane &found = lanes_[on.index];
    if (nullptr == found.on) {
        found.on = &on;
        found.slots.resize(limits_.depth);
        found.in_order.reserve(limits_.depth);
        if (limits_.kernel_blocks > 0) {
            load_kernel(found);
        }
    }
    return &found;
}

void copy_engine::load_kernel(lane &of)
{
    const driver_scope scope(driver_, of.on->context);
    if (!scope.entered() || status::ok != of.kernel.load()) {
        return;
    }
    for (CUstream &each : of.kernel_streams) {
        const CUresult made = make_stream(driver_, &each);
        if (CUDA_SUCCESS != made) {
            each = nullptr;
            (void)driver_.report("cuStreamCreateWithPriority", made);
            unload_kernel(of);
            return;
        }
    }
}

// Its context is current.
void copy_engine::unload_kernel(lane &of)
{
    for (CUstream &each : of.kernel_streams) {
        if (each != nullptr) {
            (void)driver_.stream_synchronize(each);
            (void)driver_.stream_destroy(std::exchange(each, nullptr));
        }
    }
    of.kernel.unload();
}

void copy_engine::submit(device &on, copy_request *request)
{
    lane &to = *lane_of(on);
    request->outcome = status::ok;
    const bool small = request->len_bytes <= limits_.kernel_bytes && request->on_device &&
                       nullptr == request->wait_for && request->len_bytes > 0;
    gathering &with = small ? to.small : to.large;
    with.waiting.append(request);
    with.load.copies += 1;
    with.load.bytes += request->len_bytes;
    ++pending_;
    launch(to, held_.load(std::memory_order_relaxed));
}

void copy_engine::launch(lane &of, bool held)
{
    const auto is_due_here = [&](const gathering &each) {
        // Large ones may take long, so they leave a place to the small ones.
        const bool has_place =
            &each == &of.small || 1 == limits_.depth || of.large.submissions + 1 < limits_.depth;
        return has_place && is_due(each.load, each.in_flight,
                                   static_cast<std::uint32_t>(of.in_order.size()), limits_, held);
    };
    // By turns, or endless copies of one kind would keep the other kind waiting for ever.
    for (;;) {
        gathering &first = of.large_is_next ? of.large : of.small;
        gathering &second = of.large_is_next ? of.small : of.large;
        gathering *due = is_due_here(first) ? &first : is_due_here(second) ? &second : nullptr;
        if (nullptr == due) {
            return;
        }
        of.large_is_next = &of.small == due;
        start(of, *due);
    }
}

// Takes a submission's worth of what waits, and starts it.
void copy_engine::start(lane &of, gathering &from)
{
    std::uint32_t slot = 0;
    while (of.slots[slot].in_use) {
        ++slot;
    }
    submission &in = of.slots[slot];
    in.is_large = &from == &of.large;
    in.load = {};
    std::size_t longest = 0;
    do {
        copy_request *request = std::exchange(from.waiting.first, from.waiting.first->next);
        longest = std::max(longest, request->len_bytes);
        in.load.copies += 1;
        in.load.bytes += request->len_bytes;
        in.requests.append(request);
    } while (in.load.copies < limits_.batch_copies && in.load.bytes < limits_.batch_bytes &&
             from.waiting.first != nullptr);
    from.load.copies -= in.load.copies;
    from.load.bytes -= in.load.bytes;

    const bool has_kernel = of.kernel.loaded() && !of.gives_up_kernel && !in.is_large;
    in.way = choose_way(in.load.copies, longest, limits_, has_kernel, batches_,
                        of.large.in_flight.copies > 0);
    const driver_scope scope(driver_, of.on->context);
    bool started = false;
    if (!scope.entered()) {
        fail(in.requests);
    } else if (copy_way::kernel == in.way && start_by_kernel(of, slot)) {
        started = true;
    } else {
        started = start_by_driver(of, in);
    }
    if (started) {
        in.in_use = true;
        in.polls = 0;
        in.asked_first = {};
        from.submissions += 1;
        from.in_flight.copies += in.load.copies;
        from.in_flight.bytes += in.load.bytes;
        of.in_order.push_back(slot);
        ++submissions_[static_cast<std::size_t>(in.way)];
    }
}

bool copy_engine::start_by_kernel(lane &of, std::uint32_t slot)
{
    submission &in = of.slots[slot];
    copies_.clear();
    for (const copy_request *each = in.requests.first; each != nullptr; each = each->next) {
        copies_.push_back(
            {each->destination, each->source, static_cast<std::uint32_t>(each->len_bytes), 0});
    }
    in.stream = of.kernel_streams[++of.turn % of.kernel_streams.size()];
    const CUresult result = of.kernel.launch(in.stream, slot, copies_.data(),
                                             static_cast<std::uint32_t>(copies_.size()));
    if (CUDA_SUCCESS == result) {
        of.refused_launches = 0;
        return true;
    }
    (void)driver_.report("cuLaunchKernel", result);
    if (++of.refused_launches >= refusals_in_a_row) {
        log_line(log_level::warn, "no further copies by kernel on device %d", of.on->ordinal);
        of.gives_up_kernel = true;
    }
    return false;
}

// True: something is in flight. What the driver refuses has failed.
bool copy_engine::start_by_driver(lane &of, submission &in)
{
    if (nullptr == in.done) {
        const CUresult made = driver_.event_create(&in.done, CU_EVENT_DISABLE_TIMING);
        if (CUDA_SUCCESS != made) {
            in.done = nullptr;
            (void)driver_.report("cuEventCreate", made);
            fail(in.requests);
            return false;
        }
    }
    const CUstream stream = of.on->stream;
    chain started = std::exchange(in.requests, {});
    chain refused;
    bool in_doubt = false;
    in.way = start_as_batch(stream, started, &in_doubt) ? copy_way::batch : copy_way::single;
    if (copy_way::single == in.way) {
        in.load = {};
        for (copy_request *each = std::exchange(started, {}).first; each != nullptr;) {
            copy_request *request = std::exchange(each, each->next);
            if (start_alone(stream, *request)) {
                in.load.copies += 1;
                in.load.bytes += request->len_bytes;
                started.append(request);
            } else {
                refused.append(request);
            }
        }
    }
    if (in_doubt && refused.first != nullptr) {
        (void)driver_.stream_synchronize(stream); // they must not run when they are handed back
    }
    fail(refused);
    if (nullptr == started.first) {
        return false;
    }
    const CUresult recorded = driver_.event_record(in.done, stream);
    if (CUDA_SUCCESS != recorded) {
        (void)driver_.report("cuEventRecord", recorded);
        // Their end cannot be seen otherwise, and they must not run when they are handed back.
        (void)driver_.stream_synchronize(stream);
        fail(started);
        return false;
    }
    in.requests = started;
    return true;
}

// True: all of them are started. False: none that would not bear being started again; *in_doubt
// when some may be.
bool copy_engine::start_as_batch(CUstream stream, const chain &requests, bool *in_doubt)
{
    if (!batches_ || requests.first == requests.last) {
        return false;
    }
    destinations_.clear();
    sources_.clear();
    sizes_.clear();
    for (const copy_request *each = requests.first; each != nullptr; each = each->next) {
        // The driver takes neither an event to wait for nor an empty copy into a batch.
        if (each->wait_for != nullptr || 0 == each->len_bytes) {
            return false;
        }
        destinations_.push_back(each->destination);
        sources_.push_back(each->source);
        sizes_.push_back(each->len_bytes);
    }
    const CUresult result = driver_.copy_batch(destinations_.data(), sources_.data(), sizes_.data(),
                                               sizes_.size(), stream);
    if (CUDA_ERROR_NOT_SUPPORTED == result) {
        batches_ = false;
    } else {
        *in_doubt = CUDA_SUCCESS != result;
    }
    return CUDA_SUCCESS == result; // after any other error the single copies say which one it was
}

bool copy_engine::start_alone(CUstream stream, const copy_request &request)
{
    CUresult result = CUDA_SUCCESS;
    const char *what = "cuStreamWaitEvent";
    if (request.wait_for != nullptr) {
        result = driver_.stream_wait_event(stream, request.wait_for, 0);
    }
    if (CUDA_SUCCESS == result) {
        what = "cuMemcpyAsync";
        result =
            driver_.memcpy_async(request.destination, request.source, request.len_bytes, stream);
    }
    if (CUDA_SUCCESS != result) {
        (void)driver_.report(what, result);
    }
    return CUDA_SUCCESS == result;
}

void copy_engine::fail(chain &requests)
{
    for (copy_request *each = requests.first; each != nullptr; each = each->next) {
        each->outcome = status::driver_failed;
        --pending_;
    }
    finished_.append(requests);
}

copy_engine::answer copy_engine::ask(lane &of, std::uint32_t slot, bool ask_driver)
{
    submission &in = of.slots[slot];
    const bool by_kernel = copy_way::kernel == in.way;
    if (by_kernel) {
        if (of.kernel.finished(slot)) {
            return answer::done;
        }
        if (++in.polls < looks_before_asking) {
            return answer::not_ready;
        }
        in.polls = 0;
    } else if (!ask_driver) {
        return answer::not_ready;
    }
    CUresult result = CUDA_ERROR_INVALID_CONTEXT;
    {
        const driver_scope scope(driver_, of.on->context);
        if (scope.entered()) {
            result = by_kernel ? driver_.stream_query(in.stream) : driver_.event_query(in.done);
        }
    }
    if (CUDA_ERROR_NOT_READY == result) {
        if (by_kernel) {
            tell_if_late(of, &in);
        }
        return answer::not_ready;
    }
    // An idle stream means that the flag has been written, if it ever will be.
    if (CUDA_SUCCESS == result && (!by_kernel || of.kernel.finished(slot))) {
        return answer::done;
    }
    (void)driver_.report("a copy from a peer's device memory",
                         CUDA_SUCCESS == result ? CUDA_ERROR_LAUNCH_FAILED : result);
    return answer::failed;
}

// A kernel of the program that fills the device keeps ours waiting. If it waits for the very
// message that ours is to bring, it waits for ever, and somebody has to say why.
void copy_engine::tell_if_late(lane &of, submission *in)
{
    const auto now = std::chrono::steady_clock::now();
    if (std::chrono::steady_clock::time_point{} == in->asked_first) {
        in->asked_first = now;
    } else if (!of.told_late && now - in->asked_first > late) {
        of.told_late = true;
        log_line(
            log_level::warn,
            "copies have waited for device %d for %d seconds: if a kernel of the program fills "
            "the device and waits for a message, use --mca btl_gpusm_kernel_blocks 0",
            of.on->ordinal, static_cast<int>(late.count()));
    }
}

void copy_engine::retire(lane &of, submission &in, bool good)
{
    gathering &from = in.is_large ? of.large : of.small;
    from.submissions -= 1;
    from.in_flight.copies -= in.load.copies;
    from.in_flight.bytes -= in.load.bytes;
    in.in_use = false;
    if (good) {
        pending_ -= in.load.copies;
        finished_.append(in.requests);
    } else {
        fail(in.requests);
    }
}

copy_request *copy_engine::collect(bool busy)
{
    for (lane &each : lanes_) {
        // The driver's copies finish in order, so one question per round is enough.
        bool ask_driver = !busy || ++each.rounds_not_asked >= rounds_before_asking;
        if (ask_driver) {
            each.rounds_not_asked = 0;
        }
        std::size_t kept = 0;
        for (std::size_t i = 0; i < each.in_order.size(); ++i) {
            const std::uint32_t slot = each.in_order[i];
            submission &in = each.slots[slot];
            const answer told = ask(each, slot, ask_driver);
            if (copy_way::kernel != in.way) {
                ask_driver = false;
            }
            if (answer::not_ready == told) {
                each.in_order[kept++] = slot;
            } else {
                retire(each, in, answer::done == told);
            }
        }
        each.in_order.resize(kept);
        launch(each, false);
    }
    return std::exchange(finished_, {}).first;
}

copy_request *copy_engine::cancel_all()
{
    for (lane &each : lanes_) {
        for (gathering *of : {&each.small, &each.large}) {
            of->load = {};
            fail(of->waiting);
        }
        for (const std::uint32_t slot : each.in_order) {
            retire(each, each.slots[slot], false);
        }
        each.in_order.clear();
    }
    return std::exchange(finished_, {}).first;
}

} // namespace gpusm
