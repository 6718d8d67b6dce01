// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "tools/gpusm_info/child.h"

#include "tools/gpusm_info/text.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

namespace gpusm::info {

namespace {

// The child has its descriptors from here on while it puts them where they belong. As few as
// possible: limits may be low.
constexpr int spare = 8;
constexpr std::size_t most_passed = 4;

constexpr std::size_t most_output_bytes = std::size_t{16} << 20;

// One of several that are read at the same time.
struct source {
    int fd;
    std::string *content;
};

// False: not all had ended at the deadline.
bool read_sources(std::vector<source> open, std::int64_t deadline_ms)
{
    while (!open.empty()) {
        std::vector<pollfd> asked;
        for (const source &each : open) {
            asked.push_back({each.fd, POLLIN, 0});
        }
        const std::int64_t left = deadline_ms - now_ms();
        if (left <= 0) {
            return false;
        }
        if (poll(asked.data(), asked.size(), static_cast<int>(left)) < 0 && EINTR != errno) {
            return false;
        }
        for (std::size_t i = asked.size(); i-- > 0;) {
            if (0 == asked[i].revents) {
                continue;
            }
            char some[4096];
            const ssize_t got = read(asked[i].fd, some, sizeof(some));
            if (got > 0 && open[i].content->size() < most_output_bytes) {
                open[i].content->append(some, static_cast<std::size_t>(got));
            } else if (0 == got || (got < 0 && EINTR != errno)) {
                open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
            }
        }
    }
    return true;
}

// Only what may be called between fork and exec.
[[noreturn]] void become(char *const *words, const std::vector<passed> &descriptors, pid_t parent)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(127);
    }
    int moved[most_passed];
    const std::size_t count = std::min(most_passed, descriptors.size());
    for (std::size_t i = 0; i < count; ++i) {
        moved[i] = fcntl(descriptors[i].here, F_DUPFD_CLOEXEC, spare);
    }
    for (std::size_t i = 0; i < count; ++i) {
        (void)dup2(moved[i], descriptors[i].there);
    }
    execv(words[0], words);
    _exit(127);
}

} // namespace

std::int64_t now_ms()
{
    timespec now{};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{1000} * now.tv_sec + now.tv_nsec / 1000000;
}

void descriptor::reset(int fd)
{
    if (fd_ >= 0) {
        (void)close(fd_);
    }
    fd_ = fd;
}

pid_t start(const std::vector<std::string> &words, const std::vector<passed> &descriptors)
{
    std::vector<char *> pointers;
    for (const std::string &each : words) {
        pointers.push_back(const_cast<char *>(each.c_str()));
    }
    pointers.push_back(nullptr);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (0 == pid) {
        become(pointers.data(), descriptors, parent);
    }
    return pid;
}

std::string child_end::text() const
{
    if (!ended) {
        return "no end in time";
    }
    if (WIFSIGNALED(status)) {
        return format("signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    }
    return format("status %d", WEXITSTATUS(status));
}

child_end wait_for(pid_t pid, std::int64_t deadline_ms)
{
    constexpr std::int64_t patience_ms = 3000;
    constexpr timespec moment = {0, 5'000'000};
    child_end end;
    bool killed = false;
    for (;;) {
        const pid_t got = waitpid(pid, &end.status, WNOHANG);
        if (got == pid) {
            end.ended = !killed;
            return end;
        }
        if (got < 0 && EINTR != errno) {
            return end;
        }
        if (!killed && now_ms() >= deadline_ms) {
            (void)kill(pid, SIGKILL);
            killed = true;
        } else if (killed && now_ms() >= deadline_ms + patience_ms) {
            return end;
        }
        (void)nanosleep(&moment, nullptr);
    }
}

bool read_all(int fd, std::int64_t deadline_ms, std::string *content)
{
    return read_sources({{fd, content}}, deadline_ms);
}

captured run(const std::vector<std::string> &words, std::int64_t deadline_ms)
{
    captured result;
    int out[2];
    int errors[2];
    if (0 != pipe2(out, O_CLOEXEC)) {
        result.start_error = errno;
        return result;
    }
    const descriptor out_here(out[0]);
    descriptor out_there(out[1]);
    if (0 != pipe2(errors, O_CLOEXEC)) {
        result.start_error = errno;
        return result;
    }
    const descriptor errors_here(errors[0]);
    descriptor errors_there(errors[1]);
    const descriptor nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
    const pid_t pid = start(words, {{nothing.get(), STDIN_FILENO},
                                    {out_there.get(), STDOUT_FILENO},
                                    {errors_there.get(), STDERR_FILENO}});
    if (pid < 0) {
        result.start_error = errno;
        return result;
    }
    out_there.reset();
    errors_there.reset();
    const bool in_time = read_sources(
        {{out_here.get(), &result.output}, {errors_here.get(), &result.errors}}, deadline_ms);
    result.end = wait_for(pid, in_time ? deadline_ms : 0);
    return result;
}

} // namespace gpusm::info
