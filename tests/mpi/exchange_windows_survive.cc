// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_windows_survive.cc: a process of a window is killed: who waits for it hears of that.
#include "tests/mpi/exchange.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <mpi-ext.h>
#include <sys/time.h>

namespace gpusm::exchange {

namespace {

constexpr int long_bytes = 64 << 20;

class device_window {
  public:
    device_window(context &c, memory_kind kind, int len = bytes) : memory_(c.make(kind, len))
    {
        MPI_Win_create(memory_->data(), len, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win_);
        MPI_Win_set_errhandler(win_, MPI_ERRORS_RETURN);
    }
    MPI_Win get() const { return win_; }
    MPI_Win *release() { return &win_; }

    static constexpr int bytes = 4096;

  private:
    std::unique_ptr<buffer> memory_;
    MPI_Win win_ = MPI_WIN_NULL;
};

// Writes to the first rank's memory until a timer kills this process, which makes it likely that
// the data of a message is on its way; of memory that its owner writes, too.
void be_killed_while_writing(context &c, MPI_Win to)
{
    constexpr itimerval soon = {{0, 0}, {0, 100'000}};
    auto from = c.make(memory_kind::host, long_bytes);
    (void)std::signal(SIGALRM, [](int) { (void)std::raise(SIGKILL); });
    (void)setitimer(ITIMER_REAL, &soon, nullptr);
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, to);
    while (true) {
        MPI_Put(from->data(), long_bytes, MPI_BYTE, 0, 0, long_bytes, MPI_BYTE, to);
        MPI_Win_flush(0, to);
    }
}

} // namespace

// The last rank has locked the first one's memory and its own, and neither posted nor completed,
// when it is killed.
void test_windows_survive(context &c)
{
    const memory_kind kind = c.kinds.empty() ? memory_kind::host : c.kinds.front();
    device_window locked(c, kind);
    device_window fenced(c, kind);
    device_window posted(c, kind);
    device_window waited(c, kind);
    device_window tested(c, kind);
    device_window all_locked(c, kind);
    device_window left_locked(c, kind);
    device_window written(c, kind, long_bytes);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    const int last = c.ranks - 1;
    if (last == c.rank) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, locked.get());
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, last, 0, all_locked.get());
    } else {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, left_locked.get());
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (last == c.rank) {
        be_killed_while_writing(c, written.get());
    }
    const auto is_told = [&](int rc, const char *what) {
        int its = MPI_SUCCESS;
        MPI_Error_class(rc, &its);
        c.expect(MPIX_ERR_PROC_FAILED == its ? "" : "it returned " + std::to_string(rc), what);
    };
    at_step("MPI_Win_lock behind a killed rank");
    is_told(MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, locked.get()), "MPI_Win_lock");
    if (0 == c.rank) { // so that the other survivors have come to their next meeting
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
    at_step("MPI_Win_fence with a killed rank");
    is_told(MPI_Win_fence(0, fenced.get()), "MPI_Win_fence");
    at_step("MPI_Win_start to a killed rank");
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group one = MPI_GROUP_NULL;
    MPI_Win_get_group(posted.get(), &all);
    MPI_Group_incl(all, 1, &last, &one);
    is_told(MPI_Win_start(one, 0, posted.get()), "MPI_Win_start");
    at_step("MPI_Win_wait for a killed rank");
    MPI_Win_post(one, 0, waited.get());
    is_told(MPI_Win_wait(waited.get()), "MPI_Win_wait");
    is_told(MPI_Win_post(one, 0, waited.get()), "MPI_Win_post once more");
    is_told(MPI_Win_start(one, 0, posted.get()), "MPI_Win_start once more");
    at_step("MPI_Win_test for a killed rank");
    MPI_Win_post(one, 0, tested.get());
    int flag = 0;
    int rc = MPI_SUCCESS;
    while (MPI_SUCCESS == rc && 0 == flag) {
        rc = MPI_Win_test(tested.get(), &flag);
    }
    is_told(rc, "MPI_Win_test");
    at_step("MPI_Win_lock_all behind a killed rank");
    is_told(MPI_Win_lock_all(0, all_locked.get()), "MPI_Win_lock_all");
    int its = MPI_SUCCESS;
    MPI_Error_class(MPI_Win_flush_all(all_locked.get()), &its);
    c.expect_true(MPI_ERR_RMA_SYNC == its, "an MPI_Win_lock_all that has failed locks nothing");
    at_step("MPI_Win_free with a killed rank");
    is_told(MPI_Win_free(locked.release()), "MPI_Win_free");
    is_told(MPI_Win_free(fenced.release()), "MPI_Win_free");
    is_told(MPI_Win_free(waited.release()), "MPI_Win_free behind MPI_Win_wait");
    is_told(MPI_Win_free(tested.release()), "MPI_Win_free behind MPI_Win_test");
    is_told(MPI_Win_free(all_locked.release()), "MPI_Win_free behind MPI_Win_lock_all");
    is_told(MPI_Win_free(left_locked.release()), "MPI_Win_free of a window that is locked");
    is_told(MPI_Win_free(written.release()), "MPI_Win_free of a window that was written");
    at_step("calls on a window whose MPI_Win_free has failed");
    const auto is_over = [&c](int answer, const char *what) {
        int of_answer = MPI_SUCCESS;
        MPI_Error_class(answer, &of_answer);
        c.expect(MPI_ERR_WIN == of_answer ? "" : "it returned " + std::to_string(answer), what);
    };
    is_over(MPI_Put(&flag, 1, MPI_INT, 0, 0, 1, MPI_INT, locked.get()), "MPI_Put behind the end");
    is_over(MPI_Win_flush_all(locked.get()), "MPI_Win_flush_all behind the end");
    is_over(MPI_Win_fence(0, locked.get()), "MPI_Win_fence behind the end");
    c.mpi(MPI_Win_free(locked.release()), "MPI_Win_free once more");
    c.expect_true(MPI_WIN_NULL == locked.get(), "MPI_Win_free once more frees the handle");
    std::printf("windows: rank %d survived\n", c.rank);
    (void)std::fflush(stdout);
    at_step("MPI_Finalize of a survivor");
    MPI_Finalize();
    std::exit(0 == c.failures ? 0 : exit_wrong); // the results of all cannot be put together
}

} // namespace gpusm::exchange
