// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// driver.h: the state of the software driver in one process: devices, contexts, and what hangs
// from them. One lock guards all of it; workers hold it only to take work, never to copy.
#ifndef GPUSM_SOFTCUDA_DRIVER_H
#define GPUSM_SOFTCUDA_DRIVER_H

#include "call.h"
#include "memory.h"

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace softcuda {

struct stream;
struct event;
using stream_ref = std::shared_ptr<stream>;

struct context {
    int device = 0;     // visible ordinal
    unsigned flags = 0; // CUctx_flags
    bool primary = false;
    bool alive = true;
    int retained = 0;               // primary: how often
    CUresult sticky = CUDA_SUCCESS; // a kernel went wrong: every later call answers this
    stream_ref legacy;
    std::vector<stream_ref> streams; // all but legacy
    std::set<int> peers;
    std::unique_ptr<small_heap> small = std::make_unique<small_heap>();
};

struct device_state {
    int physical = 0;
    context *primary = nullptr; // made once, never freed
    pool *default_pool = nullptr;
};

// A stream-ordered memory pool.
struct pool {
    int device = 0;
    unsigned handle_types = 0;
    int imports = 0; // how often it was imported, and each is destroyed for itself; 0: made here
    // And what it has had pointers to stays taken until then, as if its owner had destroyed it.
    std::vector<block_ref> kept;
    bool destroyed = false; // freed with its last allocation
    int allocations = 0;
    std::uint64_t access = 0;         // two bits per visible device
    int fd = -1;                      // what an exported descriptor is a copy of
    std::uint64_t imported_inode = 0; // of the descriptor that this one came by
    small_heap small;
};

// Made by cuMemCreate or imported; freed when neither a handle nor a mapping refers to it.
struct vmm_allocation {
    std::uint64_t handle = 0;
    block_ref memory;
    CUmemAllocationProp properties{};
    int handles = 0; // references by cuMemCreate, import and retain
    int mappings = 0;
};

struct driver {
    std::mutex lock;
    std::condition_variable finished; // some stream operation is done
    int finished_waiters = 0;

    std::vector<device_state> devices;
    bool peers_connected = true;
    std::uint64_t page_bytes = 0;                // no two registrations share one; 0: they may
    bool one_gpu = false;                        // all devices are instances of it
    unsigned long long delay_us = 0;             // in the legacy stream and blocking ones
    unsigned long long delay_nonblocking_us = 0; // in those that it does not wait for

    address_space space;
    std::unordered_set<context *> contexts; // every one ever made; destroyed ones stay, dead
    std::unordered_map<stream *, stream_ref> streams;
    std::unordered_set<event *> events;
    std::unordered_set<pool *> pools;
    std::unordered_map<std::uint64_t, vmm_allocation> vmm; // by handle
    std::map<std::uint64_t, std::uint64_t> reservations;   // VMM: base -> length
};

using hold = std::unique_lock<std::mutex>; // as a parameter: the caller holds drv().lock

// Valid after cuInit; never destroyed, because calls may come during exit.
driver &drv();

CUresult driver_start();

// The calling thread's context: CUDA_SUCCESS, INVALID_CONTEXT, CONTEXT_IS_DESTROYED or its
// sticky error.
CUresult current_context_state() noexcept;
context *current_context() noexcept;

bool valid_device(CUdevice device);
device_state &state_of(CUdevice device);
// A visible ordinal for a physical number, or -1.
int visible_device(int physical);

pool *make_pool(const hold &held, int device, unsigned handle_types);

// A pool allocation is over: give it back.
void pool_release(const hold &held, range *what);

// In alloc.cc: memory of a device, from the heap if it is small. Fills all but kind and owner.
CUresult allocate_device(int device, std::uint64_t len_bytes, unsigned handle_types,
                         small_heap *small, range *made);

// Sets the bits of those devices in *access: cuMemSetAccess and cuMemPoolSetAccess.
CUresult set_access(std::uint64_t *access, int owner, const CUmemAccessDesc *list, size_t count);
inline unsigned access_of(std::uint64_t access, int device)
{
    return (access >> (2 * device)) & 3;
}

// Frees what cuMemAlloc, cuMemAllocManaged, a pool or an import made; no waiting.
void release_range(const hold &held, range *what);
void ipc_release(const hold &held, range *what);

} // namespace softcuda

#endif
