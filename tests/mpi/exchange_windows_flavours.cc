// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_windows_flavours.cc: windows made in every way that MPI has, on host memory, device
// memory or both, of all sizes and units, on communicators of all kinds. Several of them at once,
// many one after the other and dynamic ones are in exchange_windows_many.cc.
#include "tests/mpi/windows_round.h"

#include <array>

namespace gpusm::exchange {

namespace {

using namespace windows;

// --- MPI_Win_create ------------------------------------------------------------------------------

struct variety {
    const char *name;
    bool mixed_kinds;  // ranks have memory of different kinds
    bool empty_ones;   // every other rank exposes nothing
    bool mixed_units;  // and sizes
    std::size_t count; // of the numbers of a rank; a quarter of them is a multiple of all units
};
constexpr variety varieties[] = {
    {"all alike", false, false, false, 1000},
    {"kinds by rank", true, false, false, 4000},
    {"empty on some", false, true, false, 100},
    {"empty on others, kinds by rank", true, true, false, 4},
    {"units by rank", false, false, true, 1200},
    {"all by rank", true, true, true, 40008},
};

void created(context &c, MPI_Comm comm, const std::string &on, const variety &of, std::size_t turn)
{
    int me = 0;
    MPI_Comm_rank(comm, &me);
    const auto step = static_cast<std::size_t>(me);
    const memory_kind kind = c.kind_at(turn + (of.mixed_kinds ? step : 0));
    constexpr std::array<int, 4> units = {1, 8, 24, 4};
    region mine;
    mine.unit = of.mixed_units ? units[step % units.size()] : 1;
    mine.count =
        of.empty_ones && 0 == (step + turn) % 2 ? 0 : of.count + (of.mixed_units ? 12 * step : 0);
    const std::size_t first = 0 == mine.count ? 0 : 48; // of the window; a multiple of all units
    mine.at = static_cast<MPI_Aint>(first) / mine.unit;
    const std::size_t len = first + mine.count * sizeof(std::int64_t);
    auto memory = c.make(kind, guard_bytes + len + guard_bytes);
    c.expect(memory->poison(), "poison");
    const std::string what = "a window on " + on + " of " + bench::letter_of(kind) + ", " + of.name;
    window_of window(c);
    // Open MPI takes a null pointer for device memory, and ranks then disagree about the component.
    const bool has_null = 0 == mine.count && 0 == turn / 2 % 2 && !is_stock(c.kinds.front());
    if (!window.create(comm, has_null ? nullptr : memory->at(guard_bytes), len, mine.unit, what)) {
        return;
    }
    round_of round(c, comm, *window, mine, in_buffer(c, *memory, guard_bytes + first), what);
    round.in_fences(c.kind_at(turn + 1 + step), c.draw_seeds(1));
    round.in_locks(c.kind_at(turn + 2 + step), c.draw_seeds(1));
    window.free();
    c.expect(memory->compare_poison(0, guard_bytes + first), what + ": before the numbers");
    c.expect(memory->compare_poison(guard_bytes + len, guard_bytes), what + ": behind the window");
}

void created_on_all(context &c, MPI_Comm comm, const std::string &on)
{
    for (const variety &of : varieties) {
        for (std::size_t turn = 0; turn < c.kinds.size(); ++turn) {
            created(c, comm, on, of, turn);
        }
    }
}

// --- MPI_Win_allocate and its kin ----------------------------------------------------------------

void allocated(context &c)
{
    for (const std::size_t count : {4, 0, 10000}) {
        const std::string what = "MPI_Win_allocate of " + std::to_string(count);
        region mine;
        mine.unit = 8;
        mine.count = 0 == count ? 4 * static_cast<std::size_t>(c.rank % 2) : count;
        const auto len = static_cast<MPI_Aint>(mine.count * 8);
        void *base = nullptr;
        window_of window(c);
        if (!window.open(MPI_COMM_WORLD, what, [&](MPI_Win *made) {
                return MPI_Win_allocate(len, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &base, made);
            })) {
            return;
        }
        expect_attribute(c, *window, MPI_WIN_SIZE, len, "MPI_WIN_SIZE");
        expect_attribute(c, *window, MPI_WIN_DISP_UNIT, 8, "MPI_WIN_DISP_UNIT");
        expect_attribute(c, *window, MPI_WIN_CREATE_FLAVOR, MPI_WIN_FLAVOR_ALLOCATE,
                         "MPI_WIN_CREATE_FLAVOR");
        round_of round(c, MPI_COMM_WORLD, *window, mine, at_address(base), what);
        for (const memory_kind origin : c.kinds) {
            round.in_fences(origin, c.draw_seeds(1));
            round.in_locks(origin, c.draw_seeds(1));
        }
    }
}

// Which ranks give the hint that their parts need not be contiguous.
enum class apart { none, but_the_first, all };

// What one rank stores with its processor, others load with theirs and get.
void allocated_shared(context &c, apart hint)
{
    constexpr const char *names[] = {"", ", not contiguous for all but the first",
                                     ", not contiguous"};
    const std::string what =
        std::string("MPI_Win_allocate_shared") + names[static_cast<std::size_t>(hint)];
    const bool is_given = apart::all == hint || (apart::but_the_first == hint && 0 != c.rank);
    MPI_Info info = MPI_INFO_NULL;
    MPI_Info_create(&info);
    MPI_Info_set(info, "alloc_shared_noncontig", is_given ? "true" : "false");
    region mine;
    mine.unit = 8;
    // The second of several ranks has nothing.
    mine.count = 1 == c.rank ? 0 : 400 + 4 * static_cast<std::size_t>(c.rank);
    const auto len = static_cast<MPI_Aint>(mine.count * 8);
    void *base = nullptr;
    window_of window(c);
    const bool is_open = window.open(MPI_COMM_WORLD, what, [&](MPI_Win *made) {
        return MPI_Win_allocate_shared(len, 8, info, MPI_COMM_WORLD, &base, made);
    });
    MPI_Info_free(&info);
    if (!is_open) {
        return;
    }
    const auto query = [&](int rank, MPI_Aint *size) {
        int unit = 0;
        void *at = nullptr;
        c.mpi(MPI_Win_shared_query(*window, rank, size, &unit, &at), what);
        c.expect_true(8 == unit, what + ": the unit");
        return static_cast<std::int64_t *>(at);
    };
    MPI_Aint size = 0;
    c.expect_true(query(c.rank, &size) == base || 0 == len, what + ": its own address");
    // osc/sm of Open MPI says the whole pages.
    const MPI_Aint most = is_given ? len + (MPI_Aint{1} << 16) : len;
    c.expect_true(size >= len && size <= most, what + ": its own size");
    c.expect_true(query(MPI_PROC_NULL, &size) == query(0, &size), what + ": the first address");
    c.mpi(MPI_Win_lock_all(MPI_MODE_NOCHECK, *window), what);
    for (int turn = 0; turn < c.ranks; ++turn) { // stores into another rank's part
        const int into = (c.rank + turn) % c.ranks;
        std::int64_t *theirs = query(into, &size);
        const auto count = static_cast<std::size_t>(size) / 8;
        for (std::size_t i = 0; i < count; ++i) {
            theirs[i] = static_cast<std::int64_t>(mixed(
                static_cast<std::uint64_t>(c.rank * 100 + turn + static_cast<int>(i) * 10007)));
        }
        c.mpi(MPI_Win_sync(*window), what);
        MPI_Barrier(MPI_COMM_WORLD);
        c.mpi(MPI_Win_sync(*window), what);
        const int by = (c.rank + c.ranks - turn) % c.ranks;
        bool is_right = true;
        for (std::size_t i = 0; i < mine.count; ++i) {
            is_right = is_right && static_cast<std::int64_t *>(base)[i] ==
                                       static_cast<std::int64_t>(mixed(static_cast<std::uint64_t>(
                                           by * 100 + turn + static_cast<int>(i) * 10007)));
        }
        c.expect_true(is_right, what + ": what another rank has stored");
        ++c.messages;
        MPI_Barrier(MPI_COMM_WORLD);
    }
    c.mpi(MPI_Win_unlock_all(*window), what);
    round_of round(c, MPI_COMM_WORLD, *window, mine, at_address(base), what);
    for (const memory_kind origin : c.kinds) {
        round.in_fences(origin, c.draw_seeds(1));
        round.in_locks(origin, c.draw_seeds(1));
    }
}

} // namespace

void test_windows_flavours(context &c)
{
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    created_on_all(c, MPI_COMM_WORLD, "all ranks");
    created_on_all(c, MPI_COMM_SELF, "itself alone");
    MPI_Comm reversed = MPI_COMM_NULL;
    MPI_Comm part = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, 0, c.ranks - c.rank, &reversed);
    MPI_Comm_split(MPI_COMM_WORLD, c.rank % 2, c.ranks - c.rank, &part);
    created_on_all(c, reversed, "all ranks in reverse");
    created_on_all(c, part, "every other rank");
    MPI_Comm_free(&reversed);
    MPI_Comm_free(&part);
    allocated(c);
    allocated_shared(c, apart::none);
    allocated_shared(c, apart::all);
    if (!is_stock(memory_kind::host)) {
        allocated_shared(c, apart::but_the_first);
    }
    dynamic_windows(c);
    several_windows(c);
    for (const memory_kind kind : c.kinds) {
        many_puts_in_order(c, kind);
    }
    many_windows(c);
}

} // namespace gpusm::exchange
