// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// accelerator.h: what Open MPI asks of an accelerator, done with the CUDA driver; nothing here
// knows Open MPI. Nothing is made before it is needed, and what is made lies in the context of the
// memory that it is needed for. The caller's current context is what it was afterwards.
#ifndef GPUSM_ACCELERATOR_ACCELERATOR_H
#define GPUSM_ACCELERATOR_ACCELERATOR_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/device.h"
#include "opal/mca/common/gpusm/gpu/driver.h"

#include <cstddef>
#include <mutex>

namespace gpusm {

// A stream or an event, made where it is first used. For one thread at a time: ob1 has locks of its
// own around those that it uses.
struct lazy_stream {
    device *on = nullptr; // null: not made
    CUstream handle = nullptr;
};
struct lazy_event {
    device *on = nullptr;
    CUevent handle = nullptr;
    bool recorded = false; // behind anything
};

// Thread-safe. `not_ready`: the program has no context that the call could be made in.
class accelerator {
  public:
    explicit accelerator(const driver_api &driver);

    // Returns when the bytes are there. A copy comes after what the legacy stream of that context
    // has got to do, and after nothing else of the program's.
    status copy(void *to, const void *from, std::size_t len_bytes);
    // The same of ranges that may overlap.
    status move(void *to, const void *from, std::size_t len_bytes);
    // Does not wait. Between host memories the bytes are there at once.
    status copy_async(void *to, const void *from, std::size_t len_bytes, lazy_stream *stream);

    // `busy`: something that was before it in its stream is not done. A stream that has had nothing
    // to do, and an event that was not recorded, are done.
    status record(lazy_event *event, lazy_stream *stream);
    status query(lazy_event *event);
    status synchronize(lazy_stream *stream);
    // What comes later in the stream is not begun before the event is done.
    status wait_event(lazy_stream *stream, lazy_event *event);
    void destroy(lazy_event *event);
    void destroy(lazy_stream *stream);

    // On that device, or, where `ordinal` is negative, on the one of the current context, else the
    // one used last. Not initialized.
    status allocate(int ordinal, std::size_t len_bytes, void **out);
    status release(void *allocated);
    // The allocation around an address, of VMM memory the chunk.
    status range_of(const void *address, void **base, std::size_t *len_bytes);
    // Changes when the address is allocated anew. From then on synchronous copies of the program
    // from and to that memory are complete when they return.
    status buffer_id(const void *address, unsigned long long *out);

    // Page-locks host memory for all contexts.
    status lock_host(int ordinal, void *address, std::size_t len_bytes);
    status unlock_host(int ordinal, void *address);

    // Of the current context, else the one used last.
    status current_device(int *ordinal);
    struct pci_place {
        int domain;
        int bus;
        int device;
    };
    status pci_of(int ordinal, pci_place *out);
    status can_access_peer(int ordinal, int peer, bool *out);

  private:
    status device_for(int ordinal, device **out);
    status device_for(const memory_place &a, const memory_place &b, device **out);
    status copy_directly(void *to, const void *from, std::size_t len_bytes, CUresult *refused);
    status stream_on(device *on, lazy_stream *stream);
    bool is_alive(device *on);
    status move_on(const device &on, CUdeviceptr to, CUdeviceptr from, std::size_t len_bytes);

    const driver_api &driver_;
    // Of what follows, and of streams being made. Held over calls of the driver that make something
    // in a context (its stream and a few bytes of memory, once), never over a copy or a wait for
    // one.
    std::mutex mutex_;
    device_table devices_;
};

} // namespace gpusm

#endif
