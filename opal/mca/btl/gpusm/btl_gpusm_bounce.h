// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_bounce.h: copies between device memory and ordinary host memory, ours or a peer's, in
// pieces through registered memory of ours (btl_gpusm_bounce.cc).
//
// Everything here is called under the GPU lock.
#ifndef BTL_GPUSM_BOUNCE_H
#define BTL_GPUSM_BOUNCE_H

#include "opal/mca/btl/gpusm/btl_gpusm.h"
#include "opal/mca/btl/gpusm/gpu/copy_engine.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace gpusm {

class gpu_side;

enum class bounce_way : std::uint8_t {
    out,  // device memory to host memory of this process
    push, // device memory to host memory of `peer`
    pull, // host memory of `peer` to device memory
};

// One such copy. The caller fills in the first part, and owns it again when `over` is called.
struct bounce {
    bounce_way way;
    device *on; // in whose context the device's side is copied
    std::uint64_t source;
    std::uint64_t destination;
    std::uint64_t len_bytes;
    CUevent wait_for; // for the device memory to be read; null: nothing
    bool for_kernel;  // a kernel may touch the device memory
    bool is_part;     // of a message that is copied in parts: in one piece, if there are such
    mca_btl_base_endpoint_t *peer;
    void (*over)(bounce *job); // it has ended, as `failed` says

    std::uint64_t sent_bytes; // of which pieces have been sent out
    std::uint32_t under_way;  // pieces
    bool failed;
    bool waits; // in a list, for places of further pieces
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

// Jobs in order.
struct bounce_list {
    bounce *first = nullptr;
    bounce *last = nullptr;

    void append(bounce *job)
    {
        job->waits = true;
        job->next = nullptr;
        (nullptr == first ? first : last->next) = job;
        last = job;
    }
    bounce *take()
    {
        bounce *job = std::exchange(first, first->next);
        job->waits = false;
        return job;
    }
};

// All such copies of a process. When it goes copies have been cancelled.
class bounce_copies {
  public:
    explicit bounce_copies(gpu_side &side) : side_(side) {}
    bounce_copies(const bounce_copies &) = delete;
    bounce_copies &operator=(const bounce_copies &) = delete;

    // Is there memory for pieces? The first call takes it out of our segment and has it registered.
    bool available();
    // Begins a copy of 1 byte or more; available() has been true.
    void start(bounce *job);
    // A copy_part::bounce has ended.
    void copied(copy_request *copy);
    // Copies what has arrived, some tens of microseconds at most, so that other messages do not
    // wait longer, and sends out further pieces.
    void progress();

    // What it may take of our segment, once.
    static std::size_t memory_bytes();

  private:
    bool send_out(bounce *job);
    void send_piece(bounce *job, bounce_piece *piece, std::uint64_t bytes);
    void send_waiting();
    bool pull_piece(bounce *job);
    void progress_pulls(std::size_t bytes);
    void count_to_deliver(const bounce_piece &piece, bool arrives);
    void make_pieces(unsigned char *memory, std::size_t share);
    bool kernel_touches(const bounce_piece &piece, device &in) const;

    gpu_side &side_;
    std::array<bounce_pool, bounce_pools.size()> pools_ = bounce_pools;
    std::vector<bounce_piece> pieces_; // of all pools; empty: they have no memory
    bool asked_for_memory_ = false;
    const device *registered_by_ = nullptr; // the pages of all pieces; their context may be gone

    bounce_list waiting_; // for places of pieces that the device fills
    bounce_list pulling_; // for places of pieces that are pulled
    bool pulls_are_next_ = false;
    bounce_piece *arrived_ = nullptr; // pieces whose copy by the engine is over; oldest first
    bounce_piece **end_of_arrived_ = &arrived_;
    std::uint64_t to_deliver_bytes_ = 0; // of these, by the processor
};

} // namespace gpusm

#endif
