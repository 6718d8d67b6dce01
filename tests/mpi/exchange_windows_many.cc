// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_windows_many.cc: dynamic windows, to which memory of all kinds is attached and from
// which it is detached, several windows whose accesses are under way at once, and many windows one
// after the other, which leave nothing behind.
#include "tests/mpi/exchange_tools.h"
#include "tests/mpi/windows_round.h"

#include <filesystem>

namespace gpusm::exchange::windows {

void expect_attribute(context &c, MPI_Win window, int key, long long wanted, const char *name)
{
    void *value = nullptr;
    int is_there = 0;
    c.mpi(MPI_Win_get_attr(window, key, &value, &is_there), name);
    long long found = -1;
    if (0 != is_there && MPI_WIN_SIZE == key) {
        found = *static_cast<MPI_Aint *>(value);
    } else if (0 != is_there) {
        found = *static_cast<int *>(value);
    }
    c.expect(found == wanted
                 ? ""
                 : "it is " + std::to_string(found) + " instead of " + std::to_string(wanted),
             name);
}

// --- MPI_Win_create_dynamic ----------------------------------------------------------------------

// Regions of all kinds, attached at the same time; then each is detached, freed, and another one
// attached, which often has the same address.
void dynamic_windows(context &c)
{
    constexpr int times = 3;
    constexpr std::size_t count = 2000;
    const std::string what = "MPI_Win_create_dynamic";
    window_of window(c);
    if (!window.open(MPI_COMM_WORLD, what, [](MPI_Win *made) {
            return MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, made);
        })) {
        return;
    }
    expect_attribute(c, *window, MPI_WIN_CREATE_FLAVOR, MPI_WIN_FLAVOR_DYNAMIC,
                     "MPI_WIN_CREATE_FLAVOR");
    std::vector<std::unique_ptr<buffer>> attached(2 * c.kinds.size());
    for (int time = 0; time < times; ++time) {
        for (std::size_t i = 0; i < attached.size(); ++i) {
            const std::size_t len = (count + 4 * i) * 8;
            const memory_kind kind = c.kind_at(i + static_cast<std::size_t>(c.rank) * (i % 2));
            if (nullptr != attached[i]) {
                c.mpi(MPI_Win_detach(*window, attached[i]->at(guard_bytes)), what + ": detach");
                attached[i].reset();
            }
            attached[i] = c.make(kind, len + 2 * guard_bytes);
            c.expect(attached[i]->poison(), "poison");
            c.mpi(MPI_Win_attach(*window, attached[i]->at(guard_bytes), static_cast<MPI_Aint>(len)),
                  what + ": attach " + bench::letter_of(kind));
        }
        MPI_Barrier(MPI_COMM_WORLD); // all is attached
        for (std::size_t i = 0; i < attached.size(); ++i) {
            region mine;
            mine.count = count + 4 * i;
            MPI_Get_address(attached[i]->at(guard_bytes), &mine.at);
            const std::string which = what + ", " + bench::letter_of(attached[i]->kind()) +
                                      ", time " + std::to_string(time);
            round_of round(c, MPI_COMM_WORLD, *window, mine,
                           in_buffer(c, *attached[i], guard_bytes), which);
            round.in_fences(c.kind_at(i + 1), c.draw_seeds(1));
            round.in_locks(c.kind_at(i + 2), c.draw_seeds(1));
            c.expect(attached[i]->compare_poison(0, guard_bytes), which + ": before it");
            c.expect(attached[i]->compare_poison(guard_bytes + mine.count * 8, guard_bytes),
                     which + ": behind it");
        }
        MPI_Barrier(MPI_COMM_WORLD); // nobody needs it any more
    }
    for (const auto &each : attached) {
        c.mpi(MPI_Win_detach(*window, each->at(guard_bytes)), what + ": detach");
    }
}

// --- several, and many ---------------------------------------------------------------------------

// Accesses of all windows are under way at once, two of them of the same memory.
void several_windows(context &c)
{
    constexpr std::size_t count = 600;
    const std::size_t windows_there = c.kinds.size() + 2;
    std::vector<std::unique_ptr<buffer>> memories;
    std::vector<std::unique_ptr<window_of>> open;
    std::vector<std::unique_ptr<round_of>> rounds;
    region mine;
    mine.count = count;
    for (std::size_t i = 0; i < windows_there; ++i) {
        const std::string what = "window " + std::to_string(i) + " of several";
        const bool of_same = i == windows_there - 1; // as the one before, behind it
        if (!of_same) {
            memories.push_back(c.make(c.kind_at(i), 2 * count * 8));
        }
        const std::size_t at = of_same ? count * 8 : 0;
        open.push_back(std::make_unique<window_of>(c));
        if (!open.back()->create(MPI_COMM_WORLD, memories.back()->at(at), count * 8, 1, what)) {
            return;
        }
        rounds.push_back(std::make_unique<round_of>(c, MPI_COMM_WORLD, **open.back(), mine,
                                                    in_buffer(c, *memories.back(), at), what));
    }
    for (int turn = 0; turn < 3; ++turn) {
        for (std::size_t i = 0; i < rounds.size(); ++i) {
            rounds[i]->begin(c.kind_at(i + 1), c.draw_seeds(1));
            in_own_epoch(c, **open[i], c.rank, [&] { rounds[i]->write_own(); });
        }
        MPI_Barrier(MPI_COMM_WORLD);
        for (std::size_t i = 0; i < rounds.size(); ++i) {
            c.mpi(MPI_Win_lock_all(0, **open[i]), "MPI_Win_lock_all of several");
            rounds[i]->start();
        }
        for (std::size_t i = rounds.size(); i-- > 0;) {
            c.mpi(MPI_Win_unlock_all(**open[i]), "MPI_Win_unlock_all of several");
        }
        MPI_Barrier(MPI_COMM_WORLD);
        for (std::size_t i = 0; i < rounds.size(); ++i) {
            in_own_epoch(c, **open[i], c.rank, [&] { rounds[i]->check(); });
            rounds[i]->finish();
        }
    }
}

