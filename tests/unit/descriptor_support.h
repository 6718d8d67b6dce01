// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// descriptor_support.h: what the tests of ipc/descriptor_socket.h share: files to pass, identities,
// processes to pass them to, and messages that no descriptor_socket would send.
#ifndef GPUSM_TESTS_DESCRIPTOR_SUPPORT_H
#define GPUSM_TESTS_DESCRIPTOR_SUPPORT_H

#include "opal/mca/btl/gpusm/ipc/descriptor_socket.h"

#include "tests/unit/shm_support.h"

#include <cerrno>
#include <csignal>
#include <cstdio>

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
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

inline gpusm::descriptor_socket make_socket(const std::string &folder, std::uint32_t vpid)
{
    return {folder, identity_of(vpid)};
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

// A message as bytes, to be spoilt.
struct raw_message {
    std::string payload;
    std::vector<int> fds;
};

inline raw_message good_message(std::uint32_t to, const std::vector<int> &fds)
{
    const gpusm::descriptor_packet packet{gpusm::descriptor_magic,
                                          gpusm::wire_version,
                                          0,
                                          identity_of(to),
                                          identity_of(99),
                                          1,
                                          2,
                                          static_cast<std::uint32_t>(fds.size())};
    raw_message made;
    made.payload.assign(reinterpret_cast<const char *>(&packet), sizeof(packet));
    made.payload.append(fds.size() * sizeof(std::uint64_t), '\1');
    made.fds = fds;
    return made;
}

// Sends it without any of the checks. An errno value, 0 for success.
inline int send_raw(const std::string &path, const raw_message &message)
{
    const gpusm::file_descriptor by(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    std::string payload = message.payload;
    iovec part{payload.data(), payload.size()};
    alignas(cmsghdr) unsigned char control[2048] = {};
    msghdr head{};
    head.msg_name = &address;
    head.msg_namelen = sizeof(address);
    head.msg_iov = &part;
    head.msg_iovlen = 1;
    head.msg_control = control;
    if (const std::size_t bytes = message.fds.size() * sizeof(int); bytes > 0) {
        auto *rights = reinterpret_cast<cmsghdr *>(control);
        *rights = {CMSG_LEN(bytes), SOL_SOCKET, SCM_RIGHTS};
        std::memcpy(CMSG_DATA(rights), message.fds.data(), bytes);
        head.msg_controllen = CMSG_SPACE(bytes);
    }
    return sendmsg(by.get(), &head, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? errno : 0;
}

// Another process, which does `body` and lives on with what that returns, until end_process(); here
// when it has done so.
template <typename Body> pid_t start_process(Body &&body)
{
    int ends[2] = {-1, -1};
    const pid_t child = 0 == pipe(ends) ? fork() : -1;
    if (0 == child) {
        (void)alarm(child_deadline_s);
        const auto keeps = body();
        (void)!write(ends[1], "!", 1);
        for (;;) {
            (void)pause();
        }
    }
    (void)close(ends[1]);
    char ready = 0;
    if (child < 0 || 1 != read(ends[0], &ready, 1)) {
        std::perror("another process");
        std::abort();
    }
    (void)close(ends[0]);
    return child;
}
inline void end_process(pid_t child)
{
    (void)kill(child, SIGKILL);
    (void)waitpid(child, nullptr, 0);
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
