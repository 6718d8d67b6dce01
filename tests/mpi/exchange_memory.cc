// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_memory.cc: device memory that the program has freed comes back soon, and many live
// allocations do not make a transport keep more than it may.
#include "tests/mpi/exchange_tools.h"

#include <algorithm>
#include <cstdio>

namespace gpusm::exchange {

namespace {

constexpr int tag = 101;
constexpr std::size_t mebi = std::size_t{1} << 20;

// What a device may hold beyond what is accounted for: blocks that the driver keeps for small
// allocations, and what it allocates for itself as more of it is used. Less than one buffer.
constexpr std::size_t slack_bytes = 32 * mebi;

// The driver gives memory in blocks of this size at least.
constexpr std::size_t block_bytes = 2 * mebi;

std::size_t in_blocks(std::size_t bytes)
{
    return (bytes + block_bytes - 1) / block_bytes * block_bytes;
}

// How many allocations of others this process has mapped, by the performance variable.
class mapped_allocations {
  public:
    mapped_allocations()
    {
        int index = -1;
        int values = 0;
        available_ =
            MPI_SUCCESS == MPI_T_pvar_session_create(&session_) &&
            MPI_SUCCESS == MPI_T_pvar_get_index("btl_gpusm_mapped_allocations",
                                                MPI_T_PVAR_CLASS_LEVEL, &index) &&
            MPI_SUCCESS == MPI_T_pvar_handle_alloc(session_, index, nullptr, &handle_, &values);
    }
    ~mapped_allocations() { MPI_T_pvar_session_free(&session_); } // and its handles
    mapped_allocations(const mapped_allocations &) = delete;
    mapped_allocations &operator=(const mapped_allocations &) = delete;
    bool available() const { return available_; }
    unsigned long long read() const
    {
        unsigned long long value = 0;
        return available_ && MPI_SUCCESS == MPI_T_pvar_read(session_, handle_, &value) ? value : 0;
    }

  private:
    const bench::path_counters tools_; // MPI_T is there as long as these are
    bool available_ = false;
    MPI_T_pvar_session session_ = MPI_T_PVAR_SESSION_NULL;
    MPI_T_pvar_handle handle_ = MPI_T_PVAR_HANDLE_NULL;
};

// What is taken of this rank's device beyond what its program holds, from the making of this on.
class surplus {
  public:
    surplus() : base_(taken_bytes()) {}
    void hold(std::size_t bytes) { held_ += bytes; }
    void drop(std::size_t bytes) { held_ -= bytes; }
    // Looks, and returns what it is now.
    std::size_t look()
    {
        const std::size_t taken = taken_bytes();
        const std::size_t now = taken > base_ + held_ ? taken - base_ - held_ : 0;
        peak_ = std::max(peak_, now);
        return now;
    }
    std::size_t peak() const { return peak_; }

  private:
    std::size_t base_;
    std::size_t held_ = 0;
    std::size_t peak_ = 0;
};

// The parts of a buffer that are sent. On a software device the first and the last piece only, so
// that the memory of the machine need not hold what nobody looks at; the mapping is of the whole.
struct parts {
    std::size_t buffer_bytes;
    std::size_t piece_bytes; // of the first and of the last piece; or all of it in one

