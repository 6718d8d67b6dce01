// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// wire.h: what the three processes of gpusm_info say to each other.
//
//   this program, printing                starts both others, reads records of the owner
//   this program, called as the owner     makes memory, looks at devices, writes records
//   this program, called as the peer      opens the owner's memory, answers
//
// The two are brothers, as ranks of a job are: a parent may do more to its child than they to each
// other. Both are programs of their own, so no driver has been used before a fork.
#ifndef GPUSM_INFO_WIRE_H
#define GPUSM_INFO_WIRE_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace gpusm::info {

// First argument of the program in those roles.
inline constexpr const char *owner_role = "--as-owner";
inline constexpr const char *peer_role = "--as-peer";
inline constexpr int peer_socket_fd = 3; // between the two
inline constexpr int record_fd = 4;      // the owner's, to the one that prints

enum class share_kind : std::uint32_t { host, device, vmm, pool, managed, page_locked };
const char *kind_name(share_kind kind);

// How much of an allocation is written and read.
inline constexpr std::size_t pattern_bytes = std::size_t{256} << 10;
// How much is allocated: what the driver maps at once.
inline constexpr std::size_t share_bytes = std::size_t{2} << 20;

void write_pattern(std::vector<std::uint32_t> *to, std::uint32_t seed);
// Words of it that differ.
std::size_t count_wrong(const std::vector<std::uint32_t> &got, std::uint32_t seed);

// From the owner to the peer, with a descriptor for the kinds that need one: read `seed` there,
// write the pattern of seed + 1.
struct share_request {
    share_kind kind;
    std::int32_t device; // of the peer
    std::int32_t owner_device;
    std::uint32_t seed;
    std::uint64_t len_bytes; // of the allocation
    std::uint64_t address;   // of host memory in the owner
    std::int32_t pid;        // the owner's
    std::uint32_t reserved;
    unsigned char handle[64];
};
static_assert(sizeof(share_request) == 104);

// Empty: it was read, right, and written.
struct share_answer {
    char call[56];
    char error[72];
};
static_assert(sizeof(share_answer) == 128);

// One packet, with a descriptor or without (-1). False: the other process is gone, or silent.
bool send_packet(int socket, const void *packet, std::size_t len_bytes, int descriptor);
bool receive_packet(int socket, void *packet, std::size_t len_bytes, int *descriptor);

// A line "word key=value key=value", with tabs between, of what the owner has found.
class record {
  public:
    explicit record(std::string name) : name_(std::move(name)) {}
    record &set(const std::string &key, const std::string &value);
    record &set(const std::string &key, const char *value) { return set(key, std::string(value)); }
    record &set(const std::string &key, std::int64_t value);
    static record parse(const std::string &line);
    std::string line() const;

    const std::string &name() const { return name_; }
    std::string text(const std::string &key) const; // empty: has none

  private:
    std::string name_;
    std::map<std::string, std::string> values_;
};

int be_owner(bool tries);
int be_peer();

} // namespace gpusm::info

#endif
