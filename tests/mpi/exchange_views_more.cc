// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_views_more.cc: more messages of derived datatypes: to oneself, both ways, buffered,
// cancelled, many at once, by threads, and in collectives.
#include "tests/mpi/exchange_views.h"

#include <array>
#include <thread>

namespace gpusm::exchange {

namespace {

const MPI_Comm world = MPI_COMM_WORLD;

class more_views : private view_pair {
  public:
    using view_pair::view_pair;

    void run()
    {
        to_itself();
        sendrecv();
        buffered();
        cancelled();
        freed_request();
        many();
        if (c_.views) {
            before_the_memory();
        }
        if (from_ == to_) {
            broadcast();
            all_to_all();
            gathered();
        }
    }

  private:
    void swap(const strided_memory &out, const strided_memory &in, int to, MPI_Comm comm,
              const std::string &what)
    {
        ok(MPI_Sendrecv(out.at(), out.count(), out.type(), to, tag, in.at(), in.count(), in.type(),
                        to, tag, comm, MPI_STATUS_IGNORE),
           what);
    }

    void to_itself()
    {
        for_all("to itself",
                [&](const sample_type &of, int count, std::uint64_t seed, const std::string &what) {
                    for (MPI_Comm comm : {world, MPI_COMM_SELF}) {
                        const int self = world == comm ? c_.rank : 0;
                        strided_memory out(c_, from_, of, count);
                        strided_memory in(c_, to_, of, count);
                        out.fill(mine(seed));
                        in.poison();
                        swap(out, in, self, comm, what);
                        in.check(mine(seed), what);
                        const int len = static_cast<int>(out.len_bytes());
                        strided_memory bytes(c_, memory_kind::host, plain_bytes(), len);
                        bytes.poison();
                        swap(out, bytes, self, comm, what + " as bytes");
                        bytes.check(mine(seed), what + " as bytes");
                        bytes.fill(mine(seed) + 2);
                        in.poison();
                        swap(bytes, in, self, comm, what + " of bytes");
                        in.check(mine(seed) + 2, what + " of bytes");
                    }
                });
    }

    void sendrecv()
    {
        for_all("MPI_Sendrecv",
                [&](const sample_type &of, int count, std::uint64_t seed, const std::string &what) {
                    strided_memory out(c_, from_, of, count);
                    strided_memory in(c_, to_, of, count);
                    out.fill(mine(seed));
                    in.poison();
                    swap(out, in, peer_, world, what);
                    in.check(peers(seed), what);
                    ok(MPI_Sendrecv_replace(in.at(), count, of.type, peer_, tag, peer_, tag, world,
                                            MPI_STATUS_IGNORE),
                       what + "_replace");
                    in.check(mine(seed), what + "_replace");
                });
    }

    void buffered()
    {
        for (bool is_blocking : {true, false}) {
            for_all("buffered", [&](const sample_type &of, int count, std::uint64_t seed,
                                    const std::string &what) {
                strided_memory memory(c_, sends_ ? from_ : to_, of, count);
                if (!sends_) {
                    meet(); // the send does not wait for the receive
                    memory.poison();
                    ok(MPI_Recv(memory.at(), count, of.type, peer_, tag, world, MPI_STATUS_IGNORE),
                       what);
                    memory.check(seed, what);
                    return;
                }
                std::vector<char> room(memory.len_bytes() + MPI_BSEND_OVERHEAD + 4096);
                MPI_Buffer_attach(room.data(), static_cast<int>(room.size()));
                memory.fill(seed);
                MPI_Request request = MPI_REQUEST_NULL;
                ok(is_blocking
                       ? MPI_Bsend(memory.at(), count, of.type, peer_, tag, world)
                       : MPI_Ibsend(memory.at(), count, of.type, peer_, tag, world, &request),
                   what);
                ok(MPI_Wait(&request, MPI_STATUS_IGNORE), what);
                memory.poison();
                meet();
                void *detached = nullptr;
                int bytes = 0;
                MPI_Buffer_detach(static_cast<void *>(&detached), &bytes);
            });
        }
    }

    void cancelled()
    {
        for_all("cancelled",
                [&](const sample_type &of, int count, std::uint64_t seed, const std::string &what) {
                    strided_memory in(c_, to_, of, count);
                    in.poison();
                    MPI_Request request = MPI_REQUEST_NULL;
                    MPI_Status status;
                    int is_cancelled = 0;
                    ok(MPI_Irecv(in.at(), count, of.type, peer_, tag + 2, world, &request), what);
                    ok(MPI_Cancel(&request), what);
                    ok(MPI_Wait(&request, &status), what);
                    MPI_Test_cancelled(&status, &is_cancelled);
                    c_.expect_true(0 != is_cancelled, what);
                    meet(); // neither is there any more
                    strided_memory out(c_, from_, of, count);
                    out.fill(mine(seed));
                    strided_memory next(c_, to_, of, count);
                    next.poison();
                    ok(MPI_Sendrecv(out.at(), count, of.type, peer_, tag + 2, next.at(), count,
                                    of.type, peer_, tag + 2, world, MPI_STATUS_IGNORE),
                       what);
                    next.check(peers(seed), what + ", the next message");
                    in.check(0, 0, what);
                });
    }

