// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_model_test.cc: random copies on two devices, any driver call may fail, and what was
// started ends in any order, well or badly: a seed tells. Every answer of the engine is checked
// against what was really started.
#include "tests/unit/copy_engine_support.h"

#include <algorithm>
#include <array>

namespace {

using namespace gpusm;
using namespace gpusm_test;

// What the units of the fake do not say.
struct {
    driver_api real;
    // Destinations of what may have been started in a batch that failed, or before an event that
    // could not be recorded, or which runs while a question about it fails.
    std::map<CUstream, std::set<std::uint64_t>> loose;
    bool in_doubt = false; // the driver did not say whether something had ended

    void lose(CUstream stream, const std::vector<fake_copy> &copies)
    {
        for (const fake_copy &each : copies) {
            loose[stream].insert(each.destination);
        }
    }
    // There is an end that can be seen.
    void find(const fake_unit &unit)
    {
        for (const fake_copy &each : unit.copies) {
            loose[unit.stream].erase(each.destination);
        }
    }
    // The driver did not say what has become of those that run and are meant.
    template <class predicate> void doubt(predicate is_meant)
    {
        in_doubt = true;
        for (const fake_unit &each : fake().units) {
            if (!each.ended && is_meant(each)) {
                lose(each.stream, each.copies);
            }
        }
    }
    // May that copy be running, and nobody will see its end?
    bool is_loose(std::uint64_t destination) const
    {
        return std::any_of(loose.begin(), loose.end(),
                           [=](const auto &each) { return each.second.contains(destination); });
    }
} book;

// Puts the book between the fake's table and who uses it from now on.
void attach_book(driver_api *api)
{
#if GPUSM_HAVE_BATCH_COPY
    add_batches(*api);
#endif
    book = {};
    book.real = *api;
#if GPUSM_HAVE_BATCH_COPY
    api->batch_copy = [](CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                         CUmemcpyAttributes *how, size_t *first, size_t attributes,
                         CUstream stream) {
        const CUresult result =
            book.real.batch_copy(to, from, sizes, count, how, first, attributes, stream);
        // One that fails may have started some, here every other one.
        for (size_t i = 0; i < count && CUDA_SUCCESS != result; i += 2) {
            book.loose[stream].insert(to[i]);
        }
        return result;
    };
#endif
    api->event_record = [](CUevent event, CUstream stream) {
        const CUresult result = book.real.event_record(event, stream);
        if (CUDA_SUCCESS == result) {
            book.find(fake().units.back());
        } else {
            book.lose(stream, std::exchange(fake().open[stream], {}).copies);
        }
        return result;
    };
    api->stream_synchronize = [](CUstream stream) {
        book.loose[stream].clear();
        return book.real.stream_synchronize(stream);
    };
    api->launch_kernel = [](auto... arguments) {
        const CUresult result = book.real.launch_kernel(arguments...);
        if (CUDA_SUCCESS == result) {
            const auto slot_of = [](const fake_unit &unit) {
                return fake().launches[unit.launch].arguments.slot;
            };
            const fake_unit &made = fake().units.back();
            for (const fake_unit &each : fake().units) {
                EXPECT_FALSE(&each != &made && each.by_kernel() && !each.ended &&
                             each.context == made.context && slot_of(each) == slot_of(made) &&
                             !book.in_doubt)
                    << "slot " << slot_of(made) << " is in use";
            }
            book.find(made);
        }
        return result;
    };
    api->event_query = [](CUevent event) {
        const CUresult result = book.real.event_query(event);
        if (result != fake().query_answer[event]) {
            book.doubt([event](const fake_unit &each) { return each.event == event; });
        }
        return result;
    };
    // After a bad end the driver says so about everything on that stream.
    api->stream_query = [](CUstream stream) {
        CUresult result = book.real.stream_query(stream);
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) {
            book.doubt([stream](const fake_unit &each) { return each.stream == stream; });
        }
        bool others_run = false;
        for (const fake_unit &each : fake().units) {
            if (each.by_kernel() && each.stream == stream && !each.handed_back) {
                others_run = others_run || !each.ended;
                result = each.badly ? CUDA_ERROR_LAUNCH_FAILED : result;
            }
        }
        book.in_doubt = book.in_doubt || (others_run && CUDA_ERROR_LAUNCH_FAILED == result);
        return result;
    };
}

