// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_smsc.h: single copies between host memory of this process and of a peer: what Open
// MPI's framework smsc does for us (btl_gpusm_smsc.cc), and messages that both sides copy
// (btl_gpusm_cooperative.cc). Any thread, but for progress_cooperative_gets and
// cooperative_message_from, which are progress's.
#ifndef BTL_GPUSM_SMSC_H
#define BTL_GPUSM_SMSC_H

#include "opal/mca/btl/gpusm/btl_gpusm.h"
#include "opal/mca/btl/gpusm/shm/split.h"

#include <cstddef>
#include <cstdint>

namespace gpusm {

// Single copies of a peer that have failed so many times in a row are not tried any more.
inline constexpr std::uint32_t failures_before_refusal = 4;

// May this process make single copies?
bool smsc_reads_plainly();
// Can the peer read this process's host memory by itself? It has not said that it cannot.
bool smsc_reaches_us(mca_btl_base_endpoint_t *endpoint);
// Reads host memory of the peer into host memory, and returns when that is done; `remote_address`
// need not have been checked. Anything but `ok`: nothing, or a part, has been read.
status smsc_read(mca_btl_base_endpoint_t *endpoint, void *local, std::uint64_t remote_address,
                 std::size_t bytes);
// Counts a message that has been read so.
inline void count_single_copy(std::size_t bytes)
{
    count(counter::single_copy_messages, 1);
    count(counter::single_copy_bytes, bytes);
}
// The other way round; counted nowhere.
status smsc_write(mca_btl_base_endpoint_t *endpoint, const void *local,
                  std::uint64_t remote_address, std::size_t bytes);
// What a single copy costs however short it is, in nanoseconds, as measured by this call on this
// process's own memory; 0: there are none, or they are not system calls.
std::uint64_t smsc_call_ns();
// Forgets what is known of the peer; nothing of it may be under way.
void smsc_release(mca_btl_base_endpoint_t *endpoint);

// A part of a message that a peer wants us to copy.
struct cooperative_put {
    mca_btl_base_endpoint_t *reader;
    cooperative_message message;
    split_word *split;
    std::uint64_t left; // chunks in front of those that have been taken at the back
};

// What ob1 has given btl_get, for the callback.
struct get_arguments {
    void *local_address;
    mca_btl_base_registration_handle_t *local_handle;
    std::size_t len_bytes;
    mca_btl_base_rdma_completion_fn_t cbfunc;
    void *cbcontext;
    void *cbdata;
};
// Shortest message of which the sender copies a part by itself: a shorter one is there before the
// request and the further system calls have paid.
inline constexpr std::size_t cooperative_min_bytes = 256 * 1024;
// cooperative: does such a get with the peer. False: it is to be done alone. True: *result is what
// btl_get returns; if that is OPAL_SUCCESS the callback has been called, or will be by
// progress_cooperative_gets.
bool get_cooperatively(mca_btl_base_endpoint_t *endpoint, const remote_handle &remote,
                       std::uint64_t remote_address, const get_arguments &get, int *result);
// Ends gets of which the peer has copied its part; returns how many.
int progress_cooperative_gets();
// A peer wants a part of our memory copied; progress_cooperative_puts does that, some at a time.
void cooperative_message_from(mca_btl_base_endpoint_t *endpoint, const unsigned char *payload,
                              std::size_t bytes);
// Copies some of the parts that peers want; there must be one.
void progress_cooperative_puts();
void release_cooperative(mca_btl_base_endpoint_t *endpoint);

} // namespace gpusm

#endif
