// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/window_copies.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace gpusm {

// --- memory --------------------------------------------------------------------------------------

window_mapping::~window_mapping()
{
    for (const mapped_on &each : all_) {
        side_.imports.release(each.mapped);
    }
}

status window_mapping::find(device &on, place *out)
{
    if (nullptr == owner_) {
        device *its = nullptr;
        std::uint64_t plain_bytes = 0;
        const status s = side_.devices.for_address(told_.base, &its, &plain_bytes);
        const bool touches =
            its == &on && (told_.len_bytes <= plain_bytes ||
                           side_.devices.kernel_touches_managed(on, told_.base, told_.len_bytes));
        *out = {told_.base, touches, its == &on};
        return nullptr == its && status::ok == s ? status::not_found : s;
    }
    const auto fill = [&](const mapping &mapped) {
        *out = {mapped.local_base + (told_.base - mapped.remote_base),
                gpu_side::kernel_reads(mapped, on), mapped.device_uuid == on.uuid};
    };
    for (const mapped_on &each : all_) {
        if (each.on == &on && side_.imports.is_open(*each.mapped, on)) {
            fill(*each.mapped);
            return status::ok;
        }
    }
    if (!names_export(told_.handle.kind)) {
        return status::unsupported;
    }
    if (!covers(told_.handle, told_.base, told_.len_bytes)) {
        return status::bad_peer;
    }
    mapping *mapped = nullptr;
    const status s = side_.import(*owner_, told_.handle, on, &mapped);
    if (status::not_ready == s) {
        return descriptors_.after_import(side_.fds, owner_->number, told_.handle);
    }
    descriptors_.end();
    if (status::ok == s) {
        all_.push_back({&on, mapped});
        fill(*mapped);
    }
    return s;
}

status window_mapping::preferred(device **out)
{
    if (nullptr == owner_) {
        std::uint64_t unused = 0;
        const status s = side_.devices.for_address(told_.base, out, &unused);
        return status::ok == s && nullptr == *out ? status::not_found : s;
    }
    for (const mapped_on &each : all_) {
        if (side_.devices.is_alive(*each.on)) {
            *out = each.on;
            return status::ok;
        }
    }
    return side_.devices.for_host(out);
}

// --- copies --------------------------------------------------------------------------------------

window_copies::window_copies(gpu_side &side, const copy_limits &limits)
    : side_(side), engine_(side.driver, limits, &side.views)
{
}

window_copies::~window_copies()
{
    for (copy_request *each = engine_.cancel_all(); each != nullptr;) {
        end(reinterpret_cast<job *>(std::exchange(each, each->next)), status::cancelled);
    }
}

// Takes the GPU lock for what has gaps.
status window_copies::find_mine(const window_elements &mine, side_of_copy *out, device **on)
{
    if (mine.plan != nullptr) {
        out->opened =
            side_.views.open(reinterpret_cast<const void *>(mine.address), mine.count, mine.plan);
        if (nullptr == out->opened) {
            return status::unsupported;
        }
        *on = out->opened->on;
        *out = {out->opened->address, out->opened, true, true, true};
        return status::ok;
    }
    const std::lock_guard guard(side_.lock);
    std::uint64_t plain_bytes = 0;
    const status s = side_.devices.for_address(mine.address, on, &plain_bytes);
    if (status::ok == s) {
        const bool on_device = *on != nullptr;
        const bool touches =
            on_device && (mine.len_bytes <= plain_bytes ||
                          side_.devices.kernel_touches_managed(**on, mine.address, mine.len_bytes));
        *out = {mine.address, nullptr, touches, on_device, on_device};
    }
    return s;
}

status window_copies::find_theirs(const window_copy &what, device &on, side_of_copy *out)
{
    const window_elements &theirs = what.theirs;
    if (nullptr == what.in) {
        *out = {theirs.address, nullptr, false, false, false};
        return nullptr == theirs.plan ? status::ok : status::unsupported;
    }
    window_mapping::place place;
    const status s = what.in->find(on, &place);
    if (status::ok != s) {
        return s;
    }
    const std::uint64_t here = place.base + (theirs.address - what.in->told().base);
    *out = {here, nullptr, place.kernel_touches, true, place.is_there};
    if (theirs.plan != nullptr) {
        out->opened =
            side_.views.open_mapped(here, theirs.count, theirs.plan, on, place.kernel_touches);
        if (nullptr == out->opened) {
            return status::unsupported;
        }
        out->address = out->opened->address;
        (void)engine_.prepare_strided(on);
    }
    return status::ok;
}

bool window_copies::is_being_written(const written &by)
{
    const auto overlaps = [&by](const written &each) {
        return by.begin < each.end && each.begin < by.end;
    };
    return any_written() && overlaps(all_written_) &&
           (unlisted_ > 0 || std::any_of(written_.begin(), written_.end(), overlaps));
}

