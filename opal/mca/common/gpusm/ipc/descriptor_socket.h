// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ipc/descriptor_socket.h: file descriptors, passed between the processes of a node.
//
// A socket is a file beside the segment file of its owner, with its name and a suffix. As it has a
// name in the file system, whoever shares the folder can send, in whatever PID, network or user
// namespace; nobody needs the right to trace the other.
//
// Other users are kept out, also where everybody may make files in the folder: only this user may
// write to the file, which is what sending takes, and a sender looks whose the file is.
#ifndef GPUSM_IPC_DESCRIPTOR_SOCKET_H
#define GPUSM_IPC_DESCRIPTOR_SOCKET_H

#include "opal/mca/common/gpusm/base/reach.h"
#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

namespace gpusm {

// How many go in one message; Linux carries at most 253.
inline constexpr std::size_t most_descriptors = 250;

// A message's payload is this and behind it `count` lengths of 8 bytes.
struct descriptor_packet {
    std::uint64_t magic;
    std::uint32_t version; // wire_version
    std::uint32_t reserved;
    segment_identity to;
    segment_identity from;
    std::uint64_t generation; // of the export
    std::uint32_t slot;
    std::uint32_t count; // how many descriptors come with it: 1 to most_descriptors
};
static_assert(sizeof(descriptor_packet) == 64);
static_assert(std::has_unique_object_representations_v<descriptor_packet>); // no padding
inline constexpr std::uint64_t descriptor_magic = 0x64666d7375706721ULL;    // "!gpusmfd"

// Owns a file descriptor: closes it at the end.
class file_descriptor {
  public:
    file_descriptor() = default;
    explicit file_descriptor(int fd) : fd_(fd) {}
    file_descriptor(file_descriptor &&other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    file_descriptor &operator=(file_descriptor &&other) noexcept
    {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~file_descriptor()
    {
        if (valid()) {
            (void)close(fd_);
        }
    }

    bool valid() const { return fd_ >= 0; }
    int get() const { return fd_; } // -1 when there is none

  private:
    int fd_ = -1;
};

// The descriptors of one export. Who it is from and which export that is, the receiver checks
// against what it is waiting for.
struct descriptor_message {
    segment_identity from{};
    std::uint64_t generation = 0;
    std::uint32_t slot = 0;
    std::vector<std::uint64_t> lengths; // bytes of each piece, says the sender; as many as fds
    std::vector<file_descriptor> fds;   // close-on-exec
};

// A process's own socket: it receives here, and sends to those of others. Any thread may send at
// any time; receive() is for one thread at a time.
class descriptor_socket {
  public:
    // Makes the socket that belongs to the segment of `self` in `directory`, which may be longer
    // than an address of a socket; needs /proc. When it fails, it is not valid(), nothing is left
    // behind, and the cause is logged.
    descriptor_socket(const std::string &directory, const segment_identity &self);
    // Removes the file; what has arrived and was not received is closed.
    ~descriptor_socket();
    descriptor_socket(const descriptor_socket &) = delete;
    descriptor_socket &operator=(const descriptor_socket &) = delete;

    // Sends a message to the socket of `to`. Never waits. The caller keeps its descriptors, and may
    // close them at once.
    // `busy`: the receiver's queue is full, or too many descriptors of this user are on the way;
    // the same call may succeed after progress. `peer_gone`: the receiver has no socket, not yet or
    // not any more. `bad_argument`: a count out of range. `system_failed`: anything else, such as a
    // file there that is not of this user, or a descriptor that is none; cause logged.
    status send(const std::string &directory, const segment_identity &to,
                const descriptor_message &message) const;

    // Takes the oldest message. Never waits. `not_found`: there is none. What cannot be a message
    // of ours is dropped with its descriptors and with one line in the log; so is a message for
    // whose descriptors this process has no room, because the system does not give it twice.
    // `system_failed`: it cannot be received now. When that has happened some times in a row it is
    // not valid() any more, as what is never emptied would hold up who sends to it.
    status receive(descriptor_message *out);

    bool valid() const { return socket_.valid(); }
    const std::string &path() const { return path_; }

  private:
    void remove();

    const segment_identity self_;
    const std::string path_;
    file_descriptor socket_;
    reach receives_;
};

// The file of the socket of `identity`, which segment_sweep() removes when that process is dead.
std::string descriptor_socket_path(const std::string &directory, const segment_identity &identity);

} // namespace gpusm

#endif
