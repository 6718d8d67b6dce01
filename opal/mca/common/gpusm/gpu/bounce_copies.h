// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/bounce_copies.h: copies between device memory and ordinary host memory. The driver copies
// into pages that it does not know by halting the caller and at a fraction of the bus's speed. So
// such a copy goes in pieces through registered memory of ours, the processor's part of one piece
// while others are on the bus. The host memory may be a peer's, to which the processor has access
// by single copies: one processor does not keep up with the bus, so both sides of a message copy
// parts of it (docs/streams.md).
#ifndef GPUSM_GPU_BOUNCE_COPIES_H
#define GPUSM_GPU_BOUNCE_COPIES_H

#include "opal/mca/common/gpusm/base/queue.h"
#include "opal/mca/common/gpusm/base/reach.h"
#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/copy_engine.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpusm {

enum class bounce_way : std::uint8_t {
    out,  // device memory to host memory of this process
    push, // device memory to host memory of `peer`
    pull, // host memory of `peer` to device memory
};

// One such copy. The caller fills in the first part, and owns it again when `over` is called. It
// may be given to the engine instead, which looks at `copy` only.
struct bounce {
    copy_request copy; // kernel_reaches: a kernel may touch the device memory
    bounce_way way;
    device *on; // in whose context the device's side is copied
    // Of the whole message. When that is longer this is a part of it, and is not cut into pieces
    // that begin short.
    std::uint64_t message_bytes;
    void *peer;                // whose host memory it is; the services know it
    void (*over)(bounce *job); // it has ended, as copy.outcome says

    std::uint64_t sent_bytes; // of which pieces have been sent out
    std::uint32_t under_way;  // pieces
    bool waits;               // in a queue, for places of further pieces
    bounce *next;
};

struct bounce_pool;

// A part of a job, and its registered memory.
struct bounce_piece {
    copy_request copy;
    bounce *job;
    bounce_pool *pool;
    unsigned char *at;   // registered, of the length of its pool
    std::uint64_t place; // in the job
    bounce_piece *next;  // free, or arrived
};

// Pieces of one length. The one given back last is taken first, so that no more of them leave the
// cache than are in use.
struct bounce_pool {
    std::size_t piece_bytes;
    std::size_t pieces;
    bounce_piece *free = nullptr;
};

// A window of messages needs many pieces, so that there are always some that have arrived while
// others are gathered and on the bus; a long message needs long ones.
enum bounce_length : std::uint8_t { short_piece, middle_piece, long_piece, pulled_piece };
inline constexpr std::array<bounce_pool, 4> bounce_pools = {
    {{4096, 64}, {32 * 1024, 64}, {128 * 1024, 32}, {256 * 1024, 8}}};

// What these copies need of others.
class bounce_services {
  public:
    // Registered memory of that size, from a page on, for good. `unsupported`: there never is any;
    // else there may be some later.
    virtual status bounce_memory(std::size_t bytes, unsigned char **out) = 0;
    // May a kernel in the context of `in` touch that memory?
    virtual bool kernel_touches(device &in, const unsigned char *at) = 0;
    // Single copies out of and into host memory of a peer. `read`: so many bytes will go to our
    // device.
    virtual status read(void *peer, void *local, std::uint64_t remote, std::size_t bytes) = 0;
    virtual status write(void *peer, const void *local, std::uint64_t remote,
                         std::size_t bytes) = 0;

  protected:
    ~bounce_services() = default;
};

// All such copies of a process. Not thread-safe: the caller holds its GPU lock. When it goes copies
// have been cancelled.
class bounce_copies {
  public:
    // The pieces' copies carry `part_of`.
    bounce_copies(copy_engine &engine, bounce_services &services, std::uint8_t part_of)
        : engine_(engine), services_(services), part_of_(part_of)
    {
    }
    bounce_copies(const bounce_copies &) = delete;
    bounce_copies &operator=(const bounce_copies &) = delete;

    // Is there memory for pieces? Asks for it until there is, with pauses.
    bool available();
    // Begins a copy of 1 byte or more; available() has been true.
    void start(bounce *job);
    // The copy of a piece has ended.
    void copied(copy_request *copy);
    // Copies what has arrived, some tens of microseconds at most, so that other messages do not
    // wait longer, and sends out further pieces.
    void progress()
    {
        if (arrived_.first() != nullptr || pulling_.first() != nullptr) {
            go_on();
        }
    }

    // The most that it takes; or what pieces take that are so many times fewer.
    static std::size_t memory_bytes(std::size_t share = 1);

  private:
    void go_on();
    bool send_out(bounce *job);
    void send_piece(bounce *job, bounce_piece *piece, std::uint64_t bytes);
    void send_waiting();
    bool pull_piece(bounce *job);
    void progress_pulls(std::size_t bytes);
    void count_to_deliver(const bounce_piece &piece, bool arrives);
    void make_pieces(unsigned char *memory, std::size_t share);
    status deliver(const bounce_piece &piece);

    copy_engine &engine_;
    bounce_services &services_;
    const std::uint8_t part_of_;
    std::array<bounce_pool, bounce_pools.size()> pools_ = bounce_pools;
    std::vector<bounce_piece> pieces_; // of all pools; empty: they have no memory
    reach memory_;

    queue<bounce> waiting_; // for places of pieces that the device fills
    queue<bounce> pulling_; // for places of pieces that are pulled
    bool pulls_are_next_ = false;
    queue<bounce_piece> arrived_;        // pieces whose copy by the engine is over; oldest first
    std::uint64_t to_deliver_bytes_ = 0; // of these, by the processor
};

} // namespace gpusm

#endif
