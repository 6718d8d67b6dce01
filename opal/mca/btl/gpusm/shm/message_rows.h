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

    // A message was offered for a single copy, and so many others still are. True: the limit is
    // another one now, as for all that follow.
    bool offered(std::size_t bytes, std::uint32_t others)
    {
        if (bytes > most_bytes_ || bytes <= lone_bytes_ || in_rows_) {
            return false;
        }
        if (wait_for_ > 0) {
            --wait_for_;
            return false;
        }
        if (!of_block(others >= others_in_row)) {
            return false;
        }
        in_rows_ = hits_ >= block - block / 4;
        begin_block();
        row_ = 0;
        return in_rows_;
    }

    // A message that concerns() goes in two copies. `answered`: its peer has sent something since
    // the one before. True: rows are over.
    bool sent(bool answered)
    {
        ++row_;
        if (!of_block(answered)) {
            return false;
        }
        const bool is_over = hits_ >= block / 4;
        begin_block();
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
        begin_block();
        if (was_in_rows) {
            leave();
        } else {
            wait_for_ = std::max(wait_for_, first_wait);
        }
        return was_in_rows;
    }

  private:
    static constexpr std::uint32_t others_in_row = 4;
    static constexpr std::uint32_t block = 64; // messages that are judged together
    // Messages by single copies before rows are looked for again: more from time to time, as long
    // as they soon turn out to be over.
    static constexpr std::uint32_t first_wait = 1024;
    static constexpr std::uint32_t last_wait = 64 * first_wait;
    static constexpr std::uint32_t soon = 4 * first_wait;

    // One more of a block; true when that is complete.
    bool of_block(bool hit)
    {
        hits_ += hit ? 1 : 0;
        return ++looked_at_ == block;
    }
    void begin_block() { looked_at_ = hits_ = 0; }
    void leave()
    {
        in_rows_ = false;
        next_wait_ = row_ > soon ? first_wait : std::min(2 * next_wait_, last_wait);
        wait_for_ = next_wait_;
    }

    std::size_t lone_bytes_ = 0;
    std::size_t most_bytes_ = 0;
    std::uint32_t looked_at_ = 0; // of this block
    std::uint32_t hits_ = 0;
    std::uint32_t wait_for_ = 0;
    std::uint32_t next_wait_ = first_wait / 2;
    std::uint32_t row_ = 0; // messages of this row
    bool in_rows_ = false;
};

} // namespace gpusm

#endif
