// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/two_copies.h: up to which length messages between host memories go in two copies, through a
// fragment, instead of one by a system call. What the system call costs is known at start. What the
// copies cost is known only from the messages: a fragment's lines come from the cache of the
// processor that has read the message before, which took five times as long in some minutes as in
// others on the cores of one virtual machine (docs/performance-host.md). So now and then the first
// copy is timed. All peers together, as Open MPI knows one limit for a BTL.
#ifndef GPUSM_SHM_TWO_COPIES_H
#define GPUSM_SHM_TWO_COPIES_H

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace gpusm {

// Not thread-safe. Lengths are in bytes, with all headers.
class two_copies {
  public:
    // Below, the copies are a small part of what a message costs.
    static constexpr std::size_t timed_from_bytes = 4096;
    static constexpr std::size_t least_bytes = timed_from_bytes + 256;
    // The limit is no less where lines do not come slowly.
    static constexpr std::size_t least_unless_slow_bytes = 8 * 1024 + 256;

    two_copies() = default;
    // Up to so many, and nothing is watched.
    explicit two_copies(std::size_t limit_bytes) : limit_(limit_bytes) {}
    // Up to `most_bytes` where lines of cache come fast; a single copy of no bytes takes `call_ns`.
    two_copies(std::size_t most_bytes, std::uint64_t call_ns)
        : most_bytes_(most_bytes), limit_(most_bytes), call_ns_(call_ns)
    {
    }

    // The length up to which they are worth it, as far as is known.
    std::size_t limit() const { return limit_; }
    // That length where they are fast.
    std::size_t most() const { return std::max(most_bytes_, limit_); }
    // Lines of cache have turned out to come slowly.
    bool are_slow() const { return are_slow_; }
    // It has been raised to see whether they are still slow.
    bool is_trying() const { return in_a_row_; }

    // Is the first copy of this message to be timed? Once for each message.
    bool is_due(std::size_t bytes)
    {
        return bytes >= timed_from_bytes && most_bytes_ > least_bytes && 0 == --until_due_;
    }

    // That copy took so long. True: the limit is another one now, or again the one of the start.
    bool timed(std::size_t bytes, std::uint64_t copy_ns)
    {
        constexpr std::uint64_t kibi = 1024;
        ns_per_kib_[timed_++] = copy_ns * kibi / bytes;
        if (timed_ < ns_per_kib_.size()) {
            until_due_ = in_a_row_ ? 1 : messages_between;
            return false;
        }
        timed_ = 0;
        const bool tried_again = std::exchange(in_a_row_, false);
        until_due_ = messages_between;
        // The median: some are interrupted, and some find lines that nobody has read.
        const auto middle = ns_per_kib_.begin() + ns_per_kib_.size() / 2;
        std::nth_element(ns_per_kib_.begin(), middle, ns_per_kib_.end());
        const std::uint64_t ns = std::max<std::uint64_t>(1, *middle);
        const bool slow = ns >= slow_ns_per_kib;
        const std::size_t least =
            std::min(most_bytes_, slow ? least_bytes : least_unless_slow_bytes);
        // Two copies cost that much more for each KiB; one costs the call, and what comes with it.
        const std::uint64_t more_ns =
            std::max<std::uint64_t>(1, 2 * ns - std::min(2 * ns, single_ns_per_kib));
        const std::uint64_t single_ns = call_ns_ * 5 / 3; // it is asked for, and answered
        const std::size_t worth =
            std::clamp<std::size_t>(single_ns * kibi / more_ns, least, most_bytes_);
        are_slow_ = slow && worth < most_bytes_;
        if (worth == most_bytes_) {
            retry_after_ = tried_again ? retry_after_ : first_retry / 2;
            return set(worth) || tried_again;
        }
        // Nine in a row may find lines that have rested, and be fast though many are not.
        retry_after_ = tried_again ? retry_after_ : std::min(2 * retry_after_, last_retry);
        return set(worth);
    }

    // A message went in a single copy. True: the limit is another one now, so that it can be seen
    // whether two are still slow: the processes may have moved.
    bool went_singly(std::size_t bytes)
    {
        if (bytes > most_bytes_ || limit_ == most_bytes_ || ++singly_ < retry_after_) {
            return false;
        }
        in_a_row_ = true;
        until_due_ = 1;
        timed_ = 0;
        return set(most_bytes_);
    }

    // From now on longer messages, too. True: the limit is another one now.
    bool up_to(std::size_t bytes)
    {
        if (bytes <= most_bytes_) {
            return false;
        }
        const std::size_t before = std::exchange(most_bytes_, bytes);
        return limit_ == before && set(bytes);
    }

    // From now on no longer messages than that, wherever lines come fast. True: the limit is
    // another one now.
    bool at_most(std::size_t bytes)
    {
        if (most_bytes_ <= bytes) {
            return false;
        }
        most_bytes_ = bytes;
        in_a_row_ = false;
        return limit_ > bytes && set(bytes);
    }

    // There are peers with which single copies cannot be had. True: the limit is another one now.
    bool stop()
    {
        if (0 == most_bytes_) {
            return false;
        }
        in_a_row_ = are_slow_ = false;
        return set(std::exchange(most_bytes_, 0));
    }

  private:
    // 4 bytes per nanosecond. On those cores it was 15 in a fast minute, and 3 in a slow one.
    static constexpr std::uint64_t slow_ns_per_kib = 250;
    // Of a single copy that both processors make: there 2.5 us, and 31 bytes per nanosecond.
    static constexpr std::uint64_t single_ns_per_kib = 32;
    static constexpr std::uint32_t messages_between = 16;
    // Messages by single copies before two are tried again: more from time to time, as long as two
    // turn out to be slow.
    static constexpr std::uint32_t first_retry = 1024;
    static constexpr std::uint32_t last_retry = 64 * first_retry;

    bool set(std::size_t bytes)
    {
        singly_ = 0;
        const bool changed = bytes != limit_;
        limit_ = bytes;
        return changed;
    }

    std::size_t most_bytes_ = 0;
    std::size_t limit_ = 0;
    std::uint64_t call_ns_ = 0;
    std::uint32_t until_due_ = messages_between;
    std::uint32_t singly_ = 0; // messages since the limit was lowered
    std::uint32_t retry_after_ = first_retry / 2;
    std::array<std::uint64_t, 9> ns_per_kib_{};
    std::uint32_t timed_ = 0; // of these
    bool in_a_row_ = false;
    bool are_slow_ = false;
};

// Up to which length two copies are worth it beside a single one, in bytes with all headers, as far
// as what a single copy of no bytes takes says it (docs/performance-host.md).
struct two_copies_worth {
    std::size_t alone_bytes;   // of a message that comes alone
    std::size_t in_rows_bytes; // of one of a row

    static two_copies_worth beside(std::uint64_t call_ns)
    {
        constexpr std::uint64_t kibi = 1024;
        // They take equally long at 8 KiB where the call takes up to 1.1 us, and at 64 KiB and more
        // from 1.3 us on; in between is on a line between them.
        constexpr std::uint64_t origin_ns = 1071;
        constexpr std::uint64_t bytes_per_us = 280 * kibi;
        constexpr std::uint64_t least_bytes = two_copies::least_unless_slow_bytes;
        constexpr std::uint64_t most_bytes = 64 * kibi + 256;
        const std::uint64_t more_ns =
            std::clamp(call_ns, origin_ns, 2 * origin_ns) - origin_ns; // it is 64 KiB by then
        const std::uint64_t alone =
            std::clamp(more_ns * bytes_per_us / 1000, least_bytes, most_bytes);
        // Beyond 20 KiB, where the call is cheap, rows go about as fast one way by the single
        // copies of both sides, and faster both ways at once.
        constexpr std::uint64_t more_in_rows_bytes = 12 * kibi;
        return {alone, alone + more_in_rows_bytes};
    }
};

} // namespace gpusm

#endif
