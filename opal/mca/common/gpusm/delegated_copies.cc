// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/delegated_copies.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <algorithm>
#include <ctime>
#include <tuple>

namespace gpusm {

namespace {

constexpr std::uint32_t questions_between_looks = 64;

// Where that submitter has said that its device tells it.
bool has_ended(const peer &submitter, const delegation_slot &of)
{
    const std::uint64_t offset = std::uint64_t{of.flag_granule} * granule_bytes;
    if (!submitter.shared().holds(offset, sizeof(std::uint32_t))) {
        return false;
    }
    const auto *flag = reinterpret_cast<const std::atomic<std::uint32_t> *>(
        submitter.shared().at(of.flag_granule));
    return static_cast<std::int32_t>(flag->load(std::memory_order_acquire) - of.flag_value) >= 0;
}

bool uses(const delegation_board &of, const device_uuid &which)
{
    return std::any_of(std::begin(of.devices), std::end(of.devices), [&](const used_device &each) {
        return 0 != each.in_use.load(std::memory_order_acquire) &&
               std::equal(which.begin(), which.end(), each.uuid);
    });
}

bool is_before(const segment_identity &one, const segment_identity &other)
{
    return std::tie(one.jobid, one.vpid) < std::tie(other.jobid, other.vpid);
}

} // namespace

delegation_board *own_delegation_board::get()
{
    if (nullptr == board_ && memory_.may_try()) {
        if (const status s = own_.carve(sizeof(delegation_board), &granule_, cache_line_bytes);
            status::ok != s) {
            (void)memory_.failed(s);
            return nullptr;
        }
        (void)memory_.worked();
        board_ = reinterpret_cast<delegation_board *>(own_.at(granule_));
        own_.view().header->delegations.store(granule_, std::memory_order_release);
    }
    return board_;
}

delegation_board *board_of(const peer &of)
{
    return board_of(of, of.shared().view().header->delegations.load(std::memory_order_acquire));
}

delegation_board *board_of(const peer &of, std::uint32_t granule)
{
    const std::uint64_t offset = std::uint64_t{granule} * granule_bytes;
    return 0 != granule && of.shared().holds(offset, sizeof(delegation_board))
               ? reinterpret_cast<delegation_board *>(of.shared().at(granule))
               : nullptr;
}

std::int64_t delegated_copies::now_ns()
{
    constexpr std::int64_t second_ns = 1'000'000'000;
    timespec now{};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * second_ns + now.tv_nsec;
}

// Processes need not agree: whoever is asked serves.
peer *delegated_copies::find_submitter(const device &on)
{
    peer *found = nullptr;
    const segment_identity *first = &node_.own().identity();
    for (std::size_t i = 0; peer *each = node_.live_peer_at(i); ++i) {
        if (each->closed() || !is_before(each->identity(), *first) ||
            (!each->attached() && status::ok != each->attach())) {
            continue;
        }
        const delegation_board *its = board_of(*each);
        if (its != nullptr && uses(*its, on.uuid)) {
            found = each;
            first = &each->identity();
        }
    }
    return found;
}

peer *delegated_copies::submitter_of(const device &on)
{
    if (on.under_mps || 0 == wait_ns_) {
        return nullptr;
    }
    if (known_.size() <= on.index) {
        known_.resize(on.index + 1);
    }
    known_submitter &known = known_[on.index];
    if (known.is != nullptr && known.is->closed()) {
        known = {};
    }
    // While there is none, others may just be about to tell that they use the device.
    if ((nullptr == known.is && known.questions < questions_between_looks) ||
        0 == known.questions % questions_between_looks) {
        known.is = find_submitter(on);
    }
    ++known.questions;
    return known.is != nullptr && reach_.may_try(known.is->number) ? known.is : nullptr;
}

status delegated_copies::ask(delegated_request *request, peer &submitter,
                             const delegated_memory &source, const delegated_memory &target,
                             std::uint64_t len_bytes, const device_uuid &on)
{
    delegation_board *board = board_.get();
    if (nullptr == board) {
        return status::no_memory;
    }
    if (turns_.empty()) {
        turns_.resize(delegation_slots);
        for (std::uint32_t slot = delegation_slots; slot > 0;) {
            free_slots_.push_back(--slot);
        }
    }
    if (free_slots_.empty()) {
        return status::busy;
    }
    request->submitter = &submitter;
    request->slot = free_slots_.back();
    request->asked_at_ns = now_();
    const std::uint32_t turn = ++turns_[request->slot];
    delegated_copy message{source, target, len_bytes, {}, board_.granule(), request->slot, turn, 0};
    std::copy(on.begin(), on.end(), message.device_uuid);
    board->slots[request->slot].word.store(delegation_word::of(turn, delegation_stage::offered),
                                           std::memory_order_release);
    if (!services_.send(submitter, message)) {
        return status::peer_gone;
    }
    free_slots_.pop_back();
    asked_.append(request);
    return status::ok;
}

// With its outcome; its slot is free then.
bool delegated_copies::is_over(delegated_request *request, std::int64_t now)
{
    delegation_slot &slot = board_.get()->slots[request->slot];
    std::atomic<std::uint32_t> &word = slot.word;
    const std::uint32_t turn = turns_[request->slot];
    const std::uint32_t number = request->submitter->number;
    std::uint32_t seen = word.load(std::memory_order_acquire);
    switch (delegation_word::stage_in(seen, turn)) {
    case delegation_stage::launched: // the segment of one that is closed may have been unmapped
        if (!request->submitter->closed() && has_ended(*request->submitter, slot)) {
            (void)reach_.worked(number);
            request->outcome = status::ok;
            break;
        }
        [[fallthrough]];
    case delegation_stage::taken:
        if (!request->submitter->closed()) {
            return false;
        }
        request->outcome = status::peer_gone;
        break;
    case delegation_stage::offered:
        if (!request->submitter->closed() && now - request->asked_at_ns < wait_ns_) {
            return false;
        }
        if (!word.compare_exchange_strong(seen,
                                          delegation_word::of(turn, delegation_stage::withdrawn),
                                          std::memory_order_acq_rel)) {
            return false; // it has just been taken
        }
        request->outcome = status::busy;
        break;
    default: // refused, failed, or a peer's word
        request->outcome = status::unsupported;
        break;
    }
    free_slots_.push_back(request->slot);
    // Those of one window of messages fail together, which counts once.
    if (status::ok == request->outcome || request->asked_at_ns < failure_counted_ns_) {
        return true;
    }
    failure_counted_ns_ = now;
    if (reach_.failed(number, request->outcome)) {
        log_line(log_level::info,
                 "process %u, which shares a device with this one, copies nothing for it for now: "
                 "%s",
                 static_cast<unsigned>(request->submitter->identity().vpid),
                 to_string(request->outcome));
    }
    return true;
}

delegated_request *delegated_copies::progress()
{
    const std::int64_t now = now_();
    queue<delegated_request> over;
    for (delegated_request *each = asked_.take_all(); each != nullptr;) {
        delegated_request *next = each->next;
        (is_over(each, now) ? over : asked_).append(each);
        each = next;
    }
    return over.take_all();
}

} // namespace gpusm
