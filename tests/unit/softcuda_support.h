// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// softcuda_support.h: calls of the driver, and test bodies that run in processes of their own.
//
// Every body runs in a fresh child, so each has its own driver, its own environment, and may
// die. An EXPECT that fails in a child fails the test. libcuda.so.1 is the one that programs of
// this environment load; where it is the real one, tests that need the software driver skip.
#ifndef GPUSM_TESTS_SOFTCUDA_SUPPORT_H
#define GPUSM_TESTS_SOFTCUDA_SUPPORT_H

#include "tests/driver_functions.h"

#include <gtest/gtest.h>

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace softcuda_test {

inline constexpr int deadline_s = 60;

#define OK(call) EXPECT_EQ((call), CUDA_SUCCESS)

// What passes between two children.
class line {
  public:
    explicit line(int fd) : fd_(fd) {}
    template <class T> void put(const T &value)
    {
        ASSERT_EQ(write(fd_, &value, sizeof(value)), ssize_t(sizeof(value)));
    }
    template <class T> T get()
    {
        T value{};
        pollfd p{fd_, POLLIN, 0};
        if (poll(&p, 1, deadline_s * 1000) != 1 ||
            recv(fd_, &value, sizeof(value), MSG_WAITALL) != ssize_t(sizeof(value))) {
            ADD_FAILURE() << "the other process said nothing";
            _exit(8);
        }
        return value;
    }
    void step() { put('.'); }
    void wait() { EXPECT_EQ(get<char>(), '.'); }
    void put_fd(int fd)
    {
        message m;
        cmsghdr *c = CMSG_FIRSTHDR(&m.header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(c), &fd, sizeof(int));
        ASSERT_EQ(sendmsg(fd_, &m.header, 0), 1);
    }
    int get_fd()
    {
        message m;
        int fd = -1;
        if (recvmsg(fd_, &m.header, 0) == 1 && CMSG_FIRSTHDR(&m.header) != nullptr) {
            std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m.header)), sizeof(int));
        }
        return fd;
    }

  private:
    struct message { // one byte, and room for a descriptor
        char byte = 'f';
        iovec io{&byte, 1};
        alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
        msghdr header{};
        message()
        {
            header.msg_iov = &io;
            header.msg_iovlen = 1;
            header.msg_control = room;
            header.msg_controllen = sizeof(room);
        }
    };
    int fd_;
};

inline pid_t child(const std::function<void()> &body)
{
    // Other jobs of this user may use the software driver at the same time: count apart from them.
    setenv("GPUSM_SOFTCUDA_GROUP", std::to_string(getpid()).c_str(), 0);
    std::fflush(nullptr);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(deadline_s);
        body();
        std::fflush(nullptr);
        exit(testing::Test::HasFailure() ? 7 : 0); // through atexit, as programs do
    }
    return pid;
}

inline int status_of(pid_t pid)
{
    int status = -1;
    waitpid(pid, &status, 0);
    return status;
}

// Whether libcuda.so.1 is the one built in tests/softcuda.
inline bool soft()
{
    static const bool answer = [] {
        pid_t pid = child([] {
            char name[64] = {};
            CU(cuInit)(0);
            CU(cuDeviceGetName)(name, sizeof(name), 0);
            _exit(std::strstr(name, "software") != nullptr ? 3 : 4);
        });
        return WEXITSTATUS(status_of(pid)) == 3;
    }();
    return answer;
}

// One process.
inline void alone(const std::function<void()> &body)
{
    soft(); // asked here, because a process that uses the driver cannot fork to find out
    EXPECT_EQ(status_of(child(body)), 0);
}

// Two processes with a line between them.
inline void together(const std::function<void(line &)> &first,
                     const std::function<void(line &)> &second)
{
    soft();
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    pid_t a = child([&] {
        close(ends[1]);
        line l(ends[0]);
        first(l);
    });
    pid_t b = child([&] {
        close(ends[0]);
        line l(ends[1]);
        second(l);
    });
    close(ends[0]);
    close(ends[1]);
    EXPECT_EQ(status_of(a), 0);
    EXPECT_EQ(status_of(b), 0);
}

