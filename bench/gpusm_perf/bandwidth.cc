// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// bandwidth.cc: bw, bibw and mbw_mr: windows of messages under way at once, made as in the OSU
// benchmarks of these names, but for the places of the messages: each has its own, because receives
// that overlap are an error in MPI, and because only so every message can be checked.
#include "bench/gpusm_perf/message_set.h"
#include "bench/gpusm_perf/run.h"

namespace gpusm::bench {

namespace {

// A window's messages and, where data goes one way only, the reply to them.
struct window {
    message_set messages;
    std::size_t reply_at = 0; // in the buffer of replies
    std::uint64_t reply_seed = 0;
};

// What a measurement needs again and again, allocated before the clock runs.
struct window_plan {
    window_plan(const run &r, std::size_t len_bytes) : type(r.opt, len_bytes)
    {
        timed.messages = timed_set(r, len_bytes);
        lead_in.messages = lead_in_set(r, len_bytes);
        lead_in.reply_at = lead_in_reply_at;
        requests.reserve(2 * static_cast<std::size_t>(r.opt.window));
    }

    window timed;
    window lead_in; // only when content is checked
    message_type type;
    std::vector<MPI_Request> requests;
};

void exchange_by_nccl(run &r, const placement &places, int messages)
{
    r.nccl->begin();
    for (int i = 0; i < messages; ++i) {
        const std::size_t at = places.at(static_cast<std::size_t>(i));
        if (r.receives()) {
            r.nccl->receive(r.incoming->at(at), places.len_bytes, r.peer);
        }
        if (r.sends()) {
            r.nccl->send(r.outgoing->at(at), places.len_bytes, r.peer);
        }
    }
    r.nccl->end();
    r.nccl->finish();
}

// So many messages, all completed. When there are more than places, some share one.
void exchange(run &r, const placement &places, int messages, window_plan *plan)
{
    if (nullptr != r.nccl) {
        exchange_by_nccl(r, places, messages);
        return;
    }
    std::vector<MPI_Request> *requests = &plan->requests;
    requests->clear();
    const int count = plan->type.count();
    const MPI_Datatype type = plan->type.type();
    for (int i = 0; i < messages && r.receives(); ++i) {
        (void)MPI_Irecv(r.incoming->at(places.at(static_cast<std::size_t>(i))), count, type, r.peer,
                        data_tag, MPI_COMM_WORLD, &requests->emplace_back(MPI_REQUEST_NULL));
    }
    for (int i = 0; i < messages && r.sends(); ++i) {
        (void)MPI_Isend(r.outgoing->at(places.at(static_cast<std::size_t>(i))), count, type, r.peer,
                        data_tag, MPI_COMM_WORLD, &requests->emplace_back(MPI_REQUEST_NULL));
    }
    (void)MPI_Waitall(static_cast<int>(requests->size()), requests->data(), MPI_STATUSES_IGNORE);
}

// Where data goes one way only, the receiver answers a window with 4 bytes of the buffers' kind of
// memory. Both ways at once need no answer: a window ends when the other side's has come.
void answer(run &r, const window &w)
{
    if (!r.one_way()) {
        return;
    }
    void *reply = r.reply->at(w.reply_at);
    if (nullptr != r.nccl) {
        if (r.first) {
            r.nccl->receive(reply, reply_bytes, r.peer);
        } else {
            r.nccl->send(reply, reply_bytes, r.peer);
        }
        r.nccl->finish();
    } else if (r.first) {
        (void)MPI_Recv(reply, reply_bytes, MPI_BYTE, r.peer, reply_tag, MPI_COMM_WORLD,
                       MPI_STATUS_IGNORE);
    } else {
        (void)MPI_Send(reply, reply_bytes, MPI_BYTE, r.peer, reply_tag, MPI_COMM_WORLD);
    }
}

// New content for all places of a window, and for its reply.
void renew_content(run &r, window *w, const std::string &where, measurement *result)
{
    renew_between_peers(r, &w->messages);
    w->reply_seed = r.draw_seeds(static_cast<std::size_t>(r.pairs())) +
                    static_cast<std::uint64_t>(std::min(r.rank, r.peer));
    if (r.sends()) {
        result->note(where, fill_outgoing(r, w->messages));
    }
    if (r.one_way() && !r.first) {
        result->note(where, r.reply->fill(w->reply_at, reply_bytes, w->reply_seed));
    }
}

void compare_content(const run &r, const window &w, const std::string &where, measurement *result)
{
    if (r.receives()) {
        result->note(where, compare_incoming(r, w.messages));
    }
    if (r.one_way() && r.first) {
        result->note(where + ", " + w.messages.prefix + "reply",
                     r.reply->compare(w.reply_at, reply_bytes, w.reply_seed));
    }
}

// One window and its answer, and before them, when content is checked, the lead-in. Returns the
// seconds that this rank was in the former; content is made before both and compared after both.
double run_window(run &r, window_plan *plan, const std::string &where, measurement *result)
{
    if (r.opt.check) {
        renew_content(r, &plan->lead_in, where, result);
        renew_content(r, &plan->timed, where, result);
        (void)MPI_Barrier(MPI_COMM_WORLD);
        exchange(r, plan->lead_in.messages.places, r.opt.window, plan);
        answer(r, plan->lead_in);
    }
    const auto start = clock_type::now();
    exchange(r, plan->timed.messages.places, r.opt.window, plan);
    answer(r, plan->timed);
    const double taken_s = seconds_since(start);
    if (r.opt.check) {
        compare_content(r, plan->lead_in, where, result);
        compare_content(r, plan->timed, where, result);
    }
    return taken_s;
}

// Where messages share places: one more window, not timed, in parts in which none do.
void check_in_parts(run &r, window_plan *plan, measurement *result)
{
    const message_set &messages = plan->timed.messages;
    const int places = static_cast<int>(messages.places.places);
    for (int done = 0; done < r.opt.window; done += places) {
        const std::string where = "part from message " + std::to_string(done);
        const int now = std::min(places, r.opt.window - done);
        renew_content(r, &plan->timed, where, result);
        (void)MPI_Barrier(MPI_COMM_WORLD);
        exchange(r, messages.places, now, plan);
        if (r.receives()) {
            result->note(where, compare_incoming(r, messages, static_cast<std::size_t>(now)));
        }
    }
}

} // namespace

measurement measure_bandwidth(run &r, std::size_t len_bytes)
{
    measurement result;
    window_plan plan(r, len_bytes);
    const int warmup = r.opt.warmup_for(len_bytes);
    const int windows = r.opt.iterations_for(len_bytes);
    if (r.opt.check && r.receives()) {
        result.note("before", poison_incoming(r, plan.timed.messages, plan.lead_in.messages));
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
    const std::size_t places = plan.timed.messages.places.places;
    if (r.opt.check && places < static_cast<std::size_t>(r.opt.window)) {
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
