// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// pack_calls.h: between libgpusm_pack.so, which is loaded before libmpi and takes MPI_Pack,
// MPI_Unpack and MPI_Sendrecv_replace, and coll/gpusm, which can carry them out. Open MPI has no
// table of functions in their way that a component could put its own into.
#ifndef GPUSM_PACK_CALLS_H
#define GPUSM_PACK_CALLS_H

#include <mpi.h>

#include <atomic>
#include <cstddef>

namespace gpusm {

// Device memory with the packed bytes of a buffer.
struct packed_copy {
    void *address = nullptr;
    std::size_t len_bytes = 0;
    void *owner = nullptr; // coll/gpusm's
};

// None reports an error to MPI: false means that nothing has been done that Open MPI's function
// does not do again, and that this is to be called. Arguments need not be valid.
struct pack_calls {
    bool (*pack)(const void *buffer, int count, MPI_Datatype type, void *packed, int packed_bytes,
                 int *position) noexcept;
    bool (*unpack)(const void *packed, int packed_bytes, int *position, void *buffer, int count,
                   MPI_Datatype type) noexcept;
    bool (*take_copy)(const void *buffer, int count, MPI_Datatype type, packed_copy *out) noexcept;
    void (*give_copy)(const packed_copy &copy) noexcept;
    bool (*is_on_device)(const void *address) noexcept;
    // Memory without gaps, one end at least on a device.
    bool (*copy)(void *to, const void *from, std::size_t bytes) noexcept;
};

// What libgpusm_pack.so offers under the name gpusm_pack_hooks. `calls` is null from the end of
// MPI on, and as long as nobody serves it.
struct pack_hooks {
    std::size_t calls_bytes; // sizeof(pack_calls) there
    std::atomic<const pack_calls *> calls;
};
inline constexpr char pack_hooks_name[] = "gpusm_pack_hooks";

} // namespace gpusm

#endif