// A unit ends. `asked`: the driver will say so when it is asked, a kernel's flag is written.
void end(fake_unit &unit, bool badly, bool asked = true)
{
    unit.ended = true;
    unit.badly = badly;
    if (unit.by_kernel()) {
        asked && !badly ? fake().finish_launch(unit.launch)
                        : static_cast<void>(fake().launches[unit.launch].finished = true);
    } else if (asked) {
        fake().query_answer[unit.event] = badly ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
    }
}

class CopyEngineModel : public copy_engine_fixture {
  protected:
    CopyEngineModel() { attach_book(&api_); }

    std::size_t any(std::size_t below) { return random_() % below; }
    bool once_in(std::size_t times) { return 0 == any(times); }

    void start(unsigned seed)
    {
        drop_engine();
        back_.clear();
        next_number_.clear();
        unit_of_.clear();
        checked_units_ = 0;
        fake().open.clear();
        book.loose.clear();
        book.in_doubt = false;
        random_.seed(seed);
        limits_ = {};
        limits_.depth = static_cast<std::uint32_t>(1 + any(5));
        limits_.batch_copies = static_cast<std::uint32_t>(1 + any(12));
        limits_.batch_bytes = 1 + any(8000);
        limits_.kernel_bytes = 1 + any(3000);
        limits_.within_device_bytes = 1 + any(4000);
        limits_.early_bytes = 1 + any(4000);
        limits_.streams = static_cast<std::uint32_t>(1 + any(3));
        limits_.kernel_blocks = once_in(5) ? 0 : 4;
        limits_.batches = !once_in(4);
        make_engine(limits_);
        const auto somewhere = handle_of<CUcontext>(0xc0U + any(3)); // of the program's, or ours
        callers_ = fake().stack =
            once_in(2) ? std::vector<CUcontext>{} : std::vector<CUcontext>{somewhere};
    }

    // What gathers apart from the rest, and may go by the kernel.
    bool is_small(const copy_request &request) const
    {
        return request.kernel_reaches && nullptr == request.wait_for && request.len_bytes > 0 &&
               request.len_bytes <=
                   (request.within_device ? limits_.within_device_bytes : limits_.kernel_bytes);
    }
    void submit_something()
    {
        copy_request what;
        what.len_bytes = once_in(12) ? 0 : any(4000);
        what.kernel_reaches = !once_in(3);
        what.within_device = once_in(3);
        what.processor_waits = once_in(3);
        what.wait_for = once_in(10) ? handle_of<CUevent>(0x77) : nullptr;
        submit(what, any(2));
        check_started();
    }

    static std::vector<fake_unit *> running()
    {
        std::vector<fake_unit *> all;
        for (fake_unit &each : fake().units) {
            if (!each.ended) {
                all.push_back(&each);
            }
        }
        return all;
    }
    // One of those that run. A bad end is the end of all that run on its device.
    void end_something(bool badly)
    {
        const std::vector<fake_unit *> all = running();
        if (all.empty()) {
            return;
        }
        const fake_unit *chosen = all[any(all.size())];
        for (fake_unit *each : all) {
            if (each == chosen || (badly && each->context == chosen->context)) {
                end(*each, badly);
            }
        }
    }

    // What the engine has started since the last call of this.
    void check_started()
    {
        for (; checked_units_ < fake().units.size(); ++checked_units_) {
            const fake_unit &made = unit(checked_units_);
            ASSERT_FALSE(made.copies.empty());
            ASSERT_LE(made.copies.size(), limits_.batch_copies);
            const bool small = is_small(request(number_of(made.copies[0].destination)));
            ASSERT_TRUE(small || !made.by_kernel()) << "none for the kernel";
            auto &next = next_number_[{made.context, small}];
            for (const fake_copy &copy : made.copies) {
                const std::size_t number = number_of(copy.destination);
                ASSERT_LT(number, requests_.size());
                ASSERT_EQ(copy.source, request(number).source);
                ASSERT_EQ(copy.len_bytes, request(number).len_bytes);
                ASSERT_EQ(copy.context, made.context);
                ASSERT_EQ(is_small(request(number)), small) << "these do not gather together";
                ASSERT_GE(number, next) << "not in the order of submission, or twice";
                next = number + 1;
                unit_of_[number] = checked_units_;
            }
        }
        std::map<CUcontext, std::size_t> units;
        std::map<CUcontext, std::size_t> large_units;
        for (const fake_unit *each : running()) {
            const bool small = is_small(request(number_of(each->copies[0].destination)));
            ++units[each->context];
            large_units[each->context] += small ? 0 : 1;
        }
        const std::size_t most_large = std::max(limits_.depth - 1, 1U);
        for (const auto &[context, count] : units) {
            ASSERT_TRUE(count <= limits_.depth || in_doubt());
            ASSERT_TRUE(large_units[context] <= most_large || in_doubt())
                << "a place is the small ones'";
        }
    }

