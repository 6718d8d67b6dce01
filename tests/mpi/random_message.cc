// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "tests/mpi/random_message.h"

#include <algorithm>

namespace gpusm::exchange {

namespace {

constexpr const char *sending_names[] = {"MPI_Send",      "MPI_Ssend",     "MPI_Bsend",
                                         "MPI_Isend",     "MPI_Issend",    "MPI_Ibsend",
                                         "MPI_Send_init", "MPI_Ssend_init"};
constexpr const char *receiving_names[] = {"MPI_Recv",
                                           "MPI_Mprobe and Mrecv",
                                           "MPI_Mprobe and Imrecv",
                                           "MPI_Improbe and Mrecv",
                                           "MPI_Probe",
                                           "MPI_Irecv",
                                           "MPI_Recv_init"};

} // namespace

std::string plan::describe() const
{
    return std::to_string(sender) + "->" + std::to_string(receiver) + " " + bench::letter_of(from) +
           "->" + bench::letter_of(into) + ", " + std::to_string(bytes_of(sent)) + " bytes into " +
           std::to_string(bytes_of(room)) + ", " +
           (is_swapped ? std::string("MPI_Sendrecv")
                       : std::string(sending_names[static_cast<int>(out)]) + " to " +
                             receiving_names[static_cast<int>(in)]);
}

message::message(context &c, MPI_Comm comm, const plan &of) : c_(c), comm_(comm), plan_(of)
{
    if (of.sender == c.rank) {
        out_ = std::make_unique<random_memory>(c, of.from, 2 * of.seed, of.signature, of.sent);
    }
    if (of.receiver == c.rank) {
        in_ = std::make_unique<random_memory>(c, of.into, 2 * of.seed + 1, of.signature, of.room);
    }
}

message::~message()
{
    for (MPI_Request *each : {&sent_, &received_}) {
        if (MPI_REQUEST_NULL != *each) {
            MPI_Request_free(each);
        }
    }
}

void message::prepare(std::uint64_t turn)
{
    content_ = messages_of_a_case * plan_.seed + turn;
    has_come_ = true;
    if (nullptr != out_) {
        expect(out_->fill(content_), "fill");
    }
    if (nullptr != in_) {
        expect(in_->poison(), "poison");
    }
}

void message::post()
{
    if (nullptr == in_ || !is_posted(plan_.in)) {
        return;
    }
    const bool is_started = receiving::recv_init == plan_.in;
    if (MPI_REQUEST_NULL == received_) {
        with_type(*in_, [&](MPI_Datatype type) {
            return (is_started ? MPI_Recv_init : MPI_Irecv)(in_->at(), in_->count(), type, source(),
                                                            tag(), comm_, &received_);
        });
    }
    if (is_started) {
        ok(MPI_Start(&received_));
    }
}

void message::send()
{
    if (nullptr == out_) {
        return;
    }
    if (MPI_REQUEST_NULL == sent_) {
        with_type(*out_, [&](MPI_Datatype type) { return call_of_send(type); });
    }
    if (is_persistent(plan_.out)) {
        ok(MPI_Start(&sent_));
    }
}

void message::receive()
{
    if (nullptr == in_ || is_posted(plan_.in)) {
        return;
    }
    MPI_Status status{};
    MPI_Message found = MPI_MESSAGE_NULL;
    if (receiving::recv != plan_.in) {
        probe(found);
    }
    int code = MPI_SUCCESS;
    with_type(*in_, [&](MPI_Datatype type) {
        if (MPI_MESSAGE_NULL == found) {
            code = MPI_Recv(in_->at(), in_->count(), type, source(), tag(), comm_, &status);
        } else if (receiving::imrecv != plan_.in) {
            code = MPI_Mrecv(in_->at(), in_->count(), type, &found, &status);
        } else {
            ok(MPI_Imrecv(in_->at(), in_->count(), type, &found, &received_));
        }
        return MPI_SUCCESS;
    });
    if (receiving::imrecv == plan_.in) {
        code = wait(received_, status);
    }
    see(code, status);
}

void message::finish_send()
{
    if (nullptr != out_) {
        MPI_Status status{};
        ok(wait(sent_, status));
    }
}

void message::finish_receive()
{
    if (nullptr != in_ && is_posted(plan_.in)) {
        MPI_Status status{};
        const int code = wait(received_, status);
        see(code, status);
    }
}

void message::see(int code, const MPI_Status &status)
{
    if (plan_.is_truncated()) {
        int error = MPI_SUCCESS;
        MPI_Error_class(code, &error);
        expect(MPI_ERR_TRUNCATE == error ? "" : "no MPI_ERR_TRUNCATE", "the receive");
        return;
    }
    has_come_ = ok(code);
    if (has_come_) {
        expect_status(status, "status of the receive");
    }
}

void message::compare()
{
    if (nullptr != out_) {
        expect(out_->compare_sent(content_), "what has been sent");
    }
    if (nullptr != in_ && has_come_) {
        expect(in_->compare_received(content_, plan_.bytes_of(std::min(plan_.sent, plan_.room))),
               "what has been received");
        ++c_.messages;
    }
}

bool message::ok(int code)
{
    has_failed_ = !c_.mpi(code, describe()) || has_failed_;
    return MPI_SUCCESS == code;
}

std::string message::describe() const
{
    return "random datatypes, case " + std::to_string(plan_.seed / messages_of_a_case) + ", " +
           plan_.describe() + ", turn " + std::to_string(content_ % messages_of_a_case);
}

void message::expect(const std::string &error, const char *what)
{
    has_failed_ = !c_.expect(error, describe() + ", " + what) || has_failed_;
}

void message::expect_status(const MPI_Status &status, const char *what)
{
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    const bool is_right = status.MPI_SOURCE == plan_.sender && status.MPI_TAG == plan_.tag &&
                          static_cast<std::size_t>(bytes) == plan_.bytes_of(plan_.sent);
    expect(is_right ? "" : "wrong source, tag or length", what);
}

// A datatype may be freed as soon as a call has taken it.
template <typename Call> void message::with_type(const random_memory &of, const Call &call)
{
    MPI_Datatype type = of.type();
    if (plan_.frees_type) {
        MPI_Type_dup(of.type(), &type);
    }
    ok(call(type));
    if (plan_.frees_type) {
        MPI_Type_free(&type);
    }
}

int message::call_of_send(MPI_Datatype type)
{
    const auto blocking = [&](auto *call) {
        return call(out_->at(), out_->count(), type, plan_.receiver, plan_.tag, comm_);
    };
    const auto other = [&](auto *call) {
        return call(out_->at(), out_->count(), type, plan_.receiver, plan_.tag, comm_, &sent_);
    };
    switch (plan_.out) {
    case sending::send:
        return blocking(MPI_Send);
    case sending::ssend:
        return blocking(MPI_Ssend);
    case sending::bsend:
        return blocking(MPI_Bsend);
    case sending::isend:
        return other(MPI_Isend);
    case sending::issend:
        return other(MPI_Issend);
    case sending::ibsend:
        return other(MPI_Ibsend);
    case sending::send_init:
        return other(MPI_Send_init);
    default:
        return other(MPI_Ssend_init);
    }
}

void message::probe(MPI_Message &found)
{
    MPI_Status status{};
    for (int is_there = 0; 0 == is_there;) {
        is_there = 1;
        ok(receiving::probe == plan_.in ? MPI_Probe(source(), tag(), comm_, &status)
           : receiving::improbe == plan_.in
               ? MPI_Improbe(source(), tag(), comm_, &is_there, &found, &status)
               : MPI_Mprobe(source(), tag(), comm_, &found, &status));
    }
    expect_status(status, "status of the probe");
}

int message::wait(MPI_Request &request, MPI_Status &status) const
{
    if (!plan_.tests) {
        return MPI_Wait(&request, &status);
    }
    int code = MPI_SUCCESS;
    for (int is_done = 0; 0 == is_done && MPI_SUCCESS == code;) {
        code = MPI_Test(&request, &is_done, &status);
    }
    return code;
}

} // namespace gpusm::exchange
