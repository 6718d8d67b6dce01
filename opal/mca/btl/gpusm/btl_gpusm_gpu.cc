// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_device.h"
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <mutex>

namespace gpusm {

gpu_side *gpu()
{
    transport &all = here();
    const std::lock_guard guard(all.lock);
    if (nullptr == all.gpu && mca_btl_gpusm_component.use_cuda_ipc) {
        if (const driver_api *driver = driver_load(); driver != nullptr) {
            all.gpu = new gpu_side(*driver);
        }
    }
    return all.gpu;
}

gpu_side::gpu_side(const driver_api &api)
    : driver(api), devices(api),
      copies(api, {.kernel_blocks = mca_btl_gpusm_component.kernel_blocks,
                   .batches = mca_btl_gpusm_component.use_batch_copies}),
      exports(driver, devices, here().node->own(), mca_btl_gpusm_component.use_cuda_events),
      fds(here().node->own(), exports,
          {[](std::uint32_t peer, const ipc_message &message) {
               return send_ipc_message(endpoint_at(peer), message);
           },
           [](std::uint32_t number) -> peer * {
               const mca_btl_base_endpoint_t *endpoint = endpoint_at(number);
               return nullptr == endpoint ? nullptr : endpoint->peer;
           }}),
      imports(driver, devices, fds, mca_btl_gpusm_component.cache_max_bytes,
              0 == mca_btl_gpusm_component.kernel_blocks),
      bounces(copies, *this, static_cast<std::uint8_t>(copy_part::bounce))
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

void gpu_side::look_at_contexts()
{
    timespec now{};
    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    devices.look_at_contexts(now.tv_sec);
}

void gpu_side::sweep()
{
    look_at_contexts();
    exports.sweep();
    for (std::uint32_t i = 0; const mca_btl_base_endpoint_t *each = live_endpoint_at(i); ++i) {
        imports.close_over(each->number, *each->peer);
    }
    timespec now{};
    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    imports.close_idle(now.tv_sec);
    imports.close_postponed();
    if (packs_fragments_.exchange(false, std::memory_order_relaxed)) {
        register_segment();
    }
    constexpr std::uint32_t sweeps_of_belief = 64; // about a millisecond of a process that waits
    if (0 == ++sweeps_ % sweeps_of_belief) {
        for (std::atomic<std::uint64_t> &each : pageable_) {
            each.store(0, std::memory_order_relaxed);
        }
    }
}

// Pinned fragments make the staged path several times faster. A refusal costs that, no more, and
// for a while.
void gpu_side::register_segment()
{
    segment &own = here().node->own();
    device *any = nullptr;
    if (!mca_btl_gpusm_component.register_segments || !registration_.may_try() ||
        status::ok != devices.for_host(&any)) {
        return;
    }
    // The fragments only: what is before them has holes, which registering would fill. And whole
    // fragments only: the driver refuses a copy whose host side is registered in part.
    const std::size_t from = std::max<std::size_t>(registered_to_, own.view().frag_offset);
    const std::size_t to = own.seal();
    if (to <= from) {
        return;
    }
    const CUresult result = in_context(driver, any->context, [&] {
        return driver.mem_host_register(own.base() + from, to - from, CU_MEMHOSTREGISTER_PORTABLE);
    });
    if (CUDA_SUCCESS != result) {
        if (registration_.failed(status::driver_failed)) {
            log_line(log_level::info, "the segment stays unregistered with the driver for now: %s",
                     driver.error_name(result));
        }
        return;
    }
    (void)registration_.worked();
    registrations_.emplace_back(own.base() + from, any);
    registered_to_ = to;
}

bool gpu_side::may_wait_for_kernels(const device &in) const
{
    const driver_scope scope(driver, in.context);
    return mca_btl_gpusm_component.kernel_blocks != 0 && scope.entered() &&
           driver.legacy_stream_is_idle();
}

bool gpu_side::kernel_touches(device &in, const unsigned char *at)
{
    const device *by = nullptr;
    for (const auto &[start, in_context_of] : registrations_) { // one behind the other
        by = at >= start ? in_context_of : by;
    }
    // With a context goes what was registered in it.
    if (by != &in || at >= here().node->own().base() + registered_to_) {
        return false;
    }
    if (!in.same_host_addresses && !host_addresses_.may_try(in.index)) {
        return false;
    }
    if (!in.same_host_addresses) {
        CUdeviceptr there = 0;
        const CUresult result = in_context(driver, in.context, [&] {
            return driver.mem_host_get_device_pointer(&there, const_cast<unsigned char *>(at), 0);
        });
        if (CUDA_SUCCESS != result) {
            (void)host_addresses_.failed(in.index, status::driver_failed);
            return false;
        }
        (void)host_addresses_.worked(in.index);
        in.same_host_addresses = reinterpret_cast<std::uint64_t>(at) == there;
    }
    return *in.same_host_addresses;
}

status gpu_side::bounce_memory(std::size_t bytes, unsigned char **out)
{
    segment &own = here().node->own();
    if (!mca_btl_gpusm_component.register_segments) {
        return status::unsupported;
    }
    // In this order, as what is carved cannot be given back. It is kept for the next question.
    if (!is_registered(own.base() + own.view().frag_offset, 1)) {
        return status::driver_failed;
    }
    if (bounce_bytes_ < bytes) {
        std::uint32_t granule = 0;
        if (const status s = own.carve(bytes, &granule, page_bytes); status::ok != s) {
            return s;
        }
        bounce_memory_ = own.at(granule);
        bounce_bytes_ = bytes;
    }
    if (!is_registered(bounce_memory_, bytes)) {
        return status::driver_failed;
    }
    *out = bounce_memory_;
    return status::ok;
}

status gpu_side::read(void *peer, void *local, std::uint64_t remote, std::size_t bytes)
{
    const status s = smsc_read(static_cast<mca_btl_base_endpoint_t *>(peer), local, remote, bytes);
    count(counter::pulled_host_bytes, status::ok == s ? bytes : 0);
    return s;
}

status gpu_side::write(void *peer, const void *local, std::uint64_t remote, std::size_t bytes)
{
    return smsc_write(static_cast<mca_btl_base_endpoint_t *>(peer), local, remote, bytes);
}

bool gpu_side::is_page_locked(std::uint64_t address, std::size_t len_bytes)
{
    // By multiplication (Knuth, The Art of Computer Programming 3, 6.4), whose upper bits are the
    // better ones.
    constexpr std::uint64_t factor = 0x9e3779b97f4a7c15U;
    const std::uint64_t of_address = address * factor;
    const std::uint64_t memory = (of_address ^ (of_address >> 32) ^ len_bytes) * factor;
    std::atomic<std::uint64_t> &place = pageable_[memory >> (64 - pageable_bits)];
    if (place.load(std::memory_order_relaxed) == memory) {
        return false;
    }
    const bool locked = gpusm::is_page_locked(driver, address, len_bytes);
    if (!locked) {
        place.store(memory, std::memory_order_relaxed);
    }
    return locked;
}

bool gpu_side::is_registered(const unsigned char *at, std::size_t len_bytes)
{
    register_segment();
    const segment &own = here().node->own();
    return at + len_bytes <= own.base() + registered_to_;
}

// --- is a buffer device memory?
//
// Open MPI asks its accelerator component that about the buffer of every send and every receive.
// accelerator/cuda of 5.0 takes some ten driver calls for it, more than two microseconds; later
// versions ask for the kind of memory first. A function in its place, in the table through which
// Open MPI calls it, does the same: it answers about what the driver does not know and what it
// calls device memory; the rest (registered host memory, memory of a host's NUMA node) goes to the
// component. No answer changes, but for the number of the device of pool memory that other devices
// may use, too: the component names the first of those.

namespace {

int ask_component(const void *address, int *dev_id, std::uint64_t *flags)
{
    return mca_btl_gpusm_component.check.original()(address, dev_id, flags);
}

// By the contract of check_addr in accelerator.h. Where somebody else has put a function over ours,
// this is called as long as the component stays loaded.
extern "C" int quick_check_addr(const void *address, int *dev_id, std::uint64_t *flags) noexcept
{
    const driver_api *driver = driver_load();
    if (nullptr == address || nullptr == flags || nullptr == driver) {
        return ask_component(address, dev_id, flags);
    }
    transport *ours = mca_btl_gpusm_component.checks_for.load(std::memory_order_acquire);
    gpu_side *side = nullptr == ours ? nullptr : ours->gpu.load();
    const auto at = reinterpret_cast<std::uint64_t>(address);
    // The devices are under the GPU lock, for which nobody is to wait here.
    memory_place place;
    if (side != nullptr && side->lock.lock_alone()) {
        place = side->devices.facts_of(at, at == ours->declined);
        side->lock.unlock();
    } else {
        place = place_of(*driver, address);
    }
    // The component sets itself up when it is asked about the first device memory, and makes the
    // memory's context current for a thread that has none.
    CUcontext current = nullptr;
    const bool is_certain = place.on_device
                                ? place.ordinal >= 0 && side != nullptr &&
                                      CUDA_SUCCESS == driver->ctx_get_current(&current) &&
                                      current != nullptr
                                : place.answered && !place.known;
    if (!is_certain) {
        return ask_component(address, dev_id, flags);
    }
    *dev_id = place.on_device ? place.ordinal : MCA_ACCELERATOR_NO_DEVICE_ID;
    *flags = place.managed ? MCA_ACCELERATOR_FLAGS_UNIFIED_MEMORY : 0;
    return place.on_device ? 1 : 0;
}

} // namespace

void install_pointer_check()
{
    const char *selected = opal_accelerator_base_selected_component.base_version.mca_component_name;
    const std::lock_guard guard(here().lock);
    if (mca_btl_gpusm_component.quick_pointer_check && 0 == std::strcmp("cuda", selected) &&
        driver_load() != nullptr) {
        mca_btl_gpusm_component.checks_for.store(&here(), std::memory_order_release);
        mca_btl_gpusm_component.check.put(&opal_accelerator.check_addr, entry(quick_check_addr));
    }
}

void remove_pointer_check()
{
    mca_btl_gpusm_component.check.take_back(&opal_accelerator.check_addr, entry(quick_check_addr));
    mca_btl_gpusm_component.checks_for.store(nullptr, std::memory_order_release);
}

} // namespace gpusm
