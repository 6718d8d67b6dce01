// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/status.h: the one answer type of every layer. "Not yet", "full" and "broken" are
// different answers; the glue turns them into OPAL_* codes and nobody else does.
#ifndef GPUSM_BASE_STATUS_H
#define GPUSM_BASE_STATUS_H

namespace gpusm {

enum class [[nodiscard]] status{
    ok,
    busy,          // no room right now; the same call may succeed after progress
    no_memory,     // host memory, shared memory or a bounded table is exhausted
    not_found,     // the thing asked for does not exist (any more)
    bad_argument,  // the caller's value is out of range
    bad_peer,      // bytes that a peer wrote make no sense; its endpoint must be closed
    cancelled,     // what was asked for has been called off
    peer_gone,     // the peer's process or segment does not exist any more
    unsupported,   // this kind of memory, device pair or driver cannot do it; fall back
    not_ready,     // no CUDA context here yet; ask again later
    driver_failed, // a driver call answered with an error
    system_failed, // a system call answered with an error
};

// What has failed so many times in a row is left alone for a while (base/reach.h).
inline constexpr unsigned failures_in_a_row = 4;

// A constant string, never null; for messages.
constexpr const char *to_string(status s) noexcept
{
    switch (s) {
    case status::ok:
        return "ok";
    case status::busy:
        return "busy";
    case status::no_memory:
        return "out of memory";
    case status::not_found:
        return "not found";
    case status::bad_argument:
        return "bad argument";
    case status::bad_peer:
        return "bad data from a peer";
    case status::cancelled:
        return "called off";
    case status::peer_gone:
        return "peer is gone";
    case status::unsupported:
        return "not supported";
    case status::not_ready:
        return "not ready";
    case status::driver_failed:
        return "a CUDA driver call failed";
    case status::system_failed:
        return "a system call failed";
    }
    return "unknown status";
}

} // namespace gpusm

#endif
