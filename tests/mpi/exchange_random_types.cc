// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_random_types.cc: messages of random datatypes. A seed decides about a case: which two
// ranks send each other messages, or one itself, from which memory into which, by which calls, one
// after the other or at once, and of which datatypes: both sides have one of their own for the same
// signature. The case of a seed is the same in all jobs of as many ranks with the same --kinds and
// --views.
#include "tests/mpi/random_message.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <mutex>
#include <thread>

namespace gpusm::exchange {

namespace {

constexpr int cases_without_rounds = 40;
constexpr int threads_of_a_rank = 4;
constexpr std::uint64_t cases_with_tags = 1u << 24;
constexpr std::size_t few_bytes = 4000; // of what is copied block by block
constexpr std::size_t usual_bytes = 400000;
constexpr std::size_t many_bytes = 2u << 20;
constexpr std::size_t buffered_bytes = 64u << 20; // for what all threads send by MPI_Bsend

class random_case {
  public:
    random_case(context &c, MPI_Comm comm, std::uint64_t seed)
        : c_(c), comm_(comm), seed_(seed), from_(seed)
    {
        const auto ranks = static_cast<std::size_t>(c.ranks);
        const std::size_t first = draw(from_, 0, ranks - 1);
        const bool is_self = one_of(6, from_) || 1 == ranks;
        const std::size_t step = is_self ? 0 : draw(from_, 1, ranks - 1);
        members_ = {static_cast<int>(first), static_cast<int>((first + step) % ranks)};
        form_ = static_cast<form>(draw(from_, 0, 2));
        const std::size_t messages = form::swapped == form_ ? (is_self ? 1 : 2) : draw(from_, 1, 4);
        for (std::size_t i = 0; i < messages; ++i) {
            plans_.push_back(draw_message(i));
        }
        if (std::any_of(plans_.begin(), plans_.end(), [](const plan &each) {
                return is_persistent(each.out) || receiving::recv_init == each.in;
            })) {
            turns_ = draw(from_, 1, 3);
        }
    }

    // Whether this rank's part of it has gone well.
    bool run()
    {
        if (c_.rank != members_[0] && c_.rank != members_[1]) {
            return true;
        }
        for (const plan &each : plans_) {
            messages_.push_back(std::make_unique<message>(c_, comm_, each));
        }
        for (std::uint64_t turn = 0; turn < turns_; ++turn) {
            for_all([&](message &each) { each.prepare(turn); });
            switch (form_) {
            case form::in_turn:
                for_all(one_message);
                break;
            case form::at_once:
                for_all([](message &each) { each.post(); });
                for_all([](message &each) { each.send(); });
                for_all([](message &each) { each.receive(); });
                for_all([](message &each) { each.finish_send(); });
                for_all([](message &each) { each.finish_receive(); });
                break;
            case form::swapped:
                swap();
            }
            for_all([](message &each) { each.compare(); });
        }
        empty_buffer();
        bool is_right = true;
        for_all([&](const message &each) { is_right = is_right && !each.has_failed(); });
        return is_right;
    }

  private:
    enum class form { in_turn, at_once, swapped };

    plan draw_message(std::size_t i)
    {
        plan made;
        const std::size_t sender = form::swapped == form_ ? i : draw(from_, 0, 1);
        made.sender = members_[sender];
        made.receiver = members_[1 - sender];
        made.seed = messages_of_a_case * seed_ + i;
        made.tag = static_cast<int>(made.seed % (messages_of_a_case * cases_with_tags));
        made.signature = draw_signature(from_);
        made.from = c_.kind_at(draw(from_, 0, 9999));
        made.into = c_.kind_at(draw(from_, 0, 9999));
        const bool is_quick = is_quick_of(made.from) && is_quick_of(made.into);
        const bool is_long = one_of(16, from_);
        const std::size_t bytes = draw_length(from_, 16,
                                              !is_quick ? few_bytes
                                              : is_long ? many_bytes
                                                        : usual_bytes);
        made.sent = one_of(24, from_) ? 0 : std::max<std::size_t>(1, bytes / made.bytes_of(1));
        made.room = made.sent;
        made.out = static_cast<sending>(draw(from_, 0, 7));
        made.in = static_cast<receiving>(draw(from_, 0, 6));
        made.any_source = one_of(4, from_);
        // Of messages at once another one may come first.
        made.any_tag = one_of(4, from_) && form::in_turn == form_ && !made.any_source;
        made.frees_type = one_of(3, from_);
        made.tests = one_of(4, from_);
        made.is_swapped = form::swapped == form_;
        if (form::at_once == form_ || (made.sender == made.receiver && !is_posted(made.in))) {
            made.out = without_wait(made.out);
        }
        const std::size_t other_room = draw(from_, 0, 9);
        if (other_room < 2) {
            made.room += draw(from_, 1, made.sent + 3);
        } else if (2 == other_room && 0 < made.sent && form::swapped != form_ &&
                   receiving::recv_init != made.in && open_mpi_keeps_within()) {
            made.room = draw(from_, 0, made.sent - 1);
        }
        return made;
    }

    // Else Open MPI copies every block by itself, with a wait.
    bool is_quick_of(memory_kind kind) const { return !bench::is_gpu(kind) || is_viewed(c_, kind); }