namespace {

long open_descriptors()
{
    long count = 0;
    for ([[maybe_unused]] const auto &each : std::filesystem::directory_iterator("/proc/self/fd")) {
        ++count;
    }
    return count;
}

} // namespace

// More puts than this process lists, of which the last, long one is still on its way when the
// others have ended and another put goes to its place.
void many_puts_in_order(context &c, memory_kind kind)
{
    constexpr std::size_t short_puts = 300;
    constexpr std::size_t long_bytes = 16u << 20;
    constexpr std::size_t all_bytes = 4096 + long_bytes;
    const std::string what = std::string("many puts in order, of ") + bench::letter_of(kind);
    at_step(what);
    auto from = c.make(kind, all_bytes);
    auto later = c.make(kind, long_bytes);
    auto shown = c.make(kind, all_bytes);
    const std::uint64_t seed = c.draw_seeds(2);
    c.expect(from->fill(0, all_bytes, seed), "fill");
    c.expect(later->fill(0, long_bytes, seed + 1), "fill");
    const int target = (c.rank + 1) % c.ranks;
    MPI_Win window = MPI_WIN_NULL;
    c.mpi(MPI_Win_create(shown->data(), all_bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window),
          what);
    c.mpi(MPI_Win_fence(0, window), what);
    const auto put = [&](const void *data, std::size_t to, std::size_t len) {
        c.mpi(MPI_Put(data, static_cast<int>(len), MPI_BYTE, target, static_cast<MPI_Aint>(to),
                      static_cast<int>(len), MPI_BYTE, window),
              what);
    };
    for (std::size_t i = 0; i < short_puts; ++i) {
        put(from->at(8 * i), 8 * i, 8);
    }
    put(from->at(4096), 4096, long_bytes);
    put(later->data(), 4096, long_bytes);
    c.mpi(MPI_Win_fence(0, window), what);
    c.expect(shown->compare(0, 8 * short_puts, seed), what);
    c.expect(shown->compare(4096, long_bytes, seed + 1), what);
    ++c.messages;
    MPI_Win_free(&window);
}

// Windows and their memory come and go; neither descriptors nor device memory stay behind.
void many_windows(context &c)
{
    constexpr std::size_t len = std::size_t{64} << 20;
    constexpr std::size_t slack_bytes = std::size_t{32} << 20; // what the driver takes for itself
    constexpr std::size_t count = 100;
    // Mappings of freed memory that a process may keep have one each, on the software driver.
    constexpr long most_descriptors = 8 + static_cast<long>(kept_allocations);
    const int times = 0 < c.rounds ? c.rounds : 60;
    for (const memory_kind kind : c.kinds) {
        std::size_t taken_before = 0;
        long open_before = 0;
        std::size_t most = 0;
        const bool is_gpu = bench::is_gpu(kind);
        for (int time = 0; time < times; ++time) {
            const std::string what = std::string("window number ") + std::to_string(time) + " of " +
                                     bench::letter_of(kind);
            MPI_Barrier(MPI_COMM_WORLD);
            if (4 == time) { // what is kept for the first ones is kept once
                open_before = open_descriptors();
                taken_before = is_gpu ? taken_bytes() : 0;
            }
            MPI_Barrier(MPI_COMM_WORLD);
            // Long ones of device memory, whose pages nobody touches; of managed memory short ones.
            const bool is_long = is_gpu && memory_kind::managed != kind;
            auto memory = c.make(kind, is_long ? len : count * 8);
            region mine;
            mine.count = count;
            {
                window_of window(c);
                if (!window.create(MPI_COMM_WORLD, memory->data(), memory->len_bytes(), 1, what)) {
                    break;
                }
                round_of round(c, MPI_COMM_WORLD, *window, mine, in_buffer(c, *memory, 0), what);
                round.in_fences(kind, c.draw_seeds(1));
            }
            memory.reset();
            MPI_Barrier(MPI_COMM_WORLD);
            if (is_gpu && 4 <= time) {
                const std::size_t taken = taken_bytes();
                most = std::max(most, taken > taken_before ? taken - taken_before : 0);
            }
        }
        if (4 < times) {
            const long more = open_descriptors() - open_before;
            c.expect(more <= most_descriptors ? "" : std::to_string(more) + " are",
                     std::string("no descriptors stay open for windows of ") +
                         bench::letter_of(kind));
            const std::size_t limit =
                kept_allocations * len * static_cast<std::size_t>(c.ranks) + slack_bytes;
            c.expect(most <= limit ? "" : std::to_string(most >> 20) + " MiB do",
                     std::string("no memory stays behind for windows of ") +
                         bench::letter_of(kind));
        }
    }
}

} // namespace gpusm::exchange::windows
