// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/device.h: the CUDA contexts that this program uses, each with the stream and the events
// that gpusm made in it. Nothing is made before the program hands over memory of a context,
// and no context is made on a device that the program does not use.
#ifndef GPUSM_GPU_DEVICE_H
#define GPUSM_GPU_DEVICE_H

#include "opal/mca/common/gpusm/base/reach.h"
#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/driver.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace gpusm {

using device_uuid = std::array<std::uint8_t, 16>;

struct device {
    std::uint32_t index = 0;     // in device_table, for as long as the process lives
    CUcontext context = nullptr; // null: the program has destroyed it, see is_alive
    CUdevice ordinal = 0;        // as this process counts; means nothing to a peer
    device_uuid uuid{};
    std::size_t memory_bytes = 0;  // of the device; 0: not known
    CUstream stream = nullptr;     // highest priority
    CUevent ipc_event = nullptr;   // interprocess; null until somebody asks
    bool retained_primary = false; // we hold a reference that has to be given back
    // Copies of the program's that returned before its memory was marked (ipc/legacy.h) may still
    // be on their way. Marks count from 1 on.
    struct {
        std::uint64_t last = 0;
        std::uint64_t of_context = 0; // that of all memory; 0: none, or not by us
        std::uint64_t waited_for = 0; // up to this one copies have been waited for
        reach marking; // tries to mark the context; one during a stream capture ends that and fails
    } marks;
    bool under_mps = false; // the context is one in an MPS server, as far as the driver tells
    // Has registered host memory the address there that it has here? Asked when it is needed.
    std::optional<bool> same_host_addresses;
    // May kernels and processors touch managed memory at the same time? Likewise.
    std::optional<bool> shares_managed;
    // A few bytes of device memory of the context, and their buffer id. They die with it, and that
    // can be asked without a context; 0: there are none, and the context counts as alive. A context
    // that the program destroyed must not be touched, and another one may have its address.
    CUdeviceptr canary = 0;
    unsigned long long canary_id = 0;
    std::int64_t canary_second = 0; // when it was last asked for
};

// Where an address lies.
struct memory_place {
    bool answered = false;       // by the driver, or there is no device memory yet or any more
    bool known = false;          // memory that the driver has to do with, of whatever kind
    bool on_device = false;      // a processor must not touch it, or had better not
    bool managed = false;        // managed memory, which counts as device memory
    CUcontext context = nullptr; // null for VMM and pool memory: those have none
    int ordinal = -1;            // of the device, as this process counts
};

// One driver call, but for VMM memory that lies in host memory: that is on the first device that
// may use it. Nothing is remembered, so the answer is never old.
memory_place place_of(const driver_api &driver, const void *address);

// All that the driver says about a pointer.
struct pointer_facts : memory_place {
    bool accessible = false;          // its device may read and write it
    bool legacy_ipc = false;          // cuIpcGetMemHandle can serve it
    unsigned long long buffer_id = 0; // changes when the address is allocated anew
    CUdeviceptr start = 0;            // of the allocation, of VMM memory of the chunk
    std::size_t len_bytes = 0;        // likewise
    CUdeviceptr range_end = 0;        // of the allocation, of VMM memory of the reservation

    // Memory that a kernel on its device can touch without harm, from its start to its end.
    bool plain() const { return on_device && !managed && (context != nullptr || accessible); }
    bool holds(std::uint64_t address) const { return address - start < len_bytes; }
};

// A pointer that the driver does not know, or no driver, is host memory. `managed` memory counts as
// device memory without legacy IPC.
pointer_facts inspect_pointer(const driver_api &driver, std::uint64_t address);

// Is what lies at `address` still the allocation of that buffer id? The driver gives no id twice in
// the life of a process, and answers this in half the time of inspect_pointer.
bool is_still(const driver_api &driver, std::uint64_t address, unsigned long long buffer_id);

// Is it host memory that the program has page-locked, from the first byte to the last, which the
// driver copies without the processor? One question about memory that is not. Of several such
// pieces side by side, which the driver does not copy at once, the ends tell apart what it numbers
// apart; what lies between them is not looked at.
bool is_page_locked(const driver_api &driver, std::uint64_t address, std::size_t len_bytes);

