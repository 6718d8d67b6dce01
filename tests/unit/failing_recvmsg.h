// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// failing_recvmsg.h: a recvmsg in front of the C library's that fails as often as the test says.
#ifndef GPUSM_TESTS_FAILING_RECVMSG_H
#define GPUSM_TESTS_FAILING_RECVMSG_H

#include <cerrno>

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpusm_test {

inline int recvmsg_error = 0;
inline int recvmsg_failures = 0; // still to come

inline void fail_to_receive(int times, int error)
{
    recvmsg_failures = times;
    recvmsg_error = error;
}

} // namespace gpusm_test

extern "C" inline __attribute__((used)) ssize_t recvmsg(int fd, msghdr *out, int flags)
{
    if (gpusm_test::recvmsg_failures > 0) {
        --gpusm_test::recvmsg_failures;
        errno = gpusm_test::recvmsg_error;
        return -1;
    }
    return syscall(SYS_recvmsg, fd, out, flags);
}

#endif
