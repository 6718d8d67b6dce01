// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_stage.cc: staged gets: what the rest of the glue calls, and messages about them.
#include "opal/mca/btl/gpusm/btl_gpusm_stage.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <cstring>
#include <mutex>
#include <utility>

namespace gpusm {

stage_message stage_message_of(stage_operation operation, std::uint32_t get)
{
    stage_message made{};
    made.operation = operation;
    made.get = get;
    return made;
}

bool send_stage_message(mca_btl_base_endpoint_t *to, const stage_message &message,
                        const stage_target *target)
{
    struct {
        stage_message message;
        stage_target target;
    } both{message, nullptr == target ? stage_target{} : *target};
    static_assert(sizeof(both) == sizeof(stage_message) + sizeof(stage_target));
    const status s = post_control(to, frag_kind::stage, &both,
                                  nullptr == target ? sizeof(message) : sizeof(both));
    if (status::ok == s || status::busy == s) {
        return true;
    }
    if (!to->peer->closed()) {
        log_line(log_level::error,
                 "a message to process %u could not be sent (%s); nothing more is sent to it or "
                 "taken from it",
                 static_cast<unsigned>(to->peer->identity().vpid), to_string(s));
        to->peer->close();
    }
    return false;
}

void close_for_garbage(mca_btl_base_endpoint_t *peer, const stage_message &message)
{
    log_line(log_level::error,
             "process %u sent a message about staging that makes no sense (%u); nothing more is "
             "sent to it or taken from it",
             static_cast<unsigned>(peer->peer->identity().vpid),
             static_cast<unsigned>(message.operation));
    peer->peer->close();
}

namespace {

// Made with the first message about staging; under the GPU lock.
struct both_sides {
    explicit both_sides(gpu_side &side) : rings(side), writes(side), pushes(side), reads(side) {}
    stage_rings rings;
    stage_writes writes;
    stage_pushes pushes;
    stage_reads reads;
    std::uint32_t calls = 0;
};
both_sides *sides = nullptr;

both_sides &made_sides(gpu_side &side)
{
    if (nullptr == sides) {
        sides = new both_sides(side);
    }
    return *sides;
}

// Peers that are closed are looked for once in so many calls of progress.
constexpr std::uint32_t calls_between_closed = 256;

void drop_closed(both_sides &of)
{
    for (std::size_t i = 0; const mca_btl_base_endpoint_t *each = endpoint_at(i); ++i) {
        if (each->peer->closed()) {
            of.rings.drop(each);
        }
    }
    of.reads.drop_closed();
}

// Where the reader has put the word that splits the range; null: nowhere, as far as one can see.
// Its chunks are at least of the length of those that are pushed.
split_word *split_of(const mca_btl_base_endpoint_t *reader, const stage_message &message,
                     const stage_target &target)
{
    const peer_segment &shared = reader->peer->shared();
    const std::uint64_t offset = std::uint64_t{target.handle.slot} * granule_bytes;
    return message.len_bytes > 0 &&
                   split_chunks(message.len_bytes, push_chunk_bytes) <= UINT32_MAX &&
                   shared.holds(offset, sizeof(split_word))
               ? reinterpret_cast<split_word *>(shared.base() + offset)
               : nullptr;
}

} // namespace

status stage_fetch(get_request *get)
{
    return made_sides(*mca_btl_gpusm_component.gpu).reads.fetch(get);
}

void stage_by_host_memory(const mca_btl_base_endpoint_t *owner)
{
    made_sides(*mca_btl_gpusm_component.gpu).reads.ask_by_host(owner);
}

void stage_share(get_request *get)
{
    if (get->copy.len_bytes >= split_least_bytes) {
        made_sides(*mca_btl_gpusm_component.gpu).reads.share(get);
    }
}

void bounce_over(bounce *job)
{
    if (bounce_way::push == job->way) {
        sides->pushes.over(job);
        return;
    }
    get_request *get = enclosing<get_request>(job, offsetof(get_request, bouncing));
    if (bounce_way::pull == job->way) {
        sides->reads.end_pull(get);
    } else if (job->split != nullptr) {
        sides->reads.end_own_part(get);
    } else {
        mca_btl_gpusm_component.gpu.load()->imports.release(std::exchange(get->mapping, nullptr));
        finish_get(get, job->failed ? status::driver_failed : status::ok);
    }
}

void stage_copied(copy_request *copy)
{
    switch (static_cast<copy_part>(copy->part_of)) {
    case copy_part::stage_in:
        return sides->rings.copied(copy);
    case copy_part::stage_write:
        return sides->writes.copied(copy);
    case copy_part::stage_out:
        return sides->reads.copied(copy);
    case copy_part::get:
    case copy_part::bounce:
        break; // not ours
    }
}

int progress_stage()
{
    if (nullptr == sides || (sides->rings.idle() && sides->reads.idle())) {
        return 0;
    }
    if (0 == ++sides->calls % calls_between_closed) {
        drop_closed(*sides);
    }
    return sides->reads.progress() + sides->rings.progress();
}

status stage_ring_on(device &of, remote_handle *ring)
{
    return made_sides(*mca_btl_gpusm_component.gpu).rings.offer(of, ring);
}

void release_stage()
{
    if (sides != nullptr) {
        // What is under way uses what goes now.
        (void)mca_btl_gpusm_component.gpu.load()->copies.cancel_all();
        delete std::exchange(sides, nullptr);
    }
}

void stage_message_from(mca_btl_base_endpoint_t *endpoint, const unsigned char *payload,
                        std::size_t bytes)
{
    stage_message message{};
    stage_target target{};
    const bool has_target = bytes == sizeof(message) + sizeof(target);
    if (bytes != sizeof(message) && !has_target) {
        close_for_garbage(endpoint, message);
        return;
    }
    std::memcpy(&message, payload, sizeof(message));
    if (has_target) {
        std::memcpy(&target, payload + sizeof(message), sizeof(target));
        if (stage_operation::fetch != message.operation) {
            close_for_garbage(endpoint, message);
            return;
        }
    }
    gpu_side *side = gpu();
    if (nullptr == side) {
        // Without a driver nothing has been asked for. A peer that asks uses fragments instead.
        if (stage_operation::fetch == message.operation) {
            (void)send_stage_message(endpoint,
                                     stage_message_of(stage_operation::failed, message.get));
        }
        return;
    }
    const std::lock_guard guard(side->lock);
    both_sides &to = made_sides(*side);
    switch (message.operation) {
    case stage_operation::fetch:
        if (has_target && share_kind::host == target.handle.kind) {
            split_word *split = split_of(endpoint, message, target);
            if (nullptr == split) {
                close_for_garbage(endpoint, message);
            } else if (share_kind::host == message.handle.kind) {
                to.rings.fetch(endpoint, message, split);
            } else {
                to.pushes.fetch(endpoint, message, target, split);
            }
        } else if (!has_target || !to.writes.fetch(endpoint, message, target)) {
            to.rings.fetch(endpoint, message);
        }
        return;
    case stage_operation::piece:
        return to.reads.piece(endpoint, message);
    case stage_operation::release:
        return to.rings.release(endpoint, message);
    case stage_operation::failed:
        return to.reads.failed(endpoint, message);
    case stage_operation::cancel:
        to.writes.cancel(endpoint, message.get);
        return to.rings.cancel(endpoint, message);
    case stage_operation::written:
        return to.reads.written(endpoint, message);
    }
    close_for_garbage(endpoint, message); // a peer's byte, not our enum
}

} // namespace gpusm
