// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// descriptor_support.h: what the tests of ipc/descriptor_socket.h share: files to pass, identities,
// processes to pass them to, and messages that no descriptor_socket would send.
#ifndef GPUSM_TESTS_DESCRIPTOR_SUPPORT_H
#define GPUSM_TESTS_DESCRIPTOR_SUPPORT_H

#include "opal/mca/btl/gpusm/ipc/descriptor_socket.h"

#include "tests/unit/shm_support.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

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

// Descriptors that this process has open; the one for looking counts every time.
inline std::size_t open_descriptors()
{
    return files_in("/proc/self/fd").size();
}

// Makes the socket; stops the program when that fails, as no test can go on without it.
inline gpusm::descriptor_socket make_socket(const std::string &folder, std::uint32_t vpid)
{
    gpusm::descriptor_socket made;
    std::string why;
    if (gpusm::status::ok !=
        gpusm::descriptor_socket::create(folder, identity_of(vpid), &made, &why)) {
        std::fprintf(stderr, "no socket for the test: %s\n", why.c_str());
        std::abort();
    }
    return made;
}

// Sends the descriptors of process `from` to `to`; piece i of export `slot` has 1000 * slot + i
// bytes, its generation is slot + 7.
inline gpusm::status send_from(const gpusm::descriptor_socket &by, std::uint32_t from,
                               const std::string &folder, std::uint32_t to, std::uint32_t slot,
                               const std::vector<int> &fds)
{
    std::vector<std::uint64_t> lengths;
    for (std::size_t i = 0; i < fds.size(); ++i) {
        lengths.push_back(1000ULL * slot + i);
    }
    const gpusm::descriptor_label label{identity_of(from), slot + 7ULL, slot,
                                        static_cast<std::uint32_t>(fds.size())};
    return by.send(folder, identity_of(to), label, lengths.data(), fds.data());
}

// A message as bytes, to be spoilt. `credentials`: added if given.
struct raw_message {
    std::string payload;
    std::vector<int> fds;
    const ucred *credentials = nullptr;
};

inline raw_message good_message(std::uint32_t to, const std::vector<int> &fds)
{
    const gpusm::descriptor_packet packet{
        gpusm::descriptor_magic,
        gpusm::wire_version,
        0,
        identity_of(to),
        {identity_of(99), 1, 2, static_cast<std::uint32_t>(fds.size())}};
    raw_message made;
    made.payload.assign(reinterpret_cast<const char *>(&packet), sizeof(packet));
    made.payload.append(fds.size() * sizeof(std::uint64_t), '\1');
    made.fds = fds;
    return made;
}

// A socket without any of the checks. Returns an errno value, 0 for success.
class raw_sender {
  public:
    int send(const std::string &path, const raw_message &message) const
    {
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
        const auto add = [&](int type, const void *data, std::size_t bytes) {
            auto *next = reinterpret_cast<cmsghdr *>(control + head.msg_controllen);
            *next = {CMSG_LEN(bytes), SOL_SOCKET, type};
            std::memcpy(CMSG_DATA(next), data, bytes);
            head.msg_controllen += CMSG_SPACE(bytes);
        };
        if (!message.fds.empty()) {
            add(SCM_RIGHTS, message.fds.data(), message.fds.size() * sizeof(int));
        }
        if (message.credentials != nullptr) {
            add(SCM_CREDENTIALS, message.credentials, sizeof(*message.credentials));
        }
        return sendmsg(socket_.get(), &head, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? errno : 0;
    }

  private:
    gpusm::file_descriptor socket_{socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
};

// Another process, which does `body` and then lives until it is killed: at the latest here.
class other_process {
  public:
    template <typename Body> explicit other_process(Body &&body)
    {
        int ends[2] = {-1, -1};
        if (pipe(ends) != 0 || (child_ = fork()) < 0) {
            std::perror("fork");
            std::abort();
        }
        if (0 == child_) {
            (void)alarm(child_deadline_s);
            const auto keeps = body();
            (void)!write(ends[1], "!", 1);
            for (;;) {
                (void)pause();
            }
        }
        (void)close(ends[1]);
        char ready = 0;
        ready_ = 1 == read(ends[0], &ready, 1);
        (void)close(ends[0]);
    }
    ~other_process() { end(); }
    other_process(const other_process &) = delete;
    other_process &operator=(const other_process &) = delete;

    bool ready() const { return ready_; } // it has come to the end of its body
    void end()
    {
        if (child_ > 0) {
            (void)kill(child_, SIGKILL);
            (void)waitpid(child_, nullptr, 0);
            child_ = -1;
        }
    }

  private:
    pid_t child_ = -1;
    bool ready_ = false;
};

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
