// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_counters.h: the performance variables of the component. Those of messages bear the
// names of their modes (mode.h).
#ifndef BTL_GPUSM_COUNTERS_H
#define BTL_GPUSM_COUNTERS_H

#include "opal/mca/common/gpusm/mode.h"

namespace gpusm {

// What the MPI_T performance variables say: counters, and behind them levels, how much it is now.
// First the messages that this process has fetched, by their mode and in the order of the modes.
#define GPUSM_COUNTERS(X)                                                                          \
    X(single_copy_messages,                                                                        \
      "Messages between host memories that this process read in a single copy")                    \
    X(single_copy_bytes, "Bytes of those messages")                                                \
    X(both_copy_messages,                                                                          \
      "Messages between host memories that this process read, and the sender wrote in part")       \
    X(both_copy_bytes, "Bytes of those messages")                                                  \
    X(host_ring_messages, "Messages between host memories that came through a ring")               \
    X(host_ring_bytes, "Bytes of those messages")                                                  \
    X(mapped_messages,                                                                             \
      "Messages that this process's copy engine fetched out of a device's memory")                 \
    X(mapped_bytes, "Bytes of those messages")                                                     \
    X(delegated_messages, "Messages within a device that another process copied for this one")     \
    X(delegated_bytes, "Bytes of those messages")                                                  \
    X(bounced_messages,                                                                            \
      "Messages from a device that came into this process's host memory through "                  \
      "registered memory")                                                                         \
    X(bounced_bytes, "Bytes of those messages")                                                    \
    X(shared_messages,                                                                             \
      "Messages from a device into this process's host memory, of which the sender was "           \
      "to write a part")                                                                           \
    X(shared_bytes, "Bytes of those messages")                                                     \
    X(pushed_messages, "Messages out of page-locked host memory that the sender wrote into this "  \
                       "process's device memory")                                                  \
    X(pushed_bytes, "Bytes of those messages")                                                     \
    X(pulled_messages,                                                                             \
      "Messages from host memory to a device, through a ring, of which this process "              \
      "was to read a part")                                                                        \
    X(pulled_bytes, "Bytes of those messages")                                                     \
    X(device_ring_messages, "Messages that came through a ring on a device of this process")       \
    X(device_ring_bytes, "Bytes of those messages")                                                \
    X(staged_ring_messages,                                                                        \
      "Messages from or to a device that came through a ring in host memory")                      \
    X(staged_ring_bytes, "Bytes of those messages")                                                \
    X(self_messages,                                                                               \
      "Messages from or to device memory that this process sent to itself and that "               \
      "were copied once")                                                                          \
    X(self_bytes, "Bytes of those messages")                                                       \
    X(host_ring_written_bytes, "Of the bytes of mode host_ring, those that came through the ring") \
    X(both_copy_written_bytes, "Of the bytes of mode both_copy, those that the sender wrote")      \
    X(shared_written_bytes, "Of the bytes of mode shared, those that the sender wrote")            \
    X(pulled_read_bytes, "Of the bytes of mode pulled, those that this process read by itself")    \
    X(host_fragments_messages, "Messages that this process sent from host memory in fragments")    \
    X(host_fragments_bytes, "Bytes of those messages")                                             \
    X(device_fragments_messages,                                                                   \
      "Messages that this process sent from device memory in fragments")                           \
    X(device_fragments_bytes, "Bytes of those messages")                                           \
    X(described_messages,                                                                          \
      "Messages whose blocks this process described to a peer, which reads them out of the "       \
      "buffer with gaps")                                                                          \
    X(described_bytes, "Bytes of those messages")                                                  \
    X(packed_messages,                                                                             \
      "Messages that this process packed from a device buffer with gaps into device memory of "    \
      "its own, for a peer to fetch")                                                              \
    X(packed_bytes, "Bytes of those messages")                                                     \
    X(unpacked_messages,                                                                           \
      "Of the messages fetched, those that a kernel wrote into a device buffer with gaps")         \
    X(unpacked_bytes, "Bytes of those messages")                                                   \
    X(single_submissions, "Submissions of copies one by one (cuMemcpyAsync)")                      \
    X(batch_submissions, "Submissions of many copies in one driver call (cuMemcpyBatchAsync)")     \
    X(kernel_submissions, "Submissions of many copies as one launch of the gather kernel")         \
    X(strided_submissions, "Submissions of copies into buffers with gaps as one launch")           \
    X(mapping_hits, "Times that a peer's allocation was to be read and was mapped here already")   \
    X(mapping_misses, "Times that it had to be mapped first")                                      \
    X(copies_for_others, "Copies within a device that this process made for others")               \
    X(checked_buffers, "Buffers that btl_gpusm_check_sync has looked at")                          \
    X(late_writes, "Of these, those that the program's work on a device was still writing")        \
    X(mapped_allocations, "Allocations of peers that are mapped here now")                         \
    X(mapped_allocation_bytes, "Bytes of those allocations")                                       \
    X(exported_allocations, "Device allocations of this process that peers can map now")

// The descriptions of the variables, in the order of the counters.
struct counter_description {
    const char *name;
    const char *description;
};
inline constexpr counter_description counter_descriptions[] = {
#define GPUSM_ROW(name, description) {#name, description},
    GPUSM_COUNTERS(GPUSM_ROW)
#undef GPUSM_ROW
};

#define GPUSM_NAME(name, description) name,
enum class counter : unsigned { GPUSM_COUNTERS(GPUSM_NAME) count };
#undef GPUSM_NAME

// Of the messages in that mode, and of their bytes: the pairs above, in the order of the modes.
constexpr counter messages_in(mode goes)
{
    return static_cast<counter>(
        2 * (static_cast<unsigned>(goes) - static_cast<unsigned>(mode::single_copy)));
}
constexpr counter bytes_in(mode goes)
{
    return static_cast<counter>(static_cast<unsigned>(messages_in(goes)) + 1);
}

} // namespace gpusm

#endif
