// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_collectives.cc: the collectives that move data and calculate nothing, on device memory
// and mixed, in place, with even and varied blocks, with types that have gaps. What is received is
// compared with what each rank knows the others to send, and so is what lies between.
#include "tests/mpi/exchange.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

namespace gpusm::exchange {

namespace {

enum class form { blocking, started, persistent };
enum class kind { allgather, alltoall, bcast, gather, scatter };
constexpr const char *names[] = {"allgather", "alltoall", "bcast", "gather", "scatter"};
constexpr kind all_kinds[] = {kind::allgather, kind::alltoall, kind::bcast, kind::gather,
                              kind::scatter};

bool has_root(kind what)
{
    return kind::bcast == what || kind::gather == what || kind::scatter == what;
}

// Which ranks have host memory.
enum class mix { none, odd_ranks, receive_of_first };

struct setup {
    kind what;
    bool varied;
    std::size_t n; // elements of a block, about as many where they vary
    int root;
    bool in_place;
    mix hosts;
    int stride; // ints from one element to the next
    form how = form::blocking;
};

// What one rank does in one call.
class call {
  public:
    call(context &c, MPI_Comm comm, const setup &of) : c_(c), comm_(comm), of_(of)
    {
        MPI_Comm_rank(comm, &me_);
        MPI_Comm_size(comm, &ranks_);
        if (1 == of.stride) {
            type_ = MPI_INT;
        } else {
            MPI_Type_create_resized(MPI_INT, 0, of.stride * static_cast<int>(sizeof(int)), &type_);
            MPI_Type_commit(&type_);
        }
        for (int i = 0; i < ranks_; ++i) {
            const int furthest = 1 + static_cast<int>(2 * of.n); // longer than any block
            places_.push_back(of.varied ? (ranks_ - 1 - i) * furthest : i * count(0, 0));
            send_counts_.push_back(count(me_, i));
            receive_counts_.push_back(count(i, me_));
        }
    }
    ~call()
    {
        if (MPI_INT != type_) {
            MPI_Type_free(&type_);
        }
    }
    call(const call &) = delete;
    call &operator=(const call &) = delete;

    // The buffers, and the call, which complete() ends.
    void begin(int seed)
    {
        const bool first_receives = mix::receive_of_first == of_.hosts && 0 == me_;
        const bool host = mix::odd_ranks == of_.hosts && 1 == me_ % 2;
        const auto where = [](bool on_host) {
            return on_host ? memory_kind::host : memory_kind::device;
        };
        const std::size_t bytes = empty().size() * sizeof(int);
        send_ = c_.make(where(host), bytes);
        receive_ = c_.make(where(host || first_receives), bytes);
        fill(seed);
        c_.mpi(call_mpi(at(*send_), at(*receive_)), describe());
        if (form::persistent == of_.how) {
            MPI_Start(&request_);
        }
    }
    void complete()
    {
        MPI_Wait(&request_, MPI_STATUS_IGNORE);
        check();
        if (form::persistent == of_.how) {
            fill(seed_ + 1000);
            MPI_Start(&request_);
            MPI_Wait(&request_, MPI_STATUS_IGNORE);
            check();
            MPI_Request_free(&request_);
        }
    }
    // How often it runs.
    unsigned long long times() const { return form::persistent == of_.how ? 2 : 1; }

    // Do kernels carry it out? Where it is known: who has nothing in a call that varies does not
    // count, and long ones go by messages unless ranks share a device.
    bool is_known() const
    {
        constexpr std::size_t all_ints = (16 << 20) / sizeof(int);
        return (!of_.varied || mix::none == of_.hosts) &&
               of_.n <= all_ints / static_cast<std::size_t>(ranks_);
    }
    bool stays() const
    {
        const bool receives = kind::gather == of_.what    ? 0 == of_.root
                              : kind::bcast == of_.what   ? 0 != of_.root
                              : kind::scatter == of_.what ? 0 != of_.root || !of_.in_place
                                                          : true;
        const bool all_on_device =
            mix::none == of_.hosts || (mix::receive_of_first == of_.hosts && !receives);
        const bool in_place = kind::alltoall == of_.what && of_.in_place;
        const std::size_t bytes = of_.n * sizeof(int);
        const bool direct = ranks_ >= 4 && bytes >= 8 << 10 && bytes < 1 << 20;
        if (kind::bcast == of_.what && (ranks_ < 3 || direct)) {
            return false;
        }
        return ranks_ > 1 && all_on_device && 1 == of_.stride && !in_place;
    }
    std::string describe() const
    {
        const char *const mixes[] = {"", ", odd ranks on the host", ", the first receives there"};
        const char *const forms[] = {"", "i", "persistent "};
        return forms[static_cast<int>(of_.how)] + std::string(names[static_cast<int>(of_.what)]) +
               (of_.varied ? "v" : "") + " of " + std::to_string(of_.n) +
               (1 == of_.stride ? "" : " with gaps") + ", root " + std::to_string(of_.root) +
               (of_.in_place ? ", in place" : "") + mixes[static_cast<int>(of_.hosts)];
    }

