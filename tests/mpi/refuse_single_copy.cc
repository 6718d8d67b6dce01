// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// refuse_single_copy.cc: a library for LD_PRELOAD in whose presence reading and writing another
// process's memory fail, as they do where ptrace is restricted; or are the end.
//
//   GPUSM_TEST_REFUSE_EVERY   every so manieth call fails (default 1: all)
//   GPUSM_TEST_REFUSE_FIRST   only so many calls fail (default: no bound)
//   GPUSM_TEST_REFUSE_LOG     a file that gets one line per call that failed
//   GPUSM_TEST_REFUSE_KCMP    comparing processes fails, by which Open MPI asks whether it may copy
//   GPUSM_TEST_REFUSE_KILL    the so manieth call that writes kills its process half-way
//
// A call that fails has copied the first half.
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdlib>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <type_traits>

using function = decltype(&process_vm_readv);
static_assert(std::is_same_v<function, decltype(&process_vm_writev)>);

static void copy_half(function real, pid_t pid, const struct iovec *local,
                      const struct iovec *remote, unsigned long flags)
{
    const struct iovec half_here = {local->iov_base, local->iov_len / 2};
    const struct iovec half_there = {remote->iov_base, local->iov_len / 2};
    (void)real(pid, &half_here, 1, &half_there, 1, flags);
}

static ssize_t now_and_then(function real, pid_t pid, const struct iovec *local,
                            unsigned long local_count, const struct iovec *remote,
                            unsigned long remote_count, unsigned long flags)
{
    static const char *every = std::getenv("GPUSM_TEST_REFUSE_EVERY");
    static const char *log = std::getenv("GPUSM_TEST_REFUSE_LOG");
    static const char *first = std::getenv("GPUSM_TEST_REFUSE_FIRST");
    static std::atomic<int> calls{0};
    const int call = ++calls;
    if (call % (nullptr == every ? 1 : std::atoi(every)) != 0 ||
        (first != nullptr && call > std::atoi(first))) {
        return real(pid, local, local_count, remote, remote_count, flags);
    }
    copy_half(real, pid, local, remote, flags);
    if (log != nullptr) {
        const int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        (void)(write(fd, "x\n", 2) == 2);
        (void)close(fd);
    }
    errno = EPERM;
    return -1;
}

extern "C" ssize_t process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
                                    const struct iovec *remote, unsigned long remote_count,
                                    unsigned long flags)
{
    static const auto real = reinterpret_cast<function>(dlsym(RTLD_NEXT, "process_vm_readv"));
    return now_and_then(real, pid, local, local_count, remote, remote_count, flags);
}

extern "C" ssize_t process_vm_writev(pid_t pid, const struct iovec *local,
                                     unsigned long local_count, const struct iovec *remote,
                                     unsigned long remote_count, unsigned long flags)
{
    static const auto real = reinterpret_cast<function>(dlsym(RTLD_NEXT, "process_vm_writev"));
    static const char *kills = std::getenv("GPUSM_TEST_REFUSE_KILL");
    static std::atomic<int> writes{0};
    if (kills != nullptr && ++writes == std::atoi(kills)) {
        copy_half(real, pid, local, remote, flags);
        (void)raise(SIGKILL);
    }
    return now_and_then(real, pid, local, local_count, remote, remote_count, flags);
}

// No variable of its own: who waits for one to be initialized calls this function.
extern "C" long syscall(long number, ...) noexcept
{
    const auto real = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
    long words[6];
    va_list list;
    va_start(list, number);
    for (long &word : words) {
        word = va_arg(list, long);
    }
    va_end(list);
    if (SYS_kcmp == number && std::getenv("GPUSM_TEST_REFUSE_KCMP") != nullptr) {
        errno = EPERM;
        return -1;
    }
    return real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
