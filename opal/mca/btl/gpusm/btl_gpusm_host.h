// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_host.h: messages longer than the eager limit between host memories.
//
// The sender offers them, by the same RGET of ob1's as for device memory; only the handle says
// host. The receiver reads them in a single copy, through what Open MPI's framework smsc has found
// on this machine (CMA or XPMEM; KNEM wants regions registered, and is not used), and the sender
// has a part in long ones. Where two copies are faster, as between AMD's cores at one L3 cache,
// those of two fragments are not offered, and longer ones are streamed (protocol/stream.h) when the
// peer has sent some, long or short: to make a ring's memory takes as long as to copy many MiB.
// Then single copies only take the place of a sender that is busy elsewhere. Where there are none
// ob1 sends fragments. Any thread.
#ifndef BTL_GPUSM_HOST_H
#define BTL_GPUSM_HOST_H

#include "opal/mca/btl/gpusm/btl_gpusm_transfer.h"

#include "opal/mca/common/gpusm/base/pages.h"
#include "opal/mca/common/gpusm/protocol/stream_receiver.h"
#include "opal/mca/common/gpusm/protocol/stream_sender.h"

namespace gpusm {

// Host messages that both sides copy. Any thread.
class host_side final : private stream_services {
    // A ring is longer than an L2 cache, for the same reason as a queue of fragments.
    static constexpr std::uint32_t slot_bytes = 16 * 1024;
    static constexpr std::uint32_t most_rings = 4; // of a kind

  public:
    // Of the segment, that they can come to need.
    static std::size_t ring_bytes()
    {
        return most_rings * (std::size_t{most_stream_pieces} * slot_bytes +
                             2 * (stream_slots_offset + 2 * system_page_bytes()));
    }
    explicit host_side(transport &of);

    // Both sides copy at the same time: through a ring (host_ring); or by single copies
    // (both_copy), of which this process makes those at the end, and the sender, which would only
    // be waiting, those at the front. A sender that is busy elsewhere is not waited for: then this
    // process reads all of it. True: progress() completes it. False: there is no ring.
    bool fetch(transfer *get);
    // What `given` names, of which peers may be copying parts, is not to be read any more.
    void forget(registration *given) { sender_.forget(given); }
    // The process of that peer, which is closed, has ended, and its segment is about to be
    // unmapped. False: not yet, as something is under way; again after progress().
    bool forget_peer(const peer &ended)
    {
        return receiver_.forget(ended) && sender_.forget_peer(ended);
    }
    // A frag_kind::cooperative has come in; false: it makes no sense.
    bool message_from(mca_btl_base_endpoint_t *from, const unsigned char *payload,
                      std::size_t bytes)
    {
        return stream_message_for(&sender_, from, payload, bytes);
    }
    bool idle() const { return sender_.idle() && receiver_.idle(); }
    // Copies parts, and calls back for messages that are complete; returns how many.
    int progress();

  private:
    status send(peer &to, const stream_message &message, const stream_memory *memory) override;
    void open(peer &to, const stream_message &message, const stream_memory *memory,
              stream_source *out) override;
    void copy_in(const stream_source &source, stream_copy *copy) override;
    void copy_back(const stream_fetch &fetch, stream_copy *copy) override;

    transport &transport_;
    stream_pool rings_;
    stream_pool rings_without_slots_; // which only tell how far a sender is
    stream_receiver receiver_;
    stream_sender sender_;
};

// A message is here of which its sender was to copy a part: remembers whether it could.
void note_part_of_sender(const mca_btl_base_endpoint_t *sender, reach *fact,
                         const stream_fetch &over);
// Are two copies of a host message faster than one?
bool two_copies_are_faster_to(const mca_btl_base_endpoint_t *endpoint);
// Sender's side of register_mem for host memory: the peer reads it by itself if it can, or asks for
// it if its own buffer is device memory.
void offer_host(mca_btl_base_endpoint_t *endpoint, registration *made, void *base,
                std::size_t size);
// As btl_get, for host memory that is fetched into host memory.
int get_host(mca_btl_base_module_t *btl, mca_btl_base_endpoint_t *endpoint, void *local_address,
             std::uint64_t remote_address, mca_btl_base_registration_handle_t *local_handle,
             mca_btl_base_registration_handle_t *remote_handle, std::size_t size, int flags,
             int order, mca_btl_base_rdma_completion_fn_t cbfunc, void *cbcontext, void *cbdata);

// --- single copies, for whatever they are a part of

// May this process make single copies?
bool smsc_reads_plainly();
// May the peer try to read this process's host memory by itself? It has not said that it cannot,
// or that was a while ago.
bool reads_our_memory(mca_btl_base_endpoint_t *endpoint);
// Can it, as far as is known?
bool smsc_reaches_us(mca_btl_base_endpoint_t *endpoint);
// Reads host memory of the peer into host memory, and returns when that is done. The range lies in
// what the peer has named (covers). Anything but `ok`: nothing, or a part, has been read.
status smsc_read(mca_btl_base_endpoint_t *endpoint, void *local, std::uint64_t remote_address,
                 std::size_t bytes);
// The other way round; counted nowhere.
status smsc_write(mca_btl_base_endpoint_t *endpoint, const void *local,
                  std::uint64_t remote_address, std::size_t bytes);
// May that be tried? It has not failed some times in a row, or that was a while ago.
bool smsc_writes_to(const mca_btl_base_endpoint_t *endpoint);
// Forgets what is known of the peer; nothing of it may be under way.
void smsc_release(mca_btl_base_endpoint_t *endpoint);
// The same of a closed peer, for good. False: another thread is using it; again later.
bool smsc_forget(mca_btl_base_endpoint_t *endpoint);

} // namespace gpusm

#endif
