// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_pointer_check.cc: is a buffer device memory?
//
// Open MPI asks its accelerator component that about the buffer of every send and every receive.
// accelerator/cuda of 5.0 takes some ten driver calls for it, more than two microseconds; later
// versions ask for the kind of memory first. A function in its place, in the table through which
// Open MPI calls it, does the same: it answers about what the driver does not know and what it
// calls device memory; the rest (registered host memory, memory of a host's NUMA node) goes to the
// component. No answer changes, but for the number of the device of pool memory that other devices
// may use, too: the component names the first of those.
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"

#include <cstring>
#include <mutex>
#include <optional>

namespace gpusm {

namespace {

// The component calls what the driver forbids while a thread captures a stream in the global mode
// (with 5.0.7 for page-locked memory), and such a call ends the capture.
int ask_component(const void *address, int *dev_id, std::uint64_t *flags)
{
    std::optional<driver_scope> capture_goes_on;
    if (const driver_api *driver = driver_load()) {
        capture_goes_on.emplace(*driver);
    }
    return mca_btl_gpusm_component.check.original()(address, dev_id, flags);
}

int check_view(const void *address, int *dev_id, std::uint64_t *flags)
{
    transport *ours = mca_btl_gpusm_component.checks_for.load(std::memory_order_acquire);
    gpu_side *side = nullptr == ours ? nullptr : ours->process.gpu_if_made();
    const view *of = nullptr == side ? nullptr : side->views.find(address);
    *dev_id = nullptr == of ? MCA_ACCELERATOR_NO_DEVICE_ID : static_cast<int>(of->on->ordinal);
    *flags = 0;
    return nullptr == of ? 0 : 1;
}

// By the contract of check_addr in accelerator.h. Where somebody else has put a function over ours,
// this is called as long as the component stays loaded.
extern "C" int quick_check_addr(const void *address, int *dev_id, std::uint64_t *flags) noexcept
{
    const driver_api *driver = driver_load();
    if (nullptr == address || nullptr == flags || nullptr == driver) {
        return ask_component(address, dev_id, flags);
    }
    if (is_view_address(address)) [[unlikely]] {
        return check_view(address, dev_id, flags);
    }
    if (!mca_btl_gpusm_component.checks_quickly.load(std::memory_order_relaxed)) {
        return ask_component(address, dev_id, flags);
    }
    transport *ours = mca_btl_gpusm_component.checks_for.load(std::memory_order_acquire);
    gpu_side *side = nullptr == ours ? nullptr : ours->process.gpu_if_made();
    const auto at = reinterpret_cast<std::uint64_t>(address);
    if (ours != nullptr && at == ours->declined && at == ours->checked.address && !has_threads()) {
        ours->checked.address = 0;
        *dev_id = ours->checked.device;
        *flags = ours->checked.flags;
        return 1;
    }
    // The devices are under the GPU lock, for which nobody is to wait here.
    memory_place place;
    if (side != nullptr && side->lock.lock_alone()) {
        place = side->devices.known_place_of(at);
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
    if (place.on_device && !has_threads()) {
        ours->checked = {at, *dev_id, *flags};
    }
    return place.on_device ? 1 : 0;
}

} // namespace

void install_pointer_check(transport &of, bool for_views)
{
    const char *selected = opal_accelerator_base_selected_component.base_version.mca_component_name;
    const bool is_quick =
        mca_btl_gpusm_component.quick_pointer_check && 0 == std::strcmp("cuda", selected);
    const std::lock_guard guard(of.lock);
    if ((is_quick || for_views) && driver_load() != nullptr) {
        mca_btl_gpusm_component.checks_quickly.store(is_quick, std::memory_order_relaxed);
        mca_btl_gpusm_component.checks_for.store(&of, std::memory_order_release);
        mca_btl_gpusm_component.check.put(&opal_accelerator.check_addr, entry(quick_check_addr));
    }
}

void remove_pointer_check()
{
    mca_btl_gpusm_component.check.take_back(&opal_accelerator.check_addr, entry(quick_check_addr));
    mca_btl_gpusm_component.checks_for.store(nullptr, std::memory_order_release);
}

} // namespace gpusm
