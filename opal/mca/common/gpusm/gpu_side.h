// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu_side.h: all that a process keeps for devices: the layers gpu/ and ipc/, put together. Made
// when the first device message shows up.
#ifndef GPUSM_GPU_SIDE_H
#define GPUSM_GPU_SIDE_H

#include "opal/mca/common/gpusm/base/lock.h"
#include "opal/mca/common/gpusm/base/reach.h"
#include "opal/mca/common/gpusm/copies_for_others.h"
#include "opal/mca/common/gpusm/delegated_copies.h"
#include "opal/mca/common/gpusm/gpu/bounce_copies.h"
#include "opal/mca/common/gpusm/gpu/copy_engine.h"
#include "opal/mca/common/gpusm/gpu/device.h"
#include "opal/mca/common/gpusm/gpu/driver.h"
#include "opal/mca/common/gpusm/gpu/gatherer.h"
#include "opal/mca/common/gpusm/gpu/reducer.h"
#include "opal/mca/common/gpusm/ipc/export_directory.h"
#include "opal/mca/common/gpusm/ipc/fd_passing.h"
#include "opal/mca/common/gpusm/ipc/import_table.h"
#include "opal/mca/common/gpusm/message_services.h"
#include "opal/mca/common/gpusm/settings.h"
#include "opal/mca/common/gpusm/shm/node.h"
#include "opal/mca/common/gpusm/view_directory.h"
#include "opal/mca/common/gpusm/views.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace gpusm {

// What a copy_request is part of, so that its end finds its way; copy_request::part_of.
enum class copy_part : std::uint8_t {
    get = 0,    // a transfer
    stage = 1,  // of a stream
    bounce = 2, // a piece of a bounce
};

class window_copies;

class gpu_side final : private bounce_services,
                       private fd_passing_services,
                       private delegation_services {
  public:
    // `messages` must outlive it, or be told (serve).
    gpu_side(const driver_api &driver, node &local, const settings &set,
             message_services *messages);
    // Closes all mappings, gives back streams, events and host registrations.
    ~gpu_side();
    gpu_side(const gpu_side &) = delete;
    gpu_side &operator=(const gpu_side &) = delete;

    // Held around every call below and around what follows it.
    optional_mutex lock;

    const driver_api &driver;
    device_table devices;
    copy_engine copies;
    export_directory exports;
    fd_passing fds;
    import_table imports;
    gatherer_table gatherers;
    reducer_table reducers;
    bounce_copies bounces;
    view_table views;
    view_directory described;
    own_delegation_board board;
    delegated_copies delegated;
    copies_for_others for_others;

    // Made when it is first asked for. Under the lock.
    window_copies &windows();

    // Who carries messages from now on; null: nobody.
    void serve(message_services *messages);

    // As import_table has them, for memory of a peer's process.
    status import(const peer &from, const remote_handle &handle, device &into, mapping **out)
    {
        return imports.import(from.number, from, handle, into, out);
    }
    status event_of(const peer &from, const remote_handle &handle, const device &into, CUevent *out)
    {
        return imports.event_of(from.number, from, handle, into, out);
    }

    // Whether a kernel in the context of `into` may read what `import` has mapped for it. Copies of
    // the driver may in any case.
    static bool kernel_reads(const mapping &mapped, const device &into)
    {
        return share_kind::legacy != mapped.key.kind || mapped.key.device == into.index;
    }
    // The same of host memory of ours: whether it was registered in the context of `in`.
    bool kernel_touches(device &in, const unsigned char *at) override;

    // What has to happen before memory of that device, which nobody has exported, is copied: what
    // the program's synchronous copies have put there has to be there. The driver sees to that for
    // all memory of the context, from the first call on, and then it is null; an old driver cannot,
    // and then it is an event behind what the legacy stream has got to do. That is also what
    // use_cuda_events asks for.
    CUevent event_before_copies(device &of);

    // gpusm::is_page_locked, asked for messages. The driver takes more than a microsecond for it,
    // so the answer no may be a little old: such memory is then copied by a processor, which does
    // no harm but takes longer. Without the lock.
    bool is_page_locked(std::uint64_t address, std::size_t len_bytes);

    // Device memory has been packed into a fragment: more of it may follow, so the sweep registers
    // what there is of our segment. Any thread.
    void packs_fragments() { packs_fragments_.store(true, std::memory_order_relaxed); }
    // May a call be made now that waits for kernels that run in that context? As import_table has
    // it for mappings: when none runs, as far as that can be seen.
    bool may_wait_for_kernels(const device &in) const;
    // Not where the user wants none.
    bool has_kernels() const { return 0 != set_.kernel_blocks; }
    // Registers new parts of our segment with the driver, unless it has refused lately.
    void register_segment();
    // Page-locked memory of our segment for packed bytes, always the same. Anything but `ok`: there
    // is none now.
    static constexpr std::size_t packed_host_bytes = 64 * 1024;
    status packed_host_memory(unsigned char **out)
    {
        return registered_memory(packed_host_bytes, &packed_host_, out);
    }
    // Whether that part of our segment is registered with the driver, after having tried to.
    bool is_registered(const unsigned char *at, std::size_t len_bytes);

    // Housekeeping, called from progress now and then: ends exports whose memory is gone, closes
    // mappings whose export is over or which nobody uses, registers new fragments if they are
    // packed into.
    void sweep();
    // Finds the contexts that the program has destroyed, in which nothing may be called.
    void look_at_contexts();

  private:
    struct carved_memory { // of our segment, and perhaps registered
        unsigned char *at = nullptr;
        std::size_t len_bytes = 0;
    };
    status registered_memory(std::size_t bytes, carved_memory *kept, unsigned char **out);
    // For bounces; the peer is a peer.
    status bounce_memory(std::size_t bytes, unsigned char **out) override
    {
        return registered_memory(bytes, &bounce_, out);
    }
    status read(void *from, void *local, std::uint64_t remote, std::size_t bytes) override;
    status write(void *to, const void *local, std::uint64_t remote, std::size_t bytes) override;
    // For fds.
    bool send(std::uint32_t to, const ipc_message &message) override;
    peer *peer_at(std::uint32_t number) override { return node_.peer_at(number); }
    // For delegated.
    bool send(peer &to, const delegated_copy &message) override;

    node &node_;
    const settings set_;
    message_services *messages_ = nullptr;
    // Hashes of memory that the driver has called pageable, in places by their upper bits.
    static constexpr unsigned pageable_bits = 8;
    std::atomic<std::uint64_t> pageable_[1U << pageable_bits] = {};
    std::atomic<bool> packs_fragments_{false};
    std::uint32_t sweeps_ = 0;
    std::size_t registered_to_ = 0; // where the registered part of our segment ends
    std::vector<std::pair<void *, device *>> registrations_; // start, and in whose context
    reach registration_;                                     // of the segment
    reach_table<std::uint32_t> host_addresses_; // device::same_host_addresses, by index
    // Are copies that return to the program complete? By device::index.
    enum class mark : std::uint8_t { unknown, synchronous, cannot };
    std::vector<mark> marked_;
    reach_table<std::uint32_t> marks_;
    carved_memory bounce_;
    carved_memory packed_host_;
    std::unique_ptr<window_copies> windows_; // goes first: it needs the rest
};

} // namespace gpusm

#endif
