// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/copy_list.h: one copy, and lists of them. A list owns nothing and allocates nothing: copies
// are linked through themselves.
#ifndef GPUSM_GPU_COPY_LIST_H
#define GPUSM_GPU_COPY_LIST_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/copy_choice.h"
#include "opal/mca/common/gpusm/gpu/strided_arguments.h"

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace gpusm {

// One copy. Owned by the caller, who must keep it and both buffers until it has been handed
// back by copy_engine::collect() or cancel_all().
struct copy_request {
    std::uint64_t destination = 0; // device or host address of this process
    std::uint64_t source = 0;
    std::size_t len_bytes = 0;
    CUevent wait_for = nullptr; // a peer's event that has to happen first, or null
    // A copy of memory with gaps, which is made instead of that of the addresses above, by a kernel
    // or not at all; len_bytes is the same. The caller keeps it, and lists of blocks, as this;
    // those lists have arrived in their memory when it is submitted. Where an address above is one
    // in a view (gpu/gaps.h) it is the engine's own.
    const strided_copy *strided = nullptr;
    // Facts, by which the engine decides when and how it is copied (gpu/copy_choice.h).
    bool kernel_reaches = false;  // a kernel in the device's context may touch both buffers
    bool processor_waits = false; // one side is host memory, with which a processor then goes on
    bool within_device = false;   // between memories of one device
    std::uint8_t part_of = 0;     // free for the caller
    status outcome = status::ok;
    copy_request *next = nullptr;
};

// Copies in the order in which they came.
struct copy_list {
    copy_request *first = nullptr;
    copy_request *last = nullptr;
    copy_load load; // of all of them

    bool empty() const { return nullptr == first; }

    void append(copy_request *request)
    {
        request->next = nullptr;
        (nullptr == first ? first : last->next) = request;
        last = request;
        load.add({1, request->len_bytes});
    }
    // All of the other one, which is empty then.
    void append(copy_list *other)
    {
        if (!other->empty()) {
            (nullptr == first ? first : last->next) = other->first;
            last = other->last;
            load.add(other->load);
            *other = {};
        }
    }
    // Null: it is empty.
    copy_request *take_first()
    {
        copy_request *taken = first;
        if (taken != nullptr) {
            first = taken->next;
            load.take({1, taken->len_bytes});
        }
        return taken;
    }
    copy_list take_all() { return std::exchange(*this, {}); }
};

} // namespace gpusm

#endif
