// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// child.h: programs that this one starts. Each ends when this process does, and none is waited for
// longer than its deadline.
#ifndef GPUSM_INFO_CHILD_H
#define GPUSM_INFO_CHILD_H

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpusm::info {

std::int64_t now_ms();

// One descriptor that is closed with its owner.
class descriptor {
  public:
    explicit descriptor(int fd = -1) : fd_(fd) {}
    ~descriptor() { reset(); }
    descriptor(descriptor &&other) noexcept : fd_(other.release()) {}
    descriptor &operator=(descriptor &&other) noexcept
    {
        reset(other.release());
        return *this;
    }
    int get() const { return fd_; }
    int release()
    {
        const int fd = fd_;
        fd_ = -1;
        return fd;
    }
    void reset(int fd = -1);

  private:
    int fd_;
};

// Which descriptor of this process is which one of the child's.
struct passed {
    int here;
    int there;
};

// Starts words[0] with those descriptors, four at most. Nothing else that this program has opened
// is open there. -1: errno says why.
pid_t start(const std::vector<std::string> &words, const std::vector<passed> &descriptors);

struct child_end {
    bool ended = false;       // false: it was killed, at the deadline
    int status = 0;           // as waitpid says
    std::string text() const; // "status 3", "signal 11 (Segmentation fault)", "no end in time"
    bool well() const { return ended && 0 == status; }
};

// Waits for its end until then, kills it, and waits for a little longer: a process that is stuck in
// a driver does not go.
child_end wait_for(pid_t pid, std::int64_t deadline_ms);

// Appends to *content what comes until the end of file: false at the deadline.
bool read_all(int fd, std::int64_t deadline_ms, std::string *content);

struct captured {
    int start_error = 0; // errno, where it could not be started
    child_end end;
    std::string output;
    std::string errors;
};

captured run(const std::vector<std::string> &words, std::int64_t deadline_ms);

} // namespace gpusm::info

#endif