// A stream for copies, in the current context, before the program's own work where they compete:
// not held up by, and not holding up, the program's default stream, unless `flags` say otherwise.
// The caller's to destroy. `driver_failed` has been reported.
status make_stream(const driver_api &driver, CUstream *out,
                   CUstream_flags flags = CU_STREAM_NON_BLOCKING);

// Not thread-safe: the caller holds its GPU lock.
class device_table {
  public:
    // `flags`: of the devices' streams.
    explicit device_table(const driver_api &driver, CUstream_flags flags = CU_STREAM_NON_BLOCKING)
        : driver_(driver), flags_(flags)
    {
    }
    // Gives back streams, events and primary contexts; a driver that is down is fine.
    ~device_table();
    device_table(const device_table &) = delete;
    device_table &operator=(const device_table &) = delete;

    // The device whose context is to be current for work on memory of `context`, or where that is
    // null of the device `ordinal`. `not_ready`: no context can be found for it; `driver_failed`.
    status for_memory(CUcontext context, int ordinal, device **out);
    status for_memory(const pointer_facts &facts, device **out)
    {
        return for_memory(facts.context, facts.ordinal, out);
    }

    // The same for memory without a context of its own, used in *on before, if not null: another
    // one where that is gone, or where the program has made another context of the device current.
    status for_shared(int ordinal, device **on);

    // What inspect_pointer says. Of the allocations of device memory that were asked about last it
    // is remembered, and only whether they are still the same is asked, or nothing if the caller
    // has `asked` before and the buffer has not been freed since.
    pointer_facts facts_of(std::uint64_t address, bool asked = false)
    {
        return look_up(address, asked);
    }
    // The part of that which place_of says.
    memory_place known_place_of(std::uint64_t address) { return look_up(address, false); }

    // The same as for_memory for a buffer of which nothing is known yet: null for host memory,
    // `driver_failed` where the driver does not tell. *plain_bytes: how many bytes from `address`
    // on are one allocation that a kernel there can touch without harm (pointer_facts::plain).
    // `asked` as for facts_of.
    status for_address(std::uint64_t address, device **out, std::uint64_t *plain_bytes,
                       bool asked = false);

    // Whether [address, address + len_bytes) can be one buffer of a program, as far as the driver
    // tells: not if it leaves its allocation. After for_address or facts_of.
    bool can_hold(std::uint64_t address, std::size_t len_bytes);

    // Whether a kernel on that device may touch [address, address + len_bytes) because it is
    // managed memory that processors need not leave alone meanwhile. After for_address or facts_of.
    bool kernel_touches_managed(device &on, std::uint64_t address, std::size_t len_bytes);

    // A device for work that touches only host memory here: the calling thread's current
    // context, else the device used last. `not_ready` when this program has used none so far.
    status for_host(device **out);

    // The device's interprocess event, recorded behind what the program has begun on the legacy
    // stream. Null: that failed, and was waited for instead.
    CUevent record_ipc_event(device &of);

    const std::vector<std::unique_ptr<device>> &all() const { return devices_; }

    // Whether the context still exists. One that does not has none any more: `context` becomes
    // null, so that nobody can enter it, and what was made in it is forgotten.
    bool is_alive(device &of);
    // Finds those that do not any more; to be called now and then. What makes that possible, and
    // could not be had when there was no device memory left, is asked for again with each new
    // `second`, by a clock that need not be exact.
    void look_at_contexts(std::int64_t second);

  private:
    struct allocation : pointer_facts {
        device *on = nullptr;         // in whose context it is used; null: not asked yet
        bool is_access_known = false; // `accessible` is what the driver says there
    };

    allocation &look_up(std::uint64_t address, bool asked);
    void ask_for_access(allocation *of, std::uint64_t address);
    status for_context(CUcontext context, device **out);
    status make(device *in);
    void make_canary(device *in);

    const driver_api &driver_;
    const CUstream_flags flags_;
    // A program has few allocations that it sends from. No two of them overlap.
    std::array<allocation, 8> seen_;
    unsigned next_seen_ = 0;
    allocation other_; // what is not device memory
    std::vector<std::unique_ptr<device>> devices_;
    device *last_ = nullptr;
};

} // namespace gpusm

#endif
