// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/device_rows.h: are short host messages sent to devices in rows, one behind the other without
// an answer between? Open MPI copies what comes in a fragment to a device by a synchronous driver
// call of its own, and what is fetched is gathered with others of its kind. So a row is better
// fetched, and a message that comes alone is not (docs/performance-mixed.md). That one went to a
// device is seen where it was fetched (shm/device_samples.h); that they come in rows, only while
// they are. So when a sample has gone to a device rows are tried. All peers together, as Open MPI
// knows one limit for a BTL.
#ifndef GPUSM_SHM_DEVICE_ROWS_H
#define GPUSM_SHM_DEVICE_ROWS_H

#include "opal/mca/btl/gpusm/shm/row_search.h"

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
        if (search_.is_waiting()) {
            return false;
        }
        in_rows_ = true;
        offered_ = asked_for_ = 0;
        block_.begin();
        search_.row_begins();
        return true;
    }

    // A message was offered to be fetched, and so many others still are. True: the limit is another
    // one now, as rows are over, or their messages do not go to devices.
    bool offered(std::size_t bytes, std::uint32_t others)
    {
        if (!in_rows_ || !concerns(bytes)) {
            return false;
        }
        ++offered_;
        search_.row_goes_on();
        if (!block_.add(others >= others_in_row)) {
            return false;
        }
        const bool is_row = block_.hits() >= message_block::messages / 4;
        block_.begin();
        bool is_fetched = true;
        if (offered_ >= judged_from) {
            is_fetched = asked_for_ >= offered_ / 2;
            offered_ /= 2;
            asked_for_ /= 2;
        }
        in_rows_ = is_row && is_fetched;
        if (!in_rows_) {
            search_.row_ends();
        }
        return !in_rows_;
    }

  private:
    // Devices ask some time after the offer: a window of so many may be offered before.
    static constexpr std::uint32_t judged_from = 1024;
    std::size_t limit_bytes_ = SIZE_MAX;
    std::size_t most_bytes_ = 0;
    std::uint32_t offered_ = 0; // in this row; halved from time to time, both
    std::uint32_t asked_for_ = 0;
    message_block block_;
    row_search search_{2, 64, 4096}; // waits for samples that go to devices
    bool in_rows_ = false;
};

} // namespace gpusm

#endif
