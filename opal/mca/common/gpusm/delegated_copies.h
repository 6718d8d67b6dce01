// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// delegated_copies.h: copies within a device that another process makes for this one. Where several
// processes use a device without MPS it changes from the work of one to that of another, which
// takes it some 150 us; a copy takes 10. So one process submits the copies of all: of those that
// use the device, the one with the lowest number (copies_for_others.h).
//
// The message names both memories, and a slot on this process's board (delegation_board) where both
// processes say how far the copy is. The submitter takes it, maps both and launches, all within one
// call of MPI. What nobody has taken within btl_gpusm_delegate_wait, as the submitter does not call
// MPI, is withdrawn, and this process makes the copy; a compare-and-swap decides which of the two
// it is. A submitter that has been asked in vain four times in a row is not asked for a while
// (base/reach.h).
#ifndef GPUSM_DELEGATED_COPIES_H
#define GPUSM_DELEGATED_COPIES_H

#include "opal/mca/common/gpusm/base/queue.h"
#include "opal/mca/common/gpusm/base/reach.h"
#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/device.h"
#include "opal/mca/common/gpusm/shm/node.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpusm {

// Of a slot, in its `turn`: that is raised with each copy, so that a word of an earlier one is
// known.
struct delegation_word {
    static constexpr unsigned stage_bits = 3;

    static constexpr std::uint32_t of(std::uint32_t turn, delegation_stage stage)
    {
        return turn << stage_bits | static_cast<std::uint32_t>(stage);
    }
    // `none`: it is of another turn.
    static constexpr delegation_stage stage_in(std::uint32_t word, std::uint32_t turn)
    {
        const std::uint32_t stage = word ^ (turn << stage_bits);
        return stage < (1U << stage_bits) ? static_cast<delegation_stage>(stage)
                                          : delegation_stage::none;
    }
};

// How control messages about such copies are sent.
class delegation_services {
  public:
    // False: it could not be taken.
    virtual bool send(peer &to, const delegated_copy &message) = 0;

  protected:
    ~delegation_services() = default;
};

// One copy that another process is asked for. The caller's, who keeps it from ask() on until
// progress() has handed it back.
struct delegated_request {
    peer *submitter;
    std::uint32_t slot;
    std::int64_t asked_at_ns;
    status outcome; // `ok`: it is done; else nothing has been written, or will be any more
    delegated_request *next;
};

// This process's board, made when it is first asked for. Not thread-safe.
class own_delegation_board {
  public:
    explicit own_delegation_board(segment &own) : own_(own) {}

    // Null: there is no memory for it now.
    delegation_board *get();
    std::uint32_t granule() const { return granule_; }

  private:
    segment &own_;
    delegation_board *board_ = nullptr;
    std::uint32_t granule_ = 0;
    reach memory_;
};

// Another process's; null: it has none, or nonsense. While its segment is mapped.
delegation_board *board_of(const peer &of);
// At that granule, as it has said in a message.
delegation_board *board_of(const peer &of, std::uint32_t granule);

// Not thread-safe: the caller holds its GPU lock.
class delegated_copies {
  public:
    using clock = std::int64_t (*)(); // nanoseconds
    static std::int64_t now_ns();

    // After `wait_us` what nobody has taken is withdrawn; 0: nobody is asked.
    delegated_copies(delegation_services &services, node &local, own_delegation_board &board,
                     std::uint32_t wait_us, clock now = now_ns)
        : services_(services), node_(local), board_(board), wait_ns_(std::int64_t{wait_us} * 1000),
          now_(now)
    {
    }
    delegated_copies(const delegated_copies &) = delete;
    delegated_copies &operator=(const delegated_copies &) = delete;

    // Who submits work to that device in the place of this process. Null: this process does.
    peer *submitter_of(const device &on);
    // `ok`: progress() hands the request back. Else it has not been asked for.
    status ask(delegated_request *request, peer &submitter, const delegated_memory &source,
               const delegated_memory &target, std::uint64_t len_bytes, const device_uuid &on);
    bool idle() const { return nullptr == asked_.first(); }
    // Requests that are over, as a list.
    delegated_request *progress();

  private:
    peer *find_submitter(const device &on);
    bool is_over(delegated_request *request, std::int64_t now);

    delegation_services &services_;
    node &node_;
    own_delegation_board &board_;
    const std::int64_t wait_ns_;
    const clock now_;
    std::vector<std::uint32_t> free_slots_;
    std::vector<std::uint32_t> turns_; // by slot; empty: none has been used
    queue<delegated_request> asked_;
    reach_table<std::uint32_t> reach_; // by peer::number
    std::int64_t failure_counted_ns_ = 0;
    struct known_submitter {
        peer *is = nullptr;
        std::uint32_t questions = 0;
    };
    std::vector<known_submitter> known_; // by device::index
};

} // namespace gpusm

#endif
