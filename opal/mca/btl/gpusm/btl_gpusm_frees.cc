// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_frees.cc: the parameter notice_frees: exports end when the program frees their memory,
// and not when the owner next looks at them.
//
// The driver's own functions are patched (gpu/entry_patch.h), because everybody comes by them in
// the end: a CUDA runtime, also one that is linked statically, takes their addresses from the
// driver. A notice comes from any thread, also from one that MPI knows nothing of, in the middle of
// our own driver calls, during a stream capture, while the process ends. So it takes no lock, calls
// nobody, and knows only what peers know: the export directory in our segment. It strikes the
// memory out there; the table of exports follows with the next sweep of progress.
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"

#include "opal/mca/btl/gpusm/base/log.h"
#include "opal/mca/btl/gpusm/gpu/entry_patch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <utility>

#include <dlfcn.h>
#include <unistd.h>

namespace gpusm {

namespace {

// All that a notice uses; set before the first one can come.
struct {
    segment_view segment;
    pid_t owner = 0;
    std::atomic<bool> struck{false}; // since retire_struck_out was last called
} own;

// Ends the exports that `is_freed` says are. The owner may be writing a slot meanwhile: a
// generation never comes back, so if it is the same before and after the fields were read, they
// belong to it.
template <typename Predicate> void strike_out(Predicate &&is_freed)
{
    export_slot *const slots = own.segment.exports;
    const std::uint32_t count =
        std::min(own.segment.header->exports_committed.load(std::memory_order_acquire),
                 own.segment.export_slots);
    bool any = false;
    for (export_slot *slot = slots; slot < slots + count; ++slot) {
        std::uint64_t generation = slot->generation.load(std::memory_order_acquire);
        if (0 == generation ||
            !is_freed(std::atomic_ref(slot->base).load(std::memory_order_relaxed),
                      std::atomic_ref(slot->len_bytes).load(std::memory_order_relaxed))) {
            continue;
        }
        // A forked child cleans up after itself; the memory is its parent's.
        if (own.owner != getpid()) {
            return;
        }
        any |= slot->generation.compare_exchange_strong(generation, 0, std::memory_order_acq_rel);
    }
    if (any) {
        own.struck.store(true, std::memory_order_release);
        own.segment.header->retire_epoch.fetch_add(1, std::memory_order_release);
    }
}

// cuMemFree and cuMemFreeAsync: the allocation that begins at `address`.
void before_free(std::uint64_t address, std::uint64_t)
{
    strike_out([=](std::uint64_t base, std::uint64_t) { return base == address; });
}

// cuMemUnmap: several exports may lie in the range, or it may be a part of one.
void before_unmap(std::uint64_t address, std::uint64_t len_bytes)
{
    strike_out([=](std::uint64_t base, std::uint64_t bytes) {
        return base < address ? address - base < bytes : base - address < len_bytes;
    });
}

// By the names that the functions have in the driver, whatever cuda.h calls them. A driver that
// lacks one has nobody who calls it.
struct noticed_function {
    const char *name;
    entry_notice notice;
};
constexpr noticed_function functions[] = {
    {"cuMemFree_v2", before_free},
    {"cuMemFreeAsync", before_free},
    {"cuMemFreeAsync_ptsz", before_free},
    {"cuMemUnmap", before_unmap},
};

using patches = std::array<entry_patch, std::size(functions)>;
patches *installed = nullptr;

} // namespace

void install_free_notices()
{
    if (!mca_btl_gpusm_component.notice_frees || installed != nullptr) {
        return;
    }
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD); // driver_load has
    if (nullptr == driver) {
        log_line(log_level::warn, "btl_gpusm_notice_frees has no effect: %s", dlerror());
        return;
    }
    own.segment = mca_btl_gpusm_component.node->own().view();
    own.owner = getpid();
    installed = new patches;
    for (std::size_t i = 0; i < std::size(functions); ++i) {
        void *entry = dlsym(driver, functions[i].name);
        const char *why = nullptr;
        if (entry != nullptr &&
            status::ok != (*installed)[i].install(entry, functions[i].notice, &why)) {
            log_line(log_level::warn,
                     "btl_gpusm_notice_frees has no effect, and freed memory is noticed a little "
                     "later: %s cannot be patched: %s",
                     functions[i].name, why);
            remove_free_notices();
            break;
        }
    }
    if (installed != nullptr) {
        log_line(log_level::info, "the driver tells when device memory is freed");
    }
    (void)dlclose(driver); // driver_load holds it for good
}

void remove_free_notices()
{
    delete std::exchange(installed, nullptr);
}

void gpu_desk::retire_struck_out()
{
    if (!own.struck.exchange(false, std::memory_order_acq_rel)) {
        return;
    }
    for (auto left = exports.live(); left > 0; --left) {
        exported *entry = exports.next_for_sweep();
        const export_slot &slot = own.segment.exports[entry->slot];
        if (slot.generation.load(std::memory_order_acquire) != entry->generation) {
            exports.retire(entry);
        }
    }
}

} // namespace gpusm
