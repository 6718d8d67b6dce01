// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/ipc/descriptor_socket.h"

#include "opal/mca/btl/gpusm/base/log.h"
#include "opal/mca/btl/gpusm/shm/segment.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

namespace gpusm {

namespace {

// SCM_MAX_FD of Linux, which no header for programs has. With room for so many in the buffer, a
// message can only be cut short because this process has no descriptor numbers left.
constexpr std::size_t most_in_a_message = 253;
static_assert(most_descriptors <= most_in_a_message);

// A socket's address: `name` in the folder that `fd` has open or, without a name, the very file
// that it has open. A path itself would often be too long for an address.
sockaddr_un address_through(const file_descriptor &fd, const char *name = nullptr)
{
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d%s%s", fd.get(),
                  nullptr == name ? "" : "/", nullptr == name ? "" : name);
    return address;
}

const sockaddr *plain(const sockaddr_un &address)
{
    return reinterpret_cast<const sockaddr *>(&address);
}

// Opens the file of a socket, to name it and for nothing else, so that it cannot be exchanged
// between a look at it and its use. An errno value, 0 for success; EPERM when it is not a
// socket of this user.
int open_socket_file(const std::string &path, file_descriptor *out)
{
    file_descriptor file(open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat about;
    if (!file.valid() || fstat(file.get(), &about) != 0) {
        return errno;
    }
    if (!S_ISSOCK(about.st_mode) || about.st_uid != geteuid()) {
        return EPERM;
    }
    *out = std::move(file);
    return 0;
}

// What travels beside the payload. Aligned as the system's macros want it.
template <std::size_t Bytes> union control_buffer {
    cmsghdr align;
    unsigned char bytes[Bytes];
};

status answer_of_send(int error)
{
    switch (error) {
    case EAGAIN:       // the receiver's queue, or our part of all queues, is full
    case ENOBUFS:      // the kernel has no memory for it right now
    case ETOOMANYREFS: // more descriptors on the way than this user may have open in a process
        return status::busy;
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:
        return status::peer_gone;
    case EBADF:
        return status::bad_argument;
    default:
        return status::system_failed;
    }
}

// Takes ownership of every descriptor that came. Whether the sender is of this user.
bool take_control(msghdr *message, std::vector<file_descriptor> *out)
{
    bool from_this_user = false;
    for (cmsghdr *each = CMSG_FIRSTHDR(message); each != nullptr;
         each = CMSG_NXTHDR(message, each)) {
        if (SOL_SOCKET != each->cmsg_level) {
            continue;
        }
        const std::size_t bytes = each->cmsg_len - CMSG_LEN(0);
        if (SCM_CREDENTIALS == each->cmsg_type && bytes >= sizeof(ucred)) {
            ucred sender{};
            std::memcpy(&sender, CMSG_DATA(each), sizeof(sender));
            from_this_user = sender.uid == geteuid(); // the pid means nothing elsewhere
        }
        for (std::size_t at = 0; SCM_RIGHTS == each->cmsg_type && at + sizeof(int) <= bytes;
             at += sizeof(int)) {
            int number = -1;
            std::memcpy(&number, CMSG_DATA(each) + at, sizeof(number));
            out->emplace_back(number);
        }
    }
    return from_this_user;
}

// Why that cannot be a message for `self`, or null. `bytes` of payload and so many descriptors
// came.
const char *first_fault(const descriptor_packet &packet, std::size_t bytes, int flags,
                        bool from_this_user, std::size_t fds, const segment_identity &self)
{
    if (!from_this_user) {
        return "it is from another user";
    }
    if ((flags & MSG_TRUNC) != 0 || bytes < sizeof(packet) || packet.magic != descriptor_magic) {
        return "it is not from gpusm";
    }
    if (packet.version != wire_version) {
        return "it is from another version of gpusm";
    }
    if (!(packet.to == self)) {
        return "it was meant for another process";
    }
    const std::size_t count = packet.label.count;
    if (0 == count || count > most_descriptors ||
        bytes != sizeof(packet) + count * sizeof(std::uint64_t)) {
        return "its length is wrong";
    }
    if ((flags & MSG_CTRUNC) != 0) {
        return "this process has too many open files to take its descriptors";
    }
    if (fds != count) {
        return "the number of its descriptors is wrong";
    }
    return nullptr;
}

} // namespace

file_descriptor &file_descriptor::operator=(file_descriptor &&other) noexcept
{
    const file_descriptor old(std::exchange(fd_, other.release()));
    return *this;
}

file_descriptor::~file_descriptor()
{
    if (valid()) {
        (void)close(fd_);
    }
}

std::string descriptor_socket_path(const std::string &directory, const segment_identity &identity)
{
    return segment_path(directory, identity) + companion_suffix;
}

descriptor_socket &descriptor_socket::operator=(descriptor_socket &&other) noexcept
{
    if (this != &other) {
        remove();
        socket_ = std::move(other.socket_);
        self_ = other.self_;
        path_ = std::exchange(other.path_, {});
        dropped_ = other.dropped_;
    }
    return *this;
}

void descriptor_socket::remove()
{
    if (valid()) {
        (void)unlink(path_.c_str());
    }
}

status descriptor_socket::create(const std::string &directory, const segment_identity &self,
                                 descriptor_socket *out, std::string *why)
{
    const std::string path = descriptor_socket_path(directory, self);
    const auto give_up = [&](const char *what, int error) {
        *why = std::string("cannot ") + what + " for file descriptors, " + path + ": " +
               std::strerror(error);
        return status::system_failed;
    };

    const file_descriptor folder(open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!folder.valid()) {
        return give_up("open the folder of the socket", errno);
    }
    file_descriptor made(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!made.valid()) {
        return give_up("make the socket", errno);
    }
    const int on = 1;
    if (setsockopt(made.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0) {
        return give_up("set up the socket", errno);
    }
    // bind() gives the file the mode of the socket, less the umask.
    if (fchmod(made.get(), S_IRUSR | S_IWUSR) != 0) {
        return give_up("protect the socket", errno);
    }
    const sockaddr_un address = address_through(folder, path.c_str() + directory.size() + 1);
    // The identity is ours alone, so nobody has taken the name.
    if (bind(made.get(), plain(address), sizeof(address)) != 0) {
        return give_up("name the socket", errno);
    }
    descriptor_socket finished;
    finished.socket_ = std::move(made);
    finished.self_ = self;
    finished.path_ = path;
    *out = std::move(finished);
    return status::ok;
}

status descriptor_socket::send(const std::string &directory, const segment_identity &to,
                               const descriptor_label &label, const std::uint64_t *lengths,
                               const int *fds) const
{
    if (!valid() || 0 == label.count || label.count > most_descriptors) {
        return status::bad_argument;
    }
    const std::string path = descriptor_socket_path(directory, to);
    const auto give_up = [&path](int error) {
        const status answer = answer_of_send(error);
        if (status::system_failed == answer) {
            log_line(log_level::error, "cannot send file descriptors to %s: %s", path.c_str(),
                     std::strerror(error));
        }
        return answer;
    };
    file_descriptor file;
    if (const int error = open_socket_file(path, &file); error != 0) {
        return give_up(error);
    }
    sockaddr_un address = address_through(file);
    descriptor_packet packet{descriptor_magic, wire_version, 0, to, label};
    iovec parts[] = {{&packet, sizeof(packet)},
                     {const_cast<std::uint64_t *>(lengths), label.count * sizeof(*lengths)}};
    control_buffer<CMSG_SPACE(most_descriptors * sizeof(int))> control{};
    msghdr message{};
    message.msg_name = &address;
    message.msg_namelen = sizeof(address);
    message.msg_iov = parts;
    message.msg_iovlen = std::size(parts);
    control.align = {CMSG_LEN(label.count * sizeof(*fds)), SOL_SOCKET, SCM_RIGHTS};
    std::memcpy(CMSG_DATA(&control.align), fds, label.count * sizeof(*fds));
    message.msg_control = &control;
    message.msg_controllen = CMSG_SPACE(label.count * sizeof(*fds));
    if (sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        return give_up(errno);
    }
    return status::ok;
}

status descriptor_socket::receive(descriptor_message *out)
{
    for (int tries = 0; tries < most_dropped_at_once; ++tries) {
        descriptor_message next;
        const char *fault = nullptr;
        if (const status s = take(&next, &fault); s != status::ok) {
            return s;
        }
        if (nullptr == fault) {
            *out = std::move(next);
            return status::ok;
        }
        if (++dropped_ <= most_lines) {
            log_line(log_level::warn, "dropped a message that came to %s: %s%s", path_.c_str(),
                     fault, most_lines == dropped_ ? "; no more is said about such messages" : "");
        }
    }
    return status::not_found;
}

// `ok` with *fault set: something came that has to be dropped.
status descriptor_socket::take(descriptor_message *out, const char **fault)
{
    if (!valid()) {
        return status::bad_argument;
    }
    descriptor_packet packet{};
    out->lengths.resize(most_descriptors);
    iovec parts[] = {{&packet, sizeof(packet)},
                     {out->lengths.data(), most_descriptors * sizeof(std::uint64_t)}};
    control_buffer<CMSG_SPACE(most_in_a_message * sizeof(int)) + CMSG_SPACE(sizeof(ucred))> control;
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = std::size(parts);
    message.msg_control = &control;
    message.msg_controllen = sizeof(control);
    const ssize_t bytes = recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes < 0) {
        if (EAGAIN == errno || EINTR == errno) {
            return status::not_found;
        }
        log_line(log_level::error, "cannot receive from %s: %s", path_.c_str(),
                 std::strerror(errno));
        return status::system_failed;
    }
    const bool from_this_user = take_control(&message, &out->fds);
    *fault = first_fault(packet, static_cast<std::size_t>(bytes), message.msg_flags, from_this_user,
                         out->fds.size(), self_);
    out->lengths.resize(out->fds.size());
    out->label = packet.label;
    return status::ok;
}

} // namespace gpusm
