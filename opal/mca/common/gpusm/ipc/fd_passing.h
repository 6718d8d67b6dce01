// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ipc/fd_passing.h: VMM memory and exportable pools have no handle that would fit into a directory:
// the process that maps them needs file descriptors. The importer asks for those of one export by a
// control message, the owner puts them into the importer's socket (ipc/descriptor_socket.h) and
// answers by a control message, so nobody polls a socket. What needs them waits meanwhile.
#ifndef GPUSM_IPC_FD_PASSING_H
#define GPUSM_IPC_FD_PASSING_H

#include "opal/mca/common/gpusm/base/reach.h"
#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/ipc/descriptor_socket.h"
#include "opal/mca/common/gpusm/ipc/export_directory.h"
#include "opal/mca/common/gpusm/shm/peer.h"
#include "opal/mca/common/gpusm/shm/segment.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace gpusm {

// What the layer above does for it. Peers have their numbers (peer::number).
class fd_passing_services {
  public:
    // Sends a control message; false: it could not be taken.
    virtual bool send(std::uint32_t to, const ipc_message &message) = 0;
    virtual peer *peer_at(std::uint32_t number) = 0; // null: there are not so many

  protected:
    ~fd_passing_services() = default;
};

// Not thread-safe: the caller holds its GPU lock.
class fd_passing {
  public:
    fd_passing(const segment &own, const export_directory &exports, fd_passing_services &services)
        : own_(own), exports_(exports), services_(services)
    {
    }

    // --- the importer ---

    // Asks for the descriptors of that export, unless that has been done. False: nothing can be
    // asked now. `then` is called when the owner has answered, whatever the answer is.
    bool ask(std::uint32_t owner, const remote_handle &handle, std::function<void()> then = {});
    // The owner has answered.
    void answered(std::uint32_t owner, const remote_handle &handle);
    // What the answer to ask() has brought, once. `not_ready`: nothing.
    status take(std::uint32_t owner, const remote_handle &handle, descriptor_message *out);
    // Closes what has come for exports of that owner that are over.
    void drop_over(std::uint32_t owner, const segment_view &of);

    // The owner is gone: who waits for its descriptors is called, and gets none. Drops what was to
    // be sent to it, too.
    void drop_owner(std::uint32_t owner);

    // --- the owner ---

    // Sends a peer the descriptors that it wants, and the answer; or only the answer, also when too
    // many wait for room already.
    void send(std::uint32_t to, const remote_handle &handle);
    // Sends what had to wait for room in a peer's socket.
    void progress()
    {
        if (!unsent_.empty()) {
            send_on();
        }
    }

  private:
    // An export whose descriptors have been asked for, until they are taken.
    struct request {
        std::uint32_t owner;
        remote_handle handle;
        std::vector<std::function<void()>> waiters; // called in the order in which they came
        std::optional<descriptor_message> message;
        bool answered = false;
    };
    struct unsent {
        std::uint32_t to;
        remote_handle handle;
        descriptor_message message;
    };

    void send_on();
    descriptor_socket &socket();
    bool receive(descriptor_message *out);
    std::vector<request>::iterator find(std::uint32_t owner, const remote_handle &handle);
    status try_to_send(const unsent &what);
    bool tell(std::uint32_t to, ipc_operation operation, const remote_handle &handle);

    const segment &own_;
    const export_directory &exports_;
    fd_passing_services &services_;
    std::optional<descriptor_socket> socket_; // not valid: it could not be made, or not be used
    reach receiving_;                         // by a socket, also that it can be made
    std::vector<request> requests_;
    std::vector<unsent> unsent_;
};

} // namespace gpusm

#endif
