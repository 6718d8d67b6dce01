// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_model_test.cc: random copies on two devices, any driver call may fail, and what was
// started ends in any order, well or badly: a seed tells. Every answer of the engine is checked
// against a journal of what was really started.
#include "opal/mca/btl/gpusm/gpu/copy_engine.h"

#include "tests/unit/copy_engine_journal.h"
#include "tests/unit/copy_engine_support.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace {

using gpusm::copy_request;
using gpusm::copy_way;
using gpusm::status;
using gpusm_test::book;
using gpusm_test::copy_engine_fixture;
using gpusm_test::fake;
using gpusm_test::handle_of;
using gpusm_test::log_capture;
using gpusm_test::started_unit;

class CopyEngineModel : public copy_engine_fixture {
  protected:
    CopyEngineModel() { book().attach(&api_); }

    std::size_t any(std::size_t below) { return random_() % below; }
    bool once_in(std::size_t times) { return 0 == any(times); }

    void start(unsigned seed)
    {
        drop_engine();
        requests_.clear();
        back_.clear();
        next_number_.clear();
        checked_units_ = 0;
        book().clear();
        random_.seed(seed);
        limits_ = {};
        limits_.depth = static_cast<std::uint32_t>(1 + any(5));
        limits_.batch_copies = static_cast<std::uint32_t>(1 + any(12));
        limits_.batch_bytes = 1 + any(8000);
        limits_.kernel_bytes = 1 + any(3000);
        limits_.early_bytes = 1 + any(4000);
        limits_.kernel_blocks = once_in(5) ? 0 : 4;
        limits_.batches = !once_in(4);
        make_engine(limits_);
    }

    // What gathers apart from the rest, and may go by the kernel.
    bool is_small(const copy_request &request) const
    {
        return request.for_kernel && nullptr == request.wait_for && request.len_bytes > 0 &&
               request.len_bytes <= limits_.kernel_bytes;
    }
    // The number of the request that has that destination, see the fixture.
    static std::size_t number_of(std::uint64_t destination)
    {
        return static_cast<std::size_t>(destination - 0xd0000001U);
    }

    void submit_something()
    {
        copy_request what;
        what.len_bytes = once_in(12) ? 0 : any(4000);
        what.for_kernel = !once_in(3);
        what.over_bus = once_in(3);
        what.wait_for = once_in(10) ? handle_of<CUevent>(0x77) : nullptr;
        (void)submit(any(2), what);
        check_started();
    }

    // One of those that run. A bad end is the end of all that run on its device.
    void end_something(bool badly)
    {
        const std::set<std::size_t> running = book().running;
        if (running.empty()) {
            return;
        }
        const std::size_t chosen =
            *std::next(running.begin(), static_cast<std::ptrdiff_t>(any(running.size())));
        for (const std::size_t each : running) {
            if (each == chosen ||
                (badly && book().units[each].context == book().units[chosen].context)) {
                book().end(each, badly);
            }
        }
    }

    // What the engine has started since the last call of this.
    void check_started()
    {
        for (; checked_units_ < book().units.size(); ++checked_units_) {
            const started_unit &unit = book().units[checked_units_];
            ASSERT_FALSE(unit.copies.empty());
            ASSERT_LE(unit.copies.size(), limits_.batch_copies);
            const bool small = is_small(request(number_of(unit.copies[0].destination)));
            ASSERT_TRUE(small || !unit.by_kernel) << "none for the kernel";
            auto &next = next_number_[{unit.context, small}];
            for (const auto &copy : unit.copies) {
                const std::size_t number = number_of(copy.destination);
                ASSERT_LT(number, requests_.size());
                ASSERT_EQ(copy.source, request(number).source);
                ASSERT_EQ(copy.len_bytes, request(number).len_bytes);
                ASSERT_EQ(copy.context, unit.context);
                ASSERT_EQ(is_small(request(number)), small) << "these do not gather together";
                ASSERT_GE(number, next) << "not in the order of submission, or twice";
                next = number + 1;
            }
        }
        std::map<CUcontext, std::size_t> running;
        std::map<CUcontext, std::size_t> large;
        for (const std::size_t each : book().running) {
            const started_unit &unit = book().units[each];
            ++running[unit.context];
            large[unit.context] += is_small(request(number_of(unit.copies[0].destination))) ? 0 : 1;
        }
        const std::size_t most_large = std::max(limits_.depth - 1, 1U);
        for (const auto &[context, units] : running) {
            ASSERT_TRUE(units <= limits_.depth || in_doubt());
            ASSERT_TRUE(large[context] <= most_large || in_doubt()) << "a place is the small ones'";
        }
    }

    void check_handed_back(copy_request *list, bool cancelled)
    {
        for (const std::size_t number : gpusm_test::numbers_of(requests_, list)) {
            ASSERT_LT(number, requests_.size());
            ASSERT_TRUE(back_.insert(number).second) << number << " came back twice";
            const copy_request &one = request(number);
            const auto found = book().unit_of.find(one.destination);
            started_unit *in =
                book().unit_of.end() == found ? nullptr : &book().units[found->second];
            if (status::ok == one.outcome) {
                ASSERT_FALSE(cancelled);
                ASSERT_NE(in, nullptr) << number << " was never started";
                ASSERT_TRUE(in->ended && !in->badly) << number << " has not been copied";
            } else {
                ASSERT_EQ(one.outcome, status::driver_failed);
                ASSERT_TRUE(cancelled || nullptr == in || in->badly || in_doubt())
                    << number << " was copied, or still is";
                ASSERT_TRUE(cancelled || !book().is_loose(one.destination))
                    << number << " may still run";
            }
            if (in != nullptr) {
                in->handed_back = true;
                if (!in->ended) {
                    book().note_end(found->second, true);
                }
            }
        }
    }

