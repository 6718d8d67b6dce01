// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/window_reduction.h"

#include <mutex>

namespace gpusm {

window_reduction::window_reduction(reduce_op op, reduce_type type, const window_elements &mine,
                                   const window_elements &theirs, window_mapping &in)
    : side_(in.side()), op_(op), type_(type), mine_(mine), theirs_(theirs), in_(in)
{
    if (mine.plan != nullptr) { // takes the GPU lock
        my_view_ =
            side_.views.open(reinterpret_cast<const void *>(mine.address), mine.count, mine.plan);
    }
}

window_reduction::~window_reduction()
{
    for (view *each : {my_view_, their_view_}) {
        if (each != nullptr) {
            side_.views.close(each);
        }
    }
    const std::lock_guard guard(side_.lock);
    for (const packed_block &each : {my_block_, their_block_}) {
        if (each.on != nullptr) {
            side_.views.give_packed(each);
        }
    }
}

status window_reduction::bring_mine()
{
    device *its = nullptr;
    std::uint64_t plain_bytes = 0;
    if (nullptr == my_view_ &&
        status::ok == side_.devices.for_address(mine_.address, &its, &plain_bytes) && its == on_ &&
        mine_.len_bytes <= plain_bytes) {
        source_ = mine_.address;
        return status::ok;
    }
    my_block_ = side_.views.take_packed(*on_, mine_.len_bytes);
    source_ = my_block_.address;
    return nullptr == my_block_.on
               ? status::unsupported
               : side_.views.copy_locked(source_,
                                         nullptr == my_view_ ? mine_.address : my_view_->address,
                                         mine_.len_bytes, true);
}

status window_reduction::bring_theirs(const window_mapping::place &place)
{
    target_ = place.base + (theirs_.address - in_.told().base);
    if (nullptr == theirs_.plan) {
        return status::ok;
    }
    their_view_ = side_.views.open_mapped(target_, theirs_.count, theirs_.plan, *on_, true);
    their_block_ = side_.views.take_packed(*on_, theirs_.len_bytes);
    if (nullptr == their_view_ || nullptr == their_block_.on) {
        return status::unsupported;
    }
    target_ = their_block_.address;
    return side_.views.copy_locked(target_, their_view_->address, theirs_.len_bytes, in_.is_own());
}

status window_reduction::find()
{
    std::uint64_t unused = 0;
    if (my_view_ != nullptr) {
        on_ = my_view_->on;
    } else if (mine_.plan != nullptr ||
               status::ok != side_.devices.for_address(mine_.address, &on_, &unused)) {
        return status::unsupported;
    }
    if (nullptr == on_ && status::ok != in_.preferred(&on_)) {
        return status::unsupported;
    }
    window_mapping::place place;
    if (const status s = in_.find(*on_, &place); status::ok != s) {
        return status::busy == s ? s : status::unsupported;
    }
    const driver_scope scope(side_.driver, on_->context);
    const bool can = place.kernel_touches && scope.entered() && side_.reducers.of(*on_).is_ready();
    return can && status::ok == bring_theirs(place) && status::ok == bring_mine()
               ? status::ok
               : status::unsupported;
}

status window_reduction::launch()
{
    reduction what{};
    what.sources[0] = target_;
    what.sources[1] = source_;
    what.targets[0] = target_;
    what.source_count = 2;
    what.target_count = 1;
    what.elements = mine_.len_bytes / element_bytes(type_);
    what.op = op_;
    what.type = type_;
    const CUevent before = side_.event_before_copies(*on_);
    const std::size_t events = nullptr == before ? 0 : 1;
    const driver_scope scope(side_.driver, on_->context);
    const status s = scope.entered() ? side_.reducers.of(*on_).start(what, {&before, events}, &end_)
                                     : status::unsupported;
    if (status::ok == s || status::busy == s || ++refusals_ < failures_in_a_row) {
        return status::ok == s ? s : status::busy;
    }
    return status::unsupported; // nothing has been started
}

status window_reduction::put_back()
{
    return nullptr == their_view_
               ? status::ok
               : side_.views.copy_locked(their_view_->address, target_, theirs_.len_bytes, false);
}

status window_reduction::step()
{
    const std::lock_guard guard(side_.lock);
    status s = status::ok;
    if (stage::find == at_ && status::ok == (s = find())) {
        at_ = stage::launch;
    }
    if (stage::launch == at_ && status::ok == (s = launch())) {
        at_ = stage::run;
    }
    if (stage::run == at_ && status::ok == (s = side_.reducers.of(*on_).ask(&end_))) {
        s = put_back();
    }
    if (status::busy != s) {
        at_ = stage::over;
    }
    return s;
}

} // namespace gpusm
