// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_capture.cc: a thread captures a stream into a graph while another one sends and receives
// device memory by MPI. The capture survives, and the graph does what it should.
#include "tests/mpi/exchange_tools.h"

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

namespace gpusm::exchange {

namespace {

constexpr int tag = 131;
constexpr std::size_t graph_bytes = 65536;
constexpr unsigned char written = 0x3C;    // by the graph's last node
constexpr std::size_t long_enough = 65536; // for messages of every kind not to be staged

// Lets two threads take turns.
class turns {
  public:
    void reach(int step)
    {
        const std::lock_guard guard(lock_);
        step_ = step;
        changed_.notify_all();
    }
    void wait_for(int step)
    {
        std::unique_lock guard(lock_);
        changed_.wait(guard, [&] { return step_ >= step; });
    }

  private:
    std::mutex lock_;
    std::condition_variable changed_;
    int step_ = 0;
};

// The steps of one capture.
constexpr int begun = 1;    // the stream is being captured
constexpr int messages = 2; // MPI is done with what went on meanwhile
constexpr int launched = 3; // the graph has run

// What a graph works on.
struct graph_memory {
    buffer &from;
    buffer &to;
};

CUdeviceptr end_of(const buffer &memory)
{
    return bench::address_of(memory) + memory.len_bytes() / 2;
}

// Runs in a thread of its own: begins a capture, records two nodes before the messages and one
// after them, and launches the graph. The first half of `to` becomes that of `from`, and the other
// one the byte that is written last.
void capture(context &c, unsigned stream_flags, const graph_memory &memory, turns &step)
{
    const bench::driver_api &driver = c.gpu->driver();
    const more_driver_api &more = more_driver();
    const auto good = [&](CUresult result, const char *what) {
        c.expect(CUDA_SUCCESS == result ? "" : bench::driver_error(driver, what, result),
                 "stream capture beside MPI");
    };
    CUstream stream = nullptr;
    CUgraph graph = nullptr;
    CUgraphExec ready = nullptr;
    const std::size_t half = graph_bytes / 2;
    c.expect(c.gpu->make_current(), "context");
    good(driver.stream_create(&stream, stream_flags), "cuStreamCreate");
    good(more.begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
    good(driver.memcpy_async(bench::address_of(memory.to), bench::address_of(memory.from), half,
                             stream),
         "cuMemcpyAsync");
    good(more.memset_d8_async(end_of(memory.to), 0, half, stream), "cuMemsetD8Async");
    step.reach(begun);
    step.wait_for(messages);
    good(more.memset_d8_async(end_of(memory.to), written, half, stream), "cuMemsetD8Async");
    good(more.end_capture(stream, &graph), "cuStreamEndCapture");
    if (nullptr != graph) {
        std::size_t count = 0;
        good(more.graph_get_nodes(graph, nullptr, &count), "cuGraphGetNodes");
        c.expect_true(3 == count, "the graph has the three nodes that were recorded");
        good(more.graph_instantiate(&ready, graph, 0), "cuGraphInstantiate");
        good(more.graph_launch(ready, stream), "cuGraphLaunch");
        good(driver.stream_synchronize(stream), "cuStreamSynchronize");
        good(more.graph_exec_destroy(ready), "cuGraphExecDestroy");
        good(more.graph_destroy(graph), "cuGraphDestroy");
    }
    good(driver.stream_destroy(stream), "cuStreamDestroy");
    step.reach(launched);
}

// Messages of one round. Everything that a capture forbids the program itself, such as filling, is
// done before or after it.
message_set make_traffic(context &c)
{
    constexpr std::size_t count = 16;
    constexpr std::size_t lengths[] = {8, 1024, 65535, 2u << 20};
    message_set made(c, tag);
    for (std::size_t i = 0; i < count; ++i) {
        const memory_kind kind = c.kind_at(i);
        const std::size_t len = lengths[i % std::size(lengths)];
        made.add(kind, kind, way::staged == expected_way(kind, len) ? long_enough : len);
    }
    return made;
}

// All at once, and then one after the other into what has been received before.
void exchange_twice(const message_set &traffic)
{
    traffic.exchange_at_once();
    for (std::size_t i = 0; i < traffic.count(); ++i) {
        traffic.exchange(i);
    }
}

} // namespace

// "Stream capture running in another thread is not disturbed", in the mode that minds what other
// threads do: while memory is sent that the peer knows, and memory that it does not know yet. With
// a blocking stream no thread may use the legacy stream meanwhile.
void test_capture(context &c)
{
    const int rounds = 0 < c.rounds ? c.rounds : 20;
    // What goes through host memory is copied by Open MPI, which synchronises a stream of its own
    // in the mode that the thread has: no capture survives that, and Open MPI ends the program over
    // it.
    std::erase_if(c.kinds,
                  [](memory_kind kind) { return way::staged == expected_way(kind, long_enough); });
    if (!all_by_their_ways(c)) {
        return;
    }
    auto from = c.make(memory_kind::device, graph_bytes);
    auto to = c.make(memory_kind::device, graph_bytes);
    message_set known = make_traffic(c);
    for (int round = 0; round < rounds; ++round) {
        const bool blocking = 0 != round % 2;
        const std::string what = "capture of a " +
                                 std::string(blocking ? "blocking" : "non-blocking") +
                                 " stream, round " + std::to_string(round);
        const std::uint64_t seed = c.draw_seeds(1);
        message_set fresh = make_traffic(c);
        known.prepare();
        fresh.prepare();
        c.expect(from->fill(0, graph_bytes, seed), "fill");
        c.expect(to->poison(), "poison");
        at_step(what);
        turns step;
        std::thread other([&] {
            capture(c, blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING, {*from, *to}, step);
        });
        step.wait_for(begun);
        MPI_Barrier(MPI_COMM_WORLD); // the peer captures, too
        exchange_twice(known);
        exchange_twice(fresh);
        MPI_Barrier(MPI_COMM_WORLD);
        step.reach(messages);
        step.wait_for(launched);
        other.join();
        known.compare(what);
        fresh.compare(what);
        c.expect(to->compare(0, graph_bytes / 2, seed), what + ", the copy");
        std::vector<unsigned char> tail(graph_bytes / 2);
        c.expect(to->read(graph_bytes / 2, tail.data(), tail.size()), "read");
        c.expect_true(tail == std::vector<unsigned char>(tail.size(), written),
                      what + ", the bytes that the last node writes");
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

} // namespace gpusm::exchange
