// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/packed_memory.h"

#include "opal/mca/common/gpusm/ipc/legacy.h"

#include <algorithm>
#include <bit>

namespace gpusm {

packed_memory::~packed_memory()
{
    for (on_device &all : devices_) {
        for (const packed_block &each : all.free) {
            if (each.on->context != nullptr) {
                free_device(driver_, *each.on, each.address);
            }
        }
    }
}

packed_memory::on_device &packed_memory::of(const device &on)
{
    while (devices_.size() <= on.index) {
        devices_.emplace_back();
    }
    return devices_[on.index];
}

void packed_memory::shrink(const device &on)
{
    on_device &all = of(on);
    for (const packed_block &each : all.free) {
        free_device(driver_, on, each.address);
        all.len_bytes -= each.len_bytes;
    }
    all.free.clear();
}

packed_block packed_memory::take(device &on, std::size_t bytes)
{
    on_device &all = of(on);
    const std::size_t wanted = std::bit_ceil(std::max(bytes, least_bytes_));
    if (nullptr == on.context || wanted > most_bytes) {
        return {};
    }
    auto best = all.free.end();
    for (auto each = all.free.begin(); each != all.free.end(); ++each) {
        if (each->len_bytes >= wanted &&
            (best == all.free.end() || each->len_bytes < best->len_bytes)) {
            best = each;
        }
    }
    if (best != all.free.end()) {
        const packed_block taken = *best;
        all.free.erase(best);
        return taken;
    }
    if (all.len_bytes + wanted > most_bytes || !all.memory.may_try()) {
        return {};
    }
    packed_block made{&on, 0, wanted};
    const status s = alloc_device(driver_, on, wanted, &made.address);
    if (status::ok != s) {
        (void)all.memory.failed(s);
        return {};
    }
    (void)all.memory.worked();
    all.len_bytes += wanted;
    return made;
}

void packed_memory::give(const packed_block &block)
{
    if (block.on != nullptr && block.on->context != nullptr) { // else it has gone with its context
        of(*block.on).free.push_back(block);
    }
}

} // namespace gpusm
