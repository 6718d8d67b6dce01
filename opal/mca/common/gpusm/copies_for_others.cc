// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/copies_for_others.h"

#include "opal/mca/common/gpusm/base/pages.h"
#include "opal/mca/common/gpusm/gpu_side.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gpusm {

copies_for_others::copies_for_others(gpu_side &side, node &local, own_delegation_board &board,
                                     const copy_limits &limits)
    : side_(side), devices_(side.devices), node_(local), board_(board), limits_(limits)
{
}

copies_for_others::~copies_for_others()
{
    serve(false);
    for (const job *each : waiting_) {
        (void)move(*each, delegation_stage::offered, delegation_stage::refused);
    }
    for (const launcher &each : launchers_) { // waits for what is in flight
        if (each.by != nullptr) {
            const driver_scope scope(side_.driver, each.on->context);
            each.by->close(scope.entered());
        }
    }
}

void copies_for_others::publish()
{
    const auto is_used = [](const auto &each) {
        return each->context != nullptr && !each->under_mps;
    };
    const auto &devices = side_.devices.all();
    const bool has_to =
        0 != board_.granule() || std::any_of(devices.begin(), devices.end(), is_used);
    delegation_board *board = serves_ && has_to ? board_.get() : nullptr;
    if (serves_ && has_to && nullptr == board) {
        return; // later
    }
    published_ = devices.size();
    for (std::size_t i = 0; board != nullptr && i < devices.size(); ++i) {
        if (i >= std::size(board->devices)) {
            break; // others copy by themselves there
        }
        used_device &told = board->devices[i];
        if (is_used(devices[i]) && 0 == told.in_use.load(std::memory_order_relaxed)) {
            std::copy(devices[i]->uuid.begin(), devices[i]->uuid.end(), told.uuid);
        }
        told.in_use.store(is_used(devices[i]) ? 1 : 0, std::memory_order_release);
    }
}

void copies_for_others::serve(bool others)
{
    serves_ = others && 0 != limits_.kernel_blocks; // it makes them by a kernel
    if (!serves_ && 0 != board_.granule()) {
        for (used_device &each : board_.get()->devices) {
            each.in_use.store(0, std::memory_order_release);
        }
    }
}

// Of several contexts on that device, the one that memory of this process is in, if any is: the
// others must not touch what cuMemAlloc gave there.
device *copies_for_others::find_device(const delegated_copy &wanted)
{
    device *first = nullptr;
    bool are_several = false;
    for (const auto &each : side_.devices.all()) {
        if (std::equal(each->uuid.begin(), each->uuid.end(), wanted.device_uuid) &&
            side_.devices.is_alive(*each)) {
            are_several = first != nullptr;
            first = are_several ? first : each.get();
        }
    }
    if (are_several) {
        for (const delegated_memory *each : {&wanted.source, &wanted.target}) {
            const exported *own = each->owner == node_.own().identity()
                                      ? side_.exports.live_export(each->handle)
                                      : nullptr;
            if (own != nullptr && own->is_of_context() && own->on->uuid == first->uuid) {
                return own->on;
            }
        }
    }
    return first;
}

peer *copies_for_others::find_peer(const segment_identity &identity) const
{
    for (std::size_t i = 0; peer *each = node_.live_peer_at(i); ++i) {
        if (each->identity() == identity) {
            return each;
        }
    }
    return nullptr;
}

