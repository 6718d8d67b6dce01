// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_bounce.cc: gets of device memory into ordinary host memory. The driver copies into
// pages that it does not know by halting the caller and at a fraction of the bus's speed. So such a
// get goes in pieces into registered memory of ours, and from there on by the processor, while the
// next pieces are on the bus. The other way round, host memory of a peer is the owner's to stage;
// but reading memory is what takes a processor's time, and two of them read more: so of a long one
// this process pulls a part in a single copy, into the same registered memory. Everything runs
// under the GPU lock.
#include "opal/mca/btl/gpusm/btl_gpusm_get.h"

#include "opal/mca/btl/gpusm/base/host_copy.h"
#include "opal/mca/btl/gpusm/base/log.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <utility>

namespace gpusm {

namespace {

struct bounce_piece {
    copy_request copy;
    get_request *get;
    unsigned char *at;   // registered, of the length of its kind
    std::uint64_t place; // in the get
    bounce_piece *next;  // free, or arrived
};

// A window of small messages needs many pieces, a long message needs long ones.
struct piece_pool {
    std::size_t piece_bytes;
    bounce_piece *free;
};

constexpr std::size_t small_pieces = 64;
constexpr std::size_t long_pieces = 16;
piece_pool small_pool{4096, nullptr};
piece_pool long_pool{128 * 1024, nullptr};
constexpr std::size_t page_bytes = 4096;
// The first of the long pieces of a get, so that the processor's part begins early; then they
// double.
constexpr std::size_t first_bytes = 32 * 1024;

std::array<bounce_piece, small_pieces + long_pieces> pieces;
bool asked_for_memory = false;

// Gets of which pieces wait for a place, gets that pull, and pieces whose copy by the engine is
// over; oldest first.
get_request *waiting = nullptr;
get_request **end_of_waiting = &waiting;
get_request *pulling = nullptr;
get_request **end_of_pulling = &pulling;
bool pulls_are_next = false;
bounce_piece *arrived = nullptr;
bounce_piece **end_of_arrived = &arrived;

void give_piece(bounce_piece *piece)
{
    piece_pool &to = piece < &pieces[small_pieces] ? small_pool : long_pool;
    piece->next = std::exchange(to.free, piece);
}

// Takes memory out of our segment, once, and has it registered. False: it is not to be had.
bool has_memory(gpu_desk &desk)
{
    if (std::exchange(asked_for_memory, true)) {
        return nullptr != pieces[0].at;
    }
    const std::size_t bytes = bounce_bytes();
    segment &own = mca_btl_gpusm_component.node->own();
    std::uint32_t granule = 0;
    status s = status::ok;
    {
        const std::lock_guard guard(*mca_btl_gpusm_component.lock);
        s = own.carve(bytes, &granule);
    }
    if (status::ok != s || !desk.is_registered(own.at(granule), bytes)) {
        log_line(log_level::info,
                 "device memory goes to host memory directly, without registered memory between");
        return false;
    }
    const auto start = reinterpret_cast<std::uintptr_t>(own.at(granule));
    auto *at = own.at(granule) + (page_bytes - start % page_bytes) % page_bytes;
    for (bounce_piece &each : pieces) {
        each.at = at;
        each.copy.part_of = static_cast<std::uint8_t>(copy_part::bounce);
        at += &each < &pieces[small_pieces] ? small_pool.piece_bytes : long_pool.piece_bytes;
        give_piece(&each);
    }
    return true;
}

// The get's copies have ended, well or not.
void end(get_request *get)
{
    if (get->bouncing.pulls) {
        stage_pulled(get);
        return;
    }
    mca_btl_gpusm_component.gpu.load()->imports.release(std::exchange(get->mapping, nullptr));
    finish_get(get, get->bouncing.failed ? status::driver_failed : status::ok);
}

// Sends out what has places. False: some of the get has to wait for one.
bool send_out(get_request *get)
{
    gpu_desk &desk = *mca_btl_gpusm_component.gpu;
    while (!get->bouncing.failed && get->bouncing.sent_bytes < get->copy.len_bytes) {
        const std::uint64_t left = get->copy.len_bytes - get->bouncing.sent_bytes;
        piece_pool &from = left <= small_pool.piece_bytes ? small_pool : long_pool;
        bounce_piece *piece = from.free;
        if (nullptr == piece) {
            return false;
        }
        from.free = piece->next;
        piece->get = get;
        piece->place = get->bouncing.sent_bytes;
        piece->copy.destination = reinterpret_cast<std::uint64_t>(piece->at);
        piece->copy.source = get->copy.source + piece->place;
        piece->copy.len_bytes =
            std::min({left, static_cast<std::uint64_t>(from.piece_bytes),
                      std::max<std::uint64_t>(first_bytes, get->bouncing.sent_bytes)});
        piece->copy.wait_for = get->copy.wait_for;
        piece->copy.on_device = false;
        get->bouncing.sent_bytes += piece->copy.len_bytes;
        ++get->bouncing.under_way;
        desk.copies.submit(*get->into, &piece->copy);
    }
    return true;
}

void send_waiting()
{
    while (waiting != nullptr && send_out(waiting)) {
        get_request *sent = std::exchange(waiting, waiting->next);
        end_of_waiting = nullptr == waiting ? &waiting : end_of_waiting;
        sent->bouncing.waits = false;
        if (0 == sent->bouncing.under_way) {
            end(sent);
        }
    }
}

// The next piece of a get that pulls. False: there is no place for it.
bool pull_piece(get_request *get)
{
    bounce_piece *piece = long_pool.free;
    if (nullptr == piece) {
        return false;
    }
    const std::uint64_t place = get->bouncing.sent_bytes;
    const std::uint64_t bytes =
        std::min<std::uint64_t>(get->copy.len_bytes - place, long_pool.piece_bytes);
    if (status::ok !=
        smsc_read(get->endpoint, nullptr, piece->at, get->remote_address + place, bytes)) {
        get->bouncing.failed = true;
        return true;
    }
    long_pool.free = piece->next;
    piece->get = get;
    piece->place = place;
    piece->copy.destination = get->copy.destination + place;
    piece->copy.source = reinterpret_cast<std::uint64_t>(piece->at);
    piece->copy.len_bytes = bytes;
    piece->copy.wait_for = nullptr;
    piece->copy.on_device = false;
    get->bouncing.sent_bytes += bytes;
    ++get->bouncing.under_way;
    count(counter::pulled_host_bytes, bytes);
    mca_btl_gpusm_component.gpu.load()->copies.submit(*get->into, &piece->copy);
    return true;
}

// About so many bytes, and at least one piece.
void progress_pulls(std::size_t bytes)
{
    for (std::size_t pulled = 0; pulling != nullptr && pulled < bytes;) {
        get_request *get = pulling;
        if (!get->bouncing.failed && !pull_piece(get)) {
            return;
        }
        pulled += long_pool.piece_bytes;
        if (get->bouncing.failed || get->bouncing.sent_bytes == get->copy.len_bytes) {
            pulling = get->next;
            end_of_pulling = nullptr == pulling ? &pulling : end_of_pulling;
            get->bouncing.waits = false;
            if (0 == get->bouncing.under_way) {
                end(get);
            }
        }
    }
}

} // namespace

bool can_pull(const get_request *get)
{
    return share_kind::host == get->remote.kind && !is_for_host(get) &&
           0 == (get->remote.flags & no_single_copy) && smsc_reads_plainly() &&
           has_memory(*mca_btl_gpusm_component.gpu);
}

void pull_rest(get_request *get, std::uint64_t from)
{
    get->bouncing = {};
    get->bouncing.sent_bytes = from;
    get->bouncing.pulls = get->bouncing.waits = true;
    get->next = nullptr;
    *end_of_pulling = get;
    end_of_pulling = &get->next;
}

std::size_t bounce_bytes()
{
    return small_pieces * small_pool.piece_bytes + long_pieces * long_pool.piece_bytes + page_bytes;
}

bool bounce_get(get_request *get)
{
    // What is page-locked in part only, the driver does not copy by itself.
    const gpu_desk &desk = *mca_btl_gpusm_component.gpu;
    return !is_page_locked(desk.driver, get->copy.destination, get->copy.len_bytes) &&
           bounce_failed_get(get);
}

bool bounce_failed_get(get_request *get)
{
    if (0 == get->copy.len_bytes || !has_memory(*mca_btl_gpusm_component.gpu)) {
        return false;
    }
    get->bouncing = {};
    get->next = nullptr;
    if (waiting != nullptr || !send_out(get)) {
        get->bouncing.waits = true;
        *end_of_waiting = get;
        end_of_waiting = &get->next;
    }
    return true;
}

void bounced(copy_request *copy)
{
    bounce_piece *piece = enclosing<bounce_piece>(copy, offsetof(bounce_piece, copy));
    piece->next = nullptr;
    *end_of_arrived = piece;
    end_of_arrived = &piece->next;
}

void progress_bounces()
{
    for (std::size_t copied = 0;
         arrived != nullptr && copied < mca_btl_gpusm_component.stage_copy_bytes;) {
        bounce_piece *piece = std::exchange(arrived, arrived->next);
        end_of_arrived = nullptr == arrived ? &arrived : end_of_arrived;
        get_request *get = piece->get;
        if (status::ok != piece->copy.outcome) {
            get->bouncing.failed = true;
        } else if (!get->bouncing.pulls) {
            auto *to = reinterpret_cast<void *>(get->copy.destination + piece->place);
            copy_out_of_ring(to, piece->at, piece->copy.len_bytes, get->copy.len_bytes);
            copied += piece->copy.len_bytes;
        }
        give_piece(piece);
        if (0 == --get->bouncing.under_way && !get->bouncing.waits) {
            end(get);
        }
        // Either direction gets every second of the places that become free.
        pulls_are_next = !pulls_are_next;
        if (pulls_are_next) {
            progress_pulls(1);
        }
        send_waiting();
    }
    progress_pulls(mca_btl_gpusm_component.stage_copy_bytes);
}

void release_bounces()
{
    small_pool.free = long_pool.free = nullptr;
    pieces = {};
    asked_for_memory = false;
    waiting = nullptr;
    end_of_waiting = &waiting;
    pulling = nullptr;
    end_of_pulling = &pulling;
    arrived = nullptr;
    end_of_arrived = &arrived;
}

} // namespace gpusm
