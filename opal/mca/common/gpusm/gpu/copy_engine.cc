// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/copy_engine.h"

#include <utility>

namespace gpusm {

namespace {

// Rounds in which a busy caller does not ask the driver, which takes longer than one message.
constexpr std::uint32_t rounds_before_asking = 8;

void note_first(const copy_request &first, kind_facts *facts)
{
    facts->first_bytes = first.len_bytes;
    facts->first_for_processor = first.processor_waits;
}

// Moves as many of the oldest copies that wait as one submission may have: at least one.
void take_submission(copy_list *waiting, copy_list *taken, kind_facts *facts,
                     std::uint32_t most_copies, std::size_t most_bytes)
{
    do {
        copy_request *each = waiting->take_first();
        facts->for_processor -= each->processor_waits ? 1 : 0;
        taken->append(each);
    } while (taken->load.copies < most_copies && taken->load.bytes < most_bytes &&
             !waiting->empty());
    facts->waiting.take(taken->load);
    if (!waiting->empty()) {
        note_first(*waiting->first, facts);
    }
}

} // namespace

copy_engine::copy_engine(const driver_api &driver, copy_limits limits, gap_services *gaps)
    : driver_(driver), limits_(limits), gaps_(gaps), usable_(allowed_ways(limits))
{
}

copy_engine::~copy_engine()
{
    for (const std::unique_ptr<lane> &each : lanes_) {
        if (nullptr == each->on) {
            continue;
        }
        const driver_scope scope(driver_, each->on->context);
        for (submission &slot : each->slots) {
            if (scope.entered()) {
                each->by->forget(&slot.end);
            }
        }
        each->by->close(scope.entered());
    }
}

copy_engine::lane *copy_engine::lane_of(device &on)
{
    while (lanes_.size() <= on.index) {
        lanes_.push_back(std::make_unique<lane>());
    }
    lane &found = *lanes_[on.index];
    if (found.on != nullptr) {
        return &found;
    }
    found.on = &on;
    found.by.emplace(driver_, on, limits_, &usable_);
    found.slots.resize(limits_.depth);
    for (std::uint32_t slot = 0; slot < limits_.depth; ++slot) {
        found.slots[slot].end.slot = slot;
    }
    found.in_order.reserve(limits_.depth);
    const driver_scope scope(driver_, on.context);
    if (scope.entered()) {
        found.by->open();
    }
    found.by->tell(&found.facts);
    return &found;
}

void copy_engine::prepare(device &on)
{
    lane &of = *lane_of(on);
    const driver_scope scope(driver_, on.context);
    if (scope.entered()) {
        of.by->load();
    }
}

bool copy_engine::prepare_strided(device &on)
{
    lane &of = *lane_of(on);
    const driver_scope scope(driver_, on.context);
    return scope.entered() && of.by->load_strided();
}

status copy_engine::copy_now(device &on, const strided_copy &copy, CUevent wait_for)
{
    lane &of = *lane_of(on);
    const driver_scope scope(driver_, on.context);
    return scope.entered() ? of.by->copy_now(copy, wait_for) : status::unsupported;
}

// A copy from or to a view: for a launch.
bool copy_engine::describe_gaps(copy_request *request)
{
    if (!request->kernel_reaches) {
        return false;
    }
    if (free_described_.empty()) {
        free_described_.push_back(&described_.emplace_back());
    }
    strided_copy *out = free_described_.back();
    if (status::ok != gaps_->describe(*request, out)) {
        return false;
    }
    free_described_.pop_back();
    ++copies_with_gaps_;
    request->strided = out;
    return true;
}

// Copies from or to views among those that are over. A launch that has failed has not harmed the
// context, else nothing would work any more; so the copy is made in another way.
void copy_engine::end_gaps(copy_request *over, bool may_copy)
{
    for (; over != nullptr && 0 != copies_with_gaps_; over = over->next) {
        if (has_gaps(*over) && over->strided != nullptr) {
            free_described_.push_back(const_cast<strided_copy *>(over->strided));
            --copies_with_gaps_;
            over->strided = nullptr;
            if (may_copy && status::ok != over->outcome) {
                over->outcome = gaps_->copy_otherwise(*over);
            }
        }
    }
}

void copy_engine::submit(device &on, copy_request *request)
{
    lane &to = *lane_of(on);
    request->outcome = status::ok;
    if (has_gaps(*request) && nullptr == request->strided && !describe_gaps(request)) {
        request->outcome = gaps_->copy_otherwise(*request);
        finished_.append(request);
        return;
    }
    const copy_kind kind =
        request->strided != nullptr
            ? copy_kind::with_gaps
            : kind_of(request->len_bytes, request->kernel_reaches, request->wait_for != nullptr,
                      request->within_device, limits_);
    copy_list &waiting = to.waiting(kind);
    kind_facts &facts = to.facts.of(kind);
    if (waiting.empty()) {
        note_first(*request, &facts);
    }
    waiting.append(request);
    facts.waiting.add({1, request->len_bytes});
    facts.for_processor += request->processor_waits ? 1 : 0;
    ++pending_;
    launch(to, more_expected_.load(std::memory_order_relaxed));
}

// Sends out what is due.
void copy_engine::launch(lane &of, bool more_expected)
{
    copy_facts &facts = of.facts;
    facts.more_expected = more_expected;
    facts.processor_has_work = processor_has_work_;
    facts.usable = usable_;
    for (copy_decision next; (next = decide(facts, limits_)).goes;) {
        start(of, next);
        facts.usable = usable_; // again, whoever has refused this time
    }
}

// Takes a submission's worth of what waits, and starts it.
void copy_engine::start(lane &of, copy_decision decided)
{
    std::uint32_t slot = 0;
    while (!of.slots[slot].requests.empty()) {
        ++slot;
    }
    submission &in = of.slots[slot];
    in.kind = decided.kind;
    if (start_answer::started != carry_out(of, decided, &in)) {
        finish(&in.requests, status::driver_failed);
        return;
    }
    kind_facts &facts = of.facts.of(in.kind);
    facts.submissions += 1;
    facts.in_flight.add(in.requests.load);
    of.in_order.push_back(slot);
    ++submissions_[static_cast<std::size_t>(in.end.way)];
}

start_answer copy_engine::carry_out(lane &of, copy_decision decided, submission *in)
{
    copy_facts &facts = of.facts;
    facts.gaps_were_last = copy_kind::with_gaps == decided.kind;
    if (!facts.gaps_were_last) {
        facts.large_is_next = copy_kind::small == decided.kind;
    }
    take_submission(&of.waiting(decided.kind), &in->requests, &facts.of(decided.kind),
                    most_copies(decided.kind, limits_), limits_.batch_bytes);
    const driver_scope scope(driver_, of.on->context);
    if (!scope.entered()) {
        return start_answer::failed;
    }
    copy_list failed;
    start_answer answer = of.by->start(decided, &in->requests, &failed, &in->end);
    while (start_answer::refused == answer) {
        facts.usable = facts.usable.without(decided.way);
        decided = decide_way(decided.kind, in->requests.load.copies, facts);
        answer = of.by->start(decided, &in->requests, &failed, &in->end);
    }
    of.by->tell(&facts);
    if (!failed.empty()) {
        finish(&failed, status::driver_failed);
    }
    return answer;
}

void copy_engine::finish(copy_list *requests, status outcome)
{
    for (copy_request *each = requests->first; each != nullptr; each = each->next) {
        each->outcome = outcome;
    }
    pending_ -= requests->load.copies;
    finished_.append(requests);
}

void copy_engine::retire(lane &of, submission *in, status outcome)
{
    kind_facts &facts = of.facts.of(in->kind);
    facts.submissions -= 1;
    facts.in_flight.take(in->requests.load);
    finish(&in->requests, outcome);
}

copy_request *copy_engine::collect(bool busy)
{
    for (const std::unique_ptr<lane> &each : lanes_) {
        const bool asks_driver = !busy || ++each->rounds_not_asked >= rounds_before_asking;
        if (asks_driver) {
            each->rounds_not_asked = 0;
        }
        ask_round round(asks_driver);
        std::size_t kept = 0;
        for (const std::uint32_t slot : each->in_order) {
            submission &in = each->slots[slot];
            const status outcome = each->by->ask(&in.end, &round);
            if (status::busy == outcome) {
                each->in_order[kept++] = slot;
            } else {
                retire(*each, &in, outcome);
            }
        }
        each->in_order.resize(kept);
        launch(*each, false);
    }
    copy_request *over = finished_.take_all().first;
    end_gaps(over, true);
    return over;
}

copy_request *copy_engine::cancel_all()
{
    for (const std::unique_ptr<lane> &each : lanes_) {
        finish(&each->small, status::driver_failed);
        finish(&each->large, status::driver_failed);
        finish(&each->with_gaps, status::driver_failed);
        each->facts.small = each->facts.large = each->facts.with_gaps = {};
        for (const std::uint32_t slot : each->in_order) {
            finish(&each->slots[slot].requests, status::driver_failed);
        }
        each->in_order.clear();
    }
    copy_request *over = finished_.take_all().first;
    end_gaps(over, false);
    return over;
}

} // namespace gpusm
