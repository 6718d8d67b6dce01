// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// latency.cc: the ping-pong.
#include "bench/gpusm_perf/message_set.h"
#include "bench/gpusm_perf/run.h"

namespace gpusm::bench {

namespace {

void ping_pong(run &r, std::size_t len_bytes, const message_type &type, std::size_t place)
{
    void *out = r.outgoing->at(place);
    void *in = r.incoming->at(place);
    if (nullptr != r.nccl) {
        // The second rank's answer follows on the stream, without a word to its host.
        if (r.first) {
            r.nccl->send(out, len_bytes, r.peer);
            r.nccl->receive(in, len_bytes, r.peer);
        } else {
            r.nccl->receive(in, len_bytes, r.peer);
            r.nccl->send(out, len_bytes, r.peer);
        }
        r.nccl->finish();
    } else if (r.first) {
        (void)MPI_Send(out, type.count(), type.type(), r.peer, data_tag, MPI_COMM_WORLD);
        (void)MPI_Recv(in, type.count(), type.type(), r.peer, data_tag, MPI_COMM_WORLD,
                       MPI_STATUS_IGNORE);
    } else {
        (void)MPI_Recv(in, type.count(), type.type(), r.peer, data_tag, MPI_COMM_WORLD,
                       MPI_STATUS_IGNORE);
        (void)MPI_Send(out, type.count(), type.type(), r.peer, data_tag, MPI_COMM_WORLD);
    }
}

} // namespace

measurement measure_latency(run &r, std::size_t len_bytes)
{
    measurement result;
    const message_type type(r.opt, len_bytes);
    message_set timed = timed_set(r, len_bytes);
    message_set lead_in = lead_in_set(r, len_bytes); // only when content is checked
    const std::size_t place = timed.places.at(0);
    const int warmup = r.opt.warmup_for(len_bytes);
    const int iterations = r.opt.iterations_for(len_bytes);
    std::vector<double> half_us;
    half_us.reserve(static_cast<std::size_t>(iterations));
    if (r.opt.check) {
        result.note("before", poison_incoming(r, timed, lead_in));
    }
    for (int i = -warmup; i < iterations; ++i) {
        if (0 == i) {
            r.end_of_warmup();
            (void)MPI_Barrier(MPI_COMM_WORLD);
        }
        if (r.opt.check) {
            for (message_set *set : {&lead_in, &timed}) {
                renew_between_peers(r, set);
                result.note(iteration_name(i), fill_outgoing(r, *set));
            }
            (void)MPI_Barrier(MPI_COMM_WORLD);
            for (std::size_t other = 0; other < lead_in.places.places; ++other) {
                ping_pong(r, len_bytes, type, lead_in.places.at(other));
            }
        }
        const auto start = clock_type::now();
        ping_pong(r, len_bytes, type, place);
        if (i >= 0) {
            half_us.push_back(seconds_since(start) * 1e6 / 2);
        }
        if (r.opt.check) {
            result.note(iteration_name(i), compare_incoming(r, lead_in));
            result.note(iteration_name(i), compare_incoming(r, timed));
        }
    }
    result.latency_us = median_of(half_us);
    result.latency_mean_us = mean_of(half_us);
    return result;
}

} // namespace gpusm::bench
