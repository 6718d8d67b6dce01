// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// collective_stream.h: random collectives, of all forms and some at a time, whose results are
// checked where MPI says that they are there. All is drawn from --seed.
#ifndef GPUSM_TESTS_MPI_COLLECTIVE_STREAM_H
#define GPUSM_TESTS_MPI_COLLECTIVE_STREAM_H

#include "tests/mpi/movements.h"
#include "tests/mpi/reductions.h"

#include <mpi-ext.h> // needs mpi.h before it

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

namespace gpusm::reductions {

using draws = std::minstd_rand;

inline std::size_t below(draws &draw, std::size_t end)
{
    return draw() % end;
}

// The same on all ranks that ask for the same.
inline draws draws_of(const context &c, std::uint64_t what, std::uint64_t which)
{
    std::seed_seq seeds{c.next_seed, what, which};
    return draws(seeds);
}

struct batch {
    form how = form::blocking;
    int times = 1; // with the same buffers
    std::vector<std::unique_ptr<collective_call>> all;
};

inline group group_of(MPI_Comm comm)
{
    group made;
    made.comm = comm;
    MPI_Comm_rank(comm, &made.me);
    MPI_Comm_size(comm, &made.ranks);
    MPI_Group its = MPI_GROUP_NULL;
    MPI_Group world = MPI_GROUP_NULL;
    MPI_Comm_group(comm, &its);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    std::vector<int> here(static_cast<std::size_t>(made.ranks));
    std::iota(here.begin(), here.end(), 0);
    made.sources.resize(here.size());
    MPI_Group_translate_ranks(its, made.ranks, here.data(), world, made.sources.data());
    MPI_Group_free(&its);
    MPI_Group_free(&world);
    return made;
}

// Collectives of one communicator after the other.
class stream {
  public:
    explicit stream(context &c) : c_(c)
    {
        job = &c;
        MPI_Op_create(multiply, 0, &product_);
        elements_.push_back({{"int", MPI_INT}, {MPI_SUM, MPI_BXOR, MPI_MAX}});
        elements_.push_back({{"float", MPI_FLOAT}, {MPI_PROD, MPI_MIN}});
        elements_.push_back({{"double", MPI_DOUBLE}, {MPI_SUM, MPI_MAX}});
        elements_.push_back({{"complex", MPI_C_DOUBLE_COMPLEX}, {MPI_SUM}});
        elements_.push_back({{"float and int", MPI_FLOAT_INT}, {MPI_MINLOC, MPI_MAXLOC}});
        elements_.push_back({{"matrix with gaps", matrix(8, 32)}, {product_}});
    }

    MPI_Comm on = MPI_COMM_NULL; // of the batch that runs
    // What happens in the middle of a batch: when so many collectives have begun in this process.
    std::function<void()> in_the_middle;
    std::uint64_t begun_before = std::numeric_limits<std::uint64_t>::max();
    // What is done at once when a call has failed, while others may be under way.
    std::function<void(int, const std::string &)> when_failed = [](int, const auto &) {};

    // Of this rank; MPI_SUCCESS: no call has failed.
    int error() const { return error_; }
    void forget_error() { error_ = MPI_SUCCESS; }
    // The communicator is revoked, or one of its processes has failed. What is not blocking
    // coll/libnbc of Open MPI 5.0 then ends now and then with MPI_ERR_OTHER, or well though it has
    // not been done; over btl/sm with host memory, too.
    bool is_hurt() const
    {
        int revoked = 0;
        int failed = 0;
        MPI_Group gone = MPI_GROUP_NULL;
        MPIX_Comm_is_revoked(on, &revoked);
        MPIX_Comm_get_failed(on, &gone);
        MPI_Group_size(gone, &failed);
        MPI_Group_free(&gone);
        return 0 != revoked || 0 != failed;
    }
    bool blocks() const { return form::blocking == how_; }    // the batch that has run last
    double failed_after_s() const { return failed_after_s_; } // after the last good end