// `busy`: not yet; else the address is a peer's word that has been checked, or the memory cannot be
// had here.
status copies_for_others::reach_memory(const delegated_memory &memory, job *of, one_side *out)
{
    if (0 != out->address) {
        return status::ok;
    }
    const std::uint64_t len_bytes = of->wanted.len_bytes;
    if (!names_export(memory.handle.kind) || no_event_slot != memory.handle.event_slot ||
        !covers(memory.handle, memory.address, len_bytes)) {
        return status::bad_peer;
    }
    if (memory.owner == node_.own().identity()) {
        exported *entry = side_.exports.live_export(memory.handle);
        if (nullptr == entry || !covers(*entry, memory.address, len_bytes)) {
            return status::not_found;
        }
        if (entry->is_of_context() && entry->on != of->on) {
            return status::unsupported;
        }
        side_.exports.add_reference(entry);
        out->own = entry;
        out->address = memory.address;
        return status::ok;
    }
    out->owner = find_peer(memory.owner);
    if (nullptr == out->owner || (!out->owner->attached() && status::ok != out->owner->attach())) {
        return status::peer_gone;
    }
    status s = side_.import(*out->owner, memory.handle, *of->on, &out->mapped);
    if (status::not_ready == s) {
        return of->descriptors.after_import(side_.fds, out->owner->number, memory.handle);
    }
    of->descriptors.end();
    if (status::ok == s && !gpu_side::kernel_reads(*out->mapped, *of->on)) {
        s = status::unsupported;
    }
    if (status::ok == s) {
        out->address = out->mapped->local_base + (memory.address - out->mapped->remote_base);
    }
    return s;
}

// `ok`: it is ready to be launched; `busy`: again later; else it is over. Only what has been taken
// is mapped: the memory of what has been withdrawn may be gone, and what cannot be mapped counts.
// While it waits for descriptors its requester may withdraw it, as this process may leave MPI.
status copies_for_others::prepare(job *next)
{
    if (!move(*next, delegation_stage::offered, delegation_stage::taken)) {
        return status::cancelled;
    }
    status s = reach_memory(next->wanted.source, next, &next->source);
    if (status::ok == s) {
        s = reach_memory(next->wanted.target, next, &next->target);
    }
    if (status::ok != s) {
        (void)move(*next, delegation_stage::taken,
                   status::busy == s ? delegation_stage::offered : delegation_stage::refused);
    }
    return s;
}

// As many of those that wait as one launch takes. False: none.
bool copies_for_others::collect(batch *into)
{
    copies_.clear();
    std::erase_if(waiting_, [&](job *each) {
        const std::uint64_t parts = (each->wanted.len_bytes - 1) / gather_most_len + 1;
        // What has been reached for another context, before it was put off, is of no use.
        const device *before = std::exchange(each->on, find_device(each->wanted));
        const bool has_moved = before != nullptr && before != each->on;
        if ((into->on != nullptr && into->on != each->on) ||
            (!copies_.empty() && copies_.size() + parts > gather_most_copies)) {
            return false;
        }
        const status s = nullptr == each->on || has_moved || parts > gather_most_copies
                             ? status::unsupported
                             : prepare(each);
        if (status::ok != s) {
            if (status::busy != s) {
                (void)move(*each, delegation_stage::offered, delegation_stage::refused);
                end(each);
            }
            return status::busy != s;
        }
        into->on = each->on;
        into->jobs.push_back(each);
        for (std::uint64_t at = 0; at < each->wanted.len_bytes; at += gather_most_len) {
            const std::uint64_t bytes =
                std::min<std::uint64_t>(each->wanted.len_bytes - at, gather_most_len);
            copies_.push_back({each->target.address + at, each->source.address + at,
                               static_cast<std::uint32_t>(bytes), 0});
        }
        return true;
    });
    return !into->jobs.empty();
}

// Null: there is no memory for its flags now.
copies_for_others::launcher *copies_for_others::launcher_of(device &on)
{
    if (launchers_.size() <= on.index) {
        launchers_.resize(on.index + 1);
    }
    launcher &its = launchers_[on.index];
    if (nullptr == its.by && flag_memory_.may_try()) {
        const status s = node_.own().carve(in_system_pages(gatherer::flags_bytes), &its.flags,
                                           system_page_bytes());
        if (status::ok != s) {
            (void)flag_memory_.failed(s);
            return nullptr;
        }
        (void)flag_memory_.worked();
        its.on = &on;
        its.by = std::make_unique<gatherer>(side_.driver, on, limits_, node_.own().at(its.flags));
    }
    return nullptr == its.by ? nullptr : &its;
}

