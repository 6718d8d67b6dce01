// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_foreign.cc: the program opens and closes CUDA IPC handles itself, of the same memory
// that a transport maps.
#include "tests/mpi/exchange_tools.h"

#include <cstdio>
#include <cstdlib>

namespace gpusm::exchange {

namespace {

constexpr int tag = 141;
constexpr std::size_t len = 3u << 20;

// Rank 0 owns memory, and rank 1 opens it.
class foreign_handle {
  public:
    foreign_handle(context &c, const buffer *owned) : c_(c), driver_(c.gpu->driver())
    {
        if (0 == c.rank) {
            good(driver_.ipc_get_mem_handle(&handle_, bench::address_of(*owned)),
                 "cuIpcGetMemHandle");
            (void)MPI_Send(&handle_, sizeof(handle_), MPI_BYTE, 1, tag, MPI_COMM_WORLD);
        } else {
            (void)MPI_Recv(&handle_, sizeof(handle_), MPI_BYTE, 0, tag, MPI_COMM_WORLD,
                           MPI_STATUS_IGNORE);
        }
    }
    // Rank 1 only.
    CUdeviceptr open()
    {
        CUdeviceptr at = 0;
        good(driver_.ipc_open_mem_handle(&at, handle_, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
             "cuIpcOpenMemHandle by the program");
        return at;
    }
    void close(CUdeviceptr at)
    {
        good(driver_.ipc_close_mem_handle(at), "cuIpcCloseMemHandle by the program");
    }
    // What the program finds there is the content of `seed`.
    void look(CUdeviceptr at, std::uint64_t seed, const char *when)
    {
        std::vector<unsigned char> found(len);
        std::vector<unsigned char> expected(len);
        bench::write_pattern(expected.data(), len, seed, 0);
        good(driver_.memcpy_dtoh(found.data(), at, len), "cuMemcpyDtoH of the program's mapping");
        (void)c_.expect_true(found == expected,
                             std::string("the program's own mapping is right ") + when);
    }

  private:
    void good(CUresult result, const char *what)
    {
        (void)c_.expect(CUDA_SUCCESS == result ? "" : bench::driver_error(driver_, what, result),
                        "foreign handle");
    }

    context &c_;
    const bench::driver_api &driver_;
    CUipcMemHandle handle_ = {};
};

// New content in rank 0's memory, sent to rank 1 and compared there. Returns its seed.
std::uint64_t send_over(context &c, buffer &memory, const char *when)
{
    const std::string what = std::string("a message ") + when;
    const std::uint64_t seed = c.next_seed++;
    at_step(what);
    (void)MPI_Barrier(MPI_COMM_WORLD); // the peer may still look at what was there before
    if (0 == c.rank) {
        (void)c.expect(memory.fill(0, len, seed), "fill");
        (void)c.mpi(MPI_Send(memory.data(), len, MPI_BYTE, 1, tag, MPI_COMM_WORLD), "MPI_Send");
    } else {
        (void)c.expect(memory.poison(), "poison");
        (void)c.mpi(
            MPI_Recv(memory.data(), len, MPI_BYTE, 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
            "MPI_Recv");
        (void)c.expect(memory.compare(0, len, seed), what);
        ++c.messages;
    }
    (void)MPI_Barrier(MPI_COMM_WORLD);
    return seed;
}

} // namespace

// "Handles that the application opened or closed itself are left alone": before gpusm maps that
// memory, while it does, and after it has closed its own mapping. With a cache of one entry the
// messages from another allocation make it close.
void test_foreign(context &c)
{
    if (1 < c.rank || !c.expect_true(until_by_get(c), "messages go by get at last")) {
        return;
    }
    auto memory = c.make(memory_kind::device, len);
    auto another = c.make(memory_kind::device, len);
    foreign_handle handle(c, memory.get());
    const bool opener = 1 == c.rank;
    way_watch watch;
    const auto send = [&](buffer &from, const char *when) {
        if (opener) {
            watch.received(memory_kind::device, len);
        }
        return send_over(c, from, when);
    };
    CUdeviceptr at = opener ? handle.open() : 0;
    std::uint64_t seed = send(*memory, "after the program opened the handle");
    if (opener) {
        handle.look(at, seed, "after a message");
        handle.close(at);
    }
    (void)send(*memory, "after the program closed its own");
    at = opener ? handle.open() : 0;
    seed = send(*memory, "after the program opened it again");
    (void)send(*another, "from another allocation"); // makes a cache of one entry close the first
    if (opener) {
        handle.look(at, seed, "after gpusm may have closed its own");
    }
    const CUdeviceptr second = opener ? handle.open() : 0;
    seed = send(*memory, "while the program has opened it twice");
    if (opener) {
        handle.close(second);
        handle.look(at, seed, "after one of two was closed");
    }
    (void)MPI_Barrier(MPI_COMM_WORLD);
    watch.check(c, "messages beside the program's own mappings");

    // What the program has opened it may also hand to MPI.
    at_step("a message from and to a mapping of the program's own");
    const std::uint64_t seeds[2] = {c.next_seed, c.next_seed + 1};
    c.next_seed += 2;
    (void)c.expect(opener ? "" : memory->fill(0, len, seeds[0]), "fill");
    (void)MPI_Barrier(MPI_COMM_WORLD);
    if (opener) {
        auto *mapped = reinterpret_cast<void *>(static_cast<std::uintptr_t>(at));
        (void)c.mpi(MPI_Send(mapped, len, MPI_BYTE, 0, tag, MPI_COMM_WORLD), "MPI_Send");
        (void)c.mpi(MPI_Recv(mapped, len, MPI_BYTE, 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                    "MPI_Recv");
        ++c.messages;
        handle.look(at, seeds[1], "after a message was received into it");
        handle.close(at);
        (void)MPI_Barrier(MPI_COMM_WORLD);
    } else {
        (void)c.expect(another->poison(), "poison");
        (void)c.mpi(
            MPI_Recv(another->data(), len, MPI_BYTE, 1, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
            "MPI_Recv");
        (void)c.expect(another->compare(0, len, seeds[0]), "a message from the opened mapping");
        ++c.messages;
        (void)c.expect(another->fill(0, len, seeds[1]), "fill");
        (void)c.mpi(MPI_Send(another->data(), len, MPI_BYTE, 1, tag, MPI_COMM_WORLD), "MPI_Send");
        (void)MPI_Barrier(MPI_COMM_WORLD);
        (void)c.expect(memory->compare(0, len, seeds[1]), "a message into the opened mapping");
        ++c.messages;
    }

    // The memory ends, and what comes in its place has a handle of its own.
    memory.reset();
    memory = c.make(memory_kind::device, len);
    (void)send_over(c, *memory, "from memory in place of what was shared");
    (void)send_over(c, *another, "from the other one");
}

} // namespace gpusm::exchange
