// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_counters.h: the performance variables of the component.
#ifndef BTL_GPUSM_COUNTERS_H
#define BTL_GPUSM_COUNTERS_H

namespace gpusm {

// What the MPI_T performance variables say: counters, and behind them levels, how much it is now.
#define GPUSM_COUNTERS(X)                                                                          \
    X(get_messages, "Messages from or to device memory that this process fetched from a peer")     \
    X(get_bytes, "Bytes of those messages")                                                        \
    X(staged_messages, "Messages that this process sent from device memory through host memory")   \
    X(staged_bytes, "Bytes of those messages")                                                     \
    X(host_messages, "Messages that this process sent from host memory")                           \
    X(host_bytes, "Bytes of those messages")                                                       \
    X(device_ring_messages,                                                                        \
      "Of the messages fetched, those that came through a ring on a device of this process")       \
    X(device_ring_bytes, "Bytes of those messages")                                                \
    X(host_ring_messages,                                                                          \
      "Messages that came to this process through a ring in host memory, in part at least")        \
    X(host_ring_bytes, "Bytes that came so")                                                       \
    X(direct_host_messages,                                                                        \
      "Of the messages fetched, those that the sender copied here itself, out of page-locked "     \
      "host memory")                                                                               \
    X(direct_host_bytes, "Bytes of those messages")                                                \
    X(pulled_host_bytes,                                                                           \
      "Bytes that this process has read from a peer's host memory for its device by itself")       \
    X(pushed_host_bytes,                                                                           \
      "Bytes that peers have written from their devices into this process's host memory")          \
    X(single_copy_messages,                                                                        \
      "Messages that this process read from a peer's host memory in a single copy, in part at "    \
      "least")                                                                                     \
    X(single_copy_bytes, "Bytes of those messages")                                                \
    X(cooperative_copy_bytes, "Of those, bytes that the sender has written")                       \
    X(self_messages,                                                                               \
      "Messages from or to device memory that this process sent to itself and that were copied "   \
      "once")                                                                                      \
    X(self_bytes, "Bytes of those messages")                                                       \
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
    X(mapped_allocations, "Allocations of peers that are mapped here now")                         \
    X(mapped_bytes, "Bytes of those allocations")                                                  \
    X(exported_allocations, "Device allocations of this process that peers can map now")

#define GPUSM_NAME(name, description) name,
enum class counter : unsigned { GPUSM_COUNTERS(GPUSM_NAME) count };
#undef GPUSM_NAME

} // namespace gpusm

#endif
