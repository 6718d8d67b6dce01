// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_reductions.cc: every reduction of MPI on device memory, against results that each rank
// calculates in host memory.
#include "tests/mpi/reductions.h"

#include <array>
#include <numeric>
#include <thread>

namespace gpusm::reductions {

namespace {

// --- many of them --------------------------------------------------------------------------------

// Completes all, each time by another of MPI's ways.
void complete(std::vector<MPI_Request> &requests)
{
    static thread_local int turn = 0;
    const int n = static_cast<int>(requests.size());
    int index = 0;
    int done = 0;
    switch (turn++ % 4) {
    case 0:
        MPI_Waitall(n, requests.data(), MPI_STATUSES_IGNORE);
        break;
    case 1:
        for (; !done; MPI_Testall(n, requests.data(), &done, MPI_STATUSES_IGNORE)) {
        }
        break;
    case 2:
        for (int i = 0; i < n; ++i) {
            MPI_Waitany(n, requests.data(), &index, MPI_STATUS_IGNORE);
        }
        break;
    default:
        for (MPI_Request &each : requests) {
            for (done = 0; !done; MPI_Test(&each, &done, MPI_STATUS_IGNORE)) {
            }
        }
    }
}

// Calls of MPI in a thread that has no context, unless it is the only one.
class inside_mpi {
  public:
    inside_mpi()
    {
        if (has_threads) {
            (void)job->gpu->driver().ctx_set_current(nullptr);
        }
    }
    ~inside_mpi() { need(job->gpu->make_current()); }
    inside_mpi(const inside_mpi &) = delete;
    inside_mpi &operator=(const inside_mpi &) = delete;

    static inline bool has_threads = false;
};

// Those that are not blocking are all under way at the same time; persistent ones twice.
void run(const group &g, const std::vector<setup> &all, form f)
{
    std::vector<std::unique_ptr<operation>> batch;
    std::vector<MPI_Request> requests(all.size());
    int seed = 0;
    for (const setup &each : all) {
        batch.push_back(std::make_unique<operation>(g, each));
        if (!inside_mpi::has_threads) {
            at_step(batch.back()->describe());
        }
        batch.back()->fill(seed++);
        const inside_mpi here;
        batch.back()->begin(f, &requests[batch.size() - 1]);
    }
    if (form::started == f) {
        const inside_mpi here;
        complete(requests);
    }
    for (int turn = 0; form::persistent == f && turn < 2; ++turn) {
        for (auto &each : batch) {
            each->fill(seed++);
        }
        {
            const inside_mpi here;
            MPI_Startall(static_cast<int>(requests.size()), requests.data());
            complete(requests);
        }
        for (const auto &each : batch) {
            each->check();
        }
    }
    for (std::size_t i = 0; i < batch.size(); ++i) {
        if (form::persistent != f) {
            batch[i]->check();
        } else {
            MPI_Request_free(&requests[i]);
        }
    }
}

struct kit {
    element integer{"int", MPI_INT};
    element single{"float", MPI_FLOAT};
    element real{"double", MPI_DOUBLE};
    element complex{"complex", MPI_C_DOUBLE_COMPLEX};
    element pair{"double and int", MPI_DOUBLE_INT};
    element dense{"matrix", matrix(0, 16)};
    element gapped{"matrix with gaps", matrix(8, 32)};
    element before{"matrix before its address", matrix(-24, 32)};
    MPI_Op product = MPI_OP_NULL;

