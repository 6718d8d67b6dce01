// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/message_rows.h: are messages sent in rows, one behind the other without an answer between?
// A message that comes alone waits for both of its two copies, and for one of a row the two
// processors copy at the same time, each another message. So in rows two copies are worth it for
// longer messages (docs/performance-host.md). Whether they come so is seen from how many are being
// read at once while they go in single copies, and from the peer's answers while they go in two.
// All peers together, as Open MPI knows one limit for a BTL.
#ifndef GPUSM_SHM_MESSAGE_ROWS_H
#define GPUSM_SHM_MESSAGE_ROWS_H

#include "opal/mca/btl/gpusm/shm/row_search.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gpusm {

// Not thread-safe. Lengths are in bytes, with all headers.
class message_rows {
  public:
    message_rows() = default; // looks at nothing
    // A message that comes alone goes in two copies up to `lone_bytes`, one of a row up to
    // `most_bytes`.
    message_rows(std::size_t lone_bytes, std::size_t most_bytes)
        : lone_bytes_(lone_bytes), most_bytes_(std::max(lone_bytes, most_bytes))
    {
    }

    // Messages go in two copies up to most_bytes now.
    bool in_rows() const { return in_rows_; }
    std::size_t most_bytes() const { return most_bytes_; }

    // Has sent() to be told of a message of that length which goes in two copies?
    bool concerns(std::size_t bytes) const { return in_rows_ && bytes > lone_bytes_; }

    // In rows longer messages go in two copies, too, if any do.
    void up_to(std::size_t bytes)
    {
        most_bytes_ = most_bytes_ > 0 ? std::max(most_bytes_, bytes) : 0;
    }

    // A message was offered for a single copy, and so many others still are. True: the limit is
    // another one now, as for all that follow.
    bool offered(std::size_t bytes, std::uint32_t others)
    {
        if (bytes > most_bytes_ || bytes <= lone_bytes_ || in_rows_) {
            return false;
        }
        if (search_.is_waiting() || !block_.add(others >= others_in_row)) {
            return false;
        }
        in_rows_ = block_.hits() >= message_block::messages - message_block::messages / 4;
        block_.begin();
        search_.row_begins();
        return in_rows_;
    }

    // A message that concerns() goes in two copies. `answered`: its peer has sent something since
    // the one before. True: rows are over.
    bool sent(bool answered)
    {
        search_.row_goes_on();
        if (!block_.add(answered)) {
            return false;
        }
        const bool is_over = block_.hits() >= message_block::messages / 4;
        block_.begin();
        if (is_over) {
            leave();
        }
        return is_over;
    }

    // Messages go to devices (shm/device_samples.h). From now on one that comes alone goes in two
    // copies up to `lone_bytes` at most. True: rows are over.
    bool went_to_device(std::size_t lone_bytes)
    {
        lone_bytes_ = std::min(lone_bytes_, lone_bytes);
        const bool was_in_rows = in_rows_;
        block_.begin();
        if (was_in_rows) {
            leave();
        } else {
            search_.wait_at_least_first();
        }
        return was_in_rows;
    }

  private:
    void leave()
    {
        in_rows_ = false;
        search_.row_ends();
    }

    std::size_t lone_bytes_ = 0;
    std::size_t most_bytes_ = 0;
    message_block block_;
    row_search search_{1024, 65536, 4096}; // waits for messages by single copies
    bool in_rows_ = false;
};

} // namespace gpusm

#endif
