// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/written_messages.h: does the program write a message's memory anew before it sends it again?
// A single copy of what has not been written since reads lines that the reader's own cache still
// has from the copy before, and takes less time than two. A single copy of what has been written
// reads them out of the sender's cache, and two copies take less time up to greater lengths
// (docs/performance-host.md). All peers together, as Open MPI knows one limit for a BTL.
#ifndef GPUSM_SHM_WRITTEN_MESSAGES_H
#define GPUSM_SHM_WRITTEN_MESSAGES_H

#include "opal/mca/btl/gpusm/base/mixed.h"
#include "opal/mca/btl/gpusm/shm/row_search.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace gpusm {

// What memory had in it when it was last looked at, as far as four of its words say. Whoever writes
// the same again is taken for one who does not write.
class memory_samples {
  public:
    static constexpr std::size_t least_bytes = 64;

    enum class answer {
        unknown, // it has not been looked at, or nobody knows any more
        same,
        changed,
    };

    // Takes samples of `len_bytes` from `data` on, least_bytes or more.
    answer look(const void *data, std::size_t len_bytes)
    {
        // Not at its ends, where programs keep what does not change.
        constexpr std::size_t words = 4;
        std::uint64_t values = 0;
        for (std::size_t i = 0; i < words; ++i) {
            const std::size_t at = (2 * i + 1) * len_bytes / (2 * words);
            std::uint64_t word = 0;
            std::memcpy(&word, static_cast<const char *>(data) + at, sizeof word);
            values = mixed(values, word);
        }
        const std::uint64_t memory =
            mixed_memory(reinterpret_cast<std::uintptr_t>(data), len_bytes);
        const sample before =
            std::exchange(samples_[place_of_mixed(memory, place_bits)], sample{memory, values});
        if (before.memory != memory) {
            return answer::unknown;
        }
        return before.values == values ? answer::same : answer::changed;
    }

    void forget() { samples_ = {}; }

  private:
    static constexpr unsigned place_bits = 8;

    struct sample {
        std::uint64_t memory; // where it is and how long, mixed
        std::uint64_t values;
    };

    std::array<sample, std::size_t{1} << place_bits> samples_{};
};

// Not thread-safe. Lengths are in bytes; `bytes` with all headers, `len_bytes` without.
class written_messages {
  public:
    written_messages() = default; // looks at nothing
    // A message goes in two copies up to `lone_bytes`, and one that has been written up to
    // `most_bytes`; what is longer than the former has memory_samples::least_bytes, headers aside.
    written_messages(std::size_t lone_bytes, std::size_t most_bytes)
        : lone_bytes_(lone_bytes), most_bytes_(most_bytes)
    {
    }

    // Messages go in two copies up to most_bytes now.
    bool are_written() const { return are_written_; }
    std::size_t most_bytes() const { return most_bytes_; }

    // A message was offered for a single copy. True: the limit is another one now.
    bool offered(std::size_t bytes, const void *data, std::size_t len_bytes)
    {
        if (!concerns(bytes) || are_written_ || search_.is_waiting() ||
            !is_last_look(data, len_bytes)) {
            return false;
        }
        are_written_ = block_.hits() >= message_block::messages - message_block::messages / 4;
        begin_block();
        if (are_written_) {
            search_.row_begins();
        } else {
            search_.wait_at_least_first(); // each look takes time
        }
        return are_written_;
    }

    // A message goes in two copies. True: the limit is another one now.
    bool sent(std::size_t bytes, const void *data, std::size_t len_bytes)
    {
        if (!are_written_ || !concerns(bytes)) {
            return false;
        }
        search_.row_goes_on();
        if (until_block_ > 0) {
            --until_block_;
            return false;
        }
        if (!is_last_look(data, len_bytes)) {
            return false;
        }
        const bool is_over = block_.hits() < message_block::messages / 2;
        begin_block();
        until_block_ = messages_between;
        if (is_over) {
            leave();
        }
        return is_over;
    }

    // One of that length goes to a device, into which it had better not go in two copies. True: the
    // limit is another one now.
    bool went_to_device(std::size_t bytes)
    {
        if (!concerns(bytes)) {
            return false;
        }
        begin_block();
        if (are_written_) {
            leave();
            return true;
        }
        search_.wait_at_least_first();
        return false;
    }

  private:
    // Between two blocks that are looked at, either way.
    static constexpr std::uint32_t messages_between = 1024;
    // A block is of messages whose memory has been looked at before in that block. If there are few
    // it ends after so many looks, and those that have not come count as unwritten.
    static constexpr std::uint32_t most_looks = 8 * message_block::messages;

    bool concerns(std::size_t bytes) const { return bytes > lone_bytes_ && bytes <= most_bytes_; }

    // One more message of a block. True: it is complete.
    bool is_last_look(const void *data, std::size_t len_bytes)
    {
        if (0 == looks_) {
            samples_.forget(); // what was before says nothing about one message and the next
        }
        const memory_samples::answer found = samples_.look(data, len_bytes);
        const bool is_complete = memory_samples::answer::unknown != found &&
                                 block_.add(memory_samples::answer::changed == found);
        return ++looks_ == most_looks || is_complete;
    }
    void begin_block()
    {
        block_.begin();
        looks_ = 0;
    }

    void leave()
    {
        are_written_ = false;
        until_block_ = 0;
        search_.row_ends();
    }

    std::size_t lone_bytes_ = 0;
    std::size_t most_bytes_ = 0;
    memory_samples samples_;
    message_block block_;
    std::uint32_t looks_ = 0; // for this block
    // Waits for messages by single copies.
    row_search search_{messages_between, 64 * messages_between, 4 * messages_between};
    std::uint32_t until_block_ = 0; // messages in two copies
    bool are_written_ = false;
};

} // namespace gpusm

#endif