    void run(const group &g, std::uint64_t epoch, std::uint64_t round)
    {
        on = g.comm;
        draws draw = draws_of(c_, epoch, round);
        const batch drawn = draw_batch(draw, g);
        const std::vector<std::unique_ptr<collective_call>> &all = drawn.all;
        how_ = drawn.how;
        std::vector<MPI_Request> requests(all.size(), MPI_REQUEST_NULL);
        for (int time = 0; time < drawn.times && MPI_SUCCESS == error_; ++time) {
            for (const auto &each : all) {
                each->fill(seed_of(round, time));
            }
            begin_all(all, requests, drawn.how, 0 == time);
            for (std::size_t i = 0; i < all.size(); ++i) {
                if (MPI_REQUEST_NULL != requests[i]) {
                    at_step("waiting for " + all[i]->describe());
                    judge(wait(&requests[i]), *all[i]);
                }
            }
        }
        for (MPI_Request &each : requests) {
            if (MPI_REQUEST_NULL != each) {
                MPI_Request_free(&each); // a persistent one
            }
        }
    }

  private:
    struct choice {
        element e;
        std::vector<MPI_Op> operations;
    };

    static int seed_of(std::uint64_t round, int time)
    {
        return static_cast<int>(round % 1000) * 3 + time;
    }

    batch draw_batch(draws &draw, const group &g)
    {
        batch made;
        made.how = static_cast<form>(below(draw, 3));
        made.times = 1 + static_cast<int>(below(draw, 3));
        const std::size_t count = 1 + below(draw, 5);
        for (std::size_t i = 0; i < count; ++i) {
            if (0 == below(draw, 2)) {
                made.all.push_back(std::make_unique<operation>(g, draw_reduction(draw)));
            } else {
                made.all.push_back(
                    std::make_unique<movements::movement>(c_, g.comm, draw_movement(draw, g)));
            }
        }
        return made;
    }

    // Of one kind, D or H, all memory is of that.
    bool is_mixed() const { return c_.kinds.size() > 1 || memory_kind::device != c_.kinds.front(); }
    static constexpr std::size_t lengths[] = {1, 7, 1000, 20000, 150000};

    setup draw_reduction(draws &draw)
    {
        const auto what = static_cast<kind>(below(draw, 6));
        const choice &of = elements_[below(draw, elements_.size())];
        const MPI_Op op = of.operations[below(draw, of.operations.size())];
        std::size_t n = lengths[below(draw, std::size(lengths))];
        if (nullptr == of.e.basic) { // Open MPI asks what memory it is for each element
            n = std::min<std::size_t>(n, 1000);
        }
        if (kind::reduce_scatter == what || kind::reduce_scatter_block == what) {
            n = n / 12 + 1;
        }
        const bool as_usual = !is_mixed() || 0 == below(draw, 2);
        int placement = static_cast<int>(below(draw, 7));
        placement = !c_.on_gpu() ? 5 : as_usual ? 0 : placement;
        const bool in_place = 0 == below(draw, 3);
        setup made{what, &of.e, op, n, placement, in_place};
        made.alone = static_cast<int>(below(draw, static_cast<unsigned>(c_.ranks)));
        made.its_kind = c_.kind_at(below(draw, c_.kinds.size()));
        return made;
    }

