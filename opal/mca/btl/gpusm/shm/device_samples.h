// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/device_samples.h: do host messages go to a device? Their sender only sees it when the
// receiver asks for a message's pieces, which it does not where messages go in two copies, through
// fragments; and those are slow into a device, as Open MPI copies each by a driver call of its own.
// So now and then one message goes singly.
#ifndef GPUSM_SHM_DEVICE_SAMPLES_H
#define GPUSM_SHM_DEVICE_SAMPLES_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace gpusm {

// Not thread-safe. Lengths are in bytes, with all headers.
class device_samples {
  public:
    device_samples() = default; // takes none
    // Of messages beyond that length; shorter ones are not worth it.
    explicit device_samples(std::size_t beyond_bytes) : beyond_bytes_(beyond_bytes) {}

    // The next message beyond that length is to go in a single copy.
    bool is_sampling() const { return is_sampling_; }
    std::size_t beyond_bytes() const { return beyond_bytes_; }

    // A message goes in two copies. True: a sample is to be taken from now on.
    bool sent(std::size_t bytes)
    {
        if (bytes <= beyond_bytes_ || is_sampling_ || 0 != --until_sample_) {
            return false;
        }
        sample_after_ = std::min(2 * sample_after_, last_sample);
        until_sample_ = sample_after_;
        is_sampling_ = true;
        return true;
    }

    // A message was offered for a single copy. True: it was the sample.
    bool offered(std::size_t bytes)
    {
        return bytes > beyond_bytes_ && std::exchange(is_sampling_, false);
    }

  private:
    // Messages before a sample: more from time to time.
    static constexpr std::uint32_t first_sample = 64;
    static constexpr std::uint32_t last_sample = 16 * first_sample;

    std::size_t beyond_bytes_ = SIZE_MAX;
    std::uint32_t until_sample_ = first_sample;
    std::uint32_t sample_after_ = first_sample;
    bool is_sampling_ = false;
};

} // namespace gpusm

#endif
