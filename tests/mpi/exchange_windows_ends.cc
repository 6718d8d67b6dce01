// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_windows_ends.cc: requests of operations are completed behind the end of the last window,
// and operations that the memory's owner cannot carry out end, too.
#include "tests/mpi/windows.h"

namespace gpusm::exchange {

namespace {

using namespace windows;

constexpr std::size_t numbers = 5000;
constexpr std::size_t memory_bytes = numbers * 8;

// No other window is there, so nothing but its end makes progress of its requests.
void requests_of_freed(context &c, memory_kind kind, memory_kind origin)
{
    const std::string what = std::string("requests behind the end of a window of ") +
                             bench::letter_of(kind) + " from " + bench::letter_of(origin);
    const int target = (c.rank + 1) % c.ranks;
    const int source = (c.rank + c.ranks - 1) % c.ranks;
    const std::uint64_t seed = c.draw_seeds(numbers * static_cast<std::size_t>(c.ranks));
    const auto sent_by = [&](int rank) { return seed + numbers * static_cast<std::size_t>(rank); };
    watched owned(c, kind, 2 * memory_bytes);
    watched from(c, origin, memory_bytes);
    watched into(c, origin, memory_bytes);
    owned.want(memory_bytes, long_element(), numbers, sent_by(c.rank));
    owned.write(2 * memory_bytes);
    from.want(0, long_element(), numbers, sent_by(c.rank));
    from.write(memory_bytes);
    into.write(memory_bytes);
    MPI_Request both[] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    {
        window_of window(c);
        if (!window.create(MPI_COMM_WORLD, owned.at(), 2 * memory_bytes, 1, what)) {
            return;
        }
        const auto n = static_cast<int>(numbers);
        const MPI_Datatype type = MPI_INT64_T;
        c.mpi(MPI_Win_lock(MPI_LOCK_SHARED, target, 0, *window), what);
        c.mpi(MPI_Rput(from.at(), n, type, target, 0, n, type, *window, &both[0]), what);
        c.mpi(MPI_Rget(into.at(), n, type, target, memory_bytes, n, type, *window, &both[1]), what);
        c.mpi(MPI_Win_unlock(target, *window), what);
    }
    c.mpi(MPI_Waitall(2, both, MPI_STATUSES_IGNORE), what + ": MPI_Waitall");
    owned.want(0, long_element(), numbers, sent_by(source));
    owned.check(2 * memory_bytes, what + ": the window");
    into.want(0, long_element(), numbers, sent_by(target));
    into.check(memory_bytes, what + ": what was got");
}

// With refuse_message.so: the first put and the first get fail at the owner.
void refused_at_owner(context &c, memory_kind kind)
{
    const std::string what = "operations that fail at the owner";
    constexpr auto n = static_cast<int>(memory_bytes);
    const std::uint64_t seed = c.draw_seeds(numbers);
    watched owned(c, kind, memory_bytes);
    watched mine(c, memory_kind::host, memory_bytes);
    owned.write(memory_bytes);
    window_of window(c);
    if (!window.create(MPI_COMM_WORLD, owned.at(), memory_bytes, 1, what)) {
        return;
    }
    mine.want(0, long_element(), numbers, seed);
    mine.write(memory_bytes);
    if (0 == c.rank) {
        const auto put = [&] {
            return MPI_Put(mine.at(), n, MPI_BYTE, 1, 0, n, MPI_BYTE, *window);
        };
        const auto get = [&] {
            return MPI_Get(mine.at(), n, MPI_BYTE, 1, 0, n, MPI_BYTE, *window);
        };
        c.mpi(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1, 0, *window), what);
        at_step(what + ": put");
        c.expect_true(MPI_SUCCESS != put(), what + ": the put is an error");
        at_step(what + ": get");
        c.expect_true(MPI_SUCCESS != get(), what + ": the get is an error");
        mine.check(memory_bytes, what + ": the origin's buffer");
        at_step(what + ": put once more");
        c.mpi(put(), what + ": put once more");
        mine.spoil(memory_bytes);
        c.mpi(get(), what + ": get once more");
        mine.want(0, long_element(), numbers, seed);
        mine.check(memory_bytes, what + ": what was put and got again");
        c.mpi(MPI_Win_unlock(1, *window), what);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

} // namespace

void test_windows_ends(context &c)
{
    if (const char *loaded = std::getenv("LD_PRELOAD");
        nullptr != loaded && nullptr != std::strstr(loaded, "refuse_message")) {
        refused_at_owner(c, c.kinds.front());
        return;
    }
    for (std::size_t i = 0; i < c.kinds.size(); ++i) {
        requests_of_freed(c, c.kinds[i], c.kinds[i]);
        requests_of_freed(c, c.kinds[i], c.kind_at(i + 1));
    }
}

} // namespace gpusm::exchange
