// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ipc/fd_passing.h: VMM memory and exportable pools have no handle that would fit into a directory:
// the process that maps them needs file descriptors. The importer asks for those of one export by a
// control message, the owner puts them into the importer's socket (ipc/descriptor_socket.h) and
// answers by a control message, so nobody polls a socket. What needs them waits meanwhile.
#ifndef GPUSM_IPC_FD_PASSING_H
#define GPUSM_IPC_FD_PASSING_H

#include "opal/mca/btl/gpusm/base/status.h"
#include "opal/mca/btl/gpusm/ipc/descriptor_socket.h"
#include "opal/mca/btl/gpusm/ipc/export_directory.h"
#include "opal/mca/btl/gpusm/shm/peer.h"
#include "opal/mca/btl/gpusm/shm/segment.h"
#include "opal/mca/btl/gpusm/shm/wire.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace gpusm {

// What the layer above does for it. Peers have numbers, from 0 on without a gap.
struct fd_passing_calls {
    // Sends a control message; false: it could not be taken.
    bool (*send)(std::uint32_t to, const ipc_message &message);
    peer *(*peer_at)(std::uint32_t number); // null: there are not so many
};

// Not thread-safe: the caller holds its GPU lock.
class fd_passing {
  public:
    fd_passing(const segment &own, const export_directory &exports, const fd_passing_calls &calls)
        : own_(own), exports_(exports), calls_(calls)
    {
    }

    // --- the importer ---

    // Asks for the descriptors of that export, unless that has been done. False: nothing can be
    // asked, now or ever.
    bool ask(std::uint32_t owner, const remote_handle &handle)
    {
        return wait_for(owner, handle) != nullptr;
    }
    // The same; `waiter` comes back from answered().
    bool wait(std::uint32_t owner, const remote_handle &handle, void *waiter);
    // Who waited for what the owner's answer is about, in the order in which they came.
    std::vector<void *> answered(std::uint32_t owner, const remote_handle &handle);

    // What has come for that export. `not_ready`: nothing has.
    status take(std::uint32_t owner, const remote_handle &handle, descriptor_message *out);
    // Closes what has come for exports of that owner that are over.
    void drop_over(std::uint32_t owner, const segment_view &of);

    // --- the owner ---

    // Sends a peer the descriptors that it wants, and the answer; or only the answer.
    void send(std::uint32_t to, const remote_handle &handle);
    // Sends what had to wait for room in a peer's socket.
    void progress();

  private:
    // What waits for the descriptors of one export.
    struct waiting {
        std::uint32_t owner;
        remote_handle handle;
        std::vector<void *> waiters;
    };
    struct arrived {
        std::uint32_t owner;
        descriptor_message message;
    };
    struct unsent {
        std::uint32_t to;
        remote_handle handle;
        std::vector<file_descriptor> descriptors;
        std::vector<std::uint64_t> lengths;
    };

    descriptor_socket *socket();
    waiting *wait_for(std::uint32_t owner, const remote_handle &handle);
    status try_to_send(const unsent &what);
    void answer(std::uint32_t to, const remote_handle &handle, bool sent);
    void empty_socket();

    const segment &own_;
    const export_directory &exports_;
    const fd_passing_calls calls_;
    std::optional<descriptor_socket> socket_; // not valid: it could not be made
    std::vector<waiting> waits_;
    std::vector<arrived> arrived_; // oldest first, bounded
    std::vector<unsent> unsent_;
};

} // namespace gpusm

#endif
