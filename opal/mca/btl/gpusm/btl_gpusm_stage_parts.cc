// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_stage_parts.cc: the reader's side of gets that both processes copy, because one
// processor does not keep up with the bus: of host memory for a device this process pulls a part,
// from the end, while the owner stages from the front; of device memory for host memory the owner
// pushes a part, from the end, while this process copies from the front (btl_gpusm_bounce.cc moves
// the bytes, shm/split.h says whose they are).
#include "opal/mca/btl/gpusm/btl_gpusm_stage.h"
#include "opal/mca/btl/gpusm/btl_gpusm_smsc.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <mutex>
#include <utility>

namespace gpusm {

namespace {

constexpr unsigned splits = 64; // as many as free_splits_ has bits

// Of a get that the owner stages for this device: will this process read a part of it by itself?
bool would_pull(const get_request *get)
{
    const bool is_direct =
        0 != (get->remote.flags & page_locked) && mca_btl_gpusm_component.use_direct_host;
    return get->copy.len_bytes >= split_least_bytes &&
           split_chunks(get->copy.len_bytes, pull_chunk_bytes) <= UINT32_MAX && !is_direct &&
           share_kind::host == get->remote.kind && !is_for_host(get) &&
           0 == (get->remote.flags & no_single_copy) && smsc_reads_plainly() && can_bounce();
}

// Are the pulled bytes those behind the owner's? The word between them may be written by a peer.
bool fits_together(const get_request *get)
{
    const bounce &job = get->bouncing;
    const std::uint64_t begin =
        (split_chunks(job.len_bytes, pull_chunk_bytes) - job.chunks) * pull_chunk_bytes;
    return get->owners_bytes == std::min(begin, job.len_bytes);
}

} // namespace

// Where the word of a split range is, as the target of a fetch.
stage_target stage_reads::split_target(std::uint32_t number, std::uint64_t to,
                                       std::uint64_t len_bytes) const
{
    static_assert(0 == sizeof(split_word) % granule_bytes);
    const std::uint32_t granule =
        splits_granule_ + number * static_cast<std::uint32_t>(sizeof(split_word) / granule_bytes);
    return {{granule, no_event_slot, share_kind::host, 0, 0, to, len_bytes}, to};
}

// Makes the get one that both sides copy, if that is to be; then the fetch has this target.
bool stage_reads::split_pull(get_request *get, staged_get *made, stage_target *target)
{
    std::uint32_t number = 0;
    split_word *split = would_pull(get) ? take_split(&number) : nullptr;
    if (nullptr == split) {
        return false;
    }
    split_begin(split,
                static_cast<std::uint32_t>(split_chunks(get->copy.len_bytes, pull_chunk_bytes)));
    made->is_split = true;
    made->split = number;
    *target = split_target(number, 0, get->copy.len_bytes);
    bounce &job = get->bouncing;
    job = {};
    job.way = bounce_way::pull;
    job.on = get->into;
    job.source = get->remote_address;
    job.destination = get->copy.destination;
    job.for_kernel = get->copy.for_kernel;
    job.len_bytes = get->copy.len_bytes;
    job.peer = get->endpoint;
    job.split = split;
    get->owner = made;
    return true;
}

// This process has copied what it has come to.
void stage_reads::end_pull(get_request *get)
{
    const bounce &job = get->bouncing;
    if (nullptr == get->owner) {
        give_split(static_cast<std::uint32_t>(job.split - splits_));
    }
    if (get->owner != nullptr && !job.failed &&
        job.chunks == split_chunks(job.len_bytes, pull_chunk_bytes)) {
        forget_owner(get);
    }
    end_part(get, !job.failed && (!get->a_part_is_over || fits_together(get)));
}

// All of it was copied here. The owner, which has something else to do, need not be waited for:
// when it comes, it will find nothing to do, and say so.
void stage_reads::forget_owner(get_request *get)
{
    std::exchange(get->owner, nullptr)->user = nullptr;
    get->a_part_is_over = true;
}

// The owner's pieces of a get that this process pulls a part of are over.
void stage_reads::end_split(mca_btl_base_endpoint_t *owner, staged_get *of)
{
    const bool good = !of->bad;
    const std::uint64_t arrived_bytes = of->arrived_bytes;
    auto *get = static_cast<get_request *>(of->user);
    if (nullptr == get || get->a_part_is_over) {
        give_split(of->split); // else this process is going to look there once more
    }
    gets_.close(of);
    --rings_of(owner).under_way;
    if (get != nullptr) {
        get->owner = nullptr;
        get->owners_bytes = arrived_bytes;
        end_part(get, good && (!get->a_part_is_over || fits_together(get)));
    }
    ask_waiting(owner);
}

// Of two.
void stage_reads::end_part(get_request *get, bool good)
{
    get->part_failed = get->part_failed || !good;
    if (!std::exchange(get->a_part_is_over, true)) {
        return;
    }
    if (get->mapping != nullptr) {
        gpu_.imports.release(std::exchange(get->mapping, nullptr));
    }
    finish_get(get, get->part_failed ? status::driver_failed : status::ok);
}

split_word *stage_reads::take_split(std::uint32_t *number)
{
    if (!std::exchange(asked_for_splits_, true)) {
        segment &own = mca_btl_gpusm_component.node->own();
        const std::lock_guard guard(*mca_btl_gpusm_component.lock);
        if (status::ok == own.carve(splits * sizeof(split_word), &splits_granule_)) {
            splits_ = reinterpret_cast<split_word *>(own.at(splits_granule_));
        }
    }
    if (nullptr == splits_ || 0 == free_splits_) {
        return nullptr;
    }
    *number = static_cast<std::uint32_t>(std::countr_zero(free_splits_));
    free_splits_ &= free_splits_ - 1;
    return &splits_[*number];
}

void stage_reads::share(get_request *get)
{
    mca_btl_base_endpoint_t *owner = get->endpoint;
    peer_rings &rings = rings_of(owner);
    std::uint32_t number = 0;
    if (get->copy.wait_for != nullptr || !smsc_reads_plainly() ||
        owner->peer->refuses_single_copies() || owner->failed_pushes >= failures_in_a_row ||
        rings.under_way >= stage_fetches_at_once) {
        return;
    }
    split_word *split = take_split(&number);
    staged_get *made =
        nullptr == split ? nullptr : gets_.open(owner->number, get->copy.len_bytes, get);
    if (nullptr == made) {
        if (split != nullptr) {
            give_split(number);
        }
        return;
    }
    made->is_shared = made->has_target = true;
    made->split = number;
    split_begin(split,
                static_cast<std::uint32_t>(split_chunks(get->copy.len_bytes, push_chunk_bytes)));
    stage_message message = stage_message_of(stage_operation::fetch, made->number);
    message.handle = get->remote;
    message.offset = get->remote_address - get->remote.base;
    message.len_bytes = get->copy.len_bytes;
    const stage_target target = split_target(number, get->copy.destination, get->copy.len_bytes);
    if (!send_stage_message(owner, message, &target)) {
        give_split(number);
        gets_.close(made);
        return;
    }
    ++rings.under_way;
    get->owner = made;
    get->bouncing.split = split;
}

void stage_reads::end_own_part(get_request *get)
{
    const bounce &job = get->bouncing;
    if (nullptr == get->owner) {
        give_split(static_cast<std::uint32_t>(job.split - splits_));
    }
    if (get->rest_from < job.len_bytes) { // the owner has said so already
        if (!job.failed) {
            copy_rest(get);
            return;
        }
        get->a_part_is_over = true;
    }
    if (get->owner != nullptr && !job.failed &&
        job.chunks == split_chunks(job.len_bytes, push_chunk_bytes)) {
        forget_owner(get);
    }
    end_part(get, !job.failed);
}

// What the owner has not been able to push is copied here, when the rest is over.
void stage_reads::copy_rest(get_request *get)
{
    bounce &job = get->bouncing;
    job.source += get->rest_from;
    job.destination += get->rest_from;
    job.len_bytes -= get->rest_from;
    job.split = nullptr; // so its end is the end of the get
    start_bounce(&job);
}

// The owner has said its word about a get that it was to copy a part of.
void stage_reads::end_shared(mca_btl_base_endpoint_t *owner, staged_get *of)
{
    const bool good = !of->bad;
    auto *get = static_cast<get_request *>(of->user);
    const split_state met = split_look(splits_[of->split]);
    if (nullptr == get || get->a_part_is_over) {
        give_split(of->split); // else this process is going to look there once more
    }
    gets_.close(of);
    --rings_of(owner).under_way;
    owner->failed_pushes = good ? 0 : owner->failed_pushes + 1;
    if (get != nullptr) {
        get->owner = nullptr;
        // Nothing, if it has taken no chunk: then this process does all of it.
        const std::uint64_t len_bytes = get->copy.len_bytes;
        const std::uint64_t behind =
            std::min(len_bytes, std::uint64_t{met.back} * push_chunk_bytes);
        if (good) {
            count(counter::pushed_host_bytes, len_bytes - behind);
        } else if (behind < len_bytes && !owner->peer->closed()) {
            get->rest_from = behind;
        }
        if (get->rest_from == len_bytes) {
            end_part(get, good || behind == len_bytes);
        } else if (get->a_part_is_over) {
            if (get->part_failed) {
                end_part(get, false);
            } else {
                copy_rest(get);
            }
        }
    }
    ask_waiting(owner);
}

} // namespace gpusm
