// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_recovery.cc: messages of which some meet a call that fails, a few times and then never
// again, for as long as it takes until everything has been tried again; then which way they go is
// counted and printed. The shell drivers compare that with a run in which nothing has failed. And
// messages of one thread while another one tells the user what has failed.
#include "tests/mpi/exchange_tools.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <thread>
#include <tuple>

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

namespace gpusm::exchange {

namespace {

constexpr int tag = 131;

// By the clock that the transport looks at, which a preloaded library may have made faster.
std::int64_t now_ms()
{
    timespec now{};
    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec * std::int64_t{1000} + now.tv_nsec / 1000000;
}

constexpr std::size_t lengths[] = {100, 20000, 150000, (1U << 20) + 3};
constexpr std::size_t at_once = 2;
constexpr std::size_t room =
    at_once * (lengths[std::size(lengths) - 1] + bench::placement::guard_bytes);

// Messages each way of every kind in --kinds into device memory and into host memory, and the other
// way round, of some lengths. Memory of devices is new each time, so that no peer knows it. What is
// not page-locked is taken for that a little longer than it is there, so that stays.
class all_ways {
  public:
    explicit all_ways(context &c) : c_(c) {}

    void swap(const char *what)
    {
        at_step(what);
        for (const memory_kind kind : c_.kinds) {
            both_ways(kind, memory_kind::host);
            if (c_.on_gpu()) {
                both_ways(kind, memory_kind::device);
            }
        }
    }

  private:
    void both_ways(memory_kind one, memory_kind other)
    {
        const auto of_one = make(one), of_other = make(other);
        for (const auto &[from, into, out, in] :
             {std::tuple{one, other, of_one, of_other}, {other, one, of_other, of_one}}) {
            for (const std::size_t len : lengths) {
                swap_side_by_side(c_, *out, *in, len, at_once, tag,
                                  describe(from, into, len, "recovery"));
            }
        }
    }
    std::shared_ptr<buffer> make(memory_kind kind)
    {
        if (memory_kind::page_locked != kind) {
            return c_.make(kind, room);
        }
        page_locked_ = nullptr == page_locked_ ? c_.make(kind, room) : page_locked_;
        return page_locked_;
    }

    context &c_;
    std::shared_ptr<buffer> page_locked_;
};

// Rank 0 says how long.
bool goes_on(bool wanted)
{
    int go_on = wanted ? 1 : 0;
    MPI_Bcast(&go_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return 1 == go_on;
}

} // namespace

void test_recovery(context &c)
{
    constexpr int warm_rounds = 3;
    constexpr int least_rounds = 12; // with a fast clock
    constexpr int counted_rounds = 3;
    constexpr std::int64_t enough_ms = 10000;
    const bench::path_counters counters;
    all_ways messages(c);
    for (int i = 0; i < warm_rounds; ++i) {
        messages.swap("recovery: the first messages");
    }
    // Of failing_calls.so: from here on, if it has been told to wait for that.
    using begin_function = void();
    if (auto *begin =
            reinterpret_cast<begin_function *>(dlsym(RTLD_DEFAULT, "gpusm_test_begin_to_fail"))) {
        begin();
    }
    const std::int64_t begin_ms = now_ms();
    for (int i = 0; goes_on(i < least_rounds || now_ms() - begin_ms < enough_ms); ++i) {
        messages.swap("recovery: messages while calls fail, or have failed");
        pause_ms(i < least_rounds ? 1 : 50);
    }
    const bench::path_counts before = counters.read();
    for (int i = 0; i < counted_rounds; ++i) {
        messages.swap("recovery: messages that are counted");
    }
    // One line, for the shell driver.
    std::string line;
    for (const auto &[name, count] : bench::since(before, counters.read())) {
        unsigned long long mine = count;
        unsigned long long sum = 0;
        MPI_Reduce(&mine, &sum, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
        line += " " + name + "=" + std::to_string(sum);
    }
    if (0 == c.rank) {
        std::printf("recovery:%s\n", line.c_str());
    }
}

// Where a text for the user waits until another thread has begun to send device memory
// (slow_help.cc).
void test_told(context &c)
{
    constexpr int their_tag = tag + 1;
    constexpr int most_rounds = 1000;
    constexpr std::size_t len = 65536;
    const char *folder = std::getenv("GPUSM_TEST_HELP");
    const auto path_of = [folder](const char *name) {
        return std::string(nullptr == folder ? "." : folder) + "/" + name + "." +
               std::to_string(getpid());
    };
    auto out = c.make(memory_kind::device, 2 * len);
    auto in = c.make(memory_kind::device, 2 * len);
    auto from_there = c.make(memory_kind::device, len);
    std::atomic<bool> is_over{false};
    std::atomic<bool> has_sent{false};
    std::thread other([&] {
        c.use_gpu();
        auto mine = c.make(memory_kind::device, len);
        c.expect(mine->fill(0, len, 1), "fill");
        while (!is_over && 0 != access(path_of("inside").c_str(), F_OK)) {
            pause_ms(1);
        }
        requests under_way(c);
        under_way.send(mine->data(), len, 1 - c.rank, their_tag);
        (void)close(open(path_of("go").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        has_sent = true;
        under_way.wait();
    });
    char both = 0;
    for (int i = 0; 0 == both && i < most_rounds; ++i) {
        swap_side_by_side(c, *out, *in, len, 1, tag, "until the user has been told");
        const char mine = has_sent ? 1 : 0;
        char theirs = 0;
        c.send_receive(&mine, 1, &theirs, 1, 1 - c.rank, tag);
        both = mine != 0 && theirs != 0 ? 1 : 0;
    }
    c.expect_true(1 == both, "the user is told, and other threads go on meanwhile");
    is_over = true;
    at_step("the message of the other thread");
    if (c.receive(from_there->data(), len, 1 - c.rank, their_tag)) {
        c.expect(from_there->compare(0, len, 1), "the message of the other thread");
    }
    other.join();
}

} // namespace gpusm::exchange
