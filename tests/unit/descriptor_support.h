// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// descriptor_support.h: what the tests of ipc/descriptor_socket.h share: files to pass, identities,
// and processes to pass them to.
#ifndef GPUSM_TESTS_DESCRIPTOR_SUPPORT_H
#define GPUSM_TESTS_DESCRIPTOR_SUPPORT_H

#include "opal/mca/common/gpusm/ipc/descriptor_socket.h"

#include "tests/unit/shm_support.h"

#include <cstdio>

#include <sys/mman.h>
#include <sys/wait.h>

namespace gpusm_test {

constexpr unsigned child_deadline_s = 60;

inline gpusm::segment_identity identity_of(std::uint32_t vpid)
{
    return {0xabcd0001, vpid, 0x1000 + vpid};
}

// A file in memory with that text in it.
inline gpusm::file_descriptor file_with(const std::string &text)
{
    gpusm::file_descriptor file(memfd_create("gpusm-test", MFD_CLOEXEC));
    if (!file.valid() ||
        write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
        std::perror("memfd");
        std::abort();
    }
    return file;
}

// What is in it from its start.
inline std::string text_in(int fd)
{
    char bytes[256];
    const ssize_t got = pread(fd, bytes, sizeof(bytes), 0);
    return got < 0 ? "cannot be read" : std::string(bytes, static_cast<std::size_t>(got));
}

// Sends the descriptors of process `from` to `to`; piece i of export `slot` has 1000 * slot + i
// bytes, its generation is slot + 7.
inline gpusm::status send_from(const gpusm::descriptor_socket &by, std::uint32_t from,
                               const std::string &folder, std::uint32_t to, std::uint32_t slot,
                               const std::vector<int> &fds)
{
    gpusm::descriptor_message message{identity_of(from), slot + 7ULL, slot, {}, {}};
    for (const int each : fds) {
        message.lengths.push_back(1000ULL * slot + message.fds.size());
        message.fds.emplace_back(dup(each));
    }
    return by.send(folder, identity_of(to), message);
}

// What `body` returns in a process of its own, from 0 to 254; 255: that process failed.
template <typename Body> int result_in_child(Body &&body)
{
    std::fflush(nullptr);
    const pid_t child = fork();
    if (0 == child) {
        (void)alarm(child_deadline_s);
        const int result = body();
        std::fflush(nullptr);
        _exit(result);
    }
    int state = -1;
    if (child < 0 || waitpid(child, &state, 0) != child || !WIFEXITED(state)) {
        return 255;
    }
    return WEXITSTATUS(state);
}

} // namespace gpusm_test

#endif
