// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// failing_calls.cc: a library for LD_PRELOAD in whose presence a call that gpusm makes of the C
// library fails: a system call, or an allocation. What others call is left alone.
//
//   GPUSM_TEST_FAIL        name:n:errno: the n-th call (0: every call) of that function by gpusm's
//                          components does nothing and fails; name:n-m:errno: the n-th to the m-th
//   GPUSM_TEST_FAIL_LATER  calls are counted from gpusm_test_begin_to_fail() on, which the program
//                          calls
//   GPUSM_TEST_FAIL_LOG    a folder; each process appends to <pid>.calls the name of each function
//                          when gpusm calls it, and a star behind a call that fails
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace {

struct settings {
    char name[32] = "";
    int first = -1;
    int last = -1;
    int code = 0;
    int log = -1;

    settings()
    {
        if (const char *text = std::getenv("GPUSM_TEST_FAIL")) {
            if (std::sscanf(text, "%31[^:]:%d-%d:%d", name, &first, &last, &code) != 4) {
                (void)std::sscanf(text, "%31[^:]:%d:%d", name, &first, &code);
                last = first;
            }
        }
        if (const char *folder = std::getenv("GPUSM_TEST_FAIL_LOG")) {
            char path[4096];
            (void)std::snprintf(path, sizeof(path), "%s/%d.calls", folder, getpid());
            // Not open(), which is replaced here.
            log = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path,
                                           O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
        }
    }
};

std::atomic<bool> counts{nullptr == std::getenv("GPUSM_TEST_FAIL_LATER")};

bool by_gpusm(const void *caller)
{
    Dl_info where{};
    return dladdr(caller, &where) != 0 && where.dli_fname != nullptr &&
           std::strstr(where.dli_fname, "_gpusm.so") != nullptr;
}

// Whether this call is the one, with errno set.
bool fails(const char *name, const void *caller)
{
    static std::atomic<int> calls{0};
    static thread_local bool inside = false; // what is done here may allocate
    if (inside) {
        return false;
    }
    inside = true;
    static const settings all;
    const bool chosen = 0 == std::strcmp(all.name, name);
    const bool mine = (chosen || all.log >= 0) && by_gpusm(caller);
    bool now = mine && chosen && counts;
    if (now && all.first != 0) {
        const int call = ++calls;
        now = call >= all.first && call <= all.last;
    }
    if (mine && all.log >= 0) {
        char line[40];
        const int n = std::snprintf(line, sizeof(line), "%s%s\n", name, now ? " *" : "");
        (void)(write(all.log, line, static_cast<std::size_t>(n)) == n);
    }
    inside = false;
    if (now) {
        errno = all.code;
    }
    return now;
}

} // namespace

extern "C" void gpusm_test_begin_to_fail()
{
    counts = true;
}

// The function `name`, which answers `failed` or does what the C library's does.
#define REPLACED(type, failed, name, parameters, arguments)                                        \
    extern "C" type name parameters                                                                \
    {                                                                                              \
        using function = type(*) parameters;                                                       \
        static const auto real = reinterpret_cast<function>(dlsym(RTLD_NEXT, #name));              \
        return fails(#name, __builtin_return_address(0)) ? failed : real arguments;                \
    }

REPLACED(void *, MAP_FAILED, mmap, (void *at, size_t len, int prot, int flags, int fd, off_t from),
         (at, len, prot, flags, fd, from))
REPLACED(int, -1, munmap, (void *at, size_t len), (at, len))
REPLACED(int, -1, ftruncate, (int fd, off_t len), (fd, len))
REPLACED(int, errno, posix_fallocate, (int fd, off_t from, off_t len), (fd, from, len))
REPLACED(int, -1, fstat, (int fd, struct stat *out), (fd, out))
REPLACED(int, -1, lstat, (const char *path, struct stat *out), (path, out))
REPLACED(int, -1, fchmod, (int fd, mode_t mode), (fd, mode))
REPLACED(int, -1, flock, (int fd, int what), (fd, what))
REPLACED(int, -1, access, (const char *path, int mode), (path, mode))
REPLACED(int, -1, unlink, (const char *path), (path))
REPLACED(DIR *, nullptr, opendir, (const char *path), (path))
REPLACED(ssize_t, -1, read, (int fd, void *out, size_t len), (fd, out, len))
REPLACED(int, -1, socket, (int domain, int type, int protocol), (domain, type, protocol))
REPLACED(int, -1, bind, (int fd, const sockaddr *to, socklen_t len), (fd, to, len))
REPLACED(ssize_t, -1, sendmsg, (int fd, const msghdr *what, int flags), (fd, what, flags))
REPLACED(ssize_t, -1, recvmsg, (int fd, msghdr *out, int flags), (fd, out, flags))
REPLACED(int, -1, sched_getaffinity, (pid_t pid, size_t len, cpu_set_t *out), (pid, len, out))

// dlsym itself may allocate.
extern "C" void *__libc_malloc(size_t len);
extern "C" void *__libc_calloc(size_t count, size_t len);
extern "C" void *__libc_memalign(size_t alignment, size_t len);

extern "C" void *malloc(size_t len)
{
    return fails("malloc", __builtin_return_address(0)) ? nullptr : __libc_malloc(len);
}

extern "C" void *calloc(size_t count, size_t len)
{
    return fails("calloc", __builtin_return_address(0)) ? nullptr : __libc_calloc(count, len);
}

extern "C" void *aligned_alloc(size_t alignment, size_t len)
{
    return fails("aligned_alloc", __builtin_return_address(0)) ? nullptr
                                                               : __libc_memalign(alignment, len);
}

extern "C" int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    const unsigned mode = (flags & O_CREAT) != 0 ? va_arg(more, unsigned) : 0;
    va_end(more);
    if (fails("open", __builtin_return_address(0))) {
        return -1;
    }
    return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
