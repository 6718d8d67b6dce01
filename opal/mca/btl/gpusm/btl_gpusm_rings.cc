// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_rings.h"
#include "opal/mca/btl/gpusm/btl_gpusm_stage_services.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <algorithm>

namespace gpusm {

stream_pool *device_rings::pool_on(gpu_side &side, device &on)
{
    while (devices_.size() <= on.index) {
        devices_.emplace_back();
    }
    on_device &found = devices_[on.index];
    if (nullptr == found.on) {
        found.on = &on;
        found.pool = pool_of(mca_btl_gpusm_component.staging_device_bytes / most_device_rings,
                             most_device_rings, &on);
    }
    const bool has_any = found.rings.empty() ? found.memory.may_try() : are_exported(side, &found);
    return has_any ? &found.pool : nullptr;
}

status device_rings::make(gpu_side &side, const stream_pool &pool, std::size_t bytes,
                          std::uint64_t *slots, stream_memory *memory)
{
    device &on = *static_cast<device *>(pool.device);
    on_device &all = devices_[on.index];
    if (!all.memory.may_try()) {
        return status::no_memory;
    }
    const log_as_retry quiet(all.memory.failures() > 0);
    ring made{0, bytes, nullptr, {}};
    status s = alloc_device(side.driver, on, bytes, &made.slots);
    if (status::ok == s) {
        s = export_ring(side, &made);
        if (status::ok != s) {
            free_device(side.driver, on, made.slots);
        }
    }
    if (status::ok != s) {
        note_failure(&all, s);
        return s;
    }
    (void)all.memory.worked();
    *slots = made.slots;
    all.rings.push_back(made);
    name(pool, made.slots, memory);
    log_line(log_level::info, "a ring of %zu KiB on device %d", bytes / 1024, on.ordinal);
    return status::ok;
}

status device_rings::export_ring(gpu_side &side, ring *made)
{
    exported *entry = nullptr;
    const status s = side.exports.export_range(made->slots, made->len_bytes, 0, export_use::written,
                                               &entry, &made->handle);
    if (status::ok != s) {
        return s;
    }
    if (share_kind::legacy != made->handle.kind) {
        side.exports.release(entry);
        return status::unsupported;
    }
    if (made->entry != nullptr) {
        side.exports.release(made->entry);
    }
    made->entry = entry;
    return status::ok;
}

void device_rings::name(const stream_pool &pool, std::uint64_t slots, stream_memory *memory) const
{
    const std::vector<ring> &all = devices_[static_cast<const device *>(pool.device)->index].rings;
    const auto named =
        std::find_if(all.begin(), all.end(), [&](const ring &each) { return each.slots == slots; });
    *memory = {named->handle, slots};
}

void device_rings::note_failure(on_device *all, status why)
{
    if (all->memory.failed(why)) {
        log_line(log_level::info,
                 "no ring on device %d (%s); messages that need one come through host memory for "
                 "now",
                 all->on->ordinal, to_string(why));
    }
}

// When the driver says that the memory of a ring is not what was exported its export is over. Where
// it is the same memory after all it is exported anew.
bool device_rings::are_exported(gpu_side &side, on_device *all)
{
    for (ring &each : all->rings) {
        if (!each.entry->retired) {
            continue;
        }
        if (!all->memory.may_try()) {
            return false;
        }
        const log_as_retry quiet(all->memory.failures() > 0);
        if (const status s = export_ring(side, &each); status::ok != s) {
            note_failure(all, s);
            return false;
        }
        (void)all->memory.worked();
    }
    return true;
}

void device_rings::free(gpu_side &side)
{
    for (const on_device &each : devices_) {
        for (const ring &one : each.rings) {
            free_device(side.driver, *each.on, one.slots);
            side.exports.release(one.entry);
        }
    }
    devices_.clear();
}

} // namespace gpusm
