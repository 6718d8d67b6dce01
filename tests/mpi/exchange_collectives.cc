// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_collectives.cc: the collectives that move data and calculate nothing, on device memory
// and mixed, in place, with even and varied blocks, with types that have gaps.
#include "tests/mpi/movements.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace gpusm::exchange {

namespace {

using namespace movements;

// One call, begun and ended here; a persistent one is started twice.
class call {
  public:
    call(context &c, MPI_Comm comm, const setup &of, form how) : c_(c), how_(how), it_(c, comm, of)
    {
    }

    void begin(int seed)
    {
        seed_ = seed;
        it_.fill(seed);
        c_.mpi(it_.try_to_begin(how_, &request_), describe());
        if (form::persistent == how_) {
            MPI_Start(&request_);
        }
    }
    void complete()
    {
        MPI_Wait(&request_, MPI_STATUS_IGNORE);
        it_.check();
        if (form::persistent == how_) {
            it_.fill(seed_ + 1000);
            MPI_Start(&request_);
            MPI_Wait(&request_, MPI_STATUS_IGNORE);
            it_.check();
            MPI_Request_free(&request_);
        }
    }
    // How often it runs.
    unsigned long long times() const { return form::persistent == how_ ? 2 : 1; }
    const movement &its() const { return it_; }
    std::string describe() const
    {
        const char *const forms[] = {"", "i", "persistent "};
        return forms[static_cast<int>(how_)] + it_.describe();
    }

  private:
    context &c_;
    const form how_;
    movement it_;
    int seed_ = 0;
    MPI_Request request_ = MPI_REQUEST_NULL;
};

// Many under way at once, started and persistent ones, which are completed in another order.
void together(context &c, MPI_Comm comm, const std::vector<setup> &all)
{
    constexpr std::size_t at_once = 12;
    for (std::size_t first = 0; first < all.size(); first += at_once) {
        const std::size_t end = std::min(first + at_once, all.size());
        std::vector<std::unique_ptr<call>> batch;
        at_step("together, from " + std::to_string(first) + " on");
        for (std::size_t i = first; i < end; ++i) {
            batch.push_back(std::make_unique<call>(c, comm, all[i],
                                                   0 == i % 2 ? form::started : form::persistent));
            batch.back()->begin(static_cast<int>(i));
        }
        std::reverse(batch.begin(), batch.end());
        for (const auto &each : batch) {
            each->complete();
        }
    }
}

// `counted_too`: whether it is checked who carries them out.
void test_on(context &c, MPI_Comm comm, bool counted_too)
{
    int ranks = 0;
    MPI_Comm_size(comm, &ranks);
    const bench::path_counters counters("coll_gpusm_");
    const auto exchanged = [&] { return counters.read()["device_exchanges"]; };
    int seed = 0;
    const auto try_one = [&](const setup &of, form how = form::blocking) {
        call each(c, comm, of, how);
        at_step(each.describe());
        const unsigned long long before = exchanged();
        each.begin(++seed);
        each.complete();
        const unsigned long long counted = exchanged() - before;
        if (counted_too && each.its().is_known()) {
            // A non-blocking one of as many bytes may be Open MPI's own (coll_gpusm_calls.h).
            const bool may_be_open_mpis =
                form::started == how && kind::bcast == of.what && 1 == of.n;
            const bool stays = each.its().stays_on_devices() && !may_be_open_mpis;
            c.expect_true(counted == (stays ? each.times() : 0),
                          each.describe() + (stays ? ": not" : ": counted") +
                              " as carried out by kernels");
        }
    };
    std::vector<setup> all;
    for (const kind what : all_kinds) {
        for (const bool varied : {false, true}) {
            for (const bool in_place : {false, true}) {
                for (const int root : {0, ranks - 1}) {
                    const bool is_other = 0 != root && !has_root(what);
                    if (is_other || (kind::bcast == what && (varied || in_place))) {
                        continue;
                    }
                    for (const std::size_t n : {1, 7, 1001}) {
                        all.push_back({what, varied, n, root, in_place, mix::none, 1});
                    }
                    for (const mix hosts : {mix::odd_ranks, mix::receive_of_first}) {
                        all.push_back({what, varied, 13, root, in_place, hosts, 1});
                    }
                    for (const mix hosts : {mix::none, mix::odd_ranks, mix::all_ranks}) {
                        all.push_back({what, varied, 33, root, in_place, hosts, 2});
                    }
                }
            }
        }
    }
    for (const form how : {form::blocking, form::started, form::persistent}) {
        for (const setup &each : all) {
            try_one(each, how);
            // In place Open MPI's MPI_Alltoallw takes it for host memory (docs/collectives.md).
            if ((33 == each.n || 7 == each.n) && (kind::alltoallw != each.what || !each.in_place)) {
                setup absolute = each;
                absolute.absolute = true;
                try_one(absolute, how);
            }
        }
    }
    // Several pieces of the kernel's for each of its warps.
    for (const kind what : all_kinds) {
        for (const bool varied : {false, true}) {
            if (kind::bcast == what && varied) {
                continue;
            }
            try_one({what, varied, 300000, 0, false, mix::none, 1});
            try_one({what, varied, 60000, 0, false, mix::none, 3});
        }
    }
    // Between datatypes that differ.
    for (const kind what : {kind::allgather, kind::alltoall, kind::gather, kind::scatter}) {
        for (const form how : {form::blocking, form::started, form::persistent}) {
            for (const int stride : {1, 2}) {
                try_one(
                    {what, false, 3000, 0, false, mix::none, stride, 0, memory_kind::host, true},
                    how);
            }
        }
        if (ranks <= 3) {
            try_one({what, false, 4300001, 0, false, mix::none, 1, 0, memory_kind::host, true});
        }
    }
    // Managed memory at both ends of what a rank sends to itself.
    for (const form how : {form::blocking, form::started, form::persistent}) {
        for (const int stride : {1, 2}) {
            try_one({kind::alltoallw, false, 33, 0, false, mix::one_rank, stride, ranks - 1,
                     memory_kind::managed},
                    how);
        }
    }
    // A bcast directly, and in parts where it is aligned; long ones of the others.
    try_one({kind::bcast, false, 5000, 0, false, mix::none, 1});
    try_one({kind::bcast, false, 4300002, ranks / 2, false, mix::none, 1});
    for (const std::size_t ints : {262144, 262145, 262146}) {
        for (const form how : {form::blocking, form::started, form::persistent}) {
            try_one({kind::bcast, false, ints, ranks / 2, false, mix::none, 1}, how);
        }
    }
    try_one({kind::bcast, false, 262151, ranks - 1, false, mix::one_rank, 1});
    if (ranks <= 2) {
        try_one({kind::allgather, false, 2200000, 0, false, mix::none, 1});
        try_one({kind::alltoall, true, 9000000, 0, false, mix::none, 1});
    }
    together(c, comm, all);
}

} // namespace

// In a communicator that has never met, and in one of a single rank.
void test_collectives(context &c)
{
    MPI_Comm fresh = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &fresh);
    test_on(c, fresh, true);
    MPI_Comm_free(&fresh);
    test_on(c, MPI_COMM_SELF, true);
}

// Where something keeps kernels from it now and then.
void test_collectives_content(context &c)
{
    test_on(c, MPI_COMM_WORLD, false);
}

} // namespace gpusm::exchange
