// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_stage.h: streams with a device at one end or both (protocol/stream.h): messages of
// memory that cannot be mapped, and those between a device and ordinary host memory of which both
// sides copy a part. docs/streams.md explains the whole.
#ifndef BTL_GPUSM_STAGE_H
#define BTL_GPUSM_STAGE_H

#include "opal/mca/btl/gpusm/btl_gpusm_stage_services.h"
#include "opal/mca/common/gpusm/protocol/stream_receiver.h"
#include "opal/mca/common/gpusm/protocol/stream_sender.h"

namespace gpusm {

// Under the GPU lock, unless it says otherwise.
class stage_side {
  public:
    explicit stage_side(transport &of);
    // Cancels copies.
    ~stage_side();
    stage_side(const stage_side &) = delete;
    stage_side &operator=(const stage_side &) = delete;

    // Modes pushed, pulled, device_ring, staged_ring. `ok`: it will end in finish().
    status fetch(transfer *get);
    // Mode shared, of memory that is mapped. False: there is no ring; nothing has happened.
    bool share(transfer *get);
    // Could it come through a ring on its device?
    bool has_device_rings(const transfer *get) { return nullptr != services_.device_pool_for(get); }
    // What `given` names is not to be read any more. Any thread.
    void forget(registration *given) { sender_.forget(given); }
    // The process of that peer, which is closed, has ended, and its segment is about to be
    // unmapped. False: not yet, as something is under way; again after progress().
    bool forget_peer(const peer &ended);
    // A stream_message of a peer; false: it makes no sense. Takes the GPU lock itself.
    bool message_from(mca_btl_base_endpoint_t *from, const unsigned char *payload,
                      std::size_t bytes);
    // A copy_part::stage has ended.
    void copied(copy_request *copy) { services_.copied(copy); }
    // Are several messages being streamed? A snapshot.
    bool has_several() const { return sender_.messages() > 1 || receiver_.messages() > 1; }
    // Is there nothing to do for progress()? A snapshot. Any thread.
    bool idle() const { return sender_.idle() && receiver_.idle() && nullptr == waiting_.first(); }
    // Moves streams and waiting gets on.
    void progress();

  private:
    status begin(transfer *get);
    bool begin_without_ring(transfer *get);
    void end(transfer *get);
    bool end_device_ring(transfer *get);

    transport &transport_;
    stage_services services_;
    stream_receiver receiver_;
    stream_sender sender_;
    // Gets that wait for a ring, in order, so that no peer keeps one for ever.
    queue<transfer> waiting_;
};

} // namespace gpusm

#endif
