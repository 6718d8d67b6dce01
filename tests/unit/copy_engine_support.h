// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_support.h: a copy engine on a scripted driver with two devices, and requests that
// know their number.
#ifndef GPUSM_TESTS_COPY_ENGINE_SUPPORT_H
#define GPUSM_TESTS_COPY_ENGINE_SUPPORT_H

#include "opal/mca/btl/gpusm/gpu/copy_engine.h"

#include "tests/unit/fake_driver.h"
#include "tests/unit/shm_support.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace gpusm_test {

// Which of `all` are on the list, in its order.
inline std::vector<std::size_t> numbers_of(const std::deque<gpusm::copy_request> &all,
                                           const gpusm::copy_request *list)
{
    std::vector<std::size_t> numbers;
    for (; list != nullptr; list = list->next) {
        std::size_t number = 0;
        while (number < all.size() && &all[number] != list) {
            ++number;
        }
        numbers.push_back(number);
    }
    return numbers;
}

// Limits that stay as they are when the defaults of copy_limits are tuned.
struct test_limits {
    std::uint32_t depth = 4;
    std::uint32_t batch_copies = 64;
    std::size_t batch_bytes = 16U << 20;
    std::size_t kernel_bytes = 2U << 20;
    std::size_t early_bytes = 1U << 20;
    std::uint32_t kernel_blocks = 32;
    std::uint32_t streams = 1;
    bool batches = true;
};

// Without the kernel as long as a test does not ask for it with make_engine.
class copy_engine_fixture : public testing::Test {
  protected:
    copy_engine_fixture() : api_(reset_fake())
    {
        for (std::uint32_t i = 0; i < 2; ++i) {
            devices_[i].index = i;
            devices_[i].context = handle_of<CUcontext>(0xc0U + i);
            devices_[i].ordinal = static_cast<CUdevice>(i);
            devices_[i].stream = handle_of<CUstream>(0x50U + i);
        }
        make_engine({.kernel_blocks = 0});
    }
    ~copy_engine_fixture() override { drop_engine(); }

    void make_engine(const test_limits &with)
    {
        drop_engine();
        gpusm::copy_limits limits;
        limits.depth = with.depth;
        limits.batch_copies = with.batch_copies;
        limits.batch_bytes = with.batch_bytes;
        limits.kernel_bytes = with.kernel_bytes;
        limits.early_bytes = with.early_bytes;
        limits.kernel_blocks = with.kernel_blocks;
        limits.streams = with.streams;
        limits.batches = with.batches;
        engine_ = std::make_unique<gpusm::copy_engine>(api_, limits);
    }
    void drop_engine()
    {
        if (engine_ != nullptr) {
            (void)engine_->cancel_all();
            engine_.reset();
        }
    }
    gpusm::copy_engine &engine() { return *engine_; }
    gpusm::device &device(std::size_t index) { return devices_[index]; }
    gpusm::copy_request &request(std::size_t number) { return requests_[number]; }

    // Each request gets addresses of its own.
    gpusm::copy_request *submit(std::size_t on, const gpusm::copy_request &what)
    {
        gpusm::copy_request &made = requests_.emplace_back(what);
        made.destination = 0xd0000000U + requests_.size();
        made.source = 0x50000000U + requests_.size();
        engine_->submit(devices_[on], &made);
        return &made;
    }
    // One for the driver: nothing is known about its memory.
    gpusm::copy_request *submit(std::size_t on, std::size_t len_bytes)
    {
        return submit(on, gpusm::copy_request{.len_bytes = len_bytes});
    }
    // One that the kernel may do, if it is not too long.
    gpusm::copy_request *submit_small(std::size_t on, std::size_t len_bytes = 64)
    {
        return submit(on, gpusm::copy_request{.len_bytes = len_bytes, .for_kernel = true});
    }
    void submit_many(std::size_t on, int count, std::size_t len_bytes = 1)
    {
        for (int i = 0; i < count; ++i) {
            (void)submit(on, len_bytes);
        }
    }

    // The numbers of the requests that came back, "!" behind those that failed.
    std::string collect(bool busy = false)
    {
        std::string text;
        for (const std::size_t number : numbers_of(requests_, engine_->collect(busy))) {
            const bool good = gpusm::status::ok == requests_.at(number).outcome;
            text += std::to_string(number) + (good ? " " : "! ");
        }
        return text;
    }
    std::string collect_until_idle()
    {
        std::string text;
        for (int round = 0; round < 10000 && !engine_->idle(); ++round) {
            fake().finish_all();
            text += collect();
        }
        EXPECT_TRUE(engine_->idle()) << "something never comes back";
        return text;
    }
    std::uint64_t submissions(gpusm::copy_way way) const
    {
        return engine_->submissions()[static_cast<std::size_t>(way)];
    }

    gpusm::driver_api api_;
    gpusm::device devices_[2];
    std::deque<gpusm::copy_request> requests_;
    std::unique_ptr<gpusm::copy_engine> engine_;
};

} // namespace gpusm_test

#endif
