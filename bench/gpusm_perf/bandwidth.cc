// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// bandwidth.cc: bw, bibw and mbw_mr: windows of messages under way at once, their timing loop, and
// the window that is checked.
#include "bench/gpusm_perf/run.h"

namespace gpusm::bench {

namespace {

enum class direction { one_way, both_ways };

bool sends(const run &r, direction way)
{
    return r.first || direction::both_ways == way;
}
bool receives(const run &r, direction way)
{
    return !r.first || direction::both_ways == way;
}

// A group of messages, message i from and to place i * stride. Requests are the caller's, so that
// the timed loop does not allocate.
void exchange_group(run &r, direction way, std::size_t len_bytes, std::size_t stride, int messages,
                    std::vector<MPI_Request> &requests)
{
    requests.clear();
    const int len = static_cast<int>(len_bytes);
    if (receives(r, way)) {
        for (int i = 0; i < messages; ++i) {
            MPI_Request &request = requests.emplace_back(MPI_REQUEST_NULL);
            (void)MPI_Irecv(r.incoming->at(stride * static_cast<std::size_t>(i)), len, MPI_BYTE,
                            r.peer, data_tag, MPI_COMM_WORLD, &request);
        }
    }
    if (sends(r, way)) {
        for (int i = 0; i < messages; ++i) {
            MPI_Request &request = requests.emplace_back(MPI_REQUEST_NULL);
            (void)MPI_Isend(r.outgoing->at(stride * static_cast<std::size_t>(i)), len, MPI_BYTE,
                            r.peer, data_tag, MPI_COMM_WORLD, &request);
        }
    }
    (void)MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
}

void acknowledge(run &r, direction way)
{
    char out[4] = {};
    char in[4] = {};
    if (direction::both_ways == way) {
        (void)MPI_Sendrecv(out, 4, MPI_CHAR, r.peer, ack_tag, in, 4, MPI_CHAR, r.peer, ack_tag,
                           MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (r.first) {
        (void)MPI_Recv(in, 4, MPI_CHAR, r.peer, ack_tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        (void)MPI_Send(out, 4, MPI_CHAR, r.peer, ack_tag, MPI_COMM_WORLD);
    }
}

// Content of message i of a checked window, from the first (second) rank of pair p.
std::uint64_t seed_of(const run &r, std::uint64_t base, bool from_first, int message)
{
    const int pair = std::min(r.rank, r.peer);
    return base + (static_cast<std::uint64_t>(pair) << 40) + (from_first ? 0 : (1u << 24)) +
           static_cast<std::uint64_t>(message);
}

// `windows` times: a window of messages, all completed, then 4 bytes of acknowledgement from the
// receiver (from both, when both send). Uses the start of the buffers for every message.
void run_windows(run &r, direction way, std::size_t len_bytes, int windows)
{
    std::vector<MPI_Request> requests;
    requests.reserve(2 * static_cast<std::size_t>(r.opt.window));
    for (int i = 0; i < windows; ++i) {
        exchange_group(r, way, len_bytes, 0, r.opt.window, requests);
        acknowledge(r, way);
    }
}

// One more window, with fresh content and a place of its own for every message, in groups of
// places_for(len_bytes); returns what this rank found wrong.
std::string checked_window(run &r, direction way, std::size_t len_bytes)
{
    const std::size_t stride = run::stride_of(len_bytes);
    const int places = static_cast<int>(r.places_for(len_bytes));
    const std::uint64_t base = r.next_seed;
    r.next_seed += std::uint64_t{1} << 32;
    std::vector<MPI_Request> requests;
    std::string first_error;
    auto note = [&](int message, const std::string &error) {
        if (first_error.empty() && !error.empty()) {
            first_error = "message " + std::to_string(message) + " of the checked window: " + error;
        }
    };
    for (int done = 0; done < r.opt.window; done += places) {
        const int now = std::min(places, r.opt.window - done);
        if (receives(r, way)) {
            note(done, r.incoming->poison(0, stride * static_cast<std::size_t>(now)));
        }
        for (int i = 0; i < now && sends(r, way); ++i) {
            note(done + i, r.outgoing->fill(stride * static_cast<std::size_t>(i), len_bytes,
                                            seed_of(r, base, r.first, done + i)));
        }
        exchange_group(r, way, len_bytes, stride, now, requests);
        for (int i = 0; i < now && receives(r, way); ++i) {
            note(done + i, r.incoming->compare(stride * static_cast<std::size_t>(i), len_bytes,
                                               seed_of(r, base, !r.first, done + i)));
        }
    }
    return first_error;
}

} // namespace

measurement measure_bandwidth(run &r, std::size_t len_bytes)
{
    measurement result;
    const direction way = perf_mode::bibw == r.opt.mode ? direction::both_ways : direction::one_way;
    const int windows = r.opt.iterations_for(len_bytes);
    run_windows(r, way, len_bytes, r.opt.warmup_for(len_bytes));
    r.end_of_warmup();
    (void)MPI_Barrier(MPI_COMM_WORLD);
    const auto start = clock_type::now();
    run_windows(r, way, len_bytes, windows);
    const double mine_s = seconds_since(start);
    double slowest_s = 0;
    (void)MPI_Reduce(&mine_s, &slowest_s, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (0 == r.rank && slowest_s > 0) {
        const double messages = static_cast<double>(windows) * r.opt.window * r.pairs() *
                                (direction::both_ways == way ? 2 : 1);
        result.messages_per_s = messages / slowest_s;
        result.bytes_per_s = result.messages_per_s * static_cast<double>(len_bytes);
    }
    if (r.opt.check) {
        result.error = checked_window(r, way, len_bytes);
    }
    return result;
}

} // namespace gpusm::bench
