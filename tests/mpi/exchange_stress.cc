// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_stress.cc: what an application does with its devices, all at once and for long:
// messages, datatypes with gaps, collectives, windows and messages to itself in random order, each
// checked, in memory that is freed and allocated in between, while a thread of each rank works on
// the device, captures graphs, allocates, frees and synchronizes. With --killed-after N, one of
// them dies after as many milliseconds, and the job must end.
#include "tests/mpi/exchange.h"

#include "bench/common/busy_kernel.h"
#include "tests/driver_functions.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace gpusm::exchange {

namespace {

using random = std::mt19937_64;

std::size_t draw(random &from, std::size_t least, std::size_t most)
{
    return std::uniform_int_distribution<std::size_t>(least, most)(from);
}

// More often short than long.
std::size_t draw_length(random &from, std::size_t most)
{
    std::size_t bits = 0;
    for (std::size_t rest = most; rest > 1; rest /= 2) {
        ++bits;
    }
    const std::size_t top = std::size_t{1} << draw(from, 0, bits);
    return std::min(most, draw(from, (top + 1) / 2, top));
}

// What the program does with its device beside MPI, in a thread and a stream of its own.
class program_work {
  public:
    program_work(context &c, std::uint64_t seed)
        : c_(c), random_(seed), most_(c.gpu->is_software() ? 1U << 20 : 64U << 20)
    {
        thread_ = std::thread([this] { run(); });
    }
    ~program_work()
    {
        over_ = true;
        thread_.join();
    }
    program_work(const program_work &) = delete;
    program_work &operator=(const program_work &) = delete;

