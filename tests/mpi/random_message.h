// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// random_message.h: a message of random datatypes, sent and received by any of MPI's calls.
//
// Not by partitioned communication: Open MPI 5.0 takes the size of a datatype for its extent there.
#ifndef GPUSM_TESTS_MPI_RANDOM_MESSAGE_H
#define GPUSM_TESTS_MPI_RANDOM_MESSAGE_H

#include "tests/mpi/random_memory.h"

namespace gpusm::exchange {

// Not MPI_Bsend_init: what Open MPI 5.0 sends after the second MPI_Start is not what was to be
// sent.
enum class sending { send, ssend, bsend, isend, issend, ibsend, send_init, ssend_init };
enum class receiving { recv, mrecv, imrecv, improbe, probe, irecv, recv_init };

inline bool is_posted(receiving how)
{
    return receiving::irecv <= how;
}
inline bool is_persistent(sending how)
{
    return sending::send_init <= how;
}
inline bool is_buffered(sending how)
{
    return sending::bsend == how || sending::ibsend == how;
}
// The same without a wait for the receiver.
inline sending without_wait(sending how)
{
    return sending::send == how ? sending::isend : sending::ssend == how ? sending::issend : how;
}

// At most. The seed of a message is that of its case times this, and its number.
constexpr std::uint64_t messages_of_a_case = 8;

// What both sides of a message know.
struct plan {
    int sender;
    int receiver;
    int tag;
    std::uint64_t seed;
    std::vector<basic_run> signature; // of an element
    std::size_t sent;                 // elements
    std::size_t room;
    memory_kind from;
    memory_kind into;
    sending out;
    receiving in;
    bool any_source;
    bool any_tag;
    bool frees_type; // as soon as the call has taken it
    bool tests;      // instead of a wait
    bool is_swapped; // by MPI_Sendrecv or its like, whatever `out` and `in` say

    std::size_t bytes_of(std::size_t elements) const { return elements * size_bytes(signature); }
    bool is_truncated() const { return room < sent; }
    std::string describe() const;
};

// A message as one rank sees it: its memory, on one side or both, and its requests. A turn: all
// ranks prepare(), and then take part in the calls that are theirs, in this order; those of others
// do nothing.
class message {
  public:
    message(context &c, MPI_Comm comm, const plan &of);
    ~message();
    message(const message &) = delete;
    message &operator=(const message &) = delete;

    void prepare(std::uint64_t turn);
    void post(); // a receive that can be waited for
    void send();
    void receive(); // what has not been posted
    void finish_send();
    void finish_receive();
    void compare();

    // For calls that send one message and receive another one, which then see() how the receive has
    // ended.
    const random_memory &out() const { return *out_; }
    const random_memory &in() const { return *in_; }
    void see(int code, const MPI_Status &status);

    bool is_sent_here() const { return nullptr != out_; }
    const plan &planned() const { return plan_; }
    bool ok(int code); // counts an error
    bool has_failed() const { return has_failed_; }

  private:
    std::string describe() const;
    void expect(const std::string &error, const char *what);
    void expect_status(const MPI_Status &status, const char *what);
    int source() const { return plan_.any_source ? MPI_ANY_SOURCE : plan_.sender; }
    int tag() const { return plan_.any_tag ? MPI_ANY_TAG : plan_.tag; }
    template <typename Call> void with_type(const random_memory &of, const Call &call);
    int call_of_send(MPI_Datatype type);
    void probe(MPI_Message &found);
    int wait(MPI_Request &request, MPI_Status &status) const;

    context &c_;
    MPI_Comm comm_;
    plan plan_;
    std::unique_ptr<random_memory> out_;
    std::unique_ptr<random_memory> in_;
    MPI_Request sent_ = MPI_REQUEST_NULL;
    MPI_Request received_ = MPI_REQUEST_NULL;
    std::uint64_t content_ = 0;
    bool has_come_ = true;
    bool has_failed_ = false;
};

} // namespace gpusm::exchange

#endif
