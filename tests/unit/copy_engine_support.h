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
        make_engine({4, 64, 1U << 20});
    }
    ~copy_engine_fixture() override { drop_engine(); }

    void make_engine(gpusm::copy_limits limits)
    {
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

    gpusm::copy_request *submit(std::size_t on, std::size_t len_bytes)
    {
        gpusm::copy_request &made = requests_.emplace_back();
        made.destination = 0xd0000000U + requests_.size();
        made.source = 0x50000000U + requests_.size();
        made.len_bytes = len_bytes;
        engine_->submit(devices_[on], &made);
        return &made;
    }

    // The numbers of the requests that came back, "!" behind those that failed.
    std::string collect()
    {
        std::string text;
        for (const std::size_t number : numbers_of(requests_, engine_->collect())) {
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

    gpusm::driver_api api_;
    gpusm::device devices_[2];
    std::deque<gpusm::copy_request> requests_;
    std::unique_ptr<gpusm::copy_engine> engine_;
};

} // namespace gpusm_test

#endif
