// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_support.h: a copy engine on a scripted driver with two devices, requests that know
// their number, and what became of them in a line: "single 0; kernel 1-3 5" was started, "0 2-4!"
// came back, of which 2 to 4 have failed.
#ifndef GPUSM_TESTS_COPY_ENGINE_SUPPORT_H
#define GPUSM_TESTS_COPY_ENGINE_SUPPORT_H

#include "opal/mca/common/gpusm/gpu/copy_engine.h"

#include "tests/unit/fake_driver.h"
#include "tests/unit/shm_support.h"

#include <memory>

#include <gtest/gtest.h>

namespace gpusm_test {

// Limits that stay as they are when the defaults of copy_limits are tuned.
struct test_limits {
    std::uint32_t depth = 4;
    std::uint32_t batch_copies = 64;
    std::size_t batch_bytes = 16U << 20;
    std::size_t kernel_bytes = 2U << 20;
    std::size_t early_bytes = 1U << 20;
    std::uint32_t streams = 1;
    std::uint32_t kernel_blocks = 0;
    bool batches = true;
    std::chrono::milliseconds late = std::chrono::hours(1);
    std::size_t within_device_bytes = 2U << 20;
};

// Without the kernel as long as a test does not ask for it with make_engine, and on a driver
// without batches as long as it does not call add_batches.
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
        make_engine({});
    }
    ~copy_engine_fixture() override { drop_engine(); }

    // Everything begins anew.
    void make_engine(const test_limits &with)
    {
        drop_engine();
        requests_.clear();
        fake().units.clear();
        fake().launches.clear();
        seen_units_ = 0;
        engine_ = std::make_unique<gpusm::copy_engine>(
            api_,
            gpusm::copy_limits{with.depth, with.batch_copies, with.batch_bytes, with.kernel_bytes,
                               with.early_bytes, with.streams, with.kernel_blocks, with.batches,
                               with.late, with.within_device_bytes});
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
    static fake_unit &unit(std::size_t nth) { return fake().units.at(nth); }

    // Each request gets addresses of its own.
    void submit(const gpusm::copy_request &what, std::size_t on = 0)
    {
        gpusm::copy_request &made = requests_.emplace_back(what);
        made.destination = 0xd0000000U + requests_.size();
        made.source = 0x50000000U + requests_.size();
        engine_->submit(devices_[on], &made);
    }
    static std::size_t number_of(std::uint64_t destination)
    {
        return static_cast<std::size_t>(destination - 0xd0000001U);
    }
    // For the driver, as nothing is known about their memory.
    void large(int count, std::size_t len_bytes = 1, std::size_t on = 0)
    {
        for (int i = 0; i < count; ++i) {
            submit({.len_bytes = len_bytes}, on);
        }
    }
    // The kernel may do these, if they are not too long.
    void small(int count, std::size_t len_bytes = 64, std::size_t on = 0)
    {
        for (int i = 0; i < count; ++i) {
            submit({.len_bytes = len_bytes, .kernel_reaches = true}, on);
        }
    }

    // One copy by the driver and `more` gathered behind it, which are on their way when it has
    // ended.
    void gather(int more = 3, std::size_t len_bytes = 64, std::size_t on = 0)
    {
        small(1 + more, len_bytes, on);
        finish(fake().units.size() - 1);
        EXPECT_NE(collect(), "");
    }
    static void expect_nothing_left_in_the_driver()
    {
        EXPECT_TRUE(fake().registered.empty());
        EXPECT_TRUE(fake().modules.empty());
        EXPECT_TRUE(fake().streams.empty());
        EXPECT_TRUE(fake().events.empty());
        EXPECT_TRUE(fake().stack.empty());
    }

    // What has been started since the last call of this.
    std::string started()
    {
        std::string text;
        for (; seen_units_ < fake().units.size(); ++seen_units_) {
            const fake_unit &made = unit(seen_units_);
            std::vector<std::size_t> numbers;
            for (const fake_copy &each : made.copies) {
                numbers.push_back(number_of(each.destination));
                EXPECT_EQ(each.source, request(numbers.back()).source);
                EXPECT_EQ(each.len_bytes, request(numbers.back()).len_bytes);
                EXPECT_EQ(each.context, made.context);
            }
            text += (text.empty() ? "" : "; ") + made.way;
            text += (made.context == devices_[1].context ? "@1 " : " ") + text_of(numbers, "");
        }
        return text;
    }
    // What comes back.
    std::string collect(bool busy = false) { return text_of(engine_->collect(busy)); }
    std::string text_of(const gpusm::copy_request *list)
    {
        std::string text;
        while (list != nullptr) {
            const gpusm::status outcome = list->outcome;
            std::vector<std::size_t> numbers;
            for (; list != nullptr && list->outcome == outcome; list = list->next) {
                numbers.push_back(number_of(list->destination));
                back_.insert(numbers.back());
            }
            text += (text.empty() ? "" : " ") +
                    text_of(numbers, gpusm::status::ok == outcome ? "" : "!");
        }
        return text;
    }
    std::string collect_until_idle()
    {
        std::string text;
        for (int round = 0; round < 10000 && !engine_->idle(); ++round) {
            fake().finish_all();
            const std::string now = collect();
            text += (text.empty() || now.empty() ? "" : " ") + now;
        }
        EXPECT_TRUE(engine_->idle()) << "something never comes back";
        return text;
    }
    void finish(std::size_t nth, CUresult result = CUDA_SUCCESS) { fake().finish(nth, result); }
    std::uint64_t submissions(gpusm::copy_way way) const
    {
        return engine_->submissions()[static_cast<std::size_t>(way)];
    }

    gpusm::driver_api api_;
    gpusm::device devices_[2];
    std::deque<gpusm::copy_request> requests_;
    std::unique_ptr<gpusm::copy_engine> engine_;
    std::set<std::size_t> back_; // numbers of what came back

  private:
    static std::string text_of(const std::vector<std::size_t> &numbers, const char *behind)
    {
        std::string text;
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            const std::size_t first = i;
            while (i + 1 < numbers.size() && numbers[i + 1] == numbers[i] + 1) {
                ++i;
            }
            text += (text.empty() ? "" : " ") + std::to_string(numbers[first]);
            text += (i > first ? "-" + std::to_string(numbers[i]) : "") + behind;
        }
        return text;
    }

    std::size_t seen_units_ = 0;
};

#if GPUSM_HAVE_BATCH_COPY
// The table of a driver that takes many copies in one call.
inline void add_batches(gpusm::driver_api &api)
{
    api.batch_copy = [](CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                        CUmemcpyAttributes *, size_t *first, size_t attributes, CUstream stream) {
        EXPECT_EQ(attributes, 1U);
        EXPECT_EQ(first[0], 0U);
        if (const CUresult failed = fake().enter("batch_copy"); CUDA_SUCCESS != failed) {
            return failed;
        }
        fake_unit &unit = fake().open[stream];
        unit.way = "batch";
        for (size_t i = 0; i < count; ++i) {
            EXPECT_GT(sizes[i], 0U);
            unit.copies.push_back({to[i], from[i], sizes[i], fake().current()});
        }
        return CUDA_SUCCESS;
    };
}
#endif

} // namespace gpusm_test

#endif
