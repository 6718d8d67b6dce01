// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_smsc.cc: long messages between host memories in one copy. The receiver reads the
// sender's memory through what Open MPI's framework smsc has found on this machine (CMA or XPMEM;
// KNEM wants regions registered, and is not used). ob1 does this by the same RGET as for device
// memory; only the handle says host.
//
// Whether it works is known per pair and direction only when it is tried: permissions, PID
// namespaces and kinds of memory are in the way. A get that fails makes ob1 send that region in
// fragments. Who has failed some times in a row says so in its own peer slot, where the sender sees
// it before it offers the next message.
#include "opal/mca/btl/gpusm/btl_gpusm_smsc.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <mutex>

namespace gpusm {

namespace {

// Single copies of or to a peer that have failed so many times in a row are not tried any more.
constexpr std::uint32_t failures_before_refusal = 4;

// The framework's idea of the peer, asked for once; null when it cannot reach that process.
mca_smsc_endpoint_t *smsc_of(mca_btl_base_endpoint_t *endpoint)
{
    single_copy &with = endpoint->single;
    if (with.asked.load(std::memory_order_acquire)) {
        return with.peer;
    }
    opal_proc_t *proc = endpoint->proc;
    if (nullptr == proc) {
        return nullptr; // a sender that add_procs has not spoken of yet
    }
    // Outside of the lock, since it asks the runtime.
    mca_smsc_endpoint_t *made = MCA_SMSC_CALL(get_endpoint, proc);
    {
        const std::lock_guard guard(*mca_btl_gpusm_component.lock);
        if (!with.asked.load(std::memory_order_relaxed)) {
            with.peer = std::exchange(made, nullptr);
            with.asked.store(true, std::memory_order_release);
        }
    }
    if (made != nullptr) {
        MCA_SMSC_CALL(return_endpoint, made); // another thread was faster
    }
    log_line(log_level::info, "host memory of process %u is read %s",
             static_cast<unsigned>(endpoint->peer->identity().vpid),
             nullptr == with.peer ? "in fragments" : "in a single copy");
    return with.peer;
}

} // namespace

bool smsc_reads_plainly()
{
    return mca_btl_gpusm_component.use_single_copy && mca_smsc != nullptr &&
           !mca_smsc_base_has_feature(MCA_SMSC_FEATURE_REQUIRE_REGISTRATION);
}

bool smsc_reaches_us(mca_btl_base_endpoint_t *endpoint)
{
    return smsc_reads_plainly() && !endpoint->peer->refuses_single_copies() &&
           smsc_of(endpoint) != nullptr;
}

status smsc_read(mca_btl_base_endpoint_t *endpoint, void *local, std::uint64_t remote_address,
                 std::size_t bytes)
{
    mca_smsc_endpoint_t *from = smsc_reads_plainly() ? smsc_of(endpoint) : nullptr;
    single_copy &with = endpoint->single;
    // The address is the peer's word, but one in the peer's own memory, and the system checks it.
    if (from != nullptr &&
        OPAL_SUCCESS == MCA_SMSC_CALL(copy_from, from, local,
                                      reinterpret_cast<void *>(remote_address), bytes, nullptr)) {
        with.failures.store(0, std::memory_order_relaxed);
        return status::ok;
    }
    if (nullptr == from || ++with.failures >= failures_before_refusal) {
        mca_btl_gpusm_component.node->refuse_single_copies(*endpoint->peer);
    }
    return status::unsupported;
}

status smsc_write(mca_btl_base_endpoint_t *endpoint, const void *local,
                  std::uint64_t remote_address, std::size_t bytes)
{
    mca_smsc_endpoint_t *to = smsc_reads_plainly() ? smsc_of(endpoint) : nullptr;
    const bool good =
        to != nullptr &&
        OPAL_SUCCESS == MCA_SMSC_CALL(copy_to, to, const_cast<void *>(local),
                                      reinterpret_cast<void *>(remote_address), bytes, nullptr);
    std::atomic<std::uint32_t> &failures = endpoint->single.failed_writes;
    failures.store(good ? 0 : failures + 1, std::memory_order_relaxed);
    return good ? status::ok : status::unsupported;
}

bool smsc_writes_to(const mca_btl_base_endpoint_t *endpoint)
{
    return smsc_reads_plainly() && endpoint->single.failed_writes < failures_before_refusal;
}

void smsc_release(mca_btl_base_endpoint_t *endpoint)
{
    single_copy &with = endpoint->single;
    if (mca_smsc_endpoint_t *peer = std::exchange(with.peer, nullptr); peer != nullptr) {
        MCA_SMSC_CALL(return_endpoint, peer);
    }
    with.asked.store(false, std::memory_order_relaxed);
}

} // namespace gpusm