    void freed_request()
    {
        for_all("request freed", [&](const sample_type &of, int count, std::uint64_t seed,
                                     const std::string &what) {
            strided_memory out(c_, from_, of, count);
            strided_memory in(c_, to_, of, count);
            out.fill(mine(seed));
            in.poison();
            MPI_Request request = MPI_REQUEST_NULL;
            ok(MPI_Isend(out.at(), count, of.type, peer_, tag, world, &request), what);
            ok(MPI_Request_free(&request), what);
            ok(MPI_Recv(in.at(), count, of.type, peer_, tag, world, MPI_STATUS_IGNORE), what);
            in.check(peers(seed), what);
            meet(); // the message has been sent
        });
    }

    void many()
    {
        constexpr std::size_t messages = 200;
        const std::string what = describe("200 at once", types_.all().front(), 0);
        const std::uint64_t seed = next_seed();
        at_step(what);
        if (!has_peer_) {
            return;
        }
        std::vector<std::unique_ptr<strided_memory>> out;
        std::vector<std::unique_ptr<strided_memory>> in;
        std::vector<MPI_Request> requests(2 * messages, MPI_REQUEST_NULL);
        const std::array<int, 3> counts = {1, 2, 5};
        for (std::size_t i = 0; i < messages; ++i) {
            const sample_type &of = types_.all()[i % types_.all().size()];
            const int count = counts[i % counts.size()];
            out.push_back(std::make_unique<strided_memory>(c_, from_, of, count));
            in.push_back(std::make_unique<strided_memory>(c_, to_, of, count));
            out[i]->fill(mine(seed) + 2 * i);
            in[i]->poison();
            ok(MPI_Irecv(in[i]->at(), count, of.type, 2 == c_.ranks ? MPI_ANY_SOURCE : peer_,
                         static_cast<int>(1000 + i), world, &requests[i]),
               what);
        }
        meet();
        for (std::size_t i = 0; i < messages; ++i) {
            ok(MPI_Isend(out[i]->at(), out[i]->count(), out[i]->type(), peer_,
                         static_cast<int>(1000 + i), world, &requests[messages + i]),
               what);
        }
        std::vector<int> which(requests.size());
        for (int done = 0; MPI_UNDEFINED != done;) {
            if (!ok(MPI_Waitsome(static_cast<int>(requests.size()), requests.data(), &done,
                                 which.data(), MPI_STATUSES_IGNORE),
                    what)) {
                return;
            }
        }
        for (std::size_t i = 0; i < messages; ++i) {
            in[i]->check(peers(seed) + 2 * i, what + ", number " + std::to_string(i));
        }
    }

    // The memory begins at the first byte, the address lies before it.
    void before_the_memory()
    {
        for_all("address before the memory",
                [&](const sample_type &of, int count, std::uint64_t seed, const std::string &what) {
                    strided_memory out(c_, from_, of, count, true);
                    strided_memory in(c_, to_, of, count, true);
                    out.fill(mine(seed));
                    in.poison();
                    swap(out, in, peer_, world, what);
                    in.check(peers(seed), what);
                });
    }

    // Collectives are for all ranks, with a peer or not; `each(type, seed, what)`.
    template <typename Each> void for_all_types(const char *how, const Each &each)
    {
        for (const sample_type &of : types_.all()) {
            const std::uint64_t seed = c_.draw_seeds(1000);
            const std::string what = describe(how, of, elements);
            at_step(what);
            each(of, seed, what);
        }
    }
    static constexpr int elements = 5; // of each block

    void broadcast()
    {
        for_all_types("MPI_Bcast",
                      [&](const sample_type &of, std::uint64_t seed, const std::string &what) {
                          for (int root = 0; root < c_.ranks; ++root) {
                              strided_memory memory(c_, from_, of, elements);
                              root == c_.rank ? memory.fill(seed) : memory.poison();
                              ok(MPI_Bcast(memory.at(), elements, of.type, root, world), what);
                              memory.check(seed, what);
                          }
                      });
    }

