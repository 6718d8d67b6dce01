// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_smsc.cc: long messages between host memories in one copy. The receiver reads the
// sender's memory through whatever Open MPI's framework smsc has found on this machine (CMA, XPMEM,
// KNEM). ob1 does this by the same RGET as for device memory; only the handle says host.
//
// Whether it works is known per pair and direction only when it is tried: permissions, PID
// namespaces and kinds of memory are in the way. A get that fails makes ob1 send that region in
// fragments. Who has failed some times in a row says so in its own peer slot, where the sender sees
// it before it offers the next message.
#include "opal/mca/btl/gpusm/btl_gpusm_smsc.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>

#include <sys/uio.h>
#include <unistd.h>

namespace gpusm {

namespace {

constexpr std::size_t most_registration_bytes =
    sizeof(mca_btl_base_registration_handle_t::single_copy);

// What the peer needs besides the address: nothing, or what the component made of the region.
std::size_t registration_bytes()
{
    return mca_smsc_base_has_feature(MCA_SMSC_FEATURE_REQUIRE_REGISTRATION)
               ? mca_smsc->registration_data_size
               : 0;
}

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

status read_from(mca_btl_base_endpoint_t *endpoint, const unsigned char *described, void *local,
                 std::uint64_t remote_address, std::size_t bytes)
{
    const std::size_t more = registration_bytes();
    mca_smsc_endpoint_t *from =
        nullptr == mca_smsc || more > most_registration_bytes ? nullptr : smsc_of(endpoint);
    single_copy &with = endpoint->single;
    if (from != nullptr) {
        unsigned char registration[most_registration_bytes];
        if (more > 0) {
            std::memcpy(registration, described, more);
        }
        // The address is the peer's word, but one in the peer's own memory, and the system checks
        // it.
        const int rc =
            MCA_SMSC_CALL(copy_from, from, local, reinterpret_cast<void *>(remote_address), bytes,
                          more > 0 ? registration : nullptr);
        if (OPAL_SUCCESS == rc) {
            with.failures.store(0, std::memory_order_relaxed);
            return status::ok;
        }
    }
    if (nullptr == from || ++with.failures >= failures_before_refusal) {
        mca_btl_gpusm_component.node->refuse_single_copies(*endpoint->peer);
    }
    return status::unsupported;
}

} // namespace

std::size_t smsc_handle_bytes()
{
    const std::size_t more = registration_bytes();
    return sizeof(remote_handle) + (more <= most_registration_bytes ? more : 0);
}

bool smsc_describe(mca_btl_base_endpoint_t *endpoint, void *base, std::size_t size,
                   mca_btl_base_registration_handle_t *handle, void **region)
{
    *region = nullptr;
    const std::size_t more = registration_bytes();
    if (nullptr == mca_smsc || !mca_btl_gpusm_component.use_single_copy ||
        more > most_registration_bytes || endpoint->peer->refuses_single_copies() ||
        nullptr == smsc_of(endpoint)) {
        return false;
    }
    if (more > 0) {
        *region = MCA_SMSC_CALL(register_region, base, size);
        if (nullptr == *region) {
            return false;
        }
        std::memcpy(handle->single_copy, *region, more);
    }
    return true;
}

void smsc_forget(void *region)
{
    if (region != nullptr) {
        MCA_SMSC_CALL(deregister_region, region);
    }
}

bool smsc_reads_plainly()
{
    return mca_btl_gpusm_component.use_single_copy && mca_smsc != nullptr &&
           0 == registration_bytes();
}

status smsc_read(mca_btl_base_endpoint_t *endpoint, const unsigned char *described, void *local,
                 std::uint64_t remote_address, std::size_t bytes)
{
    return read_from(endpoint, described, local, remote_address, bytes);
}

status smsc_write(mca_btl_base_endpoint_t *endpoint, const void *local,
                  std::uint64_t remote_address, std::size_t bytes)
{
    mca_smsc_endpoint_t *to = smsc_reads_plainly() ? smsc_of(endpoint) : nullptr;
    if (nullptr == to) {
        return status::unsupported;
    }
    // The address is in the peer's memory, and the peer's word.
    const int rc = MCA_SMSC_CALL(copy_to, to, const_cast<void *>(local),
                                 reinterpret_cast<void *>(remote_address), bytes, nullptr);
    return OPAL_SUCCESS == rc ? status::ok : status::unsupported;
}

std::uint64_t smsc_call_ns()
{
    if (!smsc_reads_plainly()) {
        return 0;
    }
    using clock = std::chrono::steady_clock;
    std::uint64_t least = 0;
    for (int tries = 0; tries < 64; ++tries) { // some are interrupted
        unsigned char from = 0;
        unsigned char to = 0;
        const iovec remote = {&from, sizeof(from)};
        const iovec local = {&to, sizeof(to)};
        const auto begin = clock::now();
        if (1 != process_vm_readv(getpid(), &local, 1, &remote, 1, 0)) {
            return 0;
        }
        const auto took = std::chrono::nanoseconds(clock::now() - begin).count();
        least = std::min(0 == least ? UINT64_MAX : least, static_cast<std::uint64_t>(took));
    }
    return least;
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
