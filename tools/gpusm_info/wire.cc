// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "tools/gpusm_info/wire.h"

#include "tools/gpusm_info/text.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gpusm::info {

const char *kind_name(share_kind kind)
{
    switch (kind) {
    case share_kind::host:
        return "host";
    case share_kind::device:
        return "device";
    case share_kind::vmm:
        return "vmm";
    case share_kind::pool:
        return "pool";
    case share_kind::managed:
        return "managed";
    case share_kind::page_locked:
        return "page_locked";
    }
    return "";
}

namespace {

std::uint32_t word_of(std::uint32_t seed, std::size_t at)
{
    return (static_cast<std::uint32_t>(at) + 1) * 2654435761u ^ seed * 40503u;
}

} // namespace

void write_pattern(std::vector<std::uint32_t> *to, std::uint32_t seed)
{
    to->resize(pattern_bytes / sizeof(std::uint32_t));
    for (std::size_t i = 0; i < to->size(); ++i) {
        (*to)[i] = word_of(seed, i);
    }
}

std::size_t count_wrong(const std::vector<std::uint32_t> &got, std::uint32_t seed)
{
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        wrong += got[i] != word_of(seed, i) ? 1 : 0;
    }
    return wrong;
}

bool send_packet(int socket, const void *packet, std::size_t len_bytes, int descriptor)
{
    iovec content = {const_cast<void *>(packet), len_bytes};
    alignas(cmsghdr) char beside[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &content;
    message.msg_iovlen = 1;
    if (descriptor >= 0) {
        message.msg_control = beside;
        message.msg_controllen = sizeof(beside);
        cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
    }
    return static_cast<ssize_t>(len_bytes) == sendmsg(socket, &message, MSG_NOSIGNAL);
}

bool receive_packet(int socket, void *packet, std::size_t len_bytes, int *descriptor)
{
    // The one that prints has a shorter deadline, and ends both.
    constexpr int patience_ms = 4'000'000;
    *descriptor = -1;
    iovec content = {packet, len_bytes};
    alignas(cmsghdr) char beside[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &content;
    message.msg_iovlen = 1;
    message.msg_control = beside;
    message.msg_controllen = sizeof(beside);
    pollfd asked = {socket, POLLIN, 0};
    int ready = 0;
    do {
        ready = poll(&asked, 1, patience_ms);
    } while (ready < 0 && EINTR == errno);
    const ssize_t got = ready > 0 ? recvmsg(socket, &message, MSG_CMSG_CLOEXEC) : -1;
    const cmsghdr *header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
    if (header != nullptr && SOL_SOCKET == header->cmsg_level && SCM_RIGHTS == header->cmsg_type) {
        std::memcpy(descriptor, CMSG_DATA(header), sizeof(int));
    }
    return static_cast<ssize_t>(len_bytes) == got;
}

record &record::set(const std::string &key, const std::string &value)
{
    std::string clean = value;
    std::replace_if(
        clean.begin(), clean.end(), [](char each) { return '\t' == each || '\n' == each; }, ' ');
    values_[key] = clean;
    return *this;
}

record &record::set(const std::string &key, std::int64_t value)
{
    return set(key, std::to_string(value));
}

record record::parse(const std::string &line)
{
    const std::vector<std::string> parts = split(line, '\t');
    record result(parts[0]);
    for (std::size_t i = 1; i < parts.size(); ++i) {
        const std::size_t end = std::min(parts[i].find('='), parts[i].size());
        result.values_[parts[i].substr(0, end)] =
            end < parts[i].size() ? parts[i].substr(end + 1) : "";
    }
    return result;
}

std::string record::line() const
{
    std::string all = name_;
    for (const auto &[key, value] : values_) {
        all += "\t" + key + "=" + value;
    }
    return all + "\n";
}

std::string record::text(const std::string &key) const
{
    const auto found = values_.find(key);
    return values_.end() == found ? std::string() : found->second;
}

} // namespace gpusm::info
