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

// When a kernel that has not finished is worth a line in the log.
constexpr std::chrono::seconds late{5};

// What the kernel can take.
static_assert(copy_limits{}.depth <= gather_slots &&
              copy_limits{}.batch_copies <= gather_most_copies &&
              copy_limits{}.kernel_bytes <= gather_most_len);

} // namespace

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
        for (std::size_t i = 1; i < each.streams.size(); ++i) {
            (void)driver_.stream_destroy(each.streams[i]);
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
        make_streams(found);
        if (limits_.kernel_blocks > 0) {
            load_kernel(found);
        }
    }
    return &found;
}

// What the driver does not give is done without.
void copy_engine::make_streams(lane &of)
{
    of.streams.assign(1, of.on->stream);
    if (limits_.streams < 2) {
        return;
    }
    const driver_scope scope(driver_, of.on->context);
    while (scope.entered() && of.streams.size() < limits_.streams) {
        CUstream made = nullptr;
        if (const CUresult result = make_stream(driver_, &made); CUDA_SUCCESS != result) {
            (void)driver_.report("cuStreamCreateWithPriority", result);
            return;
        }
        of.streams.push_back(made);
    }
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
    const bool small = request->len_bytes <= limits_.kernel_bytes && request->for_kernel &&
                       nullptr == request->wait_for && request->len_bytes > 0;
    gathering &with = small ? to.small : to.large;
    with.waiting.append(request);
    with.load.copies += 1;
    with.load.bytes += request->len_bytes;
    with.over_bus += request->over_bus ? 1 : 0;
    ++pending_;
    launch(to, held_.load(std::memory_order_relaxed));
}

// How those that wait go out.
copy_pace copy_engine::gathering::pace(bool held, bool gathers_over_bus) const
{
    if (gathers_over_bus && load.copies == over_bus) {
        return copy_pace::patient;
    }
    const bool hurries =
        waiting.first != nullptr && waiting.first->over_bus && submissions < bus_submissions;
    return held ? copy_pace::held : hurries ? copy_pace::hurried : copy_pace::usual;
}

void copy_engine::launch(lane &of, bool held)
{
    const auto is_due_here = [&](const gathering &each) {
        // Large ones may take long, so they leave a place to the small ones.
        const bool has_place =
            &each == &of.small || 1 == limits_.depth || of.large.submissions + 1 < limits_.depth;
        const bool gathers = gathers_over_bus_ && &each == &of.large;
        return has_place &&
               is_due(each.load, each.in_flight, static_cast<std::uint32_t>(of.in_order.size()),
                      limits_, each.pace(held, gathers));
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
        from.over_bus -= request->over_bus ? 1 : 0;
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
    CUresult result = CUDA_ERROR_INVALID_CONTEXT; // what runs in one that is gone ends with it
    {
        const driver_scope scope(driver_, of.on->context);
        if (scope.entered()) {
            result = by_kernel ? driver_.stream_query(in.stream) : driver_.event_query(in.done);
            if (CUDA_SUCCESS != result && CUDA_ERROR_NOT_READY != result) {
                // Not all errors end what runs, and it must not run when it is handed back.
                (void)driver_.stream_synchronize(in.stream);
            }
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
        // The driver's copies of one stream finish in order, so one question per round is enough.
        const bool ask_driver = !busy || ++each.rounds_not_asked >= rounds_before_asking;
        if (ask_driver) {
            each.rounds_not_asked = 0;
        }
        std::uint32_t asked = 0; // a bit for each stream
        std::size_t kept = 0;
        for (std::size_t i = 0; i < each.in_order.size(); ++i) {
            const std::uint32_t slot = each.in_order[i];
            submission &in = each.slots[slot];
            const std::uint32_t bit = copy_way::kernel == in.way ? 0 : 1U << in.turn;
            const answer told = ask(each, slot, ask_driver && 0 == (asked & bit));
            asked |= bit;
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
            of->over_bus = 0;
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
