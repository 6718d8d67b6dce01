// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/device_rows.h: are short host messages sent to devices in rows, one behind the other without
// an answer between? Open MPI copies what comes in a fragment to a device by a synchronous driver
// call of its own, and what is fetched is gathered with others of its kind. So a row is better
// fetched, and a message that comes alone is not (docs/performance-host.md). That one went to a
// device is seen where it was fetched (shm/device_samples.h); that they come in rows, only while
// they are. So when a sample has gone to a device rows are tried. All peers together, as Open MPI
// knows one limit for a BTL.
#ifndef GPUSM_SHM_DEVICE_ROWS_H
#define GPUSM_SHM_DEVICE_ROWS_H

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gpusm {

// Not thread-safe. Lengths are in bytes, with all headers.
class device_rows {
  public:
    device_rows() = default; // finds none
    // Messages beyond `limit_bytes` and up to `most_bytes` are to be fetched in rows. The latter is
    // what goes in two copies when it comes alone.
    device_rows(std::size_t limit_bytes, std::size_t most_bytes)
        : limit_bytes_(limit_bytes), most_bytes_(most_bytes)
    {
    }

    // Messages go in two copies up to limit_bytes() now.
    bool in_rows() const { return in_rows_; }
    std::size_t limit_bytes() const { return limit_bytes_; }

    bool concerns(std::size_t bytes) const { return bytes > limit_bytes_ && bytes <= most_bytes_; }

    // A device has asked for a message. True: the limit is another one now.
    bool went_to_device(std::size_t bytes)
    {
        if (!concerns(bytes)) {
            return false;
        }
        if (in_rows_) {
            ++asked_for_;
            return false;
        }
        if (wait_for_ > 0) {
            --wait_for_;
            return false;
        }
        in_rows_ = true;
        looked_at_ = hits_ = offered_ = asked_for_ = row_ = 0;
        return true;
    }

    // A message was offered to be fetched, and so many others still are. True: the limit is another
    // one now, as rows are over, or their messages do not go to devices.
    bool offered(std::size_t bytes, std::uint32_t others)
    {
        if (!in_rows_ || !concerns(bytes)) {
            return false;
        }
        ++row_;
        ++offered_;
        hits_ += others >= others_in_row ? 1 : 0;
        if (++looked_at_ < block) {
            return false;
        }
        const bool is_row = hits_ >= block / 4;
        looked_at_ = hits_ = 0;
        bool is_fetched = true;
        if (offered_ >= judged_from) {
            is_fetched = asked_for_ >= offered_ / 2;
            offered_ /= 2;
            asked_for_ /= 2;
        }
        in_rows_ = is_row && is_fetched;
        if (!in_rows_) {
            next_wait_ = row_ > soon ? first_wait : std::min(2 * next_wait_, last_wait);
            wait_for_ = next_wait_;
        }
        return !in_rows_;
    }

  private:
    static constexpr std::uint32_t others_in_row = 4;
    static constexpr std::uint32_t block = 64; // messages that are judged together
    // Devices ask some time after the offer: a window of so many may be offered before.
    static constexpr std::uint32_t judged_from = 1024;
    // Samples that go to devices before rows are tried again: more from time to time, as long as
    // they soon turn out to be over.
    static constexpr std::uint32_t first_wait = 2;
    static constexpr std::uint32_t last_wait = 64;
    static constexpr std::uint32_t soon = 4096; // messages

    std::size_t limit_bytes_ = SIZE_MAX;
    std::size_t most_bytes_ = 0;
    std::uint32_t looked_at_ = 0; // of this block
    std::uint32_t hits_ = 0;
    std::uint32_t offered_ = 0; // in this row; halved from time to time, both
    std::uint32_t asked_for_ = 0;
    std::uint32_t row_ = 0; // messages of this row
    std::uint32_t wait_for_ = 0;
    std::uint32_t next_wait_ = first_wait / 2;
    bool in_rows_ = false;
};

} // namespace gpusm

#endif