    kit() { MPI_Op_create(multiply, 0, &product); }
};

void test_all(const group &g, const kit &k, bool all_operations)
{
    struct choice {
        const element *e;
        std::vector<MPI_Op> ops;
    };
    const choice choices[] = {
        {&k.integer,
         {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_BAND, MPI_BOR, MPI_BXOR, MPI_LAND, MPI_LOR,
          MPI_LXOR}},
        {&k.single, {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX}},
        {&k.real, {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX}},
        {&k.complex, {MPI_SUM, MPI_PROD}},
        {&k.pair, {MPI_MINLOC, MPI_MAXLOC}},
        {&k.dense, {k.product}},
        {&k.gapped, {k.product}},
        {&k.before, {k.product}},
    };
    const int kinds = g.is_inter ? 4 : 6; // no scan between two groups
    for (form f : {form::blocking, form::started, form::persistent}) {
        for (const choice &c : choices) {
            for (std::size_t o = 0; o < (all_operations ? c.ops.size() : 1); ++o) {
                const std::size_t large = (1 << 20) / static_cast<std::size_t>(c.e->extent);
                for (std::size_t n : {std::size_t{1}, std::size_t{7}, large}) {
                    const bool seldom = 0 != o || c.e == &k.single || c.e == &k.complex;
                    if (large == n && c.e != &k.real && c.e != &k.gapped) {
                        continue;
                    }
                    if (seldom && (7 != n || form::persistent == f)) {
                        continue;
                    }
                    for (int placement : {0, 1, 2, 3, 4, 5}) {
                        if ((seldom || large == n) && placement > 1) {
                            continue;
                        }
                        std::vector<setup> all;
                        for (int i = 0; i < kinds; ++i) {
                            const kind what = static_cast<kind>(i);
                            const bool scatters =
                                kind::reduce_scatter == what || kind::reduce_scatter_block == what;
                            const std::size_t count = scatters ? n / 12 + 1 : n;
                            all.push_back({what, c.e, c.ops[o], count, placement, false});
                            if (!g.is_inter) {
                                all.push_back({what, c.e, c.ops[o], count, placement, true});
                            }
                        }
                        run(g, all, f);
                    }
                }
            }
        }
    }
}

// Every operation on every predefined type, in a group that meets for the first time: on the
// devices wherever it can be, as the component counts.
void test_types(const group &g)
{
    const bench::path_counters counters("coll_gpusm_");
    const auto on_devices = [&] { return counters.read()["device_reductions"]; };
    constexpr int most_ranks_that_scatter = 4; // see operation
    for (const basic_type &basic : basic_types()) {
        element e(basic.name, basic.type);
        for (const MPI_Op &op : basic.operations) {
            for (int i = 0; i < 12; ++i) {
                const kind what = static_cast<kind>(i / 2);
                const bool in_place = 0 != i % 2;
                const bool scatters =
                    kind::reduce_scatter == what || kind::reduce_scatter_block == what;
                if (scatters && g.ranks > most_ranks_that_scatter) {
                    continue;
                }
                const bool stays = g.ranks > 1;
                for (std::size_t n : {1, 7, 8, 9, 1001}) {
                    if (1001 == n && op != basic.operations.front()) {
                        continue;
                    }
                    e.shift = 7 == n ? e.size : 0;
                    const setup each = {what, &e, op, n, 0, in_place};
                    const unsigned long long before = on_devices();
                    run(g, {each},
                        8 == n   ? form::started
                        : 9 == n ? form::persistent
                                 : form::blocking);
                    const unsigned long long counted = on_devices() - before;
                    const unsigned long long times = 9 == n ? 2 : 1; // see run
                    if (counted != (stays ? times : 0)) {
                        fail(operation(g, each).describe() + (stays ? ": not" : ": counted") +
                             " on the devices");
                    }
                }
            }
        }
    }
}

void test_local(const kit &k)
{
    for (const element *e : {&k.integer, &k.real, &k.dense, &k.gapped, &k.before}) {
        // Nine megabytes: more than a piece.
        const std::size_t large = e == &k.real ? (9 << 20) / 8 : (9 << 20) / 32;
        for (std::size_t n : {std::size_t{1}, std::size_t{7}, large}) {
            for (int where = 0; where < (large == n ? 1 : 4); ++where) {
                const MPI_Op op = e == &k.integer || e == &k.real ? MPI_SUM : k.product;
                const image wanted = combine(*e, op, n, {0, 1}, 0);
                const image left = contribution(*e, n, 0, 0);
                const image right = contribution(*e, n, 1, 0);
                const auto make = [&](bool on_device, const image &content) {
                    auto made = job->make(on_device ? memory_kind::device : memory_kind::host,
                                          content.size());
                    need(made->write(0, content.data(), content.size()));
                    return made;
                };
                const auto in = make(0 == (where & 1), left);
                const auto inout = make(0 == (where & 2), right);
                MPI_Reduce_local(in->at(e->lead()), inout->at(e->lead()), static_cast<int>(n),
                                 e->type, op);
                image found(wanted.size());
                need(inout->read(0, found.data(), found.size()));
                if (found != wanted) {
                    fail(std::string("reduce_local of ") + std::to_string(n) + " " + e->name);
                }
                ++job->messages;
            }
        }
    }
}

// A persistent one keeps its operation and its datatype, which the program frees before it starts
// it.
void test_kept()
{
    MPI_Op product = MPI_OP_NULL;
    element e("matrix with gaps", matrix(8, 32));
    auto in = job->make(memory_kind::device, e.image_bytes(5));
    const image mine = contribution(e, 5, 0, 0);
    need(in->write(0, mine.data(), mine.size()));
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Op_create(multiply, 0, &product);
    const image wanted = combine(e, product, 5, {0, 0}, 0);
    MPI_Scan_init(MPI_IN_PLACE, in->at(e.lead()), 5, e.type, product, MPI_COMM_WORLD, MPI_INFO_NULL,
                  &request);
    MPI_Op_free(&product);
    MPI_Type_free(&e.type);
    MPI_Start(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Request_free(&request);
    image found(mine.size());
    need(in->read(0, found.data(), found.size()));
    if (job->rank < 2 && found != (0 == job->rank ? mine : wanted)) {
        fail("scan_init with an operation that is freed before the start");
    }
    ++job->messages;
}

group whole(MPI_Comm comm, const std::vector<int> &members)
{
    group g;
    g.comm = comm;
    MPI_Comm_rank(comm, &g.me);
    MPI_Comm_size(comm, &g.ranks);
    g.sources = members;
    return g;
}

group two_groups(int ranks)
{
    MPI_Comm mine = MPI_COMM_NULL;
    group g;
    MPI_Comm_split(MPI_COMM_WORLD, job->rank % 2, job->rank, &mine);
    MPI_Intercomm_create(mine, 0, MPI_COMM_WORLD, 1 - job->rank % 2, 7, &g.comm);
    MPI_Comm_rank(mine, &g.me);
    MPI_Comm_size(mine, &g.ranks);
    for (int i = 1 - job->rank % 2; i < ranks; i += 2) {
        g.sources.push_back(i);
    }
    g.is_inter = true;
    g.has_root = 0 == job->rank % 2;
    return g;
}

// The test in MPI_COMM_WORLD, with all of its ranks.
template <typename Test> void with_world(context &c, Test &&test)
{
    job = &c;
    std::vector<int> everyone(static_cast<std::size_t>(c.ranks));
    std::iota(everyone.begin(), everyone.end(), 0);
    test(kit(), whole(MPI_COMM_WORLD, everyone));
    MPI_Barrier(MPI_COMM_WORLD);
}

} // namespace

} // namespace gpusm::reductions

namespace gpusm::exchange {

using namespace reductions;

// In MPI_COMM_WORLD, and in MPI_COMM_SELF.
void test_reductions(context &c)
{
    with_world(c, [&](const kit &k, const group &world) {
        test_local(k);
        test_kept();
        test_all(world, k, true);
        test_all(whole(MPI_COMM_SELF, {c.rank}), k, false);
    });
}

void test_reductions_types(context &c)
{
    with_world(c, [&](const kit &, group world) {
        MPI_Comm_dup(MPI_COMM_WORLD, &world.comm);
        test_types(world);
        MPI_Comm_free(&world.comm);
    });
}

// Longer ones than stay page-locked at once: on a device everywhere, and mixed with host memory.
void test_reductions_long(context &c)
{
    constexpr std::size_t len_bytes = 40 << 20;
    with_world(c, [&](const kit &k, const group &world) {
        const std::size_t reals = len_bytes / sizeof(double) + 3;
        for (kind what : {kind::allreduce, kind::reduce, kind::scan, kind::exscan}) {
            run(world, {{what, &k.real, MPI_SUM, reals, 0, false}}, form::blocking);
        }
        run(world, {{kind::allreduce, &k.real, MPI_SUM, reals, 0, true}}, form::blocking);
        if (c.rounds > 0) {
            return; // those whose copies are counted
        }
        for (int placement : {1, 2, 3}) {
            run(world, {{kind::allreduce, &k.real, MPI_SUM, reals, placement, false}},
                form::blocking);
            run(world, {{kind::reduce, &k.integer, MPI_MAX, 2 * reals, placement, true}},
                form::blocking);
        }
        run(world, {{kind::scan, &k.gapped, k.product, len_bytes / 16 + 1, 0, false}},
            form::blocking);
    });
}

// Between the even and the odd ranks.
void test_reductions_inter(context &c)
{
    with_world(c, [&](const kit &k, const group &) { test_all(two_groups(c.ranks), k, false); });
}

// Two threads without a context, each with a communicator of its own. One reduction comes before
// them: the first one over coll/sm makes Open MPI load hwloc's topology, which it does without a
// lock (opal_hwloc_base_get_topology), and two threads at once free it twice.
void test_reductions_threads(context &c)
{
    inside_mpi::has_threads = true;
    with_world(c, [&](const kit &k, const group &world) {
        run(world, {{kind::allreduce, &k.real, MPI_SUM, 1000, 0, false}}, form::blocking);
        std::vector<std::thread> threads;
        for (int i = 0; i < 2; ++i) {
            MPI_Comm comm = MPI_COMM_NULL;
            MPI_Comm_dup(MPI_COMM_WORLD, &comm);
            threads.emplace_back([&, comm] {
                need(c.gpu->make_current());
                const std::vector<setup> all{{kind::allreduce, &k.real, MPI_SUM, 1000, 0, false},
                                             {kind::scan, &k.gapped, k.product, 100, 0, true},
                                             {kind::reduce, &k.integer, MPI_MAX, 50000, 0, false}};
                for (int turn = 0; turn < 150; ++turn) {
                    run(whole(comm, world.sources), all, static_cast<form>(turn % 3));
                }
            });
        }
        for (std::thread &each : threads) {
            each.join();
        }
    });
}

// The driver refuses the second copy of Open MPI's in each rank: the others run, and can be started
// again. The one that could not begin tells so when it is waited for, and is free then, as Open MPI
// has it for any request with an error.
void test_reductions_startall(context &c)
{
    constexpr std::size_t together = 3;
    constexpr int elements = 1000;
    std::array<MPI_Request, together> requests{};
    std::array<std::unique_ptr<buffer>, together> in;
    std::array<std::unique_ptr<buffer>, together> out;
    std::vector<int> values(elements);
    std::iota(values.begin(), values.end(), c.rank);
    for (std::size_t i = 0; i < together; ++i) {
        in[i] = c.make(memory_kind::device, elements * sizeof(int));
        out[i] = c.make(memory_kind::device, elements * sizeof(int));
        c.expect(in[i]->write(0, values.data(), elements * sizeof(int)), "fill");
        requests[i] = MPI_REQUEST_NULL;
    }
    for (const bool second_fails : {true, false}) {
        at_step(second_fails ? "three of which one cannot begin" : "all of them again");
        for (const auto &each : out) {
            c.expect(each->poison(), "poison");
        }
        for (std::size_t i = 0; i < together; ++i) {
            if (MPI_REQUEST_NULL == requests[i]) {
                c.mpi(MPI_Allreduce_init(in[i]->data(), out[i]->data(), elements, MPI_INT, MPI_SUM,
                                         MPI_COMM_WORLD, MPI_INFO_NULL, &requests[i]),
                      "MPI_Allreduce_init");
            }
        }
        c.mpi(MPI_Startall(together, requests.data()), "MPI_Startall");
        for (std::size_t i = 0; i < together; ++i) {
            // One by one: MPI_Waitall leaves those alone that are not complete when one has failed.
            const bool good = !second_fails || 1 != i;
            c.expect_true((MPI_SUCCESS == MPI_Wait(&requests[i], MPI_STATUS_IGNORE)) == good,
                          "the wait tells whether it could begin");
            if (!good && MPI_REQUEST_NULL != requests[i]) {
                MPI_Request_free(&requests[i]); // Open MPI 5.0 has
            }
            std::vector<int> found(elements);
            c.expect(out[i]->read(0, found.data(), elements * sizeof(int)), "read");
            for (int e = 0; good && e < elements; ++e) {
                const int sum = c.ranks * e + c.ranks * (c.ranks - 1) / 2;
                if (!c.expect_true(found[static_cast<std::size_t>(e)] == sum, "the sum")) {
                    break;
                }
            }
            ++c.messages;
        }
    }
    for (MPI_Request &each : requests) {
        MPI_Request_free(&each);
    }
}

} // namespace gpusm::exchange
