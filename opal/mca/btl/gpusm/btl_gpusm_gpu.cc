// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_get.h"

#include "opal/mca/btl/gpusm/base/log.h"
#include "opal/mca/btl/gpusm/base/mixed.h"

#include <algorithm>
#include <ctime>
#include <mutex>

namespace gpusm {

gpu_side *gpu()
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    const std::lock_guard guard(*component.lock);
    if (nullptr == component.gpu && component.use_cuda_ipc) {
        if (const driver_api *driver = driver_load(); driver != nullptr) {
            component.gpu = new gpu_side(*driver, component.threads);
        }
    }
    return component.gpu;
}

gpu_side::gpu_side(const driver_api &api, bool threads)
    : lock(threads), driver(api), devices(api),
      copies(api, {.kernel_blocks = mca_btl_gpusm_component.kernel_blocks,
                   .batches = mca_btl_gpusm_component.use_batch_copies}),
      exports(driver, devices, mca_btl_gpusm_component.node->own(),
              mca_btl_gpusm_component.use_cuda_events),
      fds(mca_btl_gpusm_component.node->own(), exports,
          {[](std::uint32_t peer, const ipc_message &message) {
               return send_ipc_message(endpoint_at(peer), message);
           },
           [](std::uint32_t number) -> peer * {
               const mca_btl_base_endpoint_t *endpoint = endpoint_at(number);
               return nullptr == endpoint ? nullptr : endpoint->peer;
           }}),
      imports(driver, devices, fds, mca_btl_gpusm_component.cache_max_bytes)
{
}

gpu_side::~gpu_side()
{
    look_at_contexts();
    (void)copies.cancel_all();
    for (const auto &each : registrations_) {
        (void)driver.report("cuMemHostUnregister", in_context(driver, each.second->context, [&] {
                                return driver.mem_host_unregister(each.first);
                            }));
    }
}

// The program may have destroyed some, and nothing may be called in those.
void gpu_side::look_at_contexts()
{
    for (const auto &each : devices.all()) {
        (void)devices.is_alive(*each);
    }
}

void gpu_side::sweep()
{
    look_at_contexts();
    exports.sweep();
    for (std::uint32_t i = 0; const mca_btl_base_endpoint_t *each = endpoint_at(i); ++i) {
        imports.close_over(i, *each->peer);
    }
    timespec now{};
    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    imports.close_idle(now.tv_sec);
    register_segment();
    constexpr std::uint32_t sweeps_of_belief = 64; // about a millisecond of a process that waits
    if (0 == ++sweeps_ % sweeps_of_belief) {
        for (std::atomic<std::uint64_t> &each : pageable_) {
            each.store(0, std::memory_order_relaxed);
        }
    }
}

// Pinned fragments make the staged path several times faster. A refusal costs that, no more.
void gpu_side::register_segment()
{
    segment &own = mca_btl_gpusm_component.node->own();
    device *any = nullptr;
    if (!mca_btl_gpusm_component.register_segments || registration_failed_ ||
        status::ok != devices.for_host(&any)) {
        return;
    }
    // The fragments only: what is before them has holes, which registering would fill. And whole
    // fragments only: the driver refuses a copy whose host side is registered in part.
    const std::size_t from = std::max<std::size_t>(registered_to_, own.view().frag_offset);
    std::size_t to = from;
    {
        const std::lock_guard guard(*mca_btl_gpusm_component.lock);
        to = own.seal();
    }
    if (to <= from) {
        return;
    }
    const CUresult result = in_context(driver, any->context, [&] {
        return driver.mem_host_register(own.base() + from, to - from, CU_MEMHOSTREGISTER_PORTABLE);
    });
    if (CUDA_SUCCESS != result) {
        registration_failed_ = true;
        log_line(log_level::info, "the segment stays unregistered with the driver: %s",
                 driver.error_name(result));
        return;
    }
    registrations_.emplace_back(own.base() + from, any);
    registered_to_ = to;
}

bool gpu_side::kernel_touches(device &in, const device *by, const unsigned char *at) const
{
    if (by != &in) {
        return false;
    }
    if (!in.same_host_addresses) {
        CUdeviceptr there = 0;
        const CUresult result = in_context(driver, in.context, [&] {
            return driver.mem_host_get_device_pointer(&there, const_cast<unsigned char *>(at), 0);
        });
        in.same_host_addresses =
            CUDA_SUCCESS == result && reinterpret_cast<std::uint64_t>(at) == there;
    }
    return *in.same_host_addresses;
}

bool gpu_side::is_page_locked(std::uint64_t address, std::size_t len_bytes)
{
    const std::uint64_t memory = mixed_memory(address, len_bytes);
    std::atomic<std::uint64_t> &place = pageable_[place_of_mixed(memory, pageable_bits)];
    if (place.load(std::memory_order_relaxed) == memory) {
        return false;
    }
    const bool locked = gpusm::is_page_locked(driver, address, len_bytes);
    if (!locked) {
        place.store(memory, std::memory_order_relaxed);
    }
    return locked;
}

const device *gpu_side::registered_by(const unsigned char *at) const
{
    const device *found = nullptr;
    for (const auto &[start, by] : registrations_) { // one behind the other
        found = at >= start ? by : found;
    }
    return found;
}

bool gpu_side::is_registered(const unsigned char *at, std::size_t len_bytes)
{
    register_segment();
    const segment &own = mca_btl_gpusm_component.node->own();
    return !registration_failed_ && at + len_bytes <= own.base() + registered_to_;
}

} // namespace gpusm
