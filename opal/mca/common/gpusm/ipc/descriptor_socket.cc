// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/ipc/descriptor_socket.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/shm/segment.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>

namespace gpusm {

namespace {

// SCM_MAX_FD of Linux, which no header for programs has. With room for so many in the buffer, a
// message can only be cut short because this process has no descriptor numbers left.
constexpr std::size_t most_in_a_message = 253;
static_assert(most_descriptors <= most_in_a_message);

// A socket's address: `name` in the folder that `fd` has open or, without a name, the very file
// that it has open. A path itself would often be too long for an address.
sockaddr_un address_through(const file_descriptor &fd, const char *name = "")
{
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d%s%s", fd.get(),
                  '\0' == *name ? "" : "/", name);
    return address;
}

// What travels beside the payload. Aligned as the system's macros want it.
union control_buffer {
    cmsghdr align;
    unsigned char bytes[CMSG_SPACE(most_in_a_message * sizeof(int))];
};

status answer_of_send(int error, const std::string &path)
{
    switch (error) {
    case 0:
        return status::ok;
    case EAGAIN:       // the receiver's queue, or our part of all queues, is full
    case ENOBUFS:      // the kernel has no memory for it right now
    case ETOOMANYREFS: // more descriptors on the way than this user may have open in a process
        return status::busy;
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:
        return status::peer_gone;
    default:
        log_line(log_level::error, "cannot send file descriptors to %s: %s", path.c_str(),
                 std::strerror(error));
        return status::system_failed;
    }
}

// Takes ownership of every descriptor that came. Nothing else comes beside a payload.
std::vector<file_descriptor> take_descriptors(msghdr *message)
{
    std::vector<file_descriptor> taken;
    const cmsghdr *rights = CMSG_FIRSTHDR(message);
    const std::size_t bytes = nullptr == rights ? 0 : rights->cmsg_len - CMSG_LEN(0);
    for (std::size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
        int number = -1;
        std::memcpy(&number, CMSG_DATA(rights) + at, sizeof(number));
        taken.emplace_back(number);
    }
    return taken;
}

} // namespace

std::string descriptor_socket_path(const std::string &directory, const segment_identity &identity)
{
    return segment_path(directory, identity) + companion_suffix;
}

descriptor_socket::descriptor_socket(const std::string &directory, const segment_identity &self)
    : self_(self), path_(descriptor_socket_path(directory, self))
{
    const file_descriptor folder(open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    const sockaddr_un address = address_through(folder, path_.c_str() + directory.size() + 1);
    file_descriptor made(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    // bind() gives the file the mode of the socket, less the umask. The identity is ours alone, so
    // nobody has taken the name.
    if (!folder.valid() || !made.valid() || fchmod(made.get(), S_IRUSR | S_IWUSR) != 0 ||
        bind(made.get(), reinterpret_cast<const sockaddr *>(&address), sizeof(address)) != 0) {
        log_line(log_level::warn,
                 "VMM and pool memory of peers cannot be mapped, as there is no socket for file "
                 "descriptors, %s: %s",
                 path_.c_str(), std::strerror(errno));
        return;
    }
    socket_ = std::move(made);
}

descriptor_socket::~descriptor_socket()
{
    remove();
}

void descriptor_socket::remove()
{
    if (valid()) {
        (void)unlink(path_.c_str());
        const file_descriptor closed = std::move(socket_);
    }
}

status descriptor_socket::send(const std::string &directory, const segment_identity &to,
                               const descriptor_message &message) const
{
    const std::size_t count = message.fds.size();
    if (!valid() || 0 == count || count > most_descriptors || message.lengths.size() != count) {
        return status::bad_argument;
    }
    const std::string path = descriptor_socket_path(directory, to);
    // Opened to name it and for nothing else, so that it cannot be exchanged between a look at it
    // and its use.
    const file_descriptor file(open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat about;
    if (!file.valid() || fstat(file.get(), &about) != 0) {
        return answer_of_send(errno, path);
    }
    if (!S_ISSOCK(about.st_mode) || about.st_uid != geteuid()) {
        return answer_of_send(EPERM, path);
    }
    sockaddr_un address = address_through(file);
    descriptor_packet packet{descriptor_magic,
                             wire_version,
                             0,
                             to,
                             message.from,
                             message.generation,
                             message.slot,
                             static_cast<std::uint32_t>(count)};
    iovec parts[] = {
        {&packet, sizeof(packet)},
        {const_cast<std::uint64_t *>(message.lengths.data()), count * sizeof(std::uint64_t)}};
    control_buffer control{};
    msghdr header{};
    header.msg_name = &address;
    header.msg_namelen = sizeof(address);
    header.msg_iov = parts;
    header.msg_iovlen = std::size(parts);
    control.align = {CMSG_LEN(count * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    for (std::size_t i = 0; i < count; ++i) {
        const int number = message.fds[i].get();
        std::memcpy(CMSG_DATA(&control.align) + i * sizeof(number), &number, sizeof(number));
    }
    header.msg_control = &control;
    header.msg_controllen = CMSG_SPACE(count * sizeof(int));
    const ssize_t sent = sendmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    return answer_of_send(sent < 0 ? errno : 0, path);
}

status descriptor_socket::receive(descriptor_message *out)
{
    while (valid()) {
        descriptor_packet packet{};
        std::uint64_t lengths[most_descriptors];
        iovec parts[] = {{&packet, sizeof(packet)}, {lengths, sizeof(lengths)}};
        control_buffer control;
        msghdr header{};
        header.msg_iov = parts;
        header.msg_iovlen = std::size(parts);
        header.msg_control = &control;
        header.msg_controllen = sizeof(control);
        const ssize_t bytes = recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (bytes < 0 && EINTR == errno) {
            continue;
        }
        if (bytes < 0 && EAGAIN == errno) {
            break;
        }
        if (bytes < 0) {
            const int error = errno;
            if (receives_.failed(status::system_failed)) {
                log_line(log_level::warn, "cannot receive file descriptors at %s: %s",
                         path_.c_str(), std::strerror(error));
                remove();
            }
            return status::system_failed;
        }
        (void)receives_.worked();
        std::vector<file_descriptor> fds = take_descriptors(&header);
        if (packet.magic == descriptor_magic && packet.version == wire_version &&
            packet.to == self_ && packet.count > 0 && packet.count <= most_descriptors &&
            packet.count == fds.size() && 0 == (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) &&
            static_cast<std::size_t>(bytes) ==
                sizeof(packet) + packet.count * sizeof(std::uint64_t)) {
            *out = {packet.from,
                    packet.generation,
                    packet.slot,
                    {lengths, lengths + packet.count},
                    std::move(fds)};
            return status::ok;
        }
        log_line(log_level::warn, "dropped a message that came to %s: %s", path_.c_str(),
                 0 != (header.msg_flags & MSG_CTRUNC)
                     ? "this process has too many open files to take its descriptors"
                     : "it is not one from this version of gpusm for this process");
    }
    return status::not_found;
}

} // namespace gpusm
