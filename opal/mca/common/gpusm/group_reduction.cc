// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/group_reduction.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/gpu/reducer.h"
#include "opal/mca/common/gpusm/gpu_side.h"
#include "opal/mca/common/gpusm/local_process.h"
#include "opal/mca/common/gpusm/process_group.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <type_traits>
#include <utility>

namespace gpusm {

namespace {

enum class memory_told : std::uint32_t {
    host = 1,   // or device memory that nobody else can map
    device = 2, // that the handles name
};

// What each process tells the others. Read as a peer's word.
struct told {
    memory_told memory;
    reduction_kind kind;
    reduce_op op;
    reduce_type type;
    std::uint8_t on_device; // not 0: it is device memory, though `memory` may say host
    std::uint64_t elements;
    std::uint64_t root;
    std::uint64_t source; // address of the input in its process
    remote_handle source_in;
    std::uint64_t target; // of the result, where others write it
    remote_handle target_in;
};
static_assert(sizeof(told) <= board_said_bytes && std::is_trivially_copyable_v<told>);

bool is_same_call(const told &one, const told &other)
{
    return one.kind == other.kind && one.op == other.op && one.type == other.type &&
           one.elements == other.elements && one.root == other.root;
}

std::uint64_t address_of(const void *buffer)
{
    return reinterpret_cast<std::uint64_t>(buffer);
}

} // namespace

// The GPU lock is held for whatever touches the GPU side.
struct group_reduction::work {
    struct member {
        told says;
        mapping *source = nullptr; // null: not needed, or not yet
        mapping *target = nullptr;
        std::uint64_t source_here = 0; // addresses in this process
        std::uint64_t target_here = 0;
    };
    using clock = std::chrono::steady_clock;

    gpu_side *side = nullptr;
    device *on = nullptr; // this process's buffers are there; null: they are not on one device
    exported *source = nullptr;
    exported *target = nullptr;
    std::vector<member> members;
    std::size_t mapped = 0;            // members before that one
    std::shared_ptr<bool> descriptors; // asked for; true: an answer has come
    clock::time_point give_up{};       // waiting for them
    std::vector<CUevent> events;
    reduction what{};
    completion end;
    bool is_launched = false;
    unsigned refusals = 0; // of launches, in a row

