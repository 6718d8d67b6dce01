// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/osc/gpusm/osc_gpusm.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

namespace gpusm {

window_memory window::tell(void *base, std::size_t size)
{
    window_memory told;
    told.base = reinterpret_cast<std::uint64_t>(base);
    told.len_bytes = size;
    if (0 == size || !is_device(base)) {
        return told;
    }
    told.on_device = 1;
    gpu_side *side = process_.gpu();
    if (side != nullptr && size_ > 1) {
        const std::lock_guard guard(side->lock);
        exported *kept = nullptr;
        const status s =
            side->exports.export_range(told.base, size, 0, export_use::read, &kept, &told.handle);
        if (kept != nullptr) {
            exports_.push_back({base, kept});
        }
        if (status::ok != s) {
            told.handle = {};
            log_line(log_level::info,
                     "a window's device memory is read and written by its owner only: %s",
                     to_string(s));
        }
    }
    return told;
}

std::unique_ptr<window_region> window::region_of(const window_rank &of, const window_memory &told)
{
    auto made = std::make_unique<window_region>();
    made->told = told;
    const bool is_own = &of == &ranks_[static_cast<std::size_t>(rank_)];
    if (0 != told.on_device) {
        gpu_side *side = is_own || of.is_kept ? process_.gpu() : nullptr;
        if (side != nullptr) {
            made->mapped = std::make_unique<window_mapping>(*side, of.process, told);
            const std::lock_guard guard(side->lock);
            mca_osc_gpusm_component.open->copies.store(&side->windows());
        }
    } else if (is_own) {
        made->here = reinterpret_cast<unsigned char *>(told.base);
    }
    return made;
}

window_region::~window_region()
{
    if (mapped != nullptr) {
        const std::lock_guard guard(mapped->side().lock);
        mapped = nullptr;
    }
}

// --- what is attached ----------------------------------------------------------------------------

int window::attach(void *base, std::size_t size)
{
    if (MPI_WIN_FLAVOR_DYNAMIC != flavor_) {
        return MPI_ERR_RMA_ATTACH;
    }
    const std::lock_guard guard(tables_lock_);
    std::atomic<std::uint32_t> &used = shared_[rank_].attached;
    for (std::uint32_t i = 0; 0 != size && i < most_attached; ++i) {
        attached_memory &slot = attached_by(rank_)[i];
        const std::uint32_t version = slot.version.load(std::memory_order_relaxed);
        if (0 != version % 2) {
            continue;
        }
        slot.memory = tell(base, size);
        slot.version.store(version + 1, std::memory_order_release);
        if (i >= used.load(std::memory_order_relaxed)) {
            used.store(i + 1, std::memory_order_release);
        }
        shared_[rank_].changes.fetch_add(1, std::memory_order_release);
        return OMPI_SUCCESS;
    }
    return 0 == size ? OMPI_SUCCESS : MPI_ERR_RMA_ATTACH;
}

int window::detach(const void *base)
{
    const auto address = reinterpret_cast<std::uint64_t>(base);
    const std::lock_guard tables(tables_lock_);
    const std::uint32_t used = shared_[rank_].attached.load(std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < used; ++i) {
        attached_memory &slot = attached_by(rank_)[i];
        const std::uint32_t version = slot.version.load(std::memory_order_relaxed);
        if (0 == version % 2 || slot.memory.base != address) {
            continue;
        }
        slot.version.store(version + 1, std::memory_order_release);
        shared_[rank_].changes.fetch_add(1, std::memory_order_release);
        const auto found = std::find_if(exports_.begin(), exports_.end(),
                                        [&](const export_of &each) { return each.base == base; });
        if (exports_.end() != found) {
            gpu_side &side = *process_.gpu();
            const std::lock_guard guard(side.lock);
            side.exports.release(found->kept);
            exports_.erase(found);
        }
        return OMPI_SUCCESS;
    }
    return MPI_ERR_BASE;
}

// What that process has attached, as it is now.
void window::look_at_attached(window_rank &of, int target)
{
    // Who holds one may be about to start copies, and counts them before it lets go.
    std::erase_if(of.retired, [&](const shared_region &each) {
        const bool is_held = each.use_count() > 1;
        std::atomic_thread_fence(std::memory_order_acquire);
        return !is_held && 0 == of.pending.copies.load(std::memory_order_acquire);
    });
    const std::uint32_t changes = shared_[target].changes.load(std::memory_order_acquire);
    if (std::exchange(of.seen_changes, changes) == changes) {
        return;
    }
    const std::uint32_t used =
        std::min(shared_[target].attached.load(std::memory_order_acquire), most_attached);
    of.attached.resize(used);
    of.versions.resize(used);
    for (std::uint32_t i = 0; i < used; ++i) {
        const attached_memory &slot = attached_by(target)[i];
        const std::uint32_t version = slot.version.load(std::memory_order_acquire);
        if (version == of.versions[i]) {
            continue;
        }
        if (of.attached[i] != nullptr) {
            of.retired.push_back(std::move(of.attached[i]));
        }
        std::move(of.joined.begin(), of.joined.end(), std::back_inserter(of.retired));
        of.joined.clear();
        const window_memory told = slot.memory;
        std::atomic_thread_fence(std::memory_order_acquire);
        const bool is_whole = version == slot.version.load(std::memory_order_relaxed);
        of.versions[i] = is_whole ? version : 0;
        if (is_whole && 0 != version % 2) {
            of.attached[i] = region_of(of, told);
        }
    }
}

// The memory around these bytes; null: not all of them are attached.
shared_region window::find_attached(int target, std::uint64_t first, std::uint64_t bytes)
{
    window_rank &of = ranks_[static_cast<std::size_t>(target)];
    const std::lock_guard guard(tables_lock_);
    look_at_attached(of, target);
    for (const auto *all : {&of.attached, &of.joined}) {
        for (const auto &each : *all) {
            if (each != nullptr && covers(each->told, first, bytes)) {
                return each;
            }
        }
    }
    // Perhaps several that lie side by side.
    window_memory joined;
    for (std::uint64_t end = first; end - first < bytes;) {
        const auto next =
            std::find_if(of.attached.begin(), of.attached.end(), [&](const auto &each) {
                return each != nullptr && covers(each->told, end, 1);
            });
        if (of.attached.end() == next) {
            return nullptr;
        }
        const window_memory &told = (*next)->told;
        if (end == first) {
            joined = told;
        }
        end = told.base + told.len_bytes;
        joined.len_bytes = end - joined.base;
        joined.on_device |= told.on_device;
    }
    of.joined.push_back(region_of(of, joined));
    return of.joined.back();
}

bool window::has(std::uint64_t address, std::uint64_t bytes)
{
    const window_region *own = ranks_[static_cast<std::size_t>(rank_)].memory.get();
    return own != nullptr ? covers(own->told, address, bytes)
                          : nullptr != find_attached(rank_, address, bytes);
}

int window::query(int target, std::size_t *size, unit_type *unit, void *base)
{
    if (MPI_WIN_FLAVOR_DYNAMIC == flavor_) {
        return MPI_ERR_RMA_FLAVOR;
    }
    if (MPI_PROC_NULL == target) { // the first that has memory
        for (target = 0; target < size_ - 1; ++target) {
            if (0 != ranks_[static_cast<std::size_t>(target)].memory->told.len_bytes) {
                break;
            }
        }
    }
    const window_rank &of = ranks_[static_cast<std::size_t>(target)];
    const bool is_shared = MPI_WIN_FLAVOR_ALLOCATE == flavor_ || MPI_WIN_FLAVOR_SHARED == flavor_ ||
                           of.memory->here != nullptr;
    if (!is_shared) {
        return MPI_ERR_RMA_FLAVOR;
    }
    *size = static_cast<std::size_t>(of.memory->told.len_bytes);
    *unit = static_cast<unit_type>(of.unit);
    *static_cast<void **>(base) = of.memory->here;
    return OMPI_SUCCESS;
}

} // namespace gpusm
