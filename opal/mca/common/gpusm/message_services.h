// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// message_services.h: what the device's side of a process needs of the component that carries
// messages between the processes.
#ifndef GPUSM_MESSAGE_SERVICES_H
#define GPUSM_MESSAGE_SERVICES_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/shm/peer.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <cstddef>
#include <cstdint>

namespace gpusm {

class message_services {
  public:
    // Sends a control message. False: it could not be taken.
    virtual bool send(peer &to, const ipc_message &message) = 0;
    virtual bool send(peer &to, const delegated_copy &message) = 0;
    // Single copies of host memory of that peer, which return when they are done. Anything but
    // `ok`: nothing, or a part, has been copied.
    virtual status read(peer &from, void *local, std::uint64_t remote, std::size_t bytes) = 0;
    virtual status write(peer &to, const void *local, std::uint64_t remote, std::size_t bytes) = 0;
    // The peer fetches device memory of this process from now on.
    virtual void fetches(peer &by) = 0;
    // Addresses in views (views.h) will be given to Open MPI from now on: sees to it that whoever
    // is asked to copy from or to one knows it. False: that cannot be. Any thread.
    virtual bool serve_views() = 0;
    // Device memory for that peer goes through host memory, for a reason that the user is to know.
    // Called without a lock of ours.
    virtual void refused(peer &by, refuse_reason reason) = 0;

  protected:
    ~message_services() = default;
};

} // namespace gpusm

#endif