    status find_device(const void *buffer);
    status offer(const void *buffer, std::uint64_t bytes, exported **out, remote_handle *handle);
    status describe(const reduction_call &call, std::size_t rank, told *out);
    status map(peer &from, const remote_handle &handle, std::uint64_t address, std::uint64_t bytes,
               mapping **out, std::uint64_t *here);
    status launch(const reduction_call &call, std::size_t rank);
    void release();
};

status group_reduction::work::find_device(const void *buffer)
{
    const pointer_facts facts = side->devices.facts_of(address_of(buffer));
    device *its = nullptr;
    const status s = facts.plain() ? side->devices.for_memory(facts, &its) : status::unsupported;
    if (status::ok != s || (on != nullptr && its != on)) {
        return status::unsupported;
    }
    on = its;
    return status::ok;
}

status group_reduction::work::offer(const void *buffer, std::uint64_t bytes, exported **out,
                                    remote_handle *handle)
{
    const pointer_facts facts = side->devices.facts_of(address_of(buffer), true);
    return side->exports.export_range(address_of(buffer), bytes, facts.buffer_id, out, handle);
}

// Anything but `ok`: others cannot map it.
status group_reduction::work::describe(const reduction_call &call, std::size_t rank, told *out)
{
    const std::uint64_t bytes = call.elements * element_bytes(call.type);
    status s = find_device(call.input);
    if (status::ok == s) {
        s = offer(call.input, bytes, &source, &out->source_in);
    }
    if (status::ok == s && call.receive != nullptr) {
        s = find_device(call.receive);
    }
    if (status::ok == s && is_written_by_others(call, rank)) {
        s = offer(call.receive, bytes, &target, &out->target_in);
    }
    out->source = address_of(call.input);
    out->target = address_of(call.receive);
    return s;
}

status group_reduction::work::map(peer &from, const remote_handle &handle, std::uint64_t address,
                                  std::uint64_t bytes, mapping **out, std::uint64_t *here)
{
    if (*out != nullptr) {
        return status::ok;
    }
    if (!names_export(handle.kind) || !covers(handle, address, bytes)) {
        return status::bad_peer;
    }
    status s = side->import(from, handle, *on, out);
    if (status::ok == s) {
        *here = (*out)->local_base + (address - (*out)->remote_base);
        s = gpu_side::kernel_reads(**out, *on) ? s : status::unsupported;
    }
    CUevent before = nullptr;
    if (status::ok == s) {
        s = side->event_of(from, handle, *on, &before);
    }
    if (status::ok == s && before != nullptr) {
        events.push_back(before);
    }
    if (status::not_ready != s) {
        descriptors = nullptr;
        return s;
    }
    if (nullptr == descriptors) {
        descriptors = std::make_shared<bool>(false);
        give_up = clock::now() + std::chrono::seconds(10);
        const auto come = [flag = descriptors] { *flag = true; };
        return side->fds.ask(from.number, handle, come) ? status::busy : status::unsupported;
    }
    // Once they have come, they should have helped.
    return !*descriptors && clock::now() < give_up ? status::busy : status::unsupported;
}

void group_reduction::work::release()
{
    if (nullptr == side) {
        return;
    }
    const std::lock_guard guard(side->lock);
    for (member &each : members) {
        for (mapping **its : {&each.source, &each.target}) {
            if (*its != nullptr) {
                side->imports.release(std::exchange(*its, nullptr));
            }
        }
    }
    for (exported **its : {&source, &target}) {
        if (*its != nullptr) {
            side->exports.release(std::exchange(*its, nullptr));
        }
    }
}

status group_reduction::work::launch(const reduction_call &call, std::size_t rank)
{
    const reduction_part part = part_of(call, rank, members.size());
    const std::uint64_t in_element = element_bytes(call.type);
    what = {};
    what.op = call.op;
    what.type = call.type;
    what.elements = part.count;
    for (std::size_t i = 0; i < sources_of(call, rank, members.size()); ++i) {
        what.sources[what.source_count++] = members[i].source_here + part.first * in_element;
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
        if (i == rank ? is_written_at_home(call, rank) : is_written_by_others(call, i)) {
            what.targets[what.target_count++] = members[i].target_here + part.to * in_element;
        }
    }
    const std::size_t of_others = events.size();
    if (CUevent before = side->event_before_copies(*on); before != nullptr) {
        events.push_back(before);
    }
    const driver_scope scope(side->driver, on->context);
    const status s =
        scope.entered() ? side->reducers.of(*on).start(what, events, &end) : status::driver_failed;
    events.resize(of_others);
    return s;
}

group_reduction::group_reduction(local_process &process, process_group &group,
                                 const reduction_call &call)
    : group_(group), call_(call), work_(std::make_unique<work>())
{
    work_->members.resize(group.size());
    work_->side = call.on_device ? process.gpu() : process.gpu_if_made();
}

group_reduction::~group_reduction() = default;

status group_reduction::step()
{
    status s = status::ok;
    while (status::ok == s && stage::over != at_) {
        s = advance();
        if (status::ok != s && status::busy != s) {
            end_with(s);
            s = status::ok;
        }
    }
    return status::busy == s ? s : outcome_;
}

bool group_reduction::cancel()
{
    const bool can = at_ < stage::vote;
    if (can) {
        end_with(status::peer_gone);
    }
    return can;
}

// One stage. `ok`: there is another one, or it is over; `busy`; else the call ends with that.
status group_reduction::advance()
{
    status s = status::ok;
    switch (at_) {
    case stage::connect:
        s = group_.connect();
        at_ = status::ok == s ? stage::begin : at_;
        return s;
    case stage::begin:
        s = group_.begin(&meeting_);
        if (status::ok == s) {
            tell();
            at_ = stage::gather;
        }
        return s;
    case stage::gather:
        return all_have_come_to(meeting_stage::told, &s) ? read_all() : s;
    case stage::map:
        s = map_all();
        if (status::busy != s) {
            declines_ = status::ok != s;
            group_.store(meeting_, declines_ ? meeting_stage::declines : meeting_stage::agrees);
            at_ = stage::vote;
        }
        return status::busy == s ? s : status::ok;
    case stage::vote:
        return all_have_come_to(meeting_stage::agrees, &s) ? count_votes() : s;
    case stage::run:
        return run();
    case stage::leave:
        return leave();
    case stage::over:
        break;
    }
    return s;
}

bool group_reduction::all_have_come_to(meeting_stage least, status *s)
{
    *s = group_.reached(meeting_, least, &next_);
    if (status::ok == *s) {
        next_ = 0;
    }
    return status::ok == *s;
}

// The call ends with that outcome for this process. Before it goes on, the others must have read
// what it has said, and must read and write nothing of its memory any more. Where it has failed
// before all have agreed, no kernel is started, and nobody can rely on the others to come.
void group_reduction::end_with(status outcome)
{
    outcome_ = outcome;
    const bool is_in_order = status::ok == outcome || status::unsupported == outcome;
    const bool waits = at_ > stage::begin && (is_in_order || stage::run == at_);
    if (at_ > stage::begin) {
        group_.store(meeting_, !is_in_order ? meeting_stage::failed
                               : declines_  ? meeting_stage::withdrew
                                            : meeting_stage::ended);
    }
    if (!waits) {
        work_->release();
    }
    next_ = 0;
    at_ = waits ? stage::leave : stage::over;
}

status group_reduction::leave()
{
    status s = status::ok;
    while (status::peer_gone == (s = group_.reached(meeting_, meeting_stage::ended, &next_))) {
        outcome_ = status::peer_gone;
        ++next_; // nothing is to come of that one, but perhaps of the others
    }
    if (status::busy == s) {
        return s;
    }
    for (std::size_t i = 0; i < group_.size(); ++i) {
        if (status::ok == outcome_ && group_.is_at(i, meeting_, meeting_stage::failed)) {
            outcome_ = status::driver_failed;
        }
    }
    work_->release();
    at_ = stage::over;
    return status::ok;
}

void group_reduction::tell()
{
    told mine{};
    mine.memory = memory_told::host;
    mine.kind = call_.kind;
    mine.op = call_.op;
    mine.type = call_.type;
    mine.elements = call_.elements;
    mine.root = call_.root;
    if (call_.on_device && work_->side != nullptr &&
        (!call_.in_place || can_be_in_place(call_.kind))) {
        const std::lock_guard guard(work_->side->lock);
        const status s = work_->describe(call_, group_.rank(), &mine);
        if (status::ok == s) {
            mine.memory = memory_told::device;
        } else {
            log_line(log_level::info, "a reduction goes through host memory: %s", to_string(s));
        }
    }
    anyone_on_device_ = call_.on_device;
    mine.on_device = call_.on_device ? 1 : 0;
    work_->members[group_.rank()].says = mine;
    group_.say(meeting_, &mine, sizeof(mine));
}

// All decide alike, as all have been told the same.
status group_reduction::read_all()
{
    const told &mine = work_->members[group_.rank()].says;
    bool can = true;
    for (std::size_t i = 0; i < group_.size(); ++i) {
        told &says = work_->members[i].says;
        if (i != group_.rank()) {
            group_.read(i, meeting_, &says, sizeof(says));
        }
        anyone_on_device_ = anyone_on_device_ || 0 != says.on_device;
        can = can && memory_told::device == says.memory && is_same_call(says, mine);
    }
    at_ = stage::map;
    return can ? status::ok : status::unsupported;
}

// What this process's part needs of the others. `busy`: not all of it yet.
status group_reduction::map_all()
{
    work &its = *work_;
    const std::size_t rank = group_.rank();
    const bool has_part = 0 != part_of(call_, rank, group_.size()).count;
    const std::uint64_t bytes = call_.elements * element_bytes(call_.type);
    const std::lock_guard guard(its.side->lock);
    for (; has_part && its.mapped < group_.size(); ++its.mapped) {
        const std::size_t i = its.mapped;
        work::member &of = its.members[i];
        if (i == rank) {
            of.source_here = of.says.source;
            of.target_here = of.says.target;
            continue;
        }
        status s = status::ok;
        if (i < sources_of(call_, rank, group_.size())) {
            s = its.map(group_.member(i), of.says.source_in, of.says.source, bytes, &of.source,
                        &of.source_here);
        }
        if (status::ok == s && is_written_by_others(call_, i)) {
            s = its.map(group_.member(i), of.says.target_in, of.says.target, bytes, &of.target,
                        &of.target_here);
        }
        if (status::ok != s) {
            return s;
        }
    }
    const driver_scope scope(its.side->driver, its.on->context);
    return scope.entered() && its.side->reducers.of(*its.on).is_ready() ? status::ok
                                                                        : status::unsupported;
}

status group_reduction::count_votes()
{
    bool can = !declines_;
    for (std::size_t i = 0; i < group_.size(); ++i) {
        if (group_.is_at(i, meeting_, meeting_stage::failed)) {
            return status::peer_gone; // somebody is, for that one
        }
        can = can && !group_.is_at(i, meeting_, meeting_stage::declines) &&
              !group_.is_at(i, meeting_, meeting_stage::withdrew);
    }
    if (!can) {
        return status::unsupported;
    }
    at_ = stage::run;
    return status::ok;
}

status group_reduction::run()
{
    work &its = *work_;
    status s = status::ok;
    if (0 != part_of(call_, group_.rank(), group_.size()).count) {
        const std::lock_guard guard(its.side->lock);
        if (its.is_launched) {
            s = its.side->reducers.of(*its.on).ask(&its.end);
        } else {
            s = its.launch(call_, group_.rank());
            its.is_launched = status::ok == s;
            // Nothing has been started then, but the others may have: so it is tried again.
            const bool again = status::busy != s && ++its.refusals < failures_in_a_row;
            s = its.is_launched || again ? status::busy : s;
        }
    }
    if (status::busy != s) {
        end_with(status::ok == s ? s : status::driver_failed);
    }
    return status::busy == s ? s : status::ok;
}

} // namespace gpusm