    void check_handed_back(const copy_request *list, bool cancelled)
    {
        for (; list != nullptr; list = list->next) {
            const std::size_t number = number_of(list->destination);
            ASSERT_LT(number, requests_.size());
            ASSERT_TRUE(back_.insert(number).second) << number << " came back twice";
            const auto found = unit_of_.find(number);
            fake_unit *in = unit_of_.end() == found ? nullptr : &unit(found->second);
            if (status::ok == list->outcome) {
                ASSERT_FALSE(cancelled);
                ASSERT_NE(in, nullptr) << number << " was never started";
                ASSERT_TRUE(in->ended && !in->badly) << number << " has not been copied";
            } else {
                ASSERT_EQ(list->outcome, status::driver_failed);
                ASSERT_TRUE(cancelled || nullptr == in || in->badly || in_doubt())
                    << number << " was copied, or still is";
                ASSERT_TRUE(cancelled || !book.is_loose(list->destination))
                    << number << " may still run";
            }
            if (in != nullptr) {
                in->handed_back = true;
                if (!in->ended) {
                    end(*in, true, false);
                }
            }
        }
    }

    void collect_and_check(bool busy)
    {
        book.in_doubt = false;
        copy_request *list = engine().collect(busy);
        ASSERT_NO_FATAL_FAILURE(check_started());
        ASSERT_NO_FATAL_FAILURE(check_handed_back(list, false));
        ASSERT_EQ(fake().stack, callers_) << "a context was left behind";
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
    bool in_doubt() const { return no_context_ || book.in_doubt; }

    void step()
    {
        maybe_break_something();
        const std::size_t dice = any(8);
        if (dice < 3) {
            for (std::size_t i = any(20); i > 0; --i) {
                ASSERT_NO_FATAL_FAILURE(submit_something());
            }
        } else if (dice < 6) {
            end_something(once_in(8));
        } else if (dice < 7) {
            engine().expect_more(once_in(2));
            engine().processor_has_work(once_in(2));
        } else {
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
        engine().processor_has_work(false);
        for (int round = 0; round < 4000 && !engine().idle(); ++round) {
            for (fake_unit *each : running()) {
                end(*each, false);
            }
            ASSERT_NO_FATAL_FAILURE(collect_and_check(false));
        }
        ASSERT_TRUE(engine().idle()) << "something never comes back";
    }

    void expect_tally()
    {
        EXPECT_EQ(submissions(copy_way::kernel),
                  std::count_if(fake().units.begin(), fake().units.end(),
                                [](const fake_unit &each) { return each.by_kernel(); }));
        EXPECT_EQ(submissions(copy_way::kernel) + submissions(copy_way::batch) +
                      submissions(copy_way::single),
                  fake().units.size());
    }

    std::mt19937 random_;
    test_limits limits_;
    bool no_context_ = false;
    std::vector<CUcontext> callers_;
    std::map<std::size_t, std::size_t> unit_of_;                    // by number of the request
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
            const auto calls = fake().calls;
            ASSERT_NO_FATAL_FAILURE(check_handed_back(engine().cancel_all(), true));
            ASSERT_EQ(fake().calls, calls);
            ASSERT_TRUE(engine().idle());
            ASSERT_EQ(back_.size(), requests_.size());
            ASSERT_EQ(engine().cancel_all(), nullptr);
            ASSERT_NO_FATAL_FAILURE(submit_something()); // it goes on working
        }
        ASSERT_NO_FATAL_FAILURE(drain());
        expect_tally();
        ASSERT_EQ(back_.size(), requests_.size());
        for (const copy_request &each : requests_) {
            good += status::ok == each.outcome ? 1 : 0;
        }
        heal();
        drop_engine();
        ASSERT_EQ(std::exchange(fake().stack, {}), callers_);
        expect_nothing_left_in_the_driver();
        ASSERT_FALSE(HasFailure());
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
