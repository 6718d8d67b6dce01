// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// message_set.h: the messages of one window, one call or a few ping-pongs, as this rank sends and
// receives them, and their content when it is checked.
#ifndef GPUSM_PERF_MESSAGE_SET_H
#define GPUSM_PERF_MESSAGE_SET_H

#include "bench/common/placed.h"
#include "bench/gpusm_perf/run.h"

#include <cstddef>
#include <string>
#include <vector>

namespace gpusm::bench {

// How MPI is told of a message: so many elements of a type.
class message_type {
  public:
    message_type(const options &opt, std::size_t len_bytes);
    ~message_type();
    message_type(const message_type &) = delete;
    message_type &operator=(const message_type &) = delete;

    int count() const { return count_; }
    MPI_Datatype type() const { return type_; }

  private:
    int count_;
    MPI_Datatype type_ = MPI_BYTE; // else ours
};

struct message_set {
    placement places;
    std::string prefix;           // of what its messages are called: "lead-in " or nothing
    std::string noun = "message"; // behind the prefix
    // One per place, or one for each block of a place's message, which is a message of its own for
    // all that checks it. The seeds are renewed for every use.
    std::vector<placed_message> sent;
    std::vector<placed_message> received; // likewise
    content_writer write_sent = write_pattern;
    content_writer write_received = write_pattern;
};

// What is timed, and its lead-in: two sets without a byte in common in either buffer.
message_set timed_set(const run &r, std::size_t len_bytes);
message_set lead_in_set(const run &r, std::size_t len_bytes);

// Seeds that nothing in this run has used, of what a pair's ranks send to each other. All ranks
// renew equally often.
void renew_between_peers(run &r, message_set *set);

// All of the set's part of the outgoing or the incoming buffer, guard bytes included. Empty on
// success, otherwise one sentence.
[[nodiscard]] std::string fill_outgoing(run &r, const message_set &set);
[[nodiscard]] std::string compare_incoming(const run &r, const message_set &set);
// Its first `count` places and the guard bytes around them; count is at least 1.
[[nodiscard]] std::string compare_incoming(const run &r, const message_set &set, std::size_t count);

// Nothing is received yet: what is expected in both parts of the incoming buffer is poison.
[[nodiscard]] std::string poison_incoming(run &r, const message_set &timed,
                                          const message_set &lead_in);

} // namespace gpusm::bench

#endif
