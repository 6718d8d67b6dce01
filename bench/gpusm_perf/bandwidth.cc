// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// bandwidth.cc: bw, bibw and mbw_mr: windows of messages under way at once, made as in the OSU
// benchmarks of these names, but for the places of the messages: each has its own, because receives
// that overlap are an error in MPI, and because only so every message can be checked.
#include "bench/gpusm_perf/run.h"

namespace gpusm::bench {

namespace {

// What a measurement needs again and again, allocated before the clock runs.
struct window_plan {
    placement places;
    std::vector<MPI_Request> requests;
    std::vector<placed_message> sent;     // one per place, when content is checked
    std::vector<placed_message> received; // likewise
};

window_plan plan_for(const run &r, std::size_t len_bytes)
{
    window_plan plan;
    plan.places = r.places_for(len_bytes);
    plan.requests.reserve(2 * static_cast<std::size_t>(r.opt.window));
    for (std::size_t i = 0; i < plan.places.places; ++i) {
        plan.sent.push_back({plan.places.at(i), len_bytes, 0});
    }
    plan.received = plan.sent;
    return plan;
}

// So many messages, all completed. When there are more than places, some share one.
void exchange(run &r, window_plan *plan, int messages)
{
    std::vector<MPI_Request> &requests = plan->requests;
    requests.clear();
    const int len = static_cast<int>(plan->places.len_bytes);
    for (int i = 0; i < messages && r.receives(); ++i) {
        (void)MPI_Irecv(r.incoming->at(plan->places.at(static_cast<std::size_t>(i))), len, MPI_BYTE,
                        r.peer, data_tag, MPI_COMM_WORLD, &requests.emplace_back(MPI_REQUEST_NULL));
    }
    for (int i = 0; i < messages && r.sends(); ++i) {
        (void)MPI_Isend(r.outgoing->at(plan->places.at(static_cast<std::size_t>(i))), len, MPI_BYTE,
                        r.peer, data_tag, MPI_COMM_WORLD, &requests.emplace_back(MPI_REQUEST_NULL));
    }
    (void)MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
}

// Where data goes one way only, the receiver answers a window with 4 bytes of the buffers' kind of
// memory. Both ways at once need no answer: a window ends when the other side's has come.
void answer(run &r)
{
    if (!r.one_way()) {
        return;
    }
    if (r.first) {
        (void)MPI_Recv(r.reply->data(), reply_bytes, MPI_BYTE, r.peer, reply_tag, MPI_COMM_WORLD,
                       MPI_STATUS_IGNORE);
    } else {
        (void)MPI_Send(r.reply->data(), reply_bytes, MPI_BYTE, r.peer, reply_tag, MPI_COMM_WORLD);
    }
}

// New content for all places, and for the reply; with a barrier behind it. Returns the reply's
// seed.
std::uint64_t renew_content(run &r, window_plan *plan, const std::string &where,
                            measurement *result)
{
    const std::size_t places = plan->places.places;
    const auto pairs = static_cast<std::size_t>(r.pairs());
    const auto pair = static_cast<std::size_t>(std::min(r.rank, r.peer));
    const std::uint64_t base = r.draw_seeds(pairs * (2 * places + 1)) + pair * (2 * places + 1);
    for (std::size_t i = 0; i < places; ++i) {
        plan->sent[i].seed = base + i + (r.first ? 0 : places);
        plan->received[i].seed = base + i + (r.first ? places : 0);
    }
    const std::uint64_t reply_seed = base + 2 * places;
    if (r.sends()) {
        result->note(where, fill_placed(*r.outgoing, plan->places.end(), plan->sent));
    }
    if (r.one_way() && !r.first) {
        result->note(where, r.reply->fill(0, reply_bytes, reply_seed));
    }
    (void)MPI_Barrier(MPI_COMM_WORLD);
    return reply_seed;
}

// One window and its answer. Returns the seconds that this rank was in them; content is made before
// and compared after that.
double run_window(run &r, window_plan *plan, const std::string &where, measurement *result)
{
    std::uint64_t reply_seed = 0;
    if (r.opt.check) {
        reply_seed = renew_content(r, plan, where, result);
    }
    const auto start = clock_type::now();
    exchange(r, plan, r.opt.window);
    answer(r);
    const double taken_s = seconds_since(start);
    if (r.opt.check && r.receives()) {
        result->note(where, compare_placed(*r.incoming, plan->places.end(), plan->received));
    }
    if (r.opt.check && r.one_way() && r.first) {
        result->note(where + ", reply", r.reply->compare(0, reply_bytes, reply_seed));
    }
    return taken_s;
}

// Where messages share places: one more window, not timed, in parts in which none do.
void check_in_parts(run &r, window_plan *plan, measurement *result)
{
    const int places = static_cast<int>(plan->places.places);
    for (int done = 0; done < r.opt.window; done += places) {
        const std::string where = "part from message " + std::to_string(done);
        const int now = std::min(places, r.opt.window - done);
        (void)renew_content(r, plan, where, result);
        exchange(r, plan, now);
        if (r.receives()) {
            const auto count = static_cast<std::size_t>(now);
            result->note(where, compare_placed(*r.incoming, plan->places.end_of(count - 1),
                                               {plan->received.data(), count}));
        }
    }
}

} // namespace

measurement measure_bandwidth(run &r, std::size_t len_bytes)
{
    measurement result;
    window_plan plan = plan_for(r, len_bytes);
    const int warmup = r.opt.warmup_for(len_bytes);
    const int windows = r.opt.iterations_for(len_bytes);
    if (r.opt.check && r.receives()) {
        result.note("before", r.incoming->poison(0, plan.places.end()));
    }
    double mine_s = 0;
    for (int i = -warmup; i < windows; ++i) {
        if (0 == i) {
            r.end_of_warmup();
            (void)MPI_Barrier(MPI_COMM_WORLD);
        }
        const double taken_s = run_window(r, &plan, iteration_name(i), &result);
        mine_s += i < 0 ? 0 : taken_s;
    }
    if (r.opt.check && plan.places.places < static_cast<std::size_t>(r.opt.window)) {
        check_in_parts(r, &plan, &result);
    }
    const double slowest_s = slowest_of({mine_s})[0];
    if (slowest_s > 0) {
        const double messages =
            static_cast<double>(windows) * r.opt.window * r.pairs() * (r.one_way() ? 1 : 2);
        result.messages_per_s = messages / slowest_s;
        result.bytes_per_s = result.messages_per_s * static_cast<double>(len_bytes);
    }
    return result;
}

} // namespace gpusm::bench