void copies_for_others::launch(batch *ready)
{
    launcher *by = launcher_of(*ready->on);
    const driver_scope scope(side_.driver, ready->on->context);
    const status s = nullptr == by      ? status::no_memory
                     : !scope.entered() ? status::driver_failed
                                        : by->by->start(copies_, {}, &ready->end);
    if (status::ok == s) {
        in_flight_.push_back(ready);
        tell(*ready, *by);
        return;
    }
    for (job *each : ready->jobs) {
        // Busy: as many launches are in flight as there may be.
        (void)move(*each, delegation_stage::taken,
                   status::busy == s ? delegation_stage::offered : delegation_stage::refused);
        if (status::busy == s) {
            waiting_.push_back(each);
        } else {
            end(each);
        }
    }
    ready->jobs.clear();
    free_batches_.push_back(ready);
}

// From now on the requesters look at the flag.
void copies_for_others::tell(const batch &launched, const launcher &by)
{
    static_assert(kernel_module::flag_bytes == granule_bytes);
    for (const job *each : launched.jobs) {
        delegation_slot &slot = each->board->slots[each->wanted.slot];
        slot.flag_granule = by.flags + launched.end.slot;
        slot.flag_value = by.by->value_of(launched.end);
        (void)move(*each, delegation_stage::taken, delegation_stage::launched);
    }
}

bool copies_for_others::move(const job &of, delegation_stage from, delegation_stage to)
{
    std::uint32_t expected = delegation_word::of(of.wanted.turn, from);
    return of.board->slots[of.wanted.slot].word.compare_exchange_strong(
        expected, delegation_word::of(of.wanted.turn, to), std::memory_order_acq_rel);
}

void copies_for_others::end(job *over)
{
    for (one_side *each : {&over->source, &over->target}) {
        if (each->mapped != nullptr) {
            side_.imports.release(each->mapped);
        }
        if (each->own != nullptr) {
            side_.exports.release(each->own);
        }
        *each = {};
    }
    over->descriptors.end();
    over->on = nullptr;
    free_.push_back(over);
}

bool copies_for_others::message_from(peer &requester, const unsigned char *payload,
                                     std::size_t bytes)
{
    delegated_copy wanted;
    if (sizeof(wanted) != bytes) {
        return false;
    }
    std::memcpy(&wanted, payload, sizeof(wanted));
    delegation_board *board = board_of(requester, wanted.granule);
    if (nullptr == board || wanted.slot >= delegation_slots || 0 == wanted.len_bytes) {
        return false;
    }
    if (free_.empty()) {
        free_.push_back(&jobs_.emplace_back());
    }
    job *made = free_.back();
    free_.pop_back();
    made->wanted = wanted;
    made->requester = &requester;
    made->board = board;
    waiting_.push_back(made);
    return true;
}

void copies_for_others::progress()
{
    if (has_new_device()) {
        publish();
    }
    std::erase_if(in_flight_, [this](batch *each) {
        const status s = launchers_[each->on->index].by->ask(&each->end);
        if (status::busy == s) {
            return false;
        }
        for (job *over : each->jobs) {
            if (status::ok != s) {
                (void)move(*over, delegation_stage::launched, delegation_stage::failed);
            }
            made_ += status::ok == s ? 1 : 0;
            end(over);
        }
        each->jobs.clear();
        free_batches_.push_back(each);
        return true;
    });
    constexpr std::size_t enough = 32;
    for (bool more = in_flight_.empty() || waiting_.size() >= enough; more;) {
        if (free_batches_.empty()) {
            free_batches_.push_back(&batches_.emplace_back());
        }
        batch *next = free_batches_.back();
        next->on = nullptr;
        const std::size_t in_flight = in_flight_.size();
        more = collect(next);
        if (more) {
            free_batches_.pop_back();
            launch(next);
            more = in_flight_.size() > in_flight && !waiting_.empty();
        }
    }
}

bool copies_for_others::forget_peer(const peer &ended)
{
    std::erase_if(waiting_, [&](job *each) {
        const bool goes = each->has_to_do_with(ended);
        if (goes) {
            (void)move(*each, delegation_stage::offered, delegation_stage::refused);
            end(each);
        }
        return goes;
    });
    return std::none_of(in_flight_.begin(), in_flight_.end(), [&](const batch *each) {
        return std::any_of(each->jobs.begin(), each->jobs.end(),
                           [&](const job *one) { return one->has_to_do_with(ended); });
    });
}

} // namespace gpusm