    void collect_and_check(bool busy)
    {
        book().in_doubt = false;
        copy_request *list = engine().collect(busy);
        ASSERT_NO_FATAL_FAILURE(check_started());
        ASSERT_NO_FATAL_FAILURE(check_handed_back(list, false));
        ASSERT_TRUE(fake().stack.empty()) << "a context was left behind";
        ASSERT_TRUE(no_context_ || CU_STREAM_CAPTURE_MODE_GLOBAL == fake().capture_mode);
    }

    void heal()
    {
        fake().heal();
        no_context_ = false;
        fake().capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL; // if putting it back was refused
    }
    void maybe_break_something()
    {
        static constexpr const char *functions[] = {
            "ctx_push_current", "exchange_capture_mode", "ctx_get_current",  "event_create",
            "memcpy_async",     "event_record",          "event_query",      "batch_copy",
            "launch_kernel",    "stream_query",          "stream_wait_event"};
        heal();
        for (std::size_t i = once_in(3) ? 1 + any(3) : 0; i > 0; --i) {
            const std::string name = functions[any(std::size(functions))];
            fake().fail(name, static_cast<int>(any(4)), CUDA_ERROR_INVALID_VALUE);
            no_context_ =
                no_context_ || "ctx_push_current" == name || "exchange_capture_mode" == name;
        }
    }
    // Whether something has ended cannot be asked.
    bool in_doubt() const { return no_context_ || book().in_doubt; }

    void step()
    {
        maybe_break_something();
        switch (any(8)) {
        case 0:
        case 1:
        case 2:
            for (std::size_t i = any(20); i > 0; --i) {
                ASSERT_NO_FATAL_FAILURE(submit_something());
            }
            break;
        case 3:
        case 4:
        case 5:
            end_something(once_in(8));
            break;
        case 6:
            engine().hold(once_in(2));
            engine().gather_over_bus(once_in(2));
            break;
        default:
            // Now and then long enough for the driver to be asked about a kernel.
            for (std::size_t i = once_in(20) ? 1100 : 1; i > 0; --i) {
                ASSERT_NO_FATAL_FAILURE(collect_and_check(once_in(2)));
            }
        }
    }

    // Everything ends well from now on, and comes back.
    void drain()
    {
        heal();
        engine().gather_over_bus(false);
        for (int round = 0; round < 4000 && !engine().idle(); ++round) {
            for (const std::size_t each : std::set<std::size_t>(book().running)) {
                book().end(each, false);
            }
            ASSERT_NO_FATAL_FAILURE(collect_and_check(false));
        }
        ASSERT_TRUE(engine().idle()) << "something never comes back";
    }

    void expect_tally()
    {
        std::uint64_t by_kernel = 0;
        for (const started_unit &each : book().units) {
            by_kernel += each.by_kernel ? 1 : 0;
        }
        EXPECT_EQ(submissions(copy_way::kernel), by_kernel);
        EXPECT_EQ(submissions(copy_way::kernel) + submissions(copy_way::batch) +
                      submissions(copy_way::single),
                  book().units.size());
    }

    std::mt19937 random_;
    gpusm_test::test_limits limits_;
    bool no_context_ = false;
    std::set<std::size_t> back_;                                    // numbers
    std::map<std::pair<CUcontext, bool>, std::size_t> next_number_; // least, by context and kind
    std::size_t checked_units_ = 0;
};

TEST_F(CopyEngineModel, EveryCopyComesBackOnceAndOnlyWhatWasCopiedComesBackWell)
{
    const log_capture log;
    std::uint64_t good = 0;
    std::array<std::uint64_t, static_cast<std::size_t>(copy_way::count)> ways{};
    for (unsigned seed = 0; seed < 500; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        start(seed);
        for (int i = 0; i < 150; ++i) {
            ASSERT_NO_FATAL_FAILURE(step());
        }
        for (std::size_t way = 0; way < ways.size(); ++way) {
            ways[way] += engine().submissions()[way];
        }
        if (once_in(8)) {
            ASSERT_NO_FATAL_FAILURE(check_handed_back(engine().cancel_all(), true));
        } else {
            ASSERT_NO_FATAL_FAILURE(drain());
            expect_tally();
        }
        ASSERT_TRUE(engine().idle());
        ASSERT_EQ(back_.size(), requests_.size());
        for (const copy_request &each : requests_) {
            good += status::ok == each.outcome ? 1 : 0;
        }
        heal();
        drop_engine();
        ASSERT_TRUE(fake().events.empty());
        ASSERT_TRUE(fake().streams.empty());
        ASSERT_TRUE(fake().modules.empty());
        ASSERT_TRUE(fake().registered.empty());
    }
    // That the dice did not miss what is to be tested.
    EXPECT_GT(good, 10000U);
    EXPECT_GT(ways[static_cast<std::size_t>(copy_way::single)], 500U);
    EXPECT_GT(ways[static_cast<std::size_t>(copy_way::kernel)], 500U);
#if GPUSM_HAVE_BATCH_COPY
    EXPECT_GT(ways[static_cast<std::size_t>(copy_way::batch)], 500U);
#endif
}

} // namespace
