// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_sync.cc: a program that gives MPI buffers which its own work on a device is still
// writing, or, in its correct form, has finished writing. For --mca btl_gpusm_check_sync 1, which
// has to find each of the first and none of the others. The content of the messages is not looked
// at: what such a program sends nobody knows.
#include "tests/driver_functions.h"
#include "tests/mpi/exchange_tools.h"

#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

namespace gpusm::exchange {

namespace {

constexpr int tag = 171;
constexpr std::size_t len_bytes = 65536;
constexpr int elements = static_cast<int>(len_bytes / sizeof(int));

// Long enough for the first look at a buffer, also where processors are few.
void CUDA_CB wait_a_while(void *)
{
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
}

enum class worker { blocking_stream, other_stream, other_thread };

class late_work {
  public:
    late_work(context &c, worker who, bool waits) : c_(c), who_(who), waits_(waits)
    {
        const unsigned flags =
            worker::blocking_stream == who ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
        check(CU(cuStreamCreate)(&stream_, flags));
    }
    ~late_work()
    {
        check(CU(cuStreamSynchronize)(stream_));
        check(CU(cuStreamDestroy)(stream_));
    }
    late_work(const late_work &) = delete;
    late_work &operator=(const late_work &) = delete;

    // Submits work that writes all of the buffer, after a while, with bytes that were not there.
    // A correct program waits for it.
    void write(buffer &to)
    {
        // What was planted before is over: MPI has waited for it, or this does.
        check(CU(cuStreamSynchronize)(stream_));
        const auto submit = [&] {
            c_.expect(c_.gpu->make_current(), "context");
            check(CU(cuLaunchHostFunc)(stream_, wait_a_while, nullptr));
            check(CU(cuMemsetD8Async)(bench::address_of(to), ++value_, to.len_bytes(), stream_));
        };
        if (worker::other_thread == who_) {
            std::thread(submit).join();
        } else {
            submit();
        }
        if (waits_) {
            check(CU(cuStreamSynchronize)(stream_));
        }
        ++planted_;
    }
    int planted() const { return planted_; }

  private:
    void check(CUresult result) const
    {
        c_.expect(CUDA_SUCCESS == result ? ""
                                         : bench::driver_error(c_.gpu->driver(), "work", result),
                  "work on the device");
    }

    context &c_;
    const worker who_;
    const bool waits_;
    CUstream stream_ = nullptr;
    unsigned char value_ = 0;
    int planted_ = 0;
};

// One call of each sort, with a buffer of this rank's that is written late.
class calls {
  public:
    calls(context &c, memory_kind kind, late_work &work)
        : c_(c), work_(work), peer_(1 - c.rank), out_(c.make(kind, len_bytes)),
          in_(c.make(kind, len_bytes))
    {
    }

    void messages()
    {
        MPI_Request receive = MPI_REQUEST_NULL;
        MPI_Request send = MPI_REQUEST_NULL;
        expect_receive(&receive);
        work_.write(*out_);
        done(MPI_Send(out_->data(), elements, MPI_INT, peer_, tag, MPI_COMM_WORLD));
        wait(&receive);

        expect_receive(&receive);
        work_.write(*out_);
        done(MPI_Isend(out_->data(), elements, MPI_INT, peer_, tag, MPI_COMM_WORLD, &send));
        wait(&send);
        wait(&receive);

        start_send(&send);
        work_.write(*in_);
        done(MPI_Recv(in_->data(), elements, MPI_INT, peer_, tag, MPI_COMM_WORLD,
                      MPI_STATUS_IGNORE));
        wait(&send);

        // A message that is there already would be received in the call.
        work_.write(*in_);
        expect_receive(&receive);
        done(MPI_Barrier(MPI_COMM_WORLD));
        start_send(&send);
        wait(&receive);
        wait(&send);
    }

    void persistent()
    {
        MPI_Request receive = MPI_REQUEST_NULL;
        MPI_Request send = MPI_REQUEST_NULL;
        done(MPI_Send_init(out_->data(), elements, MPI_INT, peer_, tag, MPI_COMM_WORLD, &send));
        for (int i = 0; i < 2; ++i) {
            expect_receive(&receive);
            work_.write(*out_);
            done(MPI_Start(&send));
            wait(&send);
            wait(&receive);
        }
        done(MPI_Request_free(&send));
    }

