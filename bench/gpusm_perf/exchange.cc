// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange.cc: the loops of latency, bw, bibw and kernels, made as in the OSU benchmarks of these
// names but for the places of a window's messages: each has its own, because receives that overlap
// are an error in MPI, and because only so every message can be checked.
#include "bench/gpusm_perf/gpusm_perf.h"

#include <algorithm>
#include <cstdint>

namespace gpusm::bench {

namespace {

constexpr int data_tag = 1;
constexpr int answer_tag = 2;
constexpr int answer_bytes = 4;
constexpr int most_checks = 100; // unless the user has said how many

// Messages of one length: where they lie, and what MPI is told about each.
struct message_shape {
    placement places;
    std::size_t block_bytes; // 0: no gaps
    std::size_t len_bytes;   // without gaps
    int count;
    MPI_Datatype type;

    std::vector<placed_message> contents(std::uint64_t seed) const
    {
        std::vector<placed_message> list;
        const std::size_t block = 0 == block_bytes ? len_bytes : block_bytes;
        for (std::size_t i = 0; i < places.places; ++i) {
            for (std::size_t done = 0; done < len_bytes; done += block) {
                list.push_back({places.at(i) + 2 * done, block, seed + i, done});
            }
        }
        return list;
    }
};

// What this rank sends and receives in an iteration.
class message_plan {
  public:
    message_plan(const run &r, std::size_t len_bytes) : data(shape_of(r, len_bytes))
    {
        out = r.sends() ? data : answer;
        in = r.receives() ? data : answer;
        requests.reserve(2 * static_cast<std::size_t>(r.opt.window));
    }
    ~message_plan()
    {
        if (MPI_BYTE != data.type) {
            (void)MPI_Type_free(&data.type);
        }
    }
    message_plan(const message_plan &) = delete;
    message_plan &operator=(const message_plan &) = delete;

    static constexpr placement answer_place{answer_bytes, 1};
    message_shape data;
    message_shape answer{answer_place, 0, answer_bytes, answer_bytes, MPI_BYTE};
    message_shape out;
    message_shape in;
    std::vector<MPI_Request> requests;