    template <typename Each> void for_all(const Each &each)
    {
        for (const auto &one : messages_) {
            each(*one);
        }
    }

    static void one_message(message &each)
    {
        each.post();
        each.send();
        each.receive();
        each.finish_send();
        each.finish_receive();
    }

    // By one call, which sends the one message and receives the other.
    void swap()
    {
        const bool sends_first = messages_.front()->is_sent_here();
        message &out = sends_first ? *messages_.front() : *messages_.back();
        message &in = sends_first ? *messages_.back() : *messages_.front();
        const plan &to = out.planned();
        const plan &from = in.planned();
        MPI_Status status{};
        if (to.tests) {
            MPI_Request request = MPI_REQUEST_NULL;
            out.ok(MPI_Isendrecv(out.out().at(), out.out().count(), out.out().type(), to.receiver,
                                 to.tag, in.in().at(), in.in().count(), in.in().type(), from.sender,
                                 from.tag, comm_, &request));
            in.see(MPI_Wait(&request, &status), status);
        } else {
            const int code = MPI_Sendrecv(out.out().at(), out.out().count(), out.out().type(),
                                          to.receiver, to.tag, in.in().at(), in.in().count(),
                                          in.in().type(), from.sender, from.tag, comm_, &status);
            in.see(code, status);
        }
    }

    // What has been sent by MPI_Bsend has come, so that its buffer does not become full.
    void empty_buffer()
    {
        if (members_[0] != members_[1] &&
            std::any_of(plans_.begin(), plans_.end(),
                        [](const plan &each) { return is_buffered(each.out); })) {
            const int other = members_[c_.rank == members_[0] ? 1 : 0];
            const int tag = static_cast<int>(messages_of_a_case * (seed_ % cases_with_tags) +
                                             messages_of_a_case - 1);
            c_.mpi(MPI_Sendrecv(nullptr, 0, MPI_BYTE, other, tag, nullptr, 0, MPI_BYTE, other, tag,
                                comm_, MPI_STATUS_IGNORE),
                   "after MPI_Bsend");
        }
    }

    context &c_;
    MPI_Comm comm_;
    std::uint64_t seed_;
    generator from_; // drawn from alike by all ranks
    std::array<int, 2> members_{};
    form form_ = form::in_turn;
    std::uint64_t turns_ = 1;
    std::vector<plan> plans_;
    std::vector<std::unique_ptr<message>> messages_;
};

// Cases by several threads, each with its share of them and a communicator of its own.
class case_runner {
  public:
    case_runner(context &c, int threads) : c_(c), running_(static_cast<std::size_t>(threads))
    {
        cases_ = static_cast<std::uint64_t>(0 < c.rounds ? c.rounds : cases_without_rounds);
        first_ = c.draw_seeds(cases_);
    }

    void run()
    {
        std::vector<char> room(buffered_bytes);
        MPI_Buffer_attach(room.data(), static_cast<int>(room.size()));
        std::vector<MPI_Comm> comms(running_.size());
        for (MPI_Comm &each : comms) {
            MPI_Comm_dup(MPI_COMM_WORLD, &each);
            MPI_Comm_set_errhandler(each, MPI_ERRORS_RETURN);
        }
        std::vector<std::thread> others;
        for (std::size_t i = 1; i < comms.size(); ++i) {
            others.emplace_back([this, i, comm = comms[i]] { work(i, comm); });
        }
        work(0, comms[0]);
        for (std::thread &each : others) {
            each.join();
        }
        for (MPI_Comm &each : comms) {
            MPI_Comm_free(&each);
        }
        void *detached = nullptr;
        int bytes = 0;
        MPI_Buffer_detach(static_cast<void *>(&detached), &bytes);
    }

  private:
    void work(std::size_t thread, MPI_Comm comm)
    {
        if (0 != thread && nullptr != c_.gpu) {
            c_.use_gpu();
        }
        for (std::uint64_t i = thread; i < cases_; i += running_.size()) {
            begin(thread, first_ + i);
            if (!random_case(c_, comm, first_ + i).run()) {
                std::fprintf(stderr, "exchange: rank %d: FAILED: random datatypes, case %s\n",
                             c_.rank, again(first_ + i).c_str());
            }
        }
    }

    std::string again(std::uint64_t seed) const
    {
        std::string text = std::to_string(seed) + "; again: -n " + std::to_string(c_.ranks) +
                           " exchange random-types --rounds 1 --seed " + std::to_string(seed) +
                           (c_.views ? " --views" : "") + " --kinds ";
        for (memory_kind each : c_.kinds) {
            text += bench::letter_of(each);
        }
        return text;
    }

    void begin(std::size_t thread, std::uint64_t seed)
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        running_[thread] = seed;
        std::string text = "random datatypes, case";
        for (std::uint64_t each : running_) {
            text += " " + std::to_string(each);
        }
        at_step(text);
    }

    context &c_;
    std::uint64_t cases_ = 0;
    std::uint64_t first_ = 0;
    std::mutex mutex_;
    std::vector<std::uint64_t> running_; // by thread
};

} // namespace

void test_random_types(context &c)
{
    case_runner(c, 1).run();
}

void test_random_types_threads(context &c)
{
    case_runner(c, threads_of_a_rank).run();
}

} // namespace gpusm::exchange
