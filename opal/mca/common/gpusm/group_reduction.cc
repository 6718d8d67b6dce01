// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/group_reduction.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/local_process.h"
#include "opal/mca/common/gpusm/process_group.h"
#include "opal/mca/common/gpusm/reduction_work.h"

#include <algorithm>
#include <mutex>

namespace gpusm {

namespace {

bool is_same_call(const reduction_told &one, const reduction_told &other)
{
    return one.kind == other.kind && one.op == other.op && one.type == other.type &&
           one.elements == other.elements && one.root == other.root;
}

} // namespace

// The ranks whose buffers are on another device than those of all ranks before them.
std::uint32_t group_reduction::first_on_each_device() const
{
    std::uint32_t found = 0;
    const auto &all = work_->members;
    for (std::size_t i = 0; i < all.size(); ++i) {
        const auto is_there_too = [&](const reduction_work::member &before) {
            return before.says.device == all[i].says.device;
        };
        if (std::none_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i), is_there_too)) {
            found |= 1U << i;
        }
    }
    return found;
}

group_reduction::group_reduction(local_process &process, process_group &group,
                                 const reduction_call &call)
    : group_(group), call_(call), work_(std::make_unique<reduction_work>())
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
    const bool has_begun = at_ > stage::begin;
    const bool is_in_order = status::ok == outcome || status::unsupported == outcome;
    const bool waits = has_begun && (is_in_order || stage::run == at_);
    if (has_begun) {
        group_.store(meeting_, !waits         ? meeting_stage::left
                               : !is_in_order ? meeting_stage::failed
                               : declines_    ? meeting_stage::withdrew
                                              : meeting_stage::ended);
    }
    if (has_begun && !waits) {
        group_.leave(meeting_);
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
    group_.leave(meeting_);
    at_ = stage::over;
    return status::ok;
}

void group_reduction::tell()
{
    reduction_told mine{};
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
            mine.device = work_->on->uuid;
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
    const reduction_told &mine = work_->members[group_.rank()].says;
    bool can = true;
    for (std::size_t i = 0; i < group_.size(); ++i) {
        reduction_told &says = work_->members[i].says;
        if (i != group_.rank()) {
            group_.read(i, meeting_, &says, sizeof(says));
            if (group_.is_at(i, meeting_, meeting_stage::left)) {
                return status::peer_gone; // somebody is, for that one
            }
        }
        anyone_on_device_ = anyone_on_device_ || 0 != says.on_device;
        can = can && memory_told::device == says.memory && is_same_call(says, mine);
    }
    call_.workers = first_on_each_device();
    at_ = stage::map;
    return can ? status::ok : status::unsupported;
}

// What this process's part needs of the others. `busy`: not all of it yet.
status group_reduction::map_all()
{
    reduction_work &its = *work_;
    const std::size_t rank = group_.rank();
    const bool has_part = 0 != part_of(call_, rank, group_.size()).count;
    const std::uint64_t bytes = call_.elements * element_bytes(call_.type);
    const std::lock_guard guard(its.side->lock);
    for (; has_part && its.mapped < group_.size(); ++its.mapped) {
        const std::size_t i = its.mapped;
        reduction_work::member &of = its.members[i];
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
        if (group_.is_at(i, meeting_, meeting_stage::left)) {
            return status::peer_gone;
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
    reduction_work &its = *work_;
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