    void all_to_all()
    {
        enum { alltoall, ialltoall, alltoallw, ways };
        for (int way = 0; way < ways; ++way) {
            constexpr const char *names[] = {"MPI_Alltoall", "MPI_Ialltoall", "MPI_Alltoallw"};
            for_all_types(names[way], [&](const sample_type &of, std::uint64_t seed,
                                          const std::string &what) {
                strided_memory out(c_, from_, of, elements * c_.ranks);
                strided_memory in(c_, to_, of, elements * c_.ranks);
                const auto seed_of = [&](int sender, int receiver) {
                    return seed + static_cast<std::uint64_t>(sender * c_.ranks + receiver);
                };
                const auto ranks = static_cast<std::size_t>(c_.ranks);
                std::vector<int> counts(ranks, elements);
                std::vector<int> places(ranks);
                std::vector<MPI_Datatype> types(ranks, of.type);
                out.poison();
                in.poison();
                for (int i = 0; i < c_.ranks; ++i) {
                    out.fill(elements * i, elements, seed_of(c_.rank, i));
                    places[static_cast<std::size_t>(i)] =
                        static_cast<int>(of.extent) * elements * i;
                }
                MPI_Request request = MPI_REQUEST_NULL;
                int rc = MPI_SUCCESS;
                switch (way) {
                case alltoall:
                    rc = MPI_Alltoall(out.at(), elements, of.type, in.at(), elements, of.type,
                                      world);
                    break;
                case ialltoall:
                    rc = MPI_Ialltoall(out.at(), elements, of.type, in.at(), elements, of.type,
                                       world, &request);
                    break;
                default:
                    rc = MPI_Alltoallw(out.at(), counts.data(), places.data(), types.data(),
                                       in.at(), counts.data(), places.data(), types.data(), world);
                }
                ok(rc, what);
                ok(MPI_Wait(&request, MPI_STATUS_IGNORE), what);
                for (int i = 0; i < c_.ranks; ++i) {
                    in.expect_message(elements * i, elements, seed_of(i, c_.rank),
                                      of.size_bytes() * elements);
                }
                in.check_all(what);
            });
        }
    }

    void gathered()
    {
        for_all_types(
            "MPI_Gatherv", [&](const sample_type &of, std::uint64_t seed, const std::string &what) {
                const auto length = [&](int rank) { return 1 + rank % elements; };
                const int root = c_.ranks - 1;
                strided_memory out(c_, from_, of, length(c_.rank));
                strided_memory in(c_, to_, of, elements * c_.ranks);
                out.fill(seed + static_cast<std::uint64_t>(c_.rank));
                in.poison();
                std::vector<int> counts;
                std::vector<int> places;
                for (int i = 0; i < c_.ranks; ++i) {
                    counts.push_back(length(i));
                    places.push_back(elements * i);
                }
                ok(MPI_Gatherv(out.at(), length(c_.rank), of.type, in.at(), counts.data(),
                               places.data(), of.type, root, world),
                   what);
                for (int i = 0; i < c_.ranks && root == c_.rank; ++i) {
                    in.expect_message(elements * i, length(i), seed + static_cast<std::uint64_t>(i),
                                      of.size_bytes() * static_cast<std::size_t>(length(i)));
                }
                in.check_all(what);
            });
    }
};

} // namespace

void run_more_views(context &c, memory_kind from, memory_kind to)
{
    more_views(c, from, to).run();
}

// Each thread has a communicator, and sends and receives all types at once with its peer's.
void test_views_threads(context &c)
{
    constexpr int threads = 4;
    constexpr int rounds = 12;
    const sample_types types;
    std::array<MPI_Comm, threads> comms{};
    for (MPI_Comm &each : comms) {
        MPI_Comm_dup(MPI_COMM_WORLD, &each);
        MPI_Comm_set_errhandler(each, MPI_ERRORS_RETURN);
    }
    const std::uint64_t first = c.draw_seeds(2 * threads * rounds);
    const auto work = [&](int thread) {
        if (nullptr != c.gpu) {
            c.use_gpu();
        }
        for (int i = 0; i < rounds; ++i) {
            const sample_type &of =
                types.all()[static_cast<std::size_t>(thread + i) % types.all().size()];
            const std::string what = std::string("threads, ") + of.name;
            const int count = 1 + 3 * (i % 4);
            const auto turn = static_cast<std::size_t>(thread + i);
            const std::uint64_t seed = first + 2 * static_cast<std::uint64_t>(thread * rounds + i);
            strided_memory out(c, c.kind_at(turn + static_cast<std::size_t>(c.rank)), of, count);
            strided_memory in(c, c.kind_at(turn), of, count);
            out.fill(seed + static_cast<std::uint64_t>(c.rank));
            in.poison();
            MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
            const MPI_Comm comm = comms[static_cast<std::size_t>(thread)];
            c.mpi(MPI_Irecv(in.at(), count, of.type, 1 - c.rank, i, comm, &requests[0]), what);
            c.mpi(MPI_Isend(out.at(), count, of.type, 1 - c.rank, i, comm, &requests[1]), what);
            c.mpi(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE), what);
            in.check(seed + static_cast<std::uint64_t>(1 - c.rank), what);
        }
    };
    at_step("views by threads");
    std::vector<std::thread> running;
    for (int i = 0; i < threads; ++i) {
        running.emplace_back(work, i);
    }
    for (std::thread &each : running) {
        each.join();
    }
    for (MPI_Comm &each : comms) {
        MPI_Comm_free(&each);
    }
}

} // namespace gpusm::exchange