  private:
    void run()
    {
        c_.expect(c_.gpu->make_current(), "context");
        from_ = c_.make(memory_kind::device, most_);
        to_ = c_.make(memory_kind::device, most_);
        c_.expect(from_->fill(0, most_, content), "fill");
        good(driver().stream_create(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        std::string why;
        kernel_ = bench::busy_kernel::make(*c_.gpu, &why);
        c_.expect(why, "a kernel");
        constexpr std::array actions = {&program_work::work,      &program_work::capture,
                                        &program_work::allocate,  &program_work::synchronize,
                                        &program_work::page_lock, &program_work::kernels};
        while (!over_) {
            (this->*actions.at(draw(random_, 0, actions.size() - 1)))();
            std::this_thread::sleep_for(std::chrono::microseconds(draw(random_, 0, 500)));
        }
        kernel_.reset();
        good(driver().stream_destroy(stream_), "cuStreamDestroy");
    }

    const bench::driver_api &driver() const { return c_.gpu->driver(); }
    void good(CUresult result, const char *what)
    {
        c_.expect(c_.gpu->judge(what, result), "the program's own work");
    }
    void copy_and_mark(std::size_t len_bytes)
    {
        good(driver().memcpy_async(bench::address_of(*to_), bench::address_of(*from_), len_bytes,
                                   stream_),
             "cuMemcpyAsync");
        good(CU(cuMemsetD8Async)(bench::address_of(*to_), marked, 1, stream_), "cuMemsetD8Async");
    }
    void check(std::size_t len_bytes)
    {
        unsigned char first = 0;
        good(driver().stream_synchronize(stream_), "cuStreamSynchronize");
        c_.expect(to_->read(0, &first, 1), "read");
        c_.expect_true(marked == first, "the program's last write is there");
        c_.expect(to_->compare(1, std::min<std::size_t>(len_bytes, 4096) - 1, content, 1),
                  "the program's copy");
    }
    void work()
    {
        const std::size_t bytes = draw(random_, 2, most_);
        for (std::size_t times = draw(random_, 1, 8); times > 0; --times) {
            good(CU(cuMemsetD8Async)(bench::address_of(*to_), 0, bytes, stream_),
                 "cuMemsetD8Async");
            copy_and_mark(bytes);
        }
        check(bytes);
    }
    // The other thread frees and allocates meanwhile, which other modes of a capture forbid.
    void capture()
    {
        CUgraph graph = nullptr;
        CUgraphExec ready = nullptr;
        const std::size_t bytes = draw(random_, 2, most_);
        good(CU(cuStreamBeginCapture)(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
             "cuStreamBeginCapture");
        copy_and_mark(bytes);
        good(CU(cuStreamEndCapture)(stream_, &graph), "cuStreamEndCapture");
        if (nullptr == graph) {
            return;
        }
        good(CU(cuGraphInstantiateWithFlags)(&ready, graph, 0), "cuGraphInstantiate");
        good(CU(cuGraphLaunch)(ready, stream_), "cuGraphLaunch");
        check(bytes);
        good(CU(cuGraphExecDestroy)(ready), "cuGraphExecDestroy");
        good(CU(cuGraphDestroy)(graph), "cuGraphDestroy");
    }
    void allocate()
    {
        auto kind = c_.kind_at(draw(random_, 0, c_.kinds.size() - 1));
        // Where two threads make and destroy pools beside kernels of the legacy stream, driver 580
        // crashes (seen on an H200 without MPI), and cuStreamSynchronize has not returned.
        kind = memory_kind::pool == kind && !c_.gpu->is_software() ? memory_kind::device : kind;
        const auto some = c_.make(kind, draw_length(random_, most_));
        c_.expect(some->poison(0, std::min<std::size_t>(some->len_bytes(), 4096)), "poison");
    }
    // In a stream of its own, or the default one, for which all blocking streams wait.
    void kernels()
    {
        constexpr std::size_t longest_us = 300;
        CUstream where = 0 == draw(random_, 0, 1) ? stream_ : CU_STREAM_LEGACY;
        for (std::size_t times = draw(random_, 1, 4); times > 0; --times) {
            c_.expect(kernel_->launch(static_cast<int>(draw(random_, 1, longest_us)), where),
                      "the program's kernel");
        }
    }
    void synchronize() { good(CU(cuCtxSynchronize)(), "cuCtxSynchronize"); }
    void page_lock()
    {
        std::vector<unsigned char> memory(std::size_t{1} << 20);
        good(driver().mem_host_register(memory.data(), memory.size(), 0), "cuMemHostRegister");
        good(driver().mem_host_unregister(memory.data()), "cuMemHostUnregister");
    }

    static constexpr std::uint64_t content = 99; // the seed of from_
    static constexpr unsigned char marked = 0x5C;

    context &c_;
    random random_;
    const std::size_t most_;
    std::atomic<bool> over_{false};
    std::unique_ptr<buffer> from_;
    std::unique_ptr<buffer> to_;
    CUstream stream_ = nullptr;
    std::unique_ptr<bench::busy_kernel> kernel_;
    std::thread thread_;
};

// All ranks draw the same: what is done next, how long it is, and in memory of what kind. All that
// a rank gives in a round is made from one seed, which the others know.
class stress {
  public:
    stress(context &c, std::uint64_t seed)
        : c_(c), random_(seed), most_(c.gpu->is_software() ? 1U << 20 : 8U << 20)
    {
        MPI_Comm_rank(MPI_COMM_WORLD, &me_);
        MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    }

    // One message of each kind between all and to itself, before anybody captures: the first one of
    // memory whose context must be marked ends captures there (docs/memory.md).
    void first_messages()
    {
        first_seed_ = random_() >> 16;
        len_bytes_ = std::size_t{1} << 16;
        for (std::size_t i = 0; i < c_.kinds.size(); ++i) {
            what_ = "first messages, kind " + std::string(1, bench::letter_of(c_.kind_at(i)));
            renew(c_.kind_at(i));
            alltoall();
            messages();
            to_itself();
        }
    }

    void round()
    {
        constexpr std::array actions = {&stress::messages, &stress::messages, &stress::gaps,
                                        &stress::alltoall, &stress::bcast,    &stress::allreduce,
                                        &stress::puts,     &stress::to_itself};
        constexpr std::array names = {"messages", "messages",  "gaps", "alltoall",
                                      "bcast",    "allreduce", "puts", "to itself"};
        static_assert(actions.size() == names.size());
        const std::size_t next = draw(random_, 0, actions.size() - 1);
        first_seed_ = random_() >> 16;
        len_bytes_ = draw_length(random_, most_);
        const auto kind = c_.kind_at(draw(random_, 0, c_.kinds.size() - 1));
        const bool anew = 0 == draw(random_, 0, 3);
        what_ = std::string(names.at(next)) + " of " + std::to_string(len_bytes_) +
                " bytes, kind " + bench::letter_of(kind);
        at_step(what_);
        if (anew || nullptr == out_ || kind != out_->kind()) {
            renew(kind);
        }
        (this->*actions.at(next))();
    }

  private:
    void renew(memory_kind kind)
    {
        for (std::unique_ptr<buffer> *each : {&out_, &in_}) {
            each->reset(); // first, as both may not fit
            *each = c_.make(kind, most_ * static_cast<std::size_t>(ranks_));
        }
    }
    std::uint64_t seed_of(int rank) const { return first_seed_ + static_cast<std::uint64_t>(rank); }
    int count() const { return static_cast<int>(len_bytes_); }
    // The same number of ranks further on for all.
    void neighbours(int *to, int *from)
    {
        const int by = static_cast<int>(draw(random_, 0, static_cast<std::size_t>(ranks_) - 1));
        *to = (me_ + by) % ranks_;
        *from = (me_ + ranks_ - by) % ranks_;
    }
    void fill(std::size_t bytes) { c_.expect(out_->fill(0, bytes, seed_of(me_)), what_); }
    // Where a rank dies, nothing is as it should be after MPI has said so.
    void end_at_errors()
    {
        if (0 != c_.mpi_errors) {
            MPI_Abort(MPI_COMM_WORLD, exit_error);
            std::_Exit(exit_error);
        }
    }
    void check(std::size_t at, std::size_t bytes, int from, std::size_t position = 0)
    {
        end_at_errors();
        c_.expect(in_->compare(at, bytes, seed_of(from), position), what_);
        ++c_.messages;
    }

    void messages()
    {
        constexpr std::size_t most_messages = 24;
        int to = 0;
        int from = 0;
        neighbours(&to, &from);
        const std::size_t together = std::clamp<std::size_t>(most_ / len_bytes_, 1, most_messages);
        fill(together * len_bytes_);
        requests all(c_);
        for (std::size_t i = 0; i < together; ++i) {
            all.receive(in_->at(i * len_bytes_), len_bytes_, from, 1);
            all.send(out_->at(i * len_bytes_), len_bytes_, to, 1);
        }
        all.wait();
        check(0, together * len_bytes_, from);
    }
    // Every second block out of the sender's memory into contiguous memory.
    void gaps()
    {
        const std::size_t block = draw_length(random_, std::min<std::size_t>(len_bytes_, 4096));
        const std::size_t blocks = std::max<std::size_t>(1, len_bytes_ / block / 2);
        MPI_Datatype spaced = MPI_DATATYPE_NULL;
        MPI_Type_vector(static_cast<int>(blocks), static_cast<int>(block),
                        static_cast<int>(2 * block), MPI_BYTE, &spaced);
        MPI_Type_commit(&spaced);
        int to = 0;
        int from = 0;
        neighbours(&to, &from);
        fill(2 * block * blocks);
        c_.mpi(MPI_Sendrecv(out_->data(), 1, spaced, to, 2, in_->data(),
                            static_cast<int>(block * blocks), MPI_BYTE, from, 2, MPI_COMM_WORLD,
                            MPI_STATUS_IGNORE),
               what_);
        MPI_Type_free(&spaced);
        end_at_errors();
        std::vector<unsigned char> found(block * blocks);
        std::vector<unsigned char> wanted(block * blocks);
        for (std::size_t i = 0; i < blocks; ++i) {
            bench::write_pattern(&wanted[i * block], block, seed_of(from), 2 * i * block);
        }
        c_.expect(in_->read(0, found.data(), found.size()), what_);
        c_.expect_true(wanted == found, what_ + ": wrong bytes");
        ++c_.messages;
    }
    void alltoall()
    {
        const auto ranks = static_cast<std::size_t>(ranks_);
        fill(len_bytes_ * ranks);
        c_.mpi(MPI_Alltoall(out_->data(), count(), MPI_BYTE, in_->data(), count(), MPI_BYTE,
                            MPI_COMM_WORLD),
               what_);
        for (int i = 0; i < ranks_; ++i) {
            check(len_bytes_ * static_cast<std::size_t>(i), len_bytes_, i,
                  len_bytes_ * static_cast<std::size_t>(me_));
        }
    }
    void bcast()
    {
        const int root = static_cast<int>(draw(random_, 0, static_cast<std::size_t>(ranks_) - 1));
        if (me_ == root) {
            fill(len_bytes_);
        }
        c_.mpi(MPI_Bcast(me_ == root ? out_->data() : in_->data(), count(), MPI_BYTE, root,
                         MPI_COMM_WORLD),
               what_);
        if (me_ != root) {
            check(0, len_bytes_, root);
        }
    }
    void allreduce()
    {
        const std::size_t n = std::max<std::size_t>(1, len_bytes_ / sizeof(int));
        std::vector<int> numbers(n);
        for (std::size_t i = 0; i < n; ++i) {
            numbers[i] = me_ + static_cast<int>(i % 1000);
        }
        c_.expect(out_->write(0, numbers.data(), n * sizeof(int)), what_);
        c_.mpi(MPI_Allreduce(out_->data(), in_->data(), static_cast<int>(n), MPI_INT, MPI_SUM,
                             MPI_COMM_WORLD),
               what_);
        end_at_errors();
        c_.expect(in_->read(0, numbers.data(), n * sizeof(int)), what_);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < n; ++i) {
            const int sum = ranks_ * (ranks_ - 1) / 2 + ranks_ * static_cast<int>(i % 1000);
            wrong += sum == numbers[i] ? 0 : 1;
        }
        c_.expect_true(0 == wrong, what_ + ": " + std::to_string(wrong) + " sums are wrong");
        ++c_.messages;
    }
    void puts()
    {
        int to = 0;
        int from = 0;
        neighbours(&to, &from);
        fill(len_bytes_);
        MPI_Win window = MPI_WIN_NULL;
        c_.mpi(MPI_Win_create(in_->data(), static_cast<MPI_Aint>(in_->len_bytes()), 1,
                              MPI_INFO_NULL, MPI_COMM_WORLD, &window),
               what_);
        end_at_errors();
        MPI_Win_fence(0, window); // errors of windows end the job
        MPI_Put(out_->data(), count(), MPI_BYTE, to, 0, count(), MPI_BYTE, window);
        MPI_Win_fence(0, window);
        check(0, len_bytes_, from);
        MPI_Win_free(&window);
    }
    void to_itself()
    {
        fill(len_bytes_);
        c_.mpi(MPI_Sendrecv(out_->data(), count(), MPI_BYTE, me_, 3, in_->data(), count(), MPI_BYTE,
                            me_, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
               what_);
        check(0, len_bytes_, me_);
    }

    context &c_;
    random random_;
    const std::size_t most_;
    int me_ = 0;
    int ranks_ = 1;
    std::uint64_t first_seed_ = 0;
    std::size_t len_bytes_ = 0;
    std::string what_;
    std::unique_ptr<buffer> out_;
    std::unique_ptr<buffer> in_;
};

} // namespace

void test_stress(context &c)
{
    constexpr int usual_rounds = 400;
    const std::uint64_t seed = c.draw_seeds(1);
    const double begin = MPI_Wtime();
    const double until = begin + c.seconds;
    MPI_Barrier(MPI_COMM_WORLD);
    if (c.killed_after_ms > 0 && c.killed_after_ms % c.ranks == c.rank) {
        die_after(c, c.killed_after_ms * 1000);
    }
    stress all(c, seed);
    all.first_messages();
    const program_work beside(c, seed * 1000 + static_cast<std::uint64_t>(c.rank));
    int rounds = 0;
    const int wanted = 0 != c.rounds ? c.rounds : usual_rounds;
    for (int go_on = 1; 0 != go_on;) {
        all.round();
        ++rounds;
        go_on = 0 != c.seconds ? (MPI_Wtime() < until ? 1 : 0) : (rounds < wanted ? 1 : 0);
        if (0 != c.seconds && 0 == rounds % 16) {
            MPI_Allreduce(MPI_IN_PLACE, &go_on, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        } else if (0 != c.seconds) {
            go_on = 1;
        }
    }
    if (0 == c.rank) {
        std::printf("exchange stress: %d rounds in %.0f s\n", rounds, MPI_Wtime() - begin);
    }
}

} // namespace gpusm::exchange
