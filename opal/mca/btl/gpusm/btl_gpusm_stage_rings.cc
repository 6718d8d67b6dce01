// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_stage_rings.cc: the owner's side of staged gets: memory of this process that a peer
// cannot map is copied, piece by piece, into memory that it can.
#include "opal/mca/btl/gpusm/btl_gpusm_stage.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace gpusm {

namespace {

// The longest piece in a ring on a device, and in the one in host memory: longer ones cost fewer
// messages and submissions, but nothing is read before a whole one is there. So a message begins
// with a part of that, and a small ring has shorter ones.
constexpr std::size_t device_piece_bytes = std::size_t{4} * 1024 * 1024;
constexpr std::size_t host_piece_bytes = std::size_t{256} * 1024;
constexpr std::size_t first_is_part = 8;
constexpr std::size_t least_pieces = 4;

std::size_t block_bytes_for(std::size_t ring_bytes)
{
    const std::size_t block = ring_bytes / stage_ring_blocks;
    return (block + page_bytes - 1) / page_bytes * page_bytes;
}

} // namespace

std::size_t host_ring_bytes()
{
    return block_bytes_for(mca_btl_gpusm_component.staging_host_bytes) * stage_ring_blocks;
}

owned_ring::owned_ring(const stage_shape &shape, std::uint32_t first)
    : pieces(shape), first_piece(first)
{
    for (std::uint32_t number = 0; number < fills.size(); ++number) {
        fills[number].ring = this;
        fills[number].number = number;
        fills[number].copy.part_of = static_cast<std::uint8_t>(copy_part::stage_in);
    }
}

stage_rings::~stage_rings()
{
    for (const auto &ring : rings_) {
        if (ring->on != nullptr) {
            gpu_.exports.release(ring->entry);
            free_device(gpu_.driver, *ring->on, ring->base);
        }
    }
}

owned_ring *stage_rings::add_ring(std::size_t block_bytes, std::size_t most_piece_bytes)
{
    const std::size_t piece =
        std::min(most_piece_bytes, block_bytes * stage_ring_blocks / least_pieces);
    const auto first = static_cast<std::uint32_t>(rings_.size()) * stage_ring_blocks;
    rings_.push_back(std::make_unique<owned_ring>(
        stage_shape{block_bytes, piece / first_is_part, piece}, first));
    return rings_.back().get();
}

status stage_rings::make_device_ring(device &on)
{
    const std::size_t block = block_bytes_for(mca_btl_gpusm_component.staging_device_bytes);
    const std::size_t bytes = block * stage_ring_blocks;
    std::uint64_t base = 0;
    if (const status s = alloc_device(gpu_.driver, on, bytes, &base); status::ok != s) {
        return s;
    }
    exported *entry = nullptr;
    remote_handle handle{};
    status s = gpu_.export_range(base, bytes, 0, &entry, &handle);
    if (status::ok == s && share_kind::legacy != handle.kind) {
        gpu_.exports.release(entry);
        s = status::unsupported;
    }
    if (status::ok != s) {
        free_device(gpu_.driver, on, base);
        return s;
    }
    owned_ring *made = add_ring(block, device_piece_bytes);
    made->on = &on;
    made->base = base;
    made->entry = entry;
    made->handle = handle;
    made->handle.event_slot = no_event_slot;
    made->position = base - handle.base;
    log_line(log_level::info, "a staging ring of %zu KiB on device %d", bytes / 1024, on.ordinal);
    return status::ok;
}

// Null: that device has none and cannot have one.
owned_ring *stage_rings::device_ring(device &on)
{
    for (const device *each : without_) {
        if (each == &on) {
            return nullptr;
        }
    }
    for (const auto &ring : rings_) {
        if (ring->on == &on) {
            if (!ring->entry->retired && ring->failures < failures_in_a_row) {
                return ring.get();
            }
            without_.push_back(&on); // its pieces come back, and that is all
            log_line(log_level::warn,
                     "the staging ring on device %d is gone; its messages go through host memory",
                     on.ordinal);
            return nullptr;
        }
    }
    if (const status s = make_device_ring(on); status::ok != s) {
        without_.push_back(&on);
        log_line(log_level::info,
                 "no staging ring on device %d; its messages go through host memory: %s",
                 on.ordinal, to_string(s));
        return nullptr;
    }
    return rings_.back().get();
}