    movements::setup draw_movement(draws &draw, const group &g)
    {
        using movements::mix;
        const auto ranks = static_cast<unsigned>(g.ranks);
        const auto what = movements::all_kinds[below(draw, std::size(movements::all_kinds))];
        const bool is_bcast = movements::kind::bcast == what;
        const bool varied = 0 == below(draw, 2) && !is_bcast;
        std::size_t n = lengths[below(draw, std::size(lengths))];
        const int root = movements::has_root(what) ? static_cast<int>(below(draw, ranks)) : 0;
        // MPI_Ialltoallv in place brings long blocks to the wrong ranks in coll/libnbc of Open MPI
        // 5.0.7, over btl/sm and in host memory, too.
        const bool may_be_in_place = !is_bcast && !(varied && movements::kind::alltoall == what) &&
                                     movements::kind::alltoallw != what;
        const bool in_place = 0 == below(draw, 3) && may_be_in_place;
        const bool as_usual = !is_mixed() || 0 == below(draw, 2);
        mix hosts = static_cast<mix>(below(draw, 5));
        hosts = !c_.on_gpu() ? mix::all_ranks : as_usual ? mix::none : hosts;
        const int stride = 0 == below(draw, 4) ? 2 : 1;
        if (1 != stride) { // where there is no memory to pack into each element is copied by itself
            n = std::min<std::size_t>(n, 1000);
        }
        movements::setup made{what, varied, n, root, in_place, hosts, stride};
        made.alone = static_cast<int>(below(draw, ranks));
        made.its_kind = c_.kind_at(below(draw, c_.kinds.size()));
        return made;
    }

    void begin_all(const std::vector<std::unique_ptr<collective_call>> &all,
                   std::vector<MPI_Request> &requests, form how, bool is_first)
    {
        for (std::size_t i = 0; i < all.size() && MPI_SUCCESS == error_; ++i) {
            at_step(all[i]->describe());
            if (begun_++ == begun_before) {
                in_the_middle();
            }
            if (form::persistent == how && !is_first) {
                continue;
            }
            const int rc = all[i]->try_to_begin(how, &requests[i]);
            if (form::blocking == how || MPI_SUCCESS != rc) {
                judge(rc, *all[i]);
            }
        }
        if (form::persistent == how && MPI_SUCCESS == error_) {
            const int rc = MPI_Startall(static_cast<int>(requests.size()), requests.data());
            if (MPI_SUCCESS != rc) {
                judge(rc, *all.front());
            }
        } else if (form::persistent == how) {
            for (MPI_Request &each : requests) { // not started: there is nothing to wait for
                if (MPI_REQUEST_NULL != each) {
                    MPI_Request_free(&each);
                }
            }
        }
    }

    // One by one: MPI_Waitall of Open MPI 5.0 does not wait for all when one fails.
    int wait(MPI_Request *request)
    {
        if (0 == begun_ % 2) {
            return MPI_Wait(request, MPI_STATUS_IGNORE);
        }
        MPI_Status its{};
        const int rc = MPI_Waitall(1, request, &its);
        // Of a persistent request that has failed only the status tells, in Open MPI 5.0.
        if (MPI_ERR_IN_STATUS != rc && (MPI_SUCCESS != rc || MPI_SUCCESS == its.MPI_ERROR)) {
            return rc;
        }
        const bool good = c_.expect_true(MPI_SUCCESS < its.MPI_ERROR && its.MPI_ERROR < 1000,
                                         "what the status says is an error of MPI's");
        return good ? its.MPI_ERROR : MPI_ERR_UNKNOWN;
    }

    void judge(int rc, const collective_call &of)
    {
        if (MPI_SUCCESS == rc) {
            if (form::blocking == how_ || (form::started == how_ && of.stays_on_devices()) ||
                (MPI_SUCCESS == error_ && !is_hurt())) {
                of.check();
            }
            good_at_ = clock::now();
        } else if (MPI_SUCCESS == error_) {
            error_ = rc;
            failed_after_s_ = std::chrono::duration<double>(clock::now() - good_at_).count();
            when_failed(rc, of.describe());
        }
    }

    using clock = std::chrono::steady_clock;
    context &c_;
    MPI_Op product_ = MPI_OP_NULL;
    std::vector<choice> elements_;
    std::uint64_t begun_ = 0;
    form how_ = form::blocking;
    int error_ = MPI_SUCCESS;
    clock::time_point good_at_ = clock::now();
    double failed_after_s_ = 0;
};

} // namespace gpusm::reductions

#endif
