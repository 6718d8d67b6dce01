// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/copy_engine.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <algorithm>
#include <utility>

namespace gpusm {

namespace {

// A kernel says that it is done by a flag. Whether it will ever be is for the driver to say; so
// the driver is asked after that many looks at the flag.
constexpr std::uint32_t looks_before_asking = 1024;

// Rounds in which a busy caller does not ask the driver, which takes longer than one message.
constexpr std::uint32_t rounds_before_asking = 8;

// What the kernel can take.
static_assert(copy_limits{}.depth <= gather_slots &&
              copy_limits{}.batch_copies <= gather_most_copies &&
              copy_limits{}.kernel_bytes <= gather_most_len);

} // namespace

void copy_engine::chain::append(copy_request *request)
{
    request->next = nullptr;
    (nullptr == first ? first : last->next) = request;
    last = request;
    load.add({1, request->len_bytes});
    for_processor += request->processor_waits ? 1 : 0;
}

void copy_engine::chain::append(chain *other)
{
    if (other->first != nullptr) {
        (nullptr == first ? first : last->next) = other->first;
        last = other->last;
        *other = {};
    }
}

copy_request *copy_engine::chain::take_first()
{
    copy_request *taken = first;
    if (taken != nullptr) {
        first = taken->next;
        load.take({1, taken->len_bytes});
        for_processor -= taken->processor_waits ? 1 : 0;
    }
    return taken;
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
            each.kernel.unload(false);
            continue;
        }
        for (const submission &slot : each.slots) {
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
    if (found.on != nullptr) {
        return &found;
    }
    found.on = &on;
    found.slots.resize(limits_.depth);
    found.in_order.reserve(limits_.depth);
    found.streams = {on.stream};
    // What the driver does not give is done without.
    const driver_scope scope(driver_, on.context);
    if (scope.entered()) {
        add_streams(&found.streams, limits_.streams);
    }
    return &found;
}

void copy_engine::add_streams(std::vector<CUstream> *to, std::size_t until)
{
    CUstream made = nullptr;
    while (to->size() < until && status::ok == make_stream(driver_, &made)) {
        to->push_back(made);
    }
}

void copy_engine::submit(device &on, copy_request *request)
{
    lane &to = *lane_of(on);
    request->outcome = status::ok;
    const bool small = request->len_bytes <= limits_.kernel_bytes && request->kernel_reaches &&
                       nullptr == request->wait_for && request->len_bytes > 0;
    (small ? to.small : to.large).waiting.append(request);
    ++pending_;
    launch(to, more_expected_.load(std::memory_order_relaxed));
}

bool copy_engine::is_due_here(const lane &of, const gathering &each, bool more_expected) const
{
    const bool large = &each == &of.large;
    const chain &waiting = each.waiting;
    // Large ones may take long, so they leave a place to the small ones.
    if (large && limits_.depth > 1 && each.submissions + 1 >= limits_.depth) {
        return false;
    }
    copy_pace pace = more_expected ? copy_pace::held : copy_pace::usual;
    if (large && processor_has_work_ && waiting.load.copies == waiting.for_processor) {
        pace = copy_pace::patient;
    } else if (!more_expected && waiting.first != nullptr && waiting.first->processor_waits &&
               each.submissions < bus_submissions) {
        pace = copy_pace::hurried;
    }
    return is_due(waiting.load, each.in_flight, static_cast<std::uint32_t>(of.in_order.size()),
                  limits_, pace);
}

void copy_engine::launch(lane &of, bool more_expected)
{
    // By turns, or endless copies of one kind would keep the other kind waiting for ever.
    for (;;) {
        gathering &first = of.large_is_next ? of.large : of.small;
        gathering &second = of.large_is_next ? of.small : of.large;
        gathering *due = is_due_here(of, first, more_expected)    ? &first
                         : is_due_here(of, second, more_expected) ? &second
                                                                  : nullptr;
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
    while (of.slots[slot].requests.first != nullptr) {
        ++slot;
    }
    submission &in = of.slots[slot];
    in.is_large = &from == &of.large;
    in.polls = 0;
    in.asked_first = {};
    std::size_t longest = 0;
    do {
        longest = std::max(longest, from.waiting.first->len_bytes);
        in.requests.append(from.waiting.take_first());
    } while (in.requests.load.copies < limits_.batch_copies &&
             in.requests.load.bytes < limits_.batch_bytes && from.waiting.first != nullptr);

    const driver_scope scope(driver_, of.on->context);
    const auto choose = [&](bool with_kernel) {
        return choose_way(in.requests.load.copies, longest, limits_, with_kernel, batches_,
                          of.large.in_flight.copies > 0);
    };
    in.way = choose(limits_.kernel_blocks > 0 && !in.is_large);
    if (copy_way::kernel == in.way &&
        !(scope.entered() && has_kernel(of, in.requests.first->within_device))) {
        in.way = choose(false);
    }
    if (!scope.entered() ||
        !((copy_way::kernel == in.way && start_by_kernel(of, slot)) || start_by_driver(of, in))) {
        finish(&in.requests, status::driver_failed);
        return;
    }
    from.submissions += 1;
    from.in_flight.add(in.requests.load);
    of.in_order.push_back(slot);
    ++submissions_[static_cast<std::size_t>(in.way)];
}

// True: something is in flight; what else the driver refuses has failed. False: nothing is.
bool copy_engine::start_by_driver(lane &of, submission &in)
{
    if (nullptr == in.done &&
        status::ok != driver_.report("cuEventCreate",
                                     driver_.event_create(&in.done, CU_EVENT_DISABLE_TIMING))) {
        in.done = nullptr;
        return false;
    }
    // A lone copy takes the device's own stream.
    const auto streams = static_cast<std::uint32_t>(of.streams.size());
    of.turn = 0 == of.large.in_flight.copies ? 0 : (of.turn + 1) % streams;
    in.turn = of.turn;
    in.stream = of.streams[in.turn];
    const CUresult as_batch = start_as_batch(in.stream, in.requests);
    in.way = CUDA_SUCCESS == as_batch ? copy_way::batch : copy_way::single;
    if (copy_way::single == in.way) {
        chain all = std::exchange(in.requests, {});
        chain refused;
        while (copy_request *each = all.take_first()) {
            (start_alone(in.stream, *each) ? in.requests : refused).append(each);
        }
        if (refused.first != nullptr && as_batch != CUDA_ERROR_NOT_SUPPORTED) {
            // The batch may have started them, and they must not run when they are handed back.
            (void)driver_.stream_synchronize(in.stream);
        }
        finish(&refused, status::driver_failed);
    }
    if (in.requests.first != nullptr &&
        status::ok != driver_.report("cuEventRecord", driver_.event_record(in.done, in.stream))) {
        (void)driver_.stream_synchronize(in.stream); // their end cannot be seen otherwise
        return false;
    }
    return in.requests.first != nullptr;
}

// CUDA_ERROR_NOT_SUPPORTED: nothing has been started. After any other error something may be; all
// of it bears being started again, and the single copies say which one it was.
CUresult copy_engine::start_as_batch(CUstream stream, const chain &requests)
{
    if (!batches_ || requests.first == requests.last) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    destinations_.clear();
    sources_.clear();
    sizes_.clear();
    for (const copy_request *each = requests.first; each != nullptr; each = each->next) {
        // The driver takes neither an event to wait for nor an empty copy into a batch.
        if (each->wait_for != nullptr || 0 == each->len_bytes) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        destinations_.push_back(each->destination);
        sources_.push_back(each->source);
        sizes_.push_back(each->len_bytes);
    }
    const CUresult result = driver_.copy_batch(destinations_.data(), sources_.data(), sizes_.data(),
                                               sizes_.size(), stream);
    batches_ = CUDA_ERROR_NOT_SUPPORTED != result;
    return result;
}

bool copy_engine::start_alone(CUstream stream, const copy_request &request)
{
    return (nullptr == request.wait_for ||
            status::ok == driver_.report("cuStreamWaitEvent",
                                         driver_.stream_wait_event(stream, request.wait_for, 0))) &&
           status::ok == driver_.report("cuMemcpyAsync",
                                        driver_.memcpy_async(request.destination, request.source,
                                                             request.len_bytes, stream));
}

void copy_engine::finish(chain *requests, status outcome)
{
    for (copy_request *each = requests->first; each != nullptr; each = each->next) {
        each->outcome = outcome;
    }
    pending_ -= requests->load.copies;
    finished_.append(requests);
}

// `busy`: not yet.
status copy_engine::ask(lane &of, std::uint32_t slot, bool ask_driver)
{
    submission &in = of.slots[slot];
    const bool by_kernel = copy_way::kernel == in.way;
    if (by_kernel) {
        if (of.kernel.finished(slot)) {
            return status::ok;
        }
        if (++in.polls < looks_before_asking) {
            return status::busy;
        }
        in.polls = 0;
    } else if (!ask_driver) {
        return status::busy;
    }
    CUresult result = CUDA_ERROR_INVALID_CONTEXT; // what runs in one that is gone ends with it
    if (const driver_scope scope(driver_, of.on->context); scope.entered()) {
        result = by_kernel ? driver_.stream_query(in.stream) : driver_.event_query(in.done);
        if (CUDA_SUCCESS != result && CUDA_ERROR_NOT_READY != result) {
            // Not all errors end what runs, and it must not run when it is handed back.
            (void)driver_.stream_synchronize(in.stream);
        }
    }
    if (CUDA_ERROR_NOT_READY == result) {
        if (by_kernel) {
            look_if_late(of, in);
        }
        return status::busy;
    }
    // An idle stream means that the flag has been written, if it ever will be.
    if (CUDA_SUCCESS == result && by_kernel && !of.kernel.finished(slot)) {
        result = CUDA_ERROR_LAUNCH_FAILED;
    }
    return driver_.report("a copy from a peer's device memory", result);
}
void copy_engine::retire(lane &of, submission &in, status outcome)
{
    gathering &from = in.is_large ? of.large : of.small;
    from.submissions -= 1;
    from.in_flight.take(in.requests.load);
    finish(&in.requests, outcome);
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
        for (const std::uint32_t slot : each.in_order) {
            submission &in = each.slots[slot];
            const std::uint32_t bit = copy_way::kernel == in.way ? 0 : 1U << in.turn;
            const status outcome = ask(each, slot, ask_driver && 0 == (asked & bit));
            asked |= bit;
            if (status::busy == outcome) {
                each.in_order[kept++] = slot;
            } else {
                retire(each, in, outcome);
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
        finish(&each.small.waiting, status::driver_failed);
        finish(&each.large.waiting, status::driver_failed);
        for (const std::uint32_t slot : each.in_order) {
            retire(each, each.slots[slot], status::driver_failed);
        }
        each.in_order.clear();
    }
    return std::exchange(finished_, {}).first;
}

} // namespace gpusm