    // Every other block, while the ones between are received: these are other messages' buffers.
    void blocks()
    {
        constexpr int block = 16;
        MPI_Datatype every_other = MPI_DATATYPE_NULL;
        done(MPI_Type_vector(elements / block / 2, block, 2 * block, MPI_INT, &every_other));
        done(MPI_Type_commit(&every_other));
        MPI_Request receive = MPI_REQUEST_NULL;
        auto *between = static_cast<int *>(in_->data()) + block;
        done(MPI_Irecv(between, 1, every_other, peer_, tag, MPI_COMM_WORLD, &receive));
        work_.write(*out_);
        done(MPI_Send(out_->data(), 1, every_other, peer_, tag, MPI_COMM_WORLD));
        done(MPI_Sendrecv(in_->data(), 1, every_other, peer_, tag + 1, out_->data(), 1, every_other,
                          peer_, tag + 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        wait(&receive);
        done(MPI_Type_free(&every_other));
    }

    void collectives()
    {
        MPI_Request request = MPI_REQUEST_NULL;
        work_.write(*out_);
        done(MPI_Allreduce(out_->data(), in_->data(), elements, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
        work_.write(*out_);
        done(MPI_Iallreduce(out_->data(), in_->data(), elements, MPI_INT, MPI_SUM, MPI_COMM_WORLD,
                            &request));
        wait(&request);
        work_.write(*out_);
        done(MPI_Alltoall(out_->data(), elements / 2, MPI_INT, in_->data(), elements / 2, MPI_INT,
                          MPI_COMM_WORLD));
        for (int root = 0; root < 2; ++root) {
            if (root == c_.rank) {
                work_.write(*out_);
            }
            done(MPI_Bcast((root == c_.rank ? out_ : in_)->data(), elements, MPI_INT, root,
                           MPI_COMM_WORLD));
        }
    }

    void windows()
    {
        MPI_Win win = MPI_WIN_NULL;
        done(MPI_Win_create(in_->data(), len_bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win));
        done(MPI_Win_fence(0, win));
        work_.write(*out_);
        done(MPI_Put(out_->data(), elements, MPI_INT, peer_, 0, elements, MPI_INT, win));
        done(MPI_Win_fence(0, win));
        work_.write(*out_);
        done(MPI_Accumulate(out_->data(), elements, MPI_INT, peer_, 0, elements, MPI_INT, MPI_SUM,
                            win));
        done(MPI_Win_fence(0, win));
        work_.write(*out_);
        done(MPI_Get(out_->data(), elements, MPI_INT, peer_, 0, elements, MPI_INT, win));
        done(MPI_Win_fence(0, win));
        // What MPI_NO_OP is given to read counts for nothing, also where it is the result.
        done(MPI_Win_lock_all(0, win));
        done(MPI_Fetch_and_op(out_->data(), out_->data(), MPI_INT, peer_, 0, MPI_NO_OP, win));
        done(MPI_Win_flush_all(win));
        work_.write(*out_);
        done(MPI_Get_accumulate(out_->data(), elements, MPI_INT, out_->data(), elements, MPI_INT,
                                peer_, 0, elements, MPI_INT, MPI_NO_OP, win));
        done(MPI_Win_unlock_all(win));
        done(MPI_Win_free(&win));
    }

  private:
    void done(int code)
    {
        ++c_.messages;
        (void)c_.mpi(code, "a call with a buffer that is written late");
    }
    void wait(MPI_Request *request) { done(MPI_Wait(request, MPI_STATUS_IGNORE)); }
    void expect_receive(MPI_Request *request)
    {
        done(MPI_Irecv(in_->data(), elements, MPI_INT, peer_, tag, MPI_COMM_WORLD, request));
    }
    void start_send(MPI_Request *request)
    {
        done(MPI_Isend(out_->data(), elements, MPI_INT, peer_, tag, MPI_COMM_WORLD, request));
    }

    context &c_;
    late_work &work_;
    const int peer_;
    std::unique_ptr<buffer> out_;
    std::unique_ptr<buffer> in_;
};

void every_call(context &c, bool waits)
{
    int planted = 0;
    for (memory_kind kind : c.kinds) {
        for (worker who : {worker::blocking_stream, worker::other_stream, worker::other_thread}) {
            late_work work(c, who, waits);
            calls of(c, kind, work);
            of.messages();
            of.persistent();
            of.blocks();
            of.collectives();
            of.windows();
            planted += work.planted();
        }
    }
    std::printf("exchange: rank %d has planted %d\n", c.rank, planted);
    (void)std::fflush(stdout);
}

} // namespace

void test_written_late(context &c)
{
    every_call(c, false);
}

void test_written_in_time(context &c)
{
    every_call(c, true);
}

} // namespace gpusm::exchange
