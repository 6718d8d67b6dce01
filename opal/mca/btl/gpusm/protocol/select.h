// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// protocol/select.h: which way a message goes that is longer than the eager limit. Pure functions
// of what is known when the message is offered, so that the same program takes the same way every
// time.
#ifndef GPUSM_PROTOCOL_SELECT_H
#define GPUSM_PROTOCOL_SELECT_H

#include <cstdint>
#include <string_view>

namespace gpusm {

// How host memory reaches host memory.
enum class host_way : std::uint8_t {
    stream, // pieces through a ring in shared memory, sender and receiver copy at the same time
    single_copy, // the receiver reads the sender's memory by a system call, or maps it
};

// What the user has asked for.
enum class host_protocol : std::uint8_t { automatic, stream, single_copy };

// Reads the value of the MCA parameter host_protocol. False: it is none.
constexpr bool parse_host_protocol(std::string_view text, host_protocol *out)
{
    if ("auto" == text) {
        *out = host_protocol::automatic;
    } else if ("stream" == text) {
        *out = host_protocol::stream;
    } else if ("single_copy" == text) {
        *out = host_protocol::single_copy;
    } else {
        return false;
    }
    return true;
}

// What a process knows at start.
struct host_facts {
    host_protocol asked_for;
    bool single_copies;    // there are some: CMA or XPMEM
    bool oversubscribed;   // more processes than processors
    std::uint64_t call_ns; // what a single copy costs however short it is; 0: no system call
};

// From there on a system call is dear: in that time two processors have streamed 16 KiB.
inline constexpr std::uint64_t dear_call_ns = 1000;

constexpr host_way select_for_host(const host_facts &facts)
{
    if (!facts.single_copies) {
        return host_way::stream;
    }
    switch (facts.asked_for) {
    case host_protocol::stream:
        return host_way::stream;
    case host_protocol::single_copy:
        return host_way::single_copy;
    case host_protocol::automatic:
        break;
    }
    // A stream needs both processes to run at the same time.
    return facts.oversubscribed || facts.call_ns < dear_call_ns ? host_way::single_copy
                                                                : host_way::stream;
}

} // namespace gpusm

#endif