// cuInit and the primary context of `device`, current.
inline CUcontext start(int device = 0)
{
    CUcontext ctx = nullptr;
    OK(CU(cuInit)(0));
    OK(CU(cuDevicePrimaryCtxRetain)(&ctx, device));
    OK(CU(cuCtxSetCurrent)(ctx));
    return ctx;
}

// Another context of device 0, current.
inline CUcontext make_context()
{
    CUcontext ctx = nullptr;
    OK(create_context(&ctx, 0));
    return ctx;
}

inline CUstream make_stream(unsigned flags)
{
    CUstream s = nullptr;
    OK(CU(cuStreamCreate)(&s, flags));
    return s;
}

inline CUdeviceptr allocate(std::size_t len)
{
    CUdeviceptr at = 0;
    OK(CU(cuMemAlloc)(&at, len));
    return at;
}

inline CUevent make_event()
{
    CUevent e = nullptr;
    OK(CU(cuEventCreate)(&e, CU_EVENT_DISABLE_TIMING));
    return e;
}

// Page-locked host memory.
inline char *pinned(std::size_t len)
{
    void *at = nullptr;
    OK(CU(cuMemHostAlloc)(&at, len, 0));
    std::memset(at, '-', len);
    return static_cast<char *>(at);
}

// Holds a stream until opened. Work behind it cannot have run.
class gate {
  public:
    explicit gate(CUstream s)
    {
        const auto at = reinterpret_cast<CUdeviceptr>(word_);
        OK(CU(cuStreamWaitValue32)(s, at, 1, CU_STREAM_WAIT_VALUE_EQ));
    }
    void open() { word_->store(1); }
    bool is_open() const { return 1 == word_->load(); }

  private:
    std::atomic<unsigned> *word_ = reinterpret_cast<std::atomic<unsigned> *>(pinned(4));
};

inline CUipcMemHandle export_memory(CUdeviceptr at)
{
    CUipcMemHandle h{};
    OK(CU(cuIpcGetMemHandle)(&h, at));
    return h;
}

inline CUdeviceptr import_memory(const CUipcMemHandle &h)
{
    CUdeviceptr at = 0;
    OK(CU(cuIpcOpenMemHandle)(&at, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    return at;
}

// Writes and waits until the device has it.
inline void store(CUdeviceptr at, const std::string &bytes)
{
    OK(CU(cuMemcpyHtoD)(at, bytes.data(), bytes.size()));
    OK(CU(cuCtxSynchronize)());
}

inline std::string load(CUdeviceptr at, std::size_t len)
{
    std::string bytes(len, '?');
    OK(CU(cuMemcpyDtoH)(bytes.data(), at, len));
    return bytes;
}

template <class T> T attribute(CUpointer_attribute what, CUdeviceptr at)
{
    T value{};
    OK(CU(cuPointerGetAttribute)(&value, what, at));
    return value;
}

inline unsigned long long buffer_id(CUdeviceptr at)
{
    return attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, at);
}

// What is left of the current context's device.
inline std::size_t free_bytes()
{
    std::size_t left = 0;
    std::size_t all = 0;
    OK(CU(cuMemGetInfo)(&left, &all));
    return left;
}

inline int device_count()
{
    static const int answer = [] {
        return WEXITSTATUS(status_of(child([] {
            int n = 0;
            CU(cuInit)(0);
            CU(cuDeviceGetCount)(&n);
            _exit(n);
        })));
    }();
    return answer;
}

#define NEEDS_SOFTCUDA()                                                                           \
    if (!softcuda_test::soft()) {                                                                  \
        GTEST_SKIP() << "this is about the software driver";                                       \
    }
// A test whose body, in the braces that follow, runs in a process of its own.
#define ALONE(suite, name) ALONE_IF(suite, name, )
#define SOFT_ALONE(suite, name) ALONE_IF(suite, name, NEEDS_SOFTCUDA())
#define ALONE_IF(suite, name, need)                                                                \
    static void suite##name();                                                                     \
    TEST(suite, name)                                                                              \
    {                                                                                              \
        need;                                                                                      \
        softcuda_test::alone(suite##name);                                                         \
    }                                                                                              \
    static void suite##name()
#define NEEDS_DEVICES(n)                                                                           \
    if (softcuda_test::device_count() < (n)) {                                                     \
        GTEST_SKIP() << "needs " << (n) << " devices";                                             \
    }

} // namespace softcuda_test

#endif
