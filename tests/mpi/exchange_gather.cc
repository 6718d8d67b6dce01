// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_gather.cc: windows of many messages of device memory at once, which the receiver gathers
// into few submissions, and which way those went.
#include "tests/mpi/exchange.h"

#include "bench/common/placed.h"

#include <array>
#include <cstdio>

namespace gpusm::exchange {

namespace {

constexpr int tag = 71;

// Performance variables of btl/gpusm.
constexpr const char *names[] = {"btl_gpusm_get_messages", "btl_gpusm_single_submissions",
                                 "btl_gpusm_batch_submissions", "btl_gpusm_kernel_submissions"};
using counts = std::array<unsigned long long, std::size(names)>;
enum { by_get, single, batch, kernel };

class counters {
  public:
    counters()
    {
        available_ = bench::init_tools() && MPI_SUCCESS == MPI_T_pvar_session_create(&session_);
        for (std::size_t i = 0; i < std::size(names) && available_; ++i) {
            int index = -1;
            int values = 0;
            available_ =
                MPI_SUCCESS == MPI_T_pvar_get_index(names[i], MPI_T_PVAR_CLASS_COUNTER, &index) &&
                MPI_SUCCESS ==
                    MPI_T_pvar_handle_alloc(session_, index, nullptr, &handles_[i], &values) &&
                1 == values;
        }
    }
    ~counters()
    {
        (void)MPI_T_pvar_session_free(&session_); // and its handles
        (void)MPI_T_finalize();
    }
    counters(const counters &) = delete;
    counters &operator=(const counters &) = delete;

    bool available() const { return available_; }
    counts read() const
    {
        counts now = {};
        for (std::size_t i = 0; i < now.size() && available_; ++i) {
            (void)MPI_T_pvar_read(session_, handles_[i], &now[i]);
        }
        return now;
    }

