// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_summary.h: what --mca btl_gpusm_summary 1 tells at the end of a process: which messages
// it has sent and fetched, in which modes, to and from which peers, and why some took another way.
#ifndef BTL_GPUSM_SUMMARY_H
#define BTL_GPUSM_SUMMARY_H

#include "opal/mca/btl/gpusm/btl_gpusm_counters.h"

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/ipc/handshake.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace gpusm {

struct transport;

// The counters of messages come first, the last one is unpacked_bytes.
inline constexpr std::size_t message_counters =
    static_cast<std::size_t>(counter::unpacked_bytes) + 1;

// Of one peer, or of this process's messages to itself. Any thread.
struct peer_summary {
    struct amount {
        std::uint64_t messages = 0;
        std::uint64_t bytes = 0;
    };
    std::array<std::atomic<unsigned long long>, message_counters> counted{};
    std::mutex lock;                                      // of `fallbacks`
    std::map<std::string, amount, std::less<>> fallbacks; // by their reasons

    void fell_back(std::string reason, bool first, std::size_t bytes);
    // Device memory, of whose bytes these are the first ones or more. Said of a peer that does not
    // fetch it; another one does so when it can, and of why not fell_back() has been told.
    void went_in_fragments(ipc_state fetches, bool first, std::size_t bytes);
};

// Null unless the user wants a summary.
std::unique_ptr<peer_summary> new_peer_summary();

// Prints it, in one piece. No message is under way.
void print_summary(transport &of);

} // namespace gpusm

#endif