  private:
    static message_shape shape_of(const run &r, std::size_t len_bytes)
    {
        const std::size_t block = r.block_bytes();
        // As many places on both sides, where only one may have gaps.
        const std::size_t longest = r.opt.has_gaps() ? 2 * len_bytes : len_bytes;
        const std::size_t places = r.places_for(longest).places;
        if (0 == block || 0 == len_bytes) {
            return {{len_bytes, places}, 0, len_bytes, static_cast<int>(len_bytes), MPI_BYTE};
        }
        message_shape made{{2 * len_bytes - block, places}, block, len_bytes, 1, MPI_BYTE};
        (void)MPI_Type_vector(static_cast<int>(len_bytes / block), static_cast<int>(block),
                              static_cast<int>(2 * block), MPI_BYTE, &made.type);
        (void)MPI_Type_commit(&made.type);
        return made;
    }
};

void send(const run &r, const message_shape &from, int tag)
{
    (void)MPI_Send(r.outgoing->at(from.places.at(0)), from.count, from.type, r.peer, tag,
                   MPI_COMM_WORLD);
}

void receive(const run &r, const message_shape &to, int tag)
{
    (void)MPI_Recv(r.incoming->at(to.places.at(0)), to.count, to.type, r.peer, tag, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE);
}

void exchange_windows(const run &r, message_plan &plan)
{
    plan.requests.clear();
    for (int i = 0; i < r.opt.window && r.receives(); ++i) {
        (void)MPI_Irecv(r.incoming->at(plan.in.places.at(static_cast<std::size_t>(i))),
                        plan.in.count, plan.in.type, r.peer, data_tag, MPI_COMM_WORLD,
                        &plan.requests.emplace_back(MPI_REQUEST_NULL));
    }
    for (int i = 0; i < r.opt.window && r.sends(); ++i) {
        (void)MPI_Isend(r.outgoing->at(plan.out.places.at(static_cast<std::size_t>(i))),
                        plan.out.count, plan.out.type, r.peer, data_tag, MPI_COMM_WORLD,
                        &plan.requests.emplace_back(MPI_REQUEST_NULL));
    }
    (void)MPI_Waitall(static_cast<int>(plan.requests.size()), plan.requests.data(),
                      MPI_STATUSES_IGNORE);
}

// All ranks begin together, so that those that share a device need it at the same time.
void run_kernel(run &r)
{
    (void)MPI_Barrier(MPI_COMM_WORLD);
    const std::string why = r.kernel->run(r.opt.kernel_us);
    r.kernel_error = r.kernel_error.empty() ? why : r.kernel_error;
}

// One ping-pong, or one window, which in kernels is of one message. Both ways at once need no
// answer: a window ends when the other side's has come.
void iterate(run &r, message_plan &plan)
{
    if (perf_mode::kernels == r.opt.mode) {
        run_kernel(r);
    }
    if (perf_mode::latency != r.opt.mode) {
        exchange_windows(r, plan);
        if (perf_mode::bw == r.opt.mode && r.first) {
            receive(r, plan.in, answer_tag);
        } else if (perf_mode::bw == r.opt.mode) {
            send(r, plan.out, answer_tag);
        }
    } else if (r.first) {
        send(r, plan.out, data_tag);
        receive(r, plan.in, data_tag);
    } else {
        receive(r, plan.in, data_tag);
        send(r, plan.out, data_tag);
    }
}

// Contents are numbered by exchange, sender and place: no seed comes twice.
std::uint64_t first_seed(int rank, const run &r)
{
    return (r.contents << 40) + (static_cast<std::uint64_t>(rank) << 20);
}

std::string renew_outgoing(run &r, const message_plan &plan)
{
    ++r.contents;
    return fill_placed(*r.outgoing, plan.out.places.end(),
                       plan.out.contents(first_seed(r.rank, r)));
}

std::string compare_incoming(const run &r, const message_plan &plan)
{
    return compare_placed(*r.incoming, plan.in.places.end(),
                          plan.in.contents(first_seed(r.peer, r)));
}

} // namespace

std::string make_buffers(run &r)
{
    std::size_t out_bytes = message_plan::answer_place.end();
    std::size_t in_bytes = out_bytes;
    for (const std::size_t size : r.opt.sizes) {
        const message_plan plan(r, size);
        out_bytes = std::max(out_bytes, plan.out.places.end());
        in_bytes = std::max(in_bytes, plan.in.places.end());
    }
    std::string why;
    r.outgoing = buffer::make(r.kind(), out_bytes, r.gpu, &why, r.opt.source_offset);
    if (nullptr != r.outgoing) {
        r.incoming = buffer::make(r.kind(), in_bytes, r.gpu, &why, r.opt.destination_offset);
    }
    if (why.empty() && perf_mode::kernels == r.opt.mode) {
        r.kernel = busy_kernel::make(*r.gpu, &why);
    }
    return agree_on_error(why);
}

rank_times measure(run &r, std::size_t len_bytes, std::string *error)
{
    message_plan plan(r, len_bytes);
    *error = renew_outgoing(r, plan);
    if (error->empty()) {
        *error = r.incoming->poison(0, plan.in.places.end());
    }
    for (int i = 0; i < r.opt.warmup_for(len_bytes); ++i) {
        iterate(r, plan);
    }
    if (!r.warmed_up) {
        r.warmed_up = true;
        r.after_warmup = r.counters->read();
    }
    // The clock is looked at once in an iteration, so the times of all add up to that of the loop.
    const auto iterations = static_cast<std::size_t>(r.opt.iterations_for(len_bytes));
    std::vector<clock_type::time_point> stamps(iterations + 1);
    (void)MPI_Barrier(MPI_COMM_WORLD);
    stamps[0] = clock_type::now();
    for (std::size_t i = 1; i <= iterations; ++i) {
        iterate(r, plan);
        stamps[i] = clock_type::now();
    }
    std::vector<double> each_us;
    for (std::size_t i = 1; i <= iterations; ++i) {
        each_us.push_back(us_between(stamps[i - 1], stamps[i]) / r.messages());
    }
    const double total_us = us_between(stamps.front(), stamps.back());
    *error = error->empty() ? r.kernel_error : *error;
    if (r.opt.check) {
        if (error->empty()) {
            *error = compare_incoming(r, plan);
        }
        const int checks = std::min(r.opt.iterations_for(len_bytes),
                                    0 == r.opt.iterations ? most_checks : r.opt.iterations);
        const std::string checked = check_bytes(r, len_bytes, checks);
        *error = error->empty() ? checked : *error;
    }
    return {median_of(each_us), total_us / static_cast<double>(iterations) / r.messages()};
}

double kernels_alone_us(run &r)
{
    constexpr int warmup = 10;
    constexpr int rounds = 200;
    clock_type::time_point begin;
    for (int i = -warmup; i < rounds; ++i) {
        if (0 == i) {
            begin = clock_type::now();
        }
        run_kernel(r);
    }
    return over_ranks(us_between(begin, clock_type::now()) / rounds, MPI_MAX);
}

std::string check_bytes(run &r, std::size_t len_bytes, int iterations)
{
    message_plan plan(r, len_bytes);
    std::string error = r.incoming->poison(0, plan.in.places.end());
    const auto note = [&](int iteration, const std::string &what) {
        if (error.empty() && !what.empty()) {
            error = "iteration " + std::to_string(iteration) + ": " + what;
        }
    };
    for (int i = 0; i < iterations; ++i) {
        note(i, renew_outgoing(r, plan));
        (void)MPI_Barrier(MPI_COMM_WORLD);
        iterate(r, plan);
        note(i, compare_incoming(r, plan));
    }
    return error;
}

} // namespace gpusm::bench
