// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// device_offers.h: to which peers device memory of this process is offered: the handshake with each
// (ipc/handshake.h), what of it they can map, and the answers to what they ask.
#ifndef GPUSM_DEVICE_OFFERS_H
#define GPUSM_DEVICE_OFFERS_H

#include "opal/mca/common/gpusm/base/lock.h"
#include "opal/mca/common/gpusm/gpu_side.h"
#include "opal/mca/common/gpusm/ipc/handshake.h"
#include "opal/mca/common/gpusm/shm/peer.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <cstddef>
#include <deque>

namespace gpusm {

class local_process;

// What is known of one peer. Under the GPU lock, but for the handshake's state().
struct device_link {
    handshake fetches;
    mappings_of_exports maps; // which of our memory
};

// Any thread that does not hold the GPU lock, unless it says otherwise.
class device_offers {
  public:
    explicit device_offers(local_process &of) : process_(of) {}
    device_offers(const device_offers &) = delete;
    device_offers &operator=(const device_offers &) = delete;

    // That of a peer, for good.
    device_link *link_of(const peer &of);

    // A device message is about to leave for `to`: may it be fetched there? Asks the peer whether
    // it uses a device, if it is time to ask.
    bool may_offer(device_link &link, peer &to);
    // A control message has come in.
    void message_from(device_link &link, peer &from, const ipc_message &message);

    // The memory of that export cannot be mapped for `into`: asks its owner to stage what is of
    // that kind and on that device for a while, in host memory. Or it can, and its owner has asked.
    // Under the GPU lock.
    void tell_mapping(peer &owner, const remote_handle &handle, bool can);

  private:
    bool send(peer &to, const ipc_message &message);
    void reply(peer &to, ipc_operation operation, refuse_reason reason = refuse_reason::none);
    void answer(gpu_side &side, peer &from);

    local_process &process_;
    optional_mutex lock_;           // of the list
    std::deque<device_link> links_; // by peer::number
};

} // namespace gpusm

#endif
