// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// transport.h: all that the component keeps between init and finalize. The parts have an owner
// each, which this struct owns; tests/lint sees to it that no file keeps state of its own beside
// it. What the process has once, whatever component uses it, is the library's (local_process.h).
// Four things belong to the process and not to a transport: the table of the CUDA driver's
// functions, loaded once (gpu/driver.cc), where log lines go (base/log.cc), where Open MPI says
// that there are threads (base/threads.cc), and which descriptors are kept from its children
// (shm/lock_descriptors.cc).
#ifndef GPUSM_TRANSPORT_H
#define GPUSM_TRANSPORT_H

#include "opal/mca/common/gpusm/base/lock.h"
#include "opal/mca/common/gpusm/base/threads.h"
#include "opal/mca/common/gpusm/local_process.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

struct mca_btl_base_endpoint_t;

namespace gpusm {

class host_side;          // btl_gpusm_host.h
class registration_table; // btl_gpusm.h
class self_side;          // btl_gpusm_self.h
class stage_side;         // btl_gpusm_stage.h
struct transfers;         // btl_gpusm_transfer.h
class messenger;          // btl_gpusm_ipc.h
class frag_store;         // btl_gpusm_frags.h

// Made by component_init, in the order of its members as far as they can be made then, and ended by
// release_component.
struct transport {
    // `of` has been acquired, and is released at the end.
    transport(local_process &of, bool is_oversubscribed);
    ~transport();
    transport(const transport &) = delete;
    transport &operator=(const transport &) = delete;

    local_process &process;
    const bool oversubscribed; // this machine has fewer processors than processes of ours

    // Of the endpoints, fragments and registrations. Free lists take it inside their own lock:
    // never ask one for an item under it.
    optional_mutex lock;
    std::vector<mca_btl_base_endpoint_t *> endpoints; // owned
    // The endpoint for that peer, made if there is none. One per peer. Any thread.
    mca_btl_base_endpoint_t *endpoint_of(peer &of)
    {
        void *known = of.user.load(std::memory_order_acquire);
        return known != nullptr ? static_cast<mca_btl_base_endpoint_t *>(known) : make_endpoint(of);
    }
    // The endpoints, by an index from 0 on; null past the last one. They stay until the transport
    // goes. Any thread that does not hold the lock.
    mca_btl_base_endpoint_t *endpoint_at(std::size_t index);
    // The same of the node's live peers, in any order, which changes when one has ended.
    mca_btl_base_endpoint_t *live_endpoint_at(std::size_t index);

    std::unique_ptr<registration_table> registrations;
    std::unique_ptr<frag_store> frags;
    std::unique_ptr<host_side> host;
    std::unique_ptr<transfers> gets;
    std::unique_ptr<messenger> messages; // for the library
    std::unique_ptr<stage_side> stage;   // after the GPU lock, if there is a GPU side
    std::unique_ptr<self_side> self;

    // Without threads: the device buffer of an inline send that has just been declined. ob1 asks
    // about it again and registers it in the same call of the program, in which nobody can free it.
    std::uint64_t declined = 0;
    // The last device buffer about which Open MPI has asked, and the answer; 0: it has asked again.
    struct {
        std::uint64_t address = 0;
        int device = 0;
        std::uint64_t flags = 0;
    } checked;

    std::atomic<bool> told_of_equal{false}; // the user knows that another BTL has our exclusivity

    optional_flag progressing;
    std::uint32_t progress_calls = 0; // of the one that is progressing
    std::size_t next_to_ask = 0;      // of the node's live peers: whether it lives
    std::int64_t asked_at_ns = 0;     // when one was asked that, by a coarse clock
    std::uint32_t empty_polls = 0;    // in a row, since the last yield
    tally<std::uint32_t> host_offers; // host memory that peers may be reading, in messages

  private:
    mca_btl_base_endpoint_t *make_endpoint(peer &of);
};

} // namespace gpusm

#endif
