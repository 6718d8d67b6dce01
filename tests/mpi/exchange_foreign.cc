// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_foreign.cc: the program opens and closes CUDA IPC handles itself, of the same memory
// that a transport maps.
#include "tests/mpi/exchange_tools.h"

namespace gpusm::exchange {

namespace {

constexpr int tag = 141;
constexpr std::size_t len = 3u << 20;

// Rank 0 owns memory, and rank 1 opens its handle, and looks what is there.
class foreign_handle {
  public:
    foreign_handle(context &c, const buffer &owned) : c_(c), driver_(c.gpu->driver())
    {
        if (0 == c.rank) {
            good(driver_.ipc_get_mem_handle(&handle_, bench::address_of(owned)),
                 "cuIpcGetMemHandle");
            c.send(&handle_, sizeof(handle_), 1, tag);
        } else {
            c.receive(&handle_, sizeof(handle_), 0, tag);
        }
    }
    // These for rank 1; for rank 0 they do nothing.
    CUdeviceptr open()
    {
        CUdeviceptr at = 0;
        if (1 == c_.rank) {
            good(driver_.ipc_open_mem_handle(&at, handle_, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                 "cuIpcOpenMemHandle by the program");
        }
        return at;
    }
    void close(CUdeviceptr at)
    {
        if (1 == c_.rank) {
            good(driver_.ipc_close_mem_handle(at), "cuIpcCloseMemHandle by the program");
        }
    }
    // What the program finds there is the content of `seed`.
    void look(CUdeviceptr at, std::uint64_t seed, const char *when)
    {
        std::vector<unsigned char> found(len);
        std::vector<unsigned char> expected(len);
        if (1 == c_.rank) {
            bench::write_pattern(expected.data(), len, seed, 0);
            good(driver_.memcpy_dtoh(found.data(), at, len),
                 "cuMemcpyDtoH of the program's mapping");
        }
        c_.expect_true(found == expected,
                       std::string("the program's own mapping is right ") + when);
    }

  private:
    void good(CUresult result, const char *what)
    {
        c_.expect(CUDA_SUCCESS == result ? "" : bench::driver_error(driver_, what, result),
                  "foreign handle");
    }

    context &c_;
    const bench::driver_api &driver_;
    CUipcMemHandle handle_ = {};
};

// New content in the sender's memory, sent to the other rank and compared there, where `in` is;
// what is null has been filled, or is looked at, otherwise. Returns its seed.
std::uint64_t send_over(context &c, int sender, const void *from, buffer *out, void *to, buffer *in,
                        const char *when)
{
    const std::string what = std::string("a message ") + when;
    const std::uint64_t seed = c.draw_seeds(1);
    at_step(what);
    MPI_Barrier(MPI_COMM_WORLD); // the peer may still look at what was there before
    if (sender == c.rank) {
        c.expect(nullptr == out ? "" : out->fill(0, len, seed), "fill");
        c.send(from, len, 1 - sender, tag);
    } else {
        c.expect(nullptr == in ? "" : in->poison(), "poison");
        c.receive(to, len, sender, tag);
        c.expect(nullptr == in ? "" : in->compare(0, len, seed), what);
        ++c.messages;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return seed;
}

std::uint64_t send_over(context &c, buffer &memory, const char *when)
{
    return send_over(c, 0, memory.data(), &memory, memory.data(), &memory, when);
}

} // namespace

// "Handles that the application opened or closed itself are left alone": before gpusm maps that
// memory, while it does, and after it has closed its own mapping. With a cache of one entry the
// messages from another allocation make it close.
void test_foreign(context &c)
{
    constexpr int messages = 5;
    auto memory = c.make(memory_kind::device, len);
    auto another = c.make(memory_kind::device, len);
    foreign_handle handle(c, *memory);
    way_watch watch;
    CUdeviceptr at = handle.open();
    std::uint64_t seed = send_over(c, *memory, "after the program opened the handle");
    handle.look(at, seed, "after a message");
    handle.close(at);
    send_over(c, *memory, "after the program closed its own");
    at = handle.open();
    seed = send_over(c, *memory, "after the program opened it again");
    send_over(c, *another, "from another allocation"); // makes a cache of one entry close the first
    handle.look(at, seed, "after gpusm may have closed its own");
    const CUdeviceptr second = handle.open();
    seed = send_over(c, *memory, "while the program has opened it twice");
    handle.close(second);
    handle.look(at, seed, "after one of two was closed");
    if (1 == c.rank) {
        watch.received(memory_kind::device, len, messages);
    }
    watch.check(c, "messages beside the program's own mappings");

    // What the program has opened it may also hand to MPI.
    auto *mapped = reinterpret_cast<void *>(static_cast<std::uintptr_t>(at));
    MPI_Barrier(MPI_COMM_WORLD);                         // the peer has looked
    c.expect(memory->fill(0, len, c.next_seed), "fill"); // the seed of the next message
    send_over(c, 1, mapped, nullptr, another->data(), another.get(), "from an opened mapping");
    seed = send_over(c, 0, another->data(), another.get(), mapped, nullptr, "into it");
    handle.look(at, seed, "after a message was received into it");
    c.expect(1 == c.rank ? "" : memory->compare(0, len, seed), "a message into what was opened");
    handle.close(at);

    // The memory ends, and what comes in its place has a handle of its own.
    MPI_Barrier(MPI_COMM_WORLD);
    memory.reset();
    memory = c.make(memory_kind::device, len);
    send_over(c, *memory, "from memory in place of what was shared");
    send_over(c, *another, "from the other one");
}

} // namespace gpusm::exchange