  private:
    static constexpr std::size_t guard = 3; // ints before and behind all else

    bool is_root() const { return me_ == of_.root; }
    bool has_one_for_all() const { return kind::allgather == of_.what || kind::bcast == of_.what; }
    // The same both ways, as alltoallv in place asks for. One block for all has its sender's.
    int count(int from, int to) const
    {
        if (!of_.varied) {
            return static_cast<int>(of_.n);
        }
        to = has_one_for_all() ? 0 : to;
        return (from * to + from + to) % 3 * static_cast<int>(of_.n + 1) / 2;
    }
    int value(int from, int to, int i) const
    {
        to = has_one_for_all() ? 0 : to;
        return (seed_ * 31 + from) * 1000003 + to * 10007 + i;
    }
    void put(std::vector<int> *image, int place, int from, int to) const
    {
        for (int i = 0; i < count(from, to); ++i) {
            (*image)[guard + static_cast<std::size_t>((place + i) * of_.stride)] =
                value(from, to, i);
        }
    }
    std::vector<int> empty() const
    {
        const auto blocks = static_cast<std::size_t>(ranks_) * (2 * of_.n + 1);
        return std::vector<int>(blocks * static_cast<std::size_t>(of_.stride) + 2 * guard, -1);
    }
    std::vector<int> sent() const
    {
        std::vector<int> image = empty();
        const bool by_rank = kind::alltoall == of_.what || kind::scatter == of_.what;
        for (int i = 0; i < ranks_ && by_rank; ++i) {
            put(&image, places_[static_cast<std::size_t>(i)], me_, i);
        }
        if (!by_rank) {
            put(&image, 0, me_, of_.root);
        }
        return image;
    }
    // The receive buffer before and after the call.
    std::vector<int> received(bool after) const
    {
        std::vector<int> image = empty();
        const auto place = [&](int i) { return places_[static_cast<std::size_t>(i)]; };
        switch (of_.what) {
        case kind::allgather:
        case kind::gather:
            for (int i = 0; i < ranks_; ++i) {
                const bool is_there =
                    of_.in_place && i == me_ && (kind::allgather == of_.what || is_root());
                const bool comes = after && (kind::allgather == of_.what || is_root());
                if (is_there || comes) {
                    put(&image, place(i), i, of_.root);
                }
            }
            break;
        case kind::alltoall:
            for (int i = 0; i < ranks_; ++i) {
                if (after) {
                    put(&image, place(i), i, me_);
                } else if (of_.in_place) {
                    put(&image, place(i), me_, i);
                }
            }
            break;
        case kind::bcast:
            if (after && !is_root()) {
                put(&image, 0, of_.root, me_);
            }
            break;
        case kind::scatter:
            if (after && !(of_.in_place && is_root())) {
                put(&image, 0, of_.root, me_);
            }
            break;
        }
        return image;
    }
    void fill(int seed)
    {
        seed_ = seed;
        const auto write = [&](buffer &to, const std::vector<int> &image) {
            c_.expect(to.write(0, image.data(), image.size() * sizeof(int)), "fill");
        };
        write(*send_, sent());
        write(*receive_, received(false));
    }
    void check()
    {
        const std::vector<int> wanted = received(true);
        std::vector<int> found(wanted.size());
        c_.expect(receive_->read(0, found.data(), found.size() * sizeof(int)), "read");
        const auto wrong = std::mismatch(found.begin(), found.end(), wanted.begin()).first;
        c_.expect_true(found.end() == wrong, describe() + ": int " +
                                                 std::to_string(wrong - found.begin()) + " of " +
                                                 std::to_string(found.size()) + " is wrong");
        ++c_.messages;
    }
    static unsigned char *at(const buffer &of)
    {
        return static_cast<unsigned char *>(of.data()) + guard * sizeof(int);
    }
    template <typename Blocking, typename Started, typename Persistent, typename... Arguments>
    int one_of(Blocking blocking, Started started, Persistent persistent, Arguments... arguments)
    {
        return form::blocking == of_.how ? blocking(arguments..., comm_)
               : form::started == of_.how
                   ? started(arguments..., comm_, &request_)
                   : persistent(arguments..., comm_, MPI_INFO_NULL, &request_);
    }
    int call_mpi(void *send, void *receive)
    {
        const int n = count(0, 0);
        const int mine = count(me_, of_.root);
        const int theirs = count(of_.root, me_);
        const int *sends = send_counts_.data();
        const int *receives = receive_counts_.data();
        const int *places = places_.data();
        const MPI_Datatype t = type_;
        const int root = of_.root;
        const bool roots_in_place = of_.in_place && is_root();
        switch (of_.what) {
        case kind::allgather:
            send = of_.in_place ? MPI_IN_PLACE : send;
            return of_.varied ? one_of(MPI_Allgatherv, MPI_Iallgatherv, MPI_Allgatherv_init, send,
                                       mine, t, receive, receives, places, t)
                              : one_of(MPI_Allgather, MPI_Iallgather, MPI_Allgather_init, send, n,
                                       t, receive, n, t);
        case kind::alltoall:
            send = of_.in_place ? MPI_IN_PLACE : send;
            return of_.varied ? one_of(MPI_Alltoallv, MPI_Ialltoallv, MPI_Alltoallv_init, send,
                                       sends, places, t, receive, receives, places, t)
                              : one_of(MPI_Alltoall, MPI_Ialltoall, MPI_Alltoall_init, send, n, t,
                                       receive, n, t);
        case kind::bcast:
            return one_of(MPI_Bcast, MPI_Ibcast, MPI_Bcast_init, is_root() ? send : receive, n, t,
                          root);
        case kind::gather:
            send = roots_in_place ? MPI_IN_PLACE : send;
            return of_.varied ? one_of(MPI_Gatherv, MPI_Igatherv, MPI_Gatherv_init, send, mine, t,
                                       receive, receives, places, t, root)
                              : one_of(MPI_Gather, MPI_Igather, MPI_Gather_init, send, n, t,
                                       receive, n, t, root);
        case kind::scatter:
            receive = roots_in_place ? MPI_IN_PLACE : receive;
            return of_.varied ? one_of(MPI_Scatterv, MPI_Iscatterv, MPI_Scatterv_init, send, sends,
                                       places, t, receive, theirs, t, root)
                              : one_of(MPI_Scatter, MPI_Iscatter, MPI_Scatter_init, send, n, t,
                                       receive, n, t, root);
        }
        return MPI_ERR_INTERN;
    }