owned_ring *stage_rings::host_ring()
{
    if (host_ != nullptr || host_failed_) {
        return host_;
    }
    const std::size_t bytes = host_ring_bytes();
    segment &own = mca_btl_gpusm_component.node->own();
    std::uint32_t granule = 0;
    status s = status::ok;
    {
        const std::lock_guard guard(*mca_btl_gpusm_component.lock);
        (void)own.seal(); // so that it begins with a page, as peers register it by itself
        s = own.carve(bytes, &granule);
    }
    if (status::ok != s) {
        host_failed_ = true;
        log_line(log_level::warn,
                 "no room for a staging ring of %zu KiB in the shared segment; messages between "
                 "host and device go in fragments",
                 bytes / 1024);
        return nullptr;
    }
    host_ = add_ring(bytes / stage_ring_blocks, host_piece_bytes);
    host_->base = reinterpret_cast<std::uint64_t>(own.at(granule));
    host_->handle = {no_export_slot,          no_event_slot, share_kind::host, 0, 0,
                     granule * granule_bytes, bytes};
    log_line(log_level::info, "a staging ring of %zu KiB in host memory", bytes / 1024);
    return host_;
}

owned_ring *stage_rings::ring_for(device *source, bool by_host)
{
    owned_ring *found = nullptr;
    if (source != nullptr && !by_host && mca_btl_gpusm_component.staging_device_bytes > 0) {
        found = device_ring(*source);
    }
    return nullptr == found ? host_ring() : found;
}

status stage_rings::offer(device &of, remote_handle *handle)
{
    const owned_ring *ring = ring_for(&of, false);
    if (nullptr == ring) {
        return status::unsupported;
    }
    *handle = ring->handle;
    return status::ok;
}

// What the program's synchronous copies have put into the memory has to be there. The driver sees
// to that for all memory of the context, from the first message on; an old driver cannot, and then
// the copies wait for what the legacy stream has got to do. That is also what use_cuda_events asks
// for.
bool stage_rings::waits_for_legacy(device &of)
{
    if (marked_.size() <= of.index) {
        marked_.resize(of.index + 1, mark::unknown);
    }
    mark &known = marked_[of.index];
    if (mark::unknown == known) {
        known = status::ok == make_copies_synchronous(gpu_.driver, of) ? mark::synchronous
                                                                       : mark::cannot;
    }
    return mark::cannot == known || mca_btl_gpusm_component.use_cuda_events;
}

void stage_rings::record_legacy(device &of)
{
    CUevent event = nullptr;
    if (status::ok != gpu_.devices.ipc_event(of, &event)) {
        return;
    }
    const driver_scope scope(gpu_.driver, of.context);
    (void)gpu_.driver.record_legacy_stream(event);
}

void stage_rings::refuse(mca_btl_base_endpoint_t *reader, std::uint32_t get)
{
    (void)send_stage_message(reader, stage_message_of(stage_operation::failed, get));
}

void stage_rings::fetch(mca_btl_base_endpoint_t *reader, const stage_message &message,
                        split_word *split)
{
    const std::uint64_t address = message.handle.base + message.offset;
    const bool of_host = share_kind::host == message.handle.kind;
    registration *source = nullptr;
    if (message.len_bytes > 0 && (of_host || share_kind::staged == message.handle.kind)) {
        source = registration_named(message.handle, address, message.len_bytes);
    }
    owned_ring *ring = nullptr;
    if (source != nullptr && of_host == (nullptr == source->device)) {
        ring = ring_for(source->device, 0 != (message.flags & stage_by_host));
    }
    if (nullptr == ring) {
        refuse(reader, message.get);
        return;
    }
    if (source->device != nullptr && waits_for_legacy(*source->device)) {
        record_legacy(*source->device);
    }
    if (ring == host_ && source->device != nullptr && !asked_to_register_) {
        asked_to_register_ = true; // at once, and not when the sweep comes to it
        (void)gpu_.is_registered(reinterpret_cast<const unsigned char *>(ring->base),
                                 ring->handle.len_bytes);
    }
    if (status::ok != ring->pieces.fetch(reader->number, message.get, address, message.len_bytes,
                                         source, source->turn, split)) {
        close_for_garbage(reader, message);
    }
}

