// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// frees.cc: what becomes of device memory that the program has sent and freed, while its owner
// does not call MPI; for two ranks, which must see the memory of the same devices taken.
//
//   frees soon KIND     freed memory is given back when the receiver alone calls MPI
//   frees late KIND     it is not before the owner calls MPI as well
//   frees thread KIND   as soon; it is freed by a thread that MPI knows nothing of
//   frees refused       an attempt to free that the driver refuses changes nothing for long
//   frees busy          other threads allocate and free all the time; data is right
//
// KIND: D, V, C or A, as in bench/common/buffer.h. A third word "strict": in a process that the
// system lets make no code, nor change any.
#include "bench/common/buffer.h"
#include "bench/common/driver_api.h"
#include "bench/common/path_counters.h"

#include <mpi.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

namespace {

using gpusm::bench::buffer;
using gpusm::bench::device;
using gpusm::bench::memory_kind;

constexpr int tag = 77;
constexpr std::size_t mebi = std::size_t{1} << 20;
constexpr std::size_t large_bytes = 64 * mebi;
constexpr int exit_usage = 2;
constexpr int exit_deadline = 3;
constexpr int exit_skip = 77;

// Between the two processes, for what they say without MPI.
struct words {
    std::atomic<int> step{0};                 // writer: whose turn it is to say
    std::atomic<unsigned long long> looks{0}; // writer: rank 0; how often `taken` was written
    std::atomic<unsigned long long> taken{0}; // writer: rank 0; bytes taken of its device
    std::atomic<unsigned long long> taken_without{0}; // before the buffer was there
};
constexpr int freed = 1;
constexpr int go_on = 2;

int rank = 0;
int failures = 0;
std::unique_ptr<device> gpu;

bool expect(bool condition, const std::string &what)
{
    if (!condition) {
        std::fprintf(stderr, "frees: rank %d: %s\n", rank, what.c_str());
        ++failures;
    }
    return condition;
}

void expect_no_error(const std::string &error, const char *what)
{
    (void)expect(error.empty(), std::string(what) + ": " + error);
}

// Memory or the end of the program.
std::unique_ptr<buffer> make(memory_kind kind, std::size_t len_bytes)
{
    std::string why;
    auto made = buffer::make(kind, len_bytes, gpu.get(), &why);
    if (nullptr == made) {
        std::fprintf(stderr, "frees: rank %d: no memory: %s\n", rank, why.c_str());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return made;
}

unsigned long long taken_bytes()
{
    static const auto mem_get_info = reinterpret_cast<CUresult (*)(std::size_t *, std::size_t *)>(
        dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemGetInfo_v2"));
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    (void)mem_get_info(&free_bytes, &total_bytes);
    return total_bytes - free_bytes;
}

// A performance variable of this process; 0 when there is none of that name.
unsigned long long level(const char *name)
{
    int index = 0;
    int count = 0;
    unsigned long long value = 0;
    MPI_T_pvar_session session = MPI_T_PVAR_SESSION_NULL;
    MPI_T_pvar_handle handle = MPI_T_PVAR_HANDLE_NULL;
    if (MPI_SUCCESS == MPI_T_pvar_get_index(name, MPI_T_PVAR_CLASS_LEVEL, &index) &&
        MPI_SUCCESS == MPI_T_pvar_session_create(&session)) {
        if (MPI_SUCCESS == MPI_T_pvar_handle_alloc(session, index, nullptr, &handle, &count)) {
            (void)MPI_T_pvar_read(session, handle, &value);
            (void)MPI_T_pvar_handle_free(session, &handle);
        }
        (void)MPI_T_pvar_session_free(&session);
    }
    return value;
}

// Calls of MPI in which nothing happens but progress.
void call_mpi(int times)
{
    for (int i = 0; i < times; ++i) {
        int there = 0;
        (void)MPI_Iprobe(1 - rank, tag + 1, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
    }
}
// More than the housekeeping of a transport waits for.
constexpr int many_calls = 20000;

void send(const buffer &from, std::size_t len_bytes)
{
    (void)MPI_Send(from.data(), static_cast<int>(len_bytes), MPI_BYTE, 1 - rank, tag,
                   MPI_COMM_WORLD);
}

void receive(const buffer &into, std::size_t len_bytes)
{
    (void)MPI_Recv(into.data(), static_cast<int>(len_bytes), MPI_BYTE, 1 - rank, tag,
                   MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

// Messages from rank 0's buffer to rank 1's until they go by get; false when they never do.
bool until_by_get(const buffer &mine, std::size_t len_bytes)
{
    const gpusm::bench::path_counters counters;
    const auto before = counters.read()["get_messages"];
    for (int i = 0; i < 200; ++i) {
        int by_get = 0;
        if (0 == rank) {
            send(mine, len_bytes);
        } else {
            receive(mine, len_bytes);
            by_get = counters.read()["get_messages"] > before ? 1 : 0;
        }
        (void)MPI_Bcast(&by_get, 1, MPI_INT, 1, MPI_COMM_WORLD);
        if (0 != by_get) {
            return true;
        }
        const timespec pause = {0, 10 * 1000 * 1000};
        (void)nanosleep(&pause, nullptr);
    }
    return false;
}

void wait_for(const std::atomic<int> &word, int value)
{
    while (word.load() != value) {
        (void)sched_yield();
    }
}

// The owner, which calls MPI no more once it has freed, until it is told to.
void own_and_free(words &shared, memory_kind kind, bool by_thread)
{
    shared.taken_without = taken_bytes();
    auto memory = make(kind, large_bytes);
    expect_no_error(memory->fill(0, large_bytes, 1), "fill");
    send(*memory, large_bytes);
    if (by_thread) {
        std::thread([&] {
            expect_no_error(gpu->make_current(), "make_current");
            memory.reset();
        }).join();
    } else {
        memory.reset();
    }
    const auto look = [&] {
        shared.taken = taken_bytes();
        ++shared.looks;
    };
    look();
    for (shared.step = freed; shared.step != go_on; look()) {
        (void)sched_yield();
    }
}

// Bytes taken of the owner's device beyond what was before the buffer.
unsigned long long still_taken(const words &shared)
{
    const auto seen = shared.looks.load();
    while (shared.looks.load() < seen + 2) { // one that began after this call
        (void)sched_yield();
    }
    const auto taken = shared.taken.load();
    const auto without = shared.taken_without.load();
    return taken > without ? taken - without : 0;
}

void one_buffer(words &shared, memory_kind kind, bool soon, bool by_thread)
{
    const auto first = make(kind, 4096);
    if (!expect(until_by_get(*first, 4096), "messages do not go by get")) {
        return;
    }
    const auto in = 1 == rank ? make(memory_kind::device, large_bytes) : nullptr;
    if (1 == rank) {
        expect_no_error(in->poison(), "poison");
    }
    (void)MPI_Barrier(MPI_COMM_WORLD);
    if (0 == rank) {
        own_and_free(shared, kind, by_thread);
    } else {
        receive(*in, large_bytes);
        expect_no_error(in->compare(0, large_bytes, 1), "the message");
        wait_for(shared.step, freed);
        call_mpi(many_calls);
        const auto mapped = level("btl_gpusm_mapped_bytes");
        const auto taken = still_taken(shared);
        std::printf("frees: %llu MiB are mapped and %llu MiB taken while the owner is silent\n",
                    mapped / mebi, taken / mebi);
        if (soon) {
            (void)expect(mapped < large_bytes / 2, "the freed memory is still mapped");
            (void)expect(taken < large_bytes / 2, "the freed memory is still taken");
        } else {
            (void)expect(mapped >= large_bytes, "nobody has said that the memory is freed");
            (void)expect(taken >= large_bytes, "nobody has said that the memory is freed, "
                                               "and it was given back");
        }
        shared.step = go_on;
    }
    // In every case it comes back when the owner calls MPI.
    call_mpi(many_calls);
    (void)MPI_Barrier(MPI_COMM_WORLD);
    call_mpi(many_calls);
    (void)MPI_Barrier(MPI_COMM_WORLD);
    if (0 == rank) {
        const auto taken = taken_bytes();
        (void)expect(taken < shared.taken_without + large_bytes / 2,
                     "the freed memory never came back");
    } else {
        (void)expect(level("btl_gpusm_mapped_bytes") < large_bytes / 2,
                     "the freed memory is mapped to the end");
    }
}

// Half of a chunk cannot be unmapped. The export ends, the memory lives, and is exported again.
void refused()
{
    const auto memory = make(0 == rank ? memory_kind::vmm : memory_kind::device, 4 * mebi);
    constexpr std::size_t len = mebi;
    if (!expect(until_by_get(*memory, len), "messages do not go by get")) {
        return;
    }
    if (0 == rank) {
        const auto unmap = reinterpret_cast<CUresult (*)(CUdeviceptr, std::size_t)>(
            dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemUnmap"));
        const std::size_t half = memory->allocated_bytes() / 2;
        (void)expect(CUDA_SUCCESS != unmap(gpusm::bench::address_of(*memory), half),
                     "half of a chunk could be unmapped");
    }
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
        if (0 == rank) {
            expect_no_error(memory->fill(0, len, seed), "fill");
            send(*memory, len);
        } else {
            expect_no_error(memory->poison(), "poison");
            receive(*memory, len);
            expect_no_error(memory->compare(0, len, seed), "the message after it");
        }
        call_mpi(many_calls / 10);
    }
    (void)expect(until_by_get(*memory, len), "messages do not go by get any more");
}

// Memory of all kinds that is freed by other threads while the first one sends from new memory.
void busy()
{
    constexpr int rounds = 300;
    constexpr std::size_t len = 100000;
    constexpr memory_kind kinds[] = {memory_kind::device, memory_kind::vmm, memory_kind::pool};
    const auto in = make(memory_kind::device, len);
    // Functions are patched with the first message, when nobody should be at their very beginning.
    if (!expect(until_by_get(*in, len), "messages do not go by get")) {
        return;
    }
    std::atomic<bool> over{false};
    std::vector<std::thread> others;
    for (const memory_kind kind : kinds) {
        others.emplace_back([&over, kind] {
            if (!gpu->make_current().empty()) {
                return;
            }
            while (!over) {
                const auto memory = make(kind, 8192);
                (void)sched_yield();
            }
        });
    }
    for (int i = 0; i < rounds; ++i) {
        const auto out = make(kinds[i % 3], len);
        const auto seed = static_cast<std::uint64_t>(2 * i);
        expect_no_error(out->fill(0, len, seed + static_cast<std::uint64_t>(rank)), "fill");
        expect_no_error(in->poison(), "poison");
        (void)MPI_Sendrecv(out->data(), static_cast<int>(len), MPI_BYTE, 1 - rank, tag, in->data(),
                           static_cast<int>(len), MPI_BYTE, 1 - rank, tag, MPI_COMM_WORLD,
                           MPI_STATUS_IGNORE);
        expect_no_error(in->compare(0, len, seed + static_cast<std::uint64_t>(1 - rank)),
                        "the message");
    }
    over = true;
    for (std::thread &each : others) {
        each.join();
    }
}

int run(const std::string &what, const std::string &kind_letter)
{
    const auto kind = gpusm::bench::parse_kind(kind_letter);
    if (what == "busy") {
        busy();
    } else if (what == "refused") {
        refused();
    } else if ((what == "soon" || what == "late" || what == "thread") && kind.has_value()) {
        MPI_Win window = MPI_WIN_NULL;
        void *mine = nullptr;
        void *shared = nullptr;
        MPI_Aint bytes = 0;
        int unit = 1;
        (void)MPI_Win_allocate_shared(0 == rank ? sizeof(words) : 0, 1, MPI_INFO_NULL,
                                      MPI_COMM_WORLD, static_cast<void *>(&mine), &window);
        (void)MPI_Win_shared_query(window, 0, &bytes, &unit, static_cast<void *>(&shared));
        if (0 == rank) {
            (void)new (shared) words;
        }
        (void)MPI_Barrier(MPI_COMM_WORLD);
        one_buffer(*static_cast<words *>(shared), *kind, what != "late", what == "thread");
        (void)MPI_Win_free(&window);
    } else {
        std::fprintf(stderr, "frees: not like that; frees.cc says how\n");
        return exit_usage;
    }
    return 0;
}

void out_of_time(int)
{
    _exit(exit_deadline);
}

} // namespace

int main(int argc, char **argv)
{
    const char *seconds = std::getenv("GPUSM_TEST_DEADLINE");
    (void)std::signal(SIGALRM, out_of_time);
    (void)alarm(nullptr == seconds ? 60 : static_cast<unsigned>(std::atoi(seconds)));
    constexpr int set_mdwe = 65; // PR_SET_MDWE of Linux 6.3, which older headers do not have
    if (argc >= 4 && 0 == std::strcmp("strict", argv[3]) && 0 != prctl(set_mdwe, 1UL, 0, 0, 0)) {
        std::printf("frees: skipped: this system cannot be as strict as that\n");
        return exit_skip;
    }
    int ranks = 0;
    int provided = 0;
    (void)MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    (void)gpusm::bench::init_tools();
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    std::string why;
    gpu = device::open(gpusm::bench::local_rank_from_environment(), &why);
    int status = 2 == ranks && argc >= 2 ? 0 : exit_usage;
    int without = nullptr == gpu ? 1 : 0;
    (void)MPI_Allreduce(MPI_IN_PLACE, &without, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (0 == status && 0 != without) {
        std::printf("frees: skipped: %s\n", why.c_str());
        status = exit_skip;
    } else if (0 == status) {
        status = run(argv[1], argc >= 3 ? argv[2] : "");
    }
    (void)MPI_Allreduce(MPI_IN_PLACE, &failures, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    (void)MPI_T_finalize();
    (void)MPI_Finalize();
    return 0 == status && failures > 0 ? 1 : status;
}
