// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// scaling: what a transport costs a process that has many others beside it on the node: shared and
// private memory at several stages of a program, the first message to a peer, and a call into MPI
// that finds nothing to do. One line of "name value" per figure, of rank 0; bench/compare-scaling
// runs it for several transports and numbers of ranks.
//
//   mpirun -n N --mca btl gpusm,self scaling
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <sys/stat.h>

namespace {

constexpr int tag = 1;

double now_us()
{
    return MPI_Wtime() * 1e6;
}

// Memory behind the file that the transport has made for this process. Its name holds the rank:
// gpusm.<user>.<job>.<rank>.<random> or sm_segment.<node>.<user>.<job>.<rank>.
double shared_kib(int rank)
{
    std::FILE *maps = std::fopen("/proc/self/maps", "r");
    char line[512];
    double kib = 0;
    while (maps != nullptr && 0 == kib && std::fgets(line, sizeof(line), maps) != nullptr) {
        char *path = std::strchr(line, '/');
        if (nullptr == path) {
            continue;
        }
        path[std::strcspn(path, "\n")] = 0;
        const char *name = std::strrchr(path, '/') + 1;
        int owner = -1;
        if (0 == std::strncmp(name, "gpusm.", 6)) {
            (void)std::sscanf(name, "gpusm.%*[^.].%*[^.].%d.", &owner);
        } else if (0 == std::strncmp(name, "sm_segment.", 11)) {
            (void)std::sscanf(std::strrchr(name, '.'), ".%d", &owner);
        }
        struct stat about;
        if (owner == rank && 0 == stat(path, &about)) {
            kib = static_cast<double>(about.st_blocks) / 2;
        }
    }
    if (maps != nullptr) {
        (void)std::fclose(maps);
    }
    return kib;
}

// Memory that is this process's own (not shared with another mapping), in KiB.
double private_kib()
{
    std::FILE *rollup = std::fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    double sum = 0;
    while (rollup != nullptr && std::fgets(line, sizeof(line), rollup) != nullptr) {
        unsigned long value = 0;
        if (1 == std::sscanf(line, "Private_Clean: %lu", &value) ||
            1 == std::sscanf(line, "Private_Dirty: %lu", &value)) {
            sum += static_cast<double>(value);
        }
    }
    if (rollup != nullptr) {
        (void)std::fclose(rollup);
    }
    return sum;
}

double mapped_mib()
{
    std::FILE *statm = std::fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    const bool read = statm != nullptr && 1 == std::fscanf(statm, "%lu", &pages);
    if (statm != nullptr) {
        (void)std::fclose(statm);
    }
    return read ? static_cast<double>(pages) * 4096 / (1U << 20) : 0;
}

void tell(int rank, const std::string &name, double value)
{
    if (0 == rank) {
        std::printf("%s %.3f\n", name.c_str(), value);
    }
}

// All ranks; the figures are per rank.
void tell_memory(int rank, int ranks, const std::string &stage)
{
    (void)MPI_Barrier(MPI_COMM_WORLD);
    const double own[2] = {shared_kib(rank), private_kib()};
    double sum[2] = {};
    (void)MPI_Reduce(own, sum, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    tell(rank, stage + ".shared_kib", sum[0] / ranks);
    tell(rank, stage + ".private_kib", sum[1] / ranks);
    tell(rank, stage + ".mapped_mib", mapped_mib());
}

// Rank 0 and each other one: a message of 8 bytes there and one back; the median over the peers of
// the first such exchange, and of a later one.
void tell_connections(int rank, int ranks)
{
    char bytes[8] = {};
    std::vector<double> times[2];
    for (int peer = 1; peer < ranks; ++peer) {
        for (int turn = 0; turn < 20; ++turn) {
            if (0 == rank) {
                const double start = now_us();
                (void)MPI_Send(bytes, 8, MPI_BYTE, peer, tag, MPI_COMM_WORLD);
                (void)MPI_Recv(bytes, 8, MPI_BYTE, peer, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                const double took = now_us() - start;
                if (0 == turn || 19 == turn) {
                    times[0 == turn ? 0 : 1].push_back(took);
                }
            } else if (peer == rank) {
                (void)MPI_Recv(bytes, 8, MPI_BYTE, 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                (void)MPI_Send(bytes, 8, MPI_BYTE, 0, tag, MPI_COMM_WORLD);
            }
        }
    }
    for (const int which : {0, 1}) {
        if (0 == rank && !times[which].empty()) {
            std::sort(times[which].begin(), times[which].end());
            tell(rank, 0 == which ? "first_exchange_us" : "later_exchange_us",
                 times[which][times[which].size() / 2]);
        }
    }
}

// Where there are more ranks than cores, Open MPI gives up the processor in every call that finds
// nothing, which is not what is to be measured.
void do_not_yield()
{
    using function = void (*)(bool);
    void *found = dlsym(RTLD_DEFAULT, "opal_progress_set_yield_when_idle");
    if (found != nullptr) {
        reinterpret_cast<function>(found)(false);
    }
}

// Rank 0 asks for a message that nobody sends, while the others sleep.
void tell_idle_call(int rank, const char *name)
{
    constexpr int calls = 20000;
    constexpr int rounds = 15;
    (void)MPI_Barrier(MPI_COMM_WORLD);
    if (rank != 0) {
        char done;
        MPI_Request request;
        (void)MPI_Irecv(&done, 1, MPI_BYTE, 0, tag, MPI_COMM_WORLD, &request);
        for (int arrived = 0; 0 == arrived;) {
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            (void)MPI_Test(&request, &arrived, MPI_STATUS_IGNORE);
        }
        return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    do_not_yield(); // from here on, in rank 0
    double best = 1e30;
    for (int round = 0; round < rounds; ++round) {
        const double start = now_us();
        for (int i = 0; i < calls; ++i) {
            int found = 0;
            (void)MPI_Iprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
        }
        best = std::min(best, (now_us() - start) / calls);
    }
    tell(rank, name, best * 1000);
    int ranks = 0;
    (void)MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int peer = 1; peer < ranks; ++peer) {
        (void)MPI_Send("", 1, MPI_BYTE, peer, tag, MPI_COMM_WORLD);
    }
}

void all_to_all(int ranks, int bytes, int times)
{
    const std::size_t all = static_cast<std::size_t>(ranks) * static_cast<std::size_t>(bytes);
    std::vector<char> out(all);
    std::vector<char> in(all);
    for (int i = 0; i < times; ++i) {
        (void)MPI_Alltoall(out.data(), bytes, MPI_BYTE, in.data(), bytes, MPI_BYTE, MPI_COMM_WORLD);
    }
}

} // namespace

int main(int argc, char **argv)
{
    const auto start = std::chrono::steady_clock::now();
    (void)MPI_Init(&argc, &argv);
    const std::chrono::duration<double, std::milli> init = std::chrono::steady_clock::now() - start;
    int rank = 0;
    int ranks = 0;
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    tell(rank, "init_ms", init.count());
    tell_memory(rank, ranks, "start");
    tell_connections(rank, ranks);
    all_to_all(ranks, 64, 40);
    tell_memory(rank, ranks, "small");
    all_to_all(ranks, 512 * 1024 / ranks, 2);
    tell_memory(rank, ranks, "large");
    tell_idle_call(rank, "idle_call_ns");
    (void)MPI_Finalize();
    return 0;
}