void stage_rings::cancel(const mca_btl_base_endpoint_t *reader, const stage_message &message)
{
    for (const auto &ring : rings_) {
        ring->pieces.cancel(reader->number, message.get);
        speak(*ring);
    }
}

void stage_rings::release(mca_btl_base_endpoint_t *reader, const stage_message &message)
{
    const std::uint32_t index = message.piece / stage_ring_blocks;
    if (index >= rings_.size() ||
        status::ok !=
            rings_[index]->pieces.release(reader->number, message.piece % stage_ring_blocks)) {
        close_for_garbage(reader, message);
    }
}

void stage_rings::drop(const mca_btl_base_endpoint_t *reader)
{
    for (const auto &ring : rings_) {
        ring->pieces.drop(reader->number);
    }
}

bool stage_rings::idle() const
{
    for (const auto &ring : rings_) {
        if (!ring->pieces.idle()) {
            return false;
        }
    }
    return true;
}

void stage_rings::fill(owned_ring &ring, const stage_piece &piece, std::size_t *copied_here)
{
    const auto *source = static_cast<const registration *>(piece.user);
    if (source->turn != piece.tag) {
        // The memory has been deregistered: the reader has told ob1 that it was done with it.
        ring.pieces.filled(piece.number, false);
        return;
    }
    if (nullptr == source->device) {
        std::memcpy(reinterpret_cast<void *>(ring.base + piece.position),
                    reinterpret_cast<const void *>(piece.source), piece.len_bytes);
        *copied_here += piece.len_bytes;
        ring.pieces.filled(piece.number, true);
        return;
    }
    copy_request &copy = ring.fills[piece.number].copy;
    copy.destination = ring.base + piece.position;
    copy.source = piece.source;
    copy.len_bytes = piece.len_bytes;
    copy.wait_for = waits_for_legacy(*source->device) ? source->device->ipc_event : nullptr;
    copy.over_bus = nullptr == ring.on;
    copy.for_kernel = ring.on != nullptr && piece.source + piece.len_bytes <= source->plain_until;
    gpu_.copies.submit(*source->device, &copy);
}

void stage_rings::copied(copy_request *copy)
{
    stage_fill &fill = *enclosing<stage_fill>(copy, offsetof(stage_fill, copy));
    owned_ring &ring = *fill.ring;
    const bool good = status::ok == copy->outcome;
    ring.failures = good ? 0 : ring.failures + 1;
    ring.pieces.filled(fill.number, good);
    speak(ring);
}

// Tells the readers what there is to tell.
void stage_rings::speak(owned_ring &ring)
{
    stage_word word;
    while (ring.pieces.next_word(&word)) {
        mca_btl_base_endpoint_t *reader = endpoint_at(word.peer);
        if (word.failed) {
            refuse(reader, word.get);
            continue;
        }
        if (word.all_told) {
            (void)send_stage_message(reader, stage_message_of(stage_operation::written, word.get));
            continue;
        }
        stage_message message = stage_message_of(stage_operation::piece, word.get);
        message.piece = ring.first_piece + word.number;
        message.offset = word.offset;
        message.len_bytes = word.len_bytes;
        message.handle = ring.handle;
        message.position = ring.position + word.position;
        if (!send_stage_message(reader, message)) {
            drop(reader);
        }
    }
}

int stage_rings::progress()
{
    int pieces = 0;
    for (const auto &ring : rings_) {
        std::size_t copied_here = 0;
        stage_piece piece;
        while (copied_here < progress_copy_bytes && ring->pieces.cut(&piece)) {
            fill(*ring, piece, &copied_here);
            speak(*ring);
            ++pieces;
        }
        speak(*ring); // of split ranges of which nothing was left to cut
    }
    return pieces;
}

} // namespace gpusm
