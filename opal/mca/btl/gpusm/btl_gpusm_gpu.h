// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_gpu.h: the GPU half of the glue, made when the first GPU message shows up: owns what
// gpu/ and ipc/ keep.
#ifndef BTL_GPUSM_GPU_H
#define BTL_GPUSM_GPU_H

#include "opal/mca/btl/gpusm/base/lock.h"
#include "opal/mca/btl/gpusm/btl_gpusm.h"
#include "opal/mca/btl/gpusm/gpu/copy_engine.h"
#include "opal/mca/btl/gpusm/gpu/device.h"
#include "opal/mca/btl/gpusm/gpu/driver.h"
#include "opal/mca/btl/gpusm/ipc/export_directory.h"
#include "opal/mca/btl/gpusm/ipc/fd_passing.h"
#include "opal/mca/btl/gpusm/ipc/import_table.h"
#include "opal/mca/btl/gpusm/ipc/legacy.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace gpusm {

class gpu_side {
  public:
    gpu_side(const driver_api &driver, bool threads);
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

    // As the classes have them, of an endpoint. `without`: of our devices (bits, by ordinal).
    status export_range(std::uint64_t address, std::size_t len_bytes, unsigned long long buffer_id,
                        exported **out, remote_handle *handle, std::uint64_t without = 0)
    {
        return exports.export_range(address, len_bytes, buffer_id, without, out, handle);
    }
    status import(const mca_btl_base_endpoint_t &from, const remote_handle &handle, device &into,
                  mapping **out)
    {
        return imports.import(from.number, *from.peer, handle, into, out);
    }
    status event_of(const mca_btl_base_endpoint_t &from, const remote_handle &handle,
                    const device &into, CUevent *out)
    {
        return imports.event_of(from.number, *from.peer, handle, into, out);
    }

    // Whether a kernel in the context of `into` may read what `import` has mapped for it. Copies of
    // the driver may in any case.
    static bool kernel_reads(const mapping &mapped, const remote_handle &handle, const device &into)
    {
        return share_kind::legacy != handle.kind || mapped.key.device == into.index;
    }
    // The same of host memory, as `at` is some, that was registered with the driver in the context
    // of `by`; null: of none. With that context goes what it has registered.
    bool kernel_touches(device &in, const device *by, const unsigned char *at) const;

    // gpusm::is_page_locked, asked for messages. The driver takes more than a microsecond for it,
    // so the answer no may be a little old: such memory is then copied by a processor, which does
    // no harm but takes longer. Without the lock.
    bool is_page_locked(std::uint64_t address, std::size_t len_bytes);

    // Registers new parts of our segment with the driver.
    void register_segment();
    // Whether that part of our segment is registered with the driver, after having tried to.
    bool is_registered(const unsigned char *at, std::size_t len_bytes);
    // In whose context that part of it was; null: in none.
    const device *registered_by(const unsigned char *at) const;

    // Housekeeping, called from progress now and then: ends exports whose memory is gone, closes
    // mappings whose export is over or which nobody uses, registers new parts of the segment.
    void sweep();

  private:
    void look_at_contexts();

    // Hashes of memory that the driver has called pageable, in places by their upper bits.
    static constexpr unsigned pageable_bits = 8;
    std::atomic<std::uint64_t> pageable_[1U << pageable_bits] = {};
    std::uint32_t sweeps_ = 0;
    std::size_t registered_to_ = 0; // where the registered part of our segment ends
    std::vector<std::pair<void *, device *>> registrations_; // start, and in whose context
    bool registration_failed_ = false;
};

// The GPU side, made on the first call that finds a CUDA driver; null without one, or when the
// parameter use_cuda_ipc says no.
gpu_side *gpu();

// From now on, and until remove_pointer_check, gpusm answers Open MPI's question whether an address
// is device memory, where accelerator/cuda would take long (btl_gpusm_pointer.cc): that it is not;
// and once there is a GPU side, that it is, too.
void install_pointer_check();
void remove_pointer_check();

// An allocation of device memory, of VMM memory a chunk, [start, end), as the pointer check last
// saw it.
struct known_memory : pointer_facts {
    device *on = nullptr; // in whose context it is used; null: not asked yet

    std::uint64_t end() const { return start + len_bytes; }
    bool holds(std::uint64_t address) const { return address - start < len_bytes; }
};
// The one that Open MPI's question about the buffer of a receive found, which comes before the
// receive is registered, and holds until it is complete, because the program may not free the
// buffer before. (An address outside of the buffer that was asked about, reached by a displaced
// datatype, is found as it was seen by itself.) Null when it is not known, and in programs with
// threads.
known_memory *known_allocation(std::uint64_t address);
// The buffer id that Open MPI's last question found at this address, once, if the same call of the
// program has certainly led to both; else 0.
unsigned long long take_buffer_id(std::uint64_t address);
// ob1 will ask about this buffer once more before it does anything else.
void will_ask_again(const void *address);
// Whatever comes now belongs to another call of the program.
void end_of_question();

} // namespace gpusm

#endif