    context &c_;
    MPI_Comm comm_;
    const setup of_;
    int me_ = 0;
    int ranks_ = 0;
    int seed_ = 0;
    MPI_Datatype type_ = MPI_DATATYPE_NULL;
    std::vector<int> places_;
    std::vector<int> send_counts_;
    std::vector<int> receive_counts_;
    std::unique_ptr<buffer> send_;
    std::unique_ptr<buffer> receive_;
    MPI_Request request_ = MPI_REQUEST_NULL;
};

// Many under way at once, started and persistent ones, which are completed in another order.
void together(context &c, MPI_Comm comm, std::vector<setup> *all)
{
    constexpr std::size_t at_once = 12;
    for (std::size_t first = 0; first < all->size(); first += at_once) {
        const std::size_t end = std::min(first + at_once, all->size());
        std::vector<std::unique_ptr<call>> batch;
        at_step("together, from " + std::to_string(first) + " on");
        for (std::size_t i = first; i < end; ++i) {
            (*all)[i].how = 0 == i % 2 ? form::started : form::persistent;
            batch.push_back(std::make_unique<call>(c, comm, (*all)[i]));
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
    const auto try_one = [&](const setup &of) {
        call each(c, comm, of);
        at_step(each.describe());
        const unsigned long long before = exchanged();
        each.begin(++seed);
        each.complete();
        const unsigned long long counted = exchanged() - before;
        if (counted_too && each.is_known()) {
            c.expect_true(counted == (each.stays() ? each.times() : 0),
                          each.describe() + (each.stays() ? ": not" : ": counted") +
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
                    all.push_back({what, varied, 33, root, in_place, mix::none, 2});
                }
            }
        }
    }
    for (const form how : {form::blocking, form::started, form::persistent}) {
        for (setup &each : all) {
            each.how = how;
            try_one(each);
        }
    }
    // Several pieces of the kernel's for each of its warps, and more than kernels take.
    for (const kind what : all_kinds) {
        for (const bool varied : {false, true}) {
            if (kind::bcast == what && varied) {
                continue;
            }
            try_one({what, varied, 300000, 0, false, mix::none, 1});
        }
    }
    // Directly, and more than kernels take.
    try_one({kind::bcast, false, 5000, 0, false, mix::none, 1});
    try_one({kind::bcast, false, 4300001, ranks / 2, false, mix::none, 1});
    if (ranks <= 2) {
        try_one({kind::allgather, false, 2200000, 0, false, mix::none, 1});
        try_one({kind::alltoall, true, 9000000, 0, false, mix::none, 1});
    }
    together(c, comm, &all);
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
