// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange.cc: the loops of latency, bw and bibw, made as in the OSU benchmarks of these names but
// for the places of a window's messages: each has its own, because receives that overlap are an
// error in MPI, and because only so every message can be checked.
#include "bench/gpusm_perf/gpusm_perf.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace gpusm::bench {

namespace {

constexpr int data_tag = 1;
constexpr int answer_tag = 2;
constexpr int answer_bytes = 4;
constexpr int most_checks = 100; // unless the user has said how many

// What this rank sends and receives in an iteration.
struct message_plan {
    message_plan(const run &r, std::size_t len_bytes)
        : places(r.places_for(len_bytes)), out(r.sends() ? places : answer_place),
          in(r.receives() ? places : answer_place)
    {
        requests.reserve(2 * static_cast<std::size_t>(r.opt.window));
    }

    static constexpr placement answer_place{answer_bytes, 1};
    placement places;
    placement out;
    placement in;
    std::vector<MPI_Request> requests;
};

void send(const run &r, const placement &from, int tag)
{
    (void)MPI_Send(r.outgoing->at(from.at(0)), static_cast<int>(from.len_bytes), MPI_BYTE, r.peer,
                   tag, MPI_COMM_WORLD);
}

void receive(const run &r, const placement &to, int tag)
{
    (void)MPI_Recv(r.incoming->at(to.at(0)), static_cast<int>(to.len_bytes), MPI_BYTE, r.peer, tag,
                   MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

void exchange_windows(const run &r, message_plan &plan)
{
    const int len = static_cast<int>(plan.places.len_bytes);
    plan.requests.clear();
    for (int i = 0; i < r.opt.window && r.receives(); ++i) {
        (void)MPI_Irecv(r.incoming->at(plan.in.at(static_cast<std::size_t>(i))), len, MPI_BYTE,
                        r.peer, data_tag, MPI_COMM_WORLD,
                        &plan.requests.emplace_back(MPI_REQUEST_NULL));
    }
    for (int i = 0; i < r.opt.window && r.sends(); ++i) {
        (void)MPI_Isend(r.outgoing->at(plan.out.at(static_cast<std::size_t>(i))), len, MPI_BYTE,
                        r.peer, data_tag, MPI_COMM_WORLD,
                        &plan.requests.emplace_back(MPI_REQUEST_NULL));
    }
    (void)MPI_Waitall(static_cast<int>(plan.requests.size()), plan.requests.data(),
                      MPI_STATUSES_IGNORE);
}

// One ping-pong, or one window. Both ways at once need no answer: a window ends when the other
// side's has come.
void iterate(const run &r, message_plan &plan)
{
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

std::vector<placed_message> messages_from(int rank, const run &r, const placement &places)
{
    std::vector<placed_message> list;
    for (std::size_t i = 0; i < places.places; ++i) {
        // Contents are numbered by exchange, sender and place: no seed comes twice.
        const auto sender = static_cast<std::uint64_t>(rank);
        list.push_back({places.at(i), places.len_bytes, (r.contents << 40) + (sender << 20) + i});
    }
    return list;
}

std::string renew_outgoing(run &r, const message_plan &plan)
{
    ++r.contents;
    return fill_placed(*r.outgoing, plan.out.end(), messages_from(r.rank, r, plan.out));
}

std::string compare_incoming(const run &r, const message_plan &plan)
{
    return compare_placed(*r.incoming, plan.in.end(), messages_from(r.peer, r, plan.in));
}

} // namespace

std::string make_buffers(run &r)
{
    std::size_t out_bytes = message_plan::answer_place.end();
    std::size_t in_bytes = out_bytes;
    for (const std::size_t size : r.opt.sizes) {
        const message_plan plan(r, size);
        out_bytes = std::max(out_bytes, plan.out.end());
        in_bytes = std::max(in_bytes, plan.in.end());
    }
    std::string why;
    r.outgoing = buffer::make(r.kind(), out_bytes, r.gpu, &why, r.opt.source_offset);
    if (nullptr != r.outgoing) {
        r.incoming = buffer::make(r.kind(), in_bytes, r.gpu, &why, r.opt.destination_offset);
    }
    return agree_on_error(why);
}

rank_times measure(run &r, std::size_t len_bytes, std::string *error)
{
    message_plan plan(r, len_bytes);
    *error = renew_outgoing(r, plan);
    if (error->empty()) {
        *error = r.incoming->poison(0, plan.in.end());
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

std::string check_bytes(run &r, std::size_t len_bytes, int iterations)
{
    message_plan plan(r, len_bytes);
    std::string error = r.incoming->poison(0, plan.in.end());
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

std::string agree_on_error(const std::string &mine)
{
    struct {
        int good;
        int rank;
    } candidate = {mine.empty() ? 1 : 0, 0}, chosen = {};
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &candidate.rank);
    (void)MPI_Allreduce(&candidate, &chosen, 1, MPI_2INT, MPI_MINLOC, MPI_COMM_WORLD);
    char text[512] = "";
    std::strncpy(text, mine.c_str(), sizeof(text) - 1);
    if (0 == chosen.good) {
        (void)MPI_Bcast(text, sizeof(text), MPI_CHAR, chosen.rank, MPI_COMM_WORLD);
    }
    return text;
}

} // namespace gpusm::bench