  private:
    MPI_T_pvar_session session_ = MPI_T_PVAR_SESSION_NULL;
    std::array<MPI_T_pvar_handle, std::size(names)> handles_ = {};
    bool available_ = false;
};

// Where the messages of a window lie: lengths on both sides of every limit, places at addresses of
// every remainder, and guard bytes between them.
std::vector<bench::placed_message> make_window(std::uint64_t first_seed, std::size_t messages,
                                               std::size_t shift)
{
    constexpr std::size_t lengths[] = {8,    1,    7,     33,    255,   256,
                                       1001, 4096, 16384, 65537, 64000, 200003};
    constexpr std::size_t long_one = (3U << 20) + 5; // longer than a copy for the kernel
    std::vector<bench::placed_message> window;
    std::size_t end = 0;
    for (std::size_t i = 0; i < messages; ++i) {
        const std::size_t len = 63 == i % 64 ? long_one : lengths[i % std::size(lengths)];
        const std::size_t offset = end + 64 + (i * shift) % 131;
        window.push_back({offset, len, first_seed + i});
        end = offset + len;
    }
    return window;
}

std::size_t end_of(const std::vector<bench::placed_message> &window)
{
    return window.back().offset + window.back().len_bytes + 64;
}

// Posts a window each way between ranks 0 and 1, and waits for all of it.
void exchange_window(context &c, const buffer &out,
                     const std::vector<bench::placed_message> &to_send, const buffer &in,
                     const std::vector<bench::placed_message> &to_receive)
{
    const int peer = 1 - c.rank;
    std::vector<MPI_Request> requests;
    for (const auto &each : to_receive) {
        (void)c.mpi(MPI_Irecv(in.at(each.offset), static_cast<int>(each.len_bytes), MPI_BYTE, peer,
                              tag, MPI_COMM_WORLD, &requests.emplace_back(MPI_REQUEST_NULL)),
                    "MPI_Irecv");
    }
    for (const auto &each : to_send) {
        (void)c.mpi(MPI_Isend(out.at(each.offset), static_cast<int>(each.len_bytes), MPI_BYTE, peer,
                              tag, MPI_COMM_WORLD, &requests.emplace_back(MPI_REQUEST_NULL)),
                    "MPI_Isend");
    }
    (void)c.mpi(
        MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE),
        "MPI_Waitall");
    c.messages += static_cast<long>(to_receive.size());
}

// One line with the sums over all ranks, for the shell driver.
void print_counts(context &c, const counts &mine)
{
    counts sum = {};
    (void)MPI_Reduce(mine.data(), sum.data(), static_cast<int>(sum.size()), MPI_UNSIGNED_LONG_LONG,
                     MPI_SUM, 0, MPI_COMM_WORLD);
    if (0 == c.rank) {
        std::printf("submissions: single %llu, batch %llu, kernel %llu; messages by get: %llu\n",
                    sum[single], sum[batch], sum[kernel], sum[by_get]);
    }
}

counts operator-(counts later, const counts &earlier)
{
    for (std::size_t i = 0; i < later.size(); ++i) {
        later[i] -= earlier[i];
    }
    return later;
}

// Counters and a transport that gets; false when the test has to end, which is a failure.
bool ready(context &c, const counters &counted)
{
    at_step("warm-up");
    return c.expect_true(counted.available(), "the transport has performance variables") &&
           c.expect_true(1 < c.rank || until_by_get(c), "messages go by get at last");
}

// A window each way between ranks 0 and 1, checked.
void check_window(context &c, memory_kind from, memory_kind to, std::size_t messages)
{
    const std::uint64_t seed = c.next_seed;
    c.next_seed += 2 * messages;
    const auto seed_of = [&](int rank) {
        return seed + messages * static_cast<std::uint64_t>(rank);
    };
    const std::string what =
        std::string("a window from ") + bench::describe(from) + " into " + bench::describe(to);
    at_step(what);
    const auto to_send = make_window(seed_of(c.rank), messages, 37);
    const auto to_receive = make_window(seed_of(1 - c.rank), messages, 101);
    auto out = c.make(from, end_of(to_send));
    auto in = c.make(to, end_of(to_receive));
    (void)c.expect(fill_placed(*out, end_of(to_send), to_send), "fill");
    (void)c.expect(in->poison(), "poison");
    exchange_window(c, *out, to_send, *in, to_receive);
    (void)c.expect(compare_placed(*in, end_of(to_receive), to_receive), what);
}

// Windows from that memory into memory of each kind in --kinds. How many messages of a window at
// least must have come by get is for the caller to say.
void check_windows(context &c, memory_kind from, std::size_t messages, std::size_t by_get_at_least)
{
    constexpr int rounds = 3;
    const counters counted;
    if (!ready(c, counted)) {
        return;
    }
    const counts before = counted.read();
    for (int i = 0; 1 >= c.rank && i < rounds; ++i) {
        for (memory_kind kind : c.kinds) {
            check_window(c, from, kind, messages);
        }
    }
    const counts used = counted.read() - before;
    (void)c.expect_true(1 < c.rank || used[by_get] >= rounds * by_get_at_least * c.kinds.size(),
                        "the messages came by get");
    print_counts(c, used);
}

} // namespace

void test_gather(context &c)
{
    constexpr std::size_t messages = 256;
    check_windows(c, memory_kind::device, messages, messages);
}

// Of twelve messages three are long enough to be staged.
void test_gather_from_host(context &c)
{
    constexpr std::size_t messages = 256;
    check_windows(c, memory_kind::host, messages, messages / 4);
}

// One of many receives ends behind its allocation. That is an error of the program, which ends it;
// how, the shell driver looks at.
void test_behind_end(context &c)
{
    constexpr std::size_t messages = 64;
    constexpr std::size_t len = 1000;
    const counters counted;
    if (!ready(c, counted) || 1 < c.rank) {
        return;
    }
    // Rank 0 has room for all of them, rank 1 for all but half of the last.
    const std::size_t room = messages * len - (0 == c.rank ? 0 : len / 2);
    auto memory = c.make(memory_kind::device, room);
    std::vector<bench::placed_message> window;
    for (std::size_t i = 0; i < messages; ++i) {
        window.push_back({i * len, len, i});
    }
    at_step("a message that is longer than what is left of its buffer");
    exchange_window(c, *memory, 0 == c.rank ? window : std::vector<bench::placed_message>{},
                    *memory, 0 == c.rank ? std::vector<bench::placed_message>{} : window);
}

} // namespace gpusm::exchange
