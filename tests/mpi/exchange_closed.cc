// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_closed.cc: a process whose shared memory is overwritten while a message lies in it. Its
// peer takes nothing of it any more, and says so to Open MPI, which ends the job.
#include "tests/mpi/exchange_tools.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <new>
#include <thread>

namespace gpusm::exchange {

namespace {

constexpr std::size_t len = 2000; // in a fragment, which is not acknowledged
constexpr unsigned char content = 0xa5;

// Everything from 64 bytes before the message on, in this process's mapping of its own segment:
// the headers of the fragment and of Open MPI.
bool overwrite_message(int rank)
{
    const std::string own = "." + std::to_string(rank) + ".";
    const std::vector<unsigned char> sent(len, content);
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        const std::size_t name = line.find("/gpusm.");
        unsigned long from = 0;
        unsigned long to = 0;
        if (std::string::npos == name || line.find(own, name) == std::string::npos ||
            line.find("rw-s") == std::string::npos ||
            2 != std::sscanf(line.c_str(), "%lx-%lx", &from, &to)) {
            continue;
        }
        auto *begin = reinterpret_cast<unsigned char *>(from);
        auto *end = reinterpret_cast<unsigned char *>(to);
        auto *found = std::search(begin, end, sent.begin(), sent.end());
        if (found != end && found - begin >= 64) {
            std::memset(found - 64, 0xff, len);
            return true;
        }
    }
    return false;
}

} // namespace

void test_closed(context &c)
{
    constexpr int tag = 7;
    std::vector<unsigned char> buffer(len, content);
    // Seen without a call of MPI, in which rank 0 would take the message before it is overwritten.
    std::atomic<int> *overwritten = nullptr;
    MPI_Win shared = MPI_WIN_NULL;
    MPI_Win_allocate_shared(1 == c.rank ? sizeof(*overwritten) : 0, 1, MPI_INFO_NULL,
                            MPI_COMM_WORLD, &overwritten, &shared);
    if (1 == c.rank) {
        new (overwritten) std::atomic<int>(0);
    } else {
        MPI_Aint size = 0;
        int unit = 0;
        MPI_Win_shared_query(shared, 1, &size, &unit, &overwritten);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (0 == c.rank) {
        while (0 == *overwritten) { // bounded by the program's deadline
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        (void)MPI_Recv(buffer.data(), len, MPI_BYTE, 1, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Send(buffer.data(), len, MPI_BYTE, 0, tag, MPI_COMM_WORLD);
        c.expect_true(overwrite_message(c.rank), "the message lies in this process's segment");
        *overwritten = 1;
        (void)MPI_Recv(buffer.data(), len, MPI_BYTE, 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    c.expect_true(false, "the job has ended");
}

} // namespace gpusm::exchange