    int count() const { return piece_bytes == buffer_bytes ? 1 : 2; }
    std::size_t at(int i) const { return 0 == i ? 0 : buffer_bytes - piece_bytes; }
};

// In units of a mebibyte or of a byte, because counts are int.
void send_or_receive(context &c, bool send, void *at, std::size_t bytes)
{
    MPI_Datatype unit = MPI_BYTE;
    const bool large = bytes > mebi && 0 == bytes % mebi;
    if (large) {
        MPI_Type_contiguous(static_cast<int>(mebi), MPI_BYTE, &unit);
        MPI_Type_commit(&unit);
    }
    const int count = static_cast<int>(large ? bytes / mebi : bytes);
    const int peer = 1 - c.rank;
    if (send) {
        c.mpi(MPI_Send(at, count, unit, peer, tag, MPI_COMM_WORLD), "MPI_Send");
    } else {
        c.mpi(MPI_Recv(at, count, unit, peer, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "MPI_Recv");
    }
    if (large) {
        MPI_Type_free(&unit);
    }
}

// 4 KiB at the start, in the middle and at the end of a piece: what is filled and compared. (All of
// 40 buffers of 4 GiB would take many minutes.)
template <class Each> void each_spot(std::size_t piece_bytes, Each &&each)
{
    constexpr std::size_t spot = 4096;
    for (const std::size_t at : {std::size_t{0}, piece_bytes / 2, piece_bytes - spot}) {
        each(at, spot);
    }
}

std::uint64_t of_spot(std::uint64_t seed, std::size_t at)
{
    return seed + (static_cast<std::uint64_t>(at) << 20);
}

struct plan {
    memory_kind kind;
    int rounds;
    std::size_t first_bytes;
    bool whole; // all of each buffer is sent

    parts of(int round) const
    {
        // A block more each time, so that the place of the last one is too small for the next.
        const std::size_t bytes = first_bytes + static_cast<std::size_t>(round) * block_bytes;
        return {bytes, whole ? bytes : std::size_t{64} << 10};
    }
};

constexpr std::size_t small_bytes = 1024;

// Small allocations of both ranks, each sent once, so that every peer knows them.
std::vector<std::unique_ptr<buffer>> keep_sent(context &c, int allocations)
{
    std::vector<std::unique_ptr<buffer>> kept;
    auto in = c.make(memory_kind::device, small_bytes);
    const int peer = 1 - c.rank;
    at_step("small allocations that stay");
    for (int i = 0; i < allocations; ++i) {
        kept.push_back(c.make(memory_kind::device, small_bytes));
        c.send_receive(kept.back()->data(), small_bytes, in->data(), small_bytes, peer, tag);
    }
    return kept;
}

void send_growing(context &c, const plan &of, std::uint64_t seed, surplus &more)
{
    std::vector<std::unique_ptr<buffer>> kept; // one small allocation per round
    std::size_t blocks_of_kept = 0;
    for (int i = 0; i < of.rounds; ++i) {
        const parts p = of.of(i);
        // Also the buffer before this one may still be held somewhere, but not two of them; and
        // those before as long as they are few.
        const std::size_t mapped =
            std::min(kept_bytes(), kept_allocations * in_blocks(p.buffer_bytes));
        const std::size_t limit = in_blocks(p.buffer_bytes) + mapped + slack_bytes;
        const auto look = [&](const char *when) {
            const std::size_t now = more.look();
            c.expect_true(now <= limit, std::string(when) + " of " +
                                            std::to_string(p.buffer_bytes >> 20) + " MiB, round " +
                                            std::to_string(i) + ": " + std::to_string(now >> 20) +
                                            " MiB are taken beyond what the program holds");
        };
        auto memory = c.make(of.kind, p.buffer_bytes);
        const std::size_t takes = in_blocks(memory->allocated_bytes());
        more.hold(takes);
        look("after an allocation");
        for (int k = 0; k < p.count(); ++k, ++seed) {
            each_spot(p.piece_bytes, [&](std::size_t at, std::size_t len) {
                c.expect(memory->fill(p.at(k) + at, len, of_spot(seed, at)), "fill");
            });
            send_or_receive(c, true, memory->at(p.at(k)), p.piece_bytes);
        }
        look("after a message");
        memory.reset();
        more.drop(takes);
        look("after the end");
        kept.push_back(c.make(memory_kind::device, small_bytes));
        more.drop(blocks_of_kept);
        blocks_of_kept = in_blocks(kept.size() * small_bytes);
        more.hold(blocks_of_kept);
        c.expect(kept.back()->fill(0, small_bytes, seed), "fill");
        send_or_receive(c, true, kept.back()->data(), small_bytes);
        ++seed;
    }
    // The last look is while the small ones are there.
    MPI_Barrier(MPI_COMM_WORLD);
}

void receive_growing(context &c, const plan &of, std::uint64_t seed, buffer &in, surplus *more)
{
    for (int i = 0; i < of.rounds; ++i) {
        const parts p = of.of(i);
        const std::string what = "a buffer of " + std::to_string(p.buffer_bytes >> 20) + " MiB";
        at_step(what + ", round " + std::to_string(i));
        for (int k = 0; k < p.count(); ++k, ++seed) {
            each_spot(p.piece_bytes, [&](std::size_t at, std::size_t len) {
                c.expect(in.poison(at, len), "poison");
            });
            send_or_receive(c, false, in.data(), p.piece_bytes);
            each_spot(p.piece_bytes, [&](std::size_t at, std::size_t len) {
                c.expect(in.compare(at, len, of_spot(seed, at)), what);
            });
            ++c.messages;
        }
        send_or_receive(c, false, in.data(), small_bytes);
        c.expect(in.compare(0, small_bytes, seed), "a small one");
        ++seed;
        ++c.messages;
        if (more != nullptr) {
            c.expect_true(more->look() <= slack_bytes, "nothing is taken of the receiver's device");
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

// What a transport takes for itself with the first long message of a kind, it has then.
void warm_up(context &c, memory_kind kind)
{
    auto out = c.make(kind, 8 * mebi);
    auto in = c.make(memory_kind::device, 8 * mebi);
    for (int i = 0; i < 3; ++i) {
        swap_checked(c, *out, *in, "before anything is counted");
    }
}

bool on_one_device(const context &c)
{
    char mine[24] = "";
    char peers[24] = "";
    std::snprintf(mine, sizeof(mine), "%s", c.gpu->uuid().c_str());
    MPI_Sendrecv(mine, sizeof(mine), MPI_CHAR, 1 - c.rank, tag, peers, sizeof(peers), MPI_CHAR,
                 1 - c.rank, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return std::string(mine) == peers;
}

void live(context &c, const plan &of, int sender, bool one_device)
{
    const std::uint64_t seed = c.draw_seeds(static_cast<std::uint64_t>(3 * of.rounds));
    const auto letter = bench::letter_of(of.kind);
    // A receive buffer is made before anything is counted. On a device that both ranks use, what
    // this one sees is the other's doing.
    auto in =
        sender == c.rank ? nullptr : c.make(memory_kind::device, of.of(of.rounds - 1).piece_bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    surplus more;
    MPI_Barrier(MPI_COMM_WORLD);
    if (sender == c.rank) {
        send_growing(c, of, seed, more);
    } else {
        receive_growing(c, of, seed, *in, one_device ? nullptr : &more);
    }
    if (sender == c.rank || !one_device) {
        std::printf(
            "life: kind %c, rank %d %s %d buffers of %zu to %zu MiB: at most %.1f MiB taken "
            "of its device beyond what it held\n",
            letter, c.rank, sender == c.rank ? "sent" : "received", of.rounds, of.first_bytes >> 20,
            of.of(of.rounds - 1).buffer_bytes >> 20,
            static_cast<double>(more.peak()) / static_cast<double>(mebi));
        std::fflush(stdout);
    }
}

} // namespace

// "A freed allocation is released by every importer soon": a loop that allocates a buffer, each one
// larger than the one before, sends it and frees it, and keeps a small allocation alive, never
// makes a device hold more than one buffer beyond what the program holds and what mappings may
// wait to be closed for. There is nothing in the
// loop that would give anybody time.
void test_life(context &c)
{
    for (const memory_kind kind : c.kinds) {
        plan of{kind, 0 < c.rounds ? c.rounds : 1000, 64 * mebi, false};
        if (0 != c.mebibytes) { // for real devices: all of each buffer
            of.first_bytes = c.mebibytes * mebi;
            of.whole = true;
        }
        if (!c.expect_true(until_expected_way(c, memory_kind::device) &&
                               until_expected_way(c, kind),
                           "messages go the expected way at last")) {
            return;
        }
        warm_up(c, kind);
        const bool one_device = on_one_device(c);
        const auto kept = keep_sent(c, c.live);
        for (int sender = 0; sender < 2; ++sender) {
            live(c, of, sender, one_device);
        }
    }
}

// Ten thousand allocations that stay alive, all of them sent, twice. How many of them the peer had
// mapped at once is for the shell driver to see, and for the performance variables to tell.
void test_many_small(context &c)
{
    constexpr std::size_t len = 1024;
    constexpr int passes = 2;
    const int allocations = 0 < c.rounds ? c.rounds : 10000;
    const std::uint64_t seed = c.draw_seeds(2 * static_cast<std::uint64_t>(allocations));
    const auto seed_of = [&](int sender, int i) {
        return seed + static_cast<std::uint64_t>(sender * allocations + i);
    };
    std::vector<std::unique_ptr<buffer>> all;
    for (int i = 0; i < allocations; ++i) {
        all.push_back(c.make(memory_kind::device, len));
        c.expect(all.back()->fill(0, len, seed_of(c.rank, i)), "fill");
    }
    auto in = c.make(memory_kind::device, len);
    way_watch watch;
    const int peer = 1 - c.rank;
    unsigned long long most_mapped = 0;
    const mapped_allocations mapped;
    for (int pass = 0; pass < passes; ++pass) {
        for (int k = 0; k < allocations; ++k) {
            const int i = 0 == pass ? k : allocations - 1 - k; // the newest first, the second time
            const std::string what = "allocation " + std::to_string(i);
            at_step(what);
            c.expect(in->poison(), "poison");
            if (c.send_receive(all[static_cast<std::size_t>(i)]->data(), len, in->data(), len, peer,
                               tag)) {
                c.expect(in->compare(0, len, seed_of(peer, i)), what);
                ++c.messages;
            }
            most_mapped = std::max(most_mapped, mapped.read());
        }
    }
    watch.swapped(memory_kind::device, len, passes * allocations);
    watch.check(c, "small allocations");
    std::printf(
        "many-small: rank %d: %d allocations alive, each sent %d times, at most %s mapped\n",
        c.rank, allocations, passes,
        mapped.available() ? std::to_string(most_mapped).c_str() : "? (no performance variable)");
}

// Rank 1 frees what it has sent and does not call MPI until rank 0 has given its mapping up.
void test_idle_mapping(context &c)
{
    constexpr int len = 1 << 20;
    const mapped_allocations mapped;
    if (!c.expect_true(mapped.available(), "there is a performance variable")) {
        return;
    }
    auto buffer = c.make(memory_kind::device, len);
    send_or_receive(c, 1 == c.rank, buffer->data(), len);
    const sign unmapped(c);
    if (1 == c.rank) {
        buffer.reset();
        at_step("waiting until the mapping is given up");
        unmapped.wait();
        return;
    }
    at_step("waiting until nothing is mapped");
    int flag = 0;
    do {
        MPI_Iprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    } while (0 != mapped.read());
    unmapped.give();
}

} // namespace gpusm::exchange
