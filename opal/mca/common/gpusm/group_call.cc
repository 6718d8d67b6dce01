// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/group_call.h"

namespace gpusm {

status group_call::step()
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

void group_call::cancel(status why)
{
    if (stage::prepare == at_) { // what has been started for that may run
        called_off_ = why;
    } else if (at_ < stage::vote) {
        end_with(why);
    }
}

// One stage. `ok`: there is another one, or it is over; `busy`; else the call ends with that.
status group_call::advance()
{
    status s = status::ok;
    switch (at_) {
    case stage::connect:
        s = group_.connect();
        at_ = status::ok == s ? stage::prepare : at_;
        return s;
    case stage::prepare:
        s = prepare();
        if (status::busy != s) {
            at_ = stage::begin;
            s = called_off_;
        }
        return s;
    case stage::begin:
        s = group_.begin(&meeting_);
        if (status::ok == s) {
            anyone_on_device_ = tell();
            at_ = stage::gather;
        }
        return s;
    case stage::gather:
        return all_have_come_to(meeting_stage::told, &s) ? hear_all() : s;
    case stage::map:
        s = map();
        if (status::busy != s) {
            declines_ = status::ok != s;
            group_.store(meeting_, declines_ ? meeting_stage::declines : meeting_stage::agrees);
            at_ = stage::vote;
        }
        return status::busy == s ? s : status::ok;
    case stage::vote:
        return all_have_come_to(meeting_stage::agrees, &s) ? count_votes() : s;
    case stage::run:
        s = carry_out();
        if (status::busy != s) {
            end_with(status::ok == s ? s : status::driver_failed);
        }
        return status::busy == s ? s : status::ok;
    case stage::leave:
        return leave();
    case stage::over:
        break;
    }
    return s;
}

bool group_call::all_have_come_to(meeting_stage least, status *s)
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
void group_call::end_with(status outcome)
{
    outcome_ = outcome;
    const bool has_begun = at_ > stage::begin;
    const bool is_in_order = status::ok == outcome || status::unsupported == outcome;
    const bool waits = has_begun && (is_in_order || stage::run == at_);
    if (has_begun) {
        group_.store(meeting_, status::cancelled == outcome ? meeting_stage::revoked
                               : !waits                     ? meeting_stage::left
                               : !is_in_order               ? meeting_stage::failed
                               : declines_                  ? meeting_stage::withdrew
                                                            : meeting_stage::ended);
    }
    if (has_begun && !waits) {
        group_.leave(meeting_);
    }
    if (!waits) {
        release();
    }
    next_ = 0;
    at_ = waits ? stage::leave : stage::over;
}

status group_call::leave()
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
    release();
    group_.leave(meeting_);
    at_ = stage::over;
    return status::ok;
}

// `ok`: nobody has. Each says why: it has met somebody who is gone, or who has left for that
// reason; or the group's calls have been called off, of which this process may hear later. Who has
// then given up the group says nothing any more.
status group_call::first_that_left() const
{
    for (std::size_t i = 0; i < group_.size(); ++i) {
        if (group_.is_at(i, meeting_, meeting_stage::left)) {
            return status::peer_gone;
        }
        if (group_.is_at(i, meeting_, meeting_stage::revoked)) {
            return status::cancelled;
        }
        if (group_.is_at(i, meeting_, meeting_stage::closed)) {
            return group_.has_lost_any() ? status::peer_gone : status::cancelled;
        }
    }
    return status::ok;
}

status group_call::hear_all()
{
    for (std::size_t i = 0; i < group_.size(); ++i) {
        if (i == group_.rank()) {
            continue;
        }
        const bool its_on_device = hear(i);
        anyone_on_device_ = anyone_on_device_ || its_on_device;
    }
    if (const status s = first_that_left(); status::ok != s) {
        return s;
    }
    at_ = stage::map;
    return can_be() ? status::ok : status::unsupported;
}

status group_call::count_votes()
{
    if (const status s = first_that_left(); status::ok != s) {
        return s;
    }
    bool can = !declines_;
    for (std::size_t i = 0; i < group_.size(); ++i) {
        can = can && !group_.is_at(i, meeting_, meeting_stage::declines) &&
              !group_.is_at(i, meeting_, meeting_stage::withdrew);
    }
    if (!can) {
        return status::unsupported;
    }
    at_ = stage::run;
    return status::ok;
}

} // namespace gpusm