void window_copies::note_written(const written &by)
{
    all_written_ = any_written() ? written{std::min(all_written_.begin, by.begin),
                                           std::max(all_written_.end, by.end)}
                                 : by;
    if (written_.size() < most_written) {
        written_.push_back(by);
    } else {
        ++unlisted_;
    }
}

// Those that overlap wait for each other, so that each is listed once.
void window_copies::forget_written(const written &by)
{
    const auto found = std::find(written_.begin(), written_.end(), by);
    if (written_.end() == found) {
        --unlisted_;
    } else {
        *found = written_.back();
        written_.pop_back();
    }
}

bool window_copies::writes_to(const void *begin, std::uint64_t len_bytes)
{
    const auto address = reinterpret_cast<std::uint64_t>(begin);
    const std::lock_guard guard(side_.lock);
    return is_being_written({address, address + len_bytes});
}

status window_copies::start(const window_copy &what, const std::array<window_pending *, 2> &of)
{
    device *on = nullptr;
    side_of_copy mine;
    side_of_copy theirs;
    status s = find_mine(what.mine, &mine, &on);
    if (status::ok != s) {
        return s;
    }
    const std::unique_lock guard(side_.lock);
    if (nullptr == on) {
        s = nullptr == what.in ? status::unsupported : what.in->preferred(&on);
    }
    if (status::ok == s) {
        s = find_theirs(what, *on, &theirs);
    }
    written now;
    if (status::ok == s && what.is_put) {
        now = theirs.opened != nullptr
                  ? written{theirs.opened->lowest, theirs.opened->end}
                  : written{theirs.address, theirs.address + what.mine.len_bytes};
        if (is_being_written(now)) {
            s = status::busy;
        } else {
            note_written(now);
        }
    }
    if (status::ok != s) {
        for (view *each : {mine.opened, theirs.opened}) {
            if (each != nullptr) {
                side_.views.close(each);
            }
        }
        return s;
    }
    if (free_.empty()) {
        free_.push_back(&jobs_.emplace_back());
    }
    job &made = *free_.back();
    free_.pop_back();
    made.of = of;
    made.views = {mine.opened, theirs.opened};
    made.writes = now;
    made.copy = {};
    made.copy.source = what.is_put ? mine.address : theirs.address;
    made.copy.destination = what.is_put ? theirs.address : mine.address;
    made.copy.len_bytes = what.mine.len_bytes;
    // Only what this process's program may have written.
    if (what.is_put || (what.in != nullptr && what.in->is_own())) {
        made.copy.wait_for = side_.event_before_copies(*on);
    }
    made.copy.kernel_reaches = mine.kernel_touches && theirs.kernel_touches;
    made.copy.processor_waits = !mine.on_device || !theirs.on_device;
    made.copy.within_device = mine.is_there && theirs.is_there;
    for (window_pending *each : of) {
        if (each != nullptr) {
            each->copies.fetch_add(1, std::memory_order_relaxed);
        }
    }
    under_way_.fetch_add(1, std::memory_order_relaxed);
    engine_.submit(*on, &made.copy);
    return status::ok;
}

void window_copies::end(job *over, status outcome)
{
    for (view *&each : over->views) {
        if (each != nullptr) {
            side_.views.close(std::exchange(each, nullptr));
        }
    }
    if (over->writes.end != 0) {
        forget_written(over->writes);
    }
    if (status::ok != outcome) {
        log_line(log_level::info, "a copy of %zu bytes from or to a window failed: %s",
                 over->copy.len_bytes, to_string(outcome));
    }
    free_.push_back(over);
    under_way_.fetch_sub(1, std::memory_order_relaxed);
    for (window_pending *each : over->of) {
        if (each != nullptr) {
            if (status::ok != outcome) {
                each->has_failed.store(true, std::memory_order_relaxed);
            }
            // The last touch: its owner may go now.
            each->copies.fetch_sub(1, std::memory_order_release);
        }
    }
}

bool window_copies::progress()
{
    if (0 == under_way_.load(std::memory_order_relaxed)) {
        return false;
    }
    const std::unique_lock guard(side_.lock, std::try_to_lock);
    if (!guard.owns_lock()) {
        return false;
    }
    copy_request *over = engine_.collect();
    const bool any = over != nullptr;
    while (over != nullptr) {
        copy_request *each = std::exchange(over, over->next);
        if (status::ok != each->outcome) { // once more, in another way
            each->outcome = side_.views.copy_locked(each->destination, each->source,
                                                    each->len_bytes, each->wait_for != nullptr);
        }
        end(reinterpret_cast<job *>(each), each->outcome);
    }
    return any;
}

} // namespace gpusm
