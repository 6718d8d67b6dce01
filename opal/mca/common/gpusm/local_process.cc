// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/local_process.h"

#include "opal/mca/common/gpusm/gpu/driver.h"
#include "opal/mca/common/gpusm/shm/segment.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <utility>

namespace gpusm {

namespace {

// Processes of this node that can ever send to this one; memory comes as they do.
constexpr std::uint32_t peer_slots = 4 * 1024;
constexpr std::uint32_t event_slots = 32;
// Device allocations of this process that peers can know at once; the least recently used one makes
// room for the next.
constexpr std::uint32_t export_slots = 1024;

// Components come and go by the thread that opens frameworks, or by one for each session.
struct instance {
    std::mutex lock;
    local_process *process = nullptr;
    std::uint32_t references = 0;
};

instance &known()
{
    static instance made;
    return made;
}

std::uint64_t segment_bytes(const settings &set, const segment_options &options)
{
    constexpr std::size_t slack_bytes = 1U << 20;
    const std::size_t all =
        set.content_bytes + slack_bytes + std::size_t{set.fast_box_max} * sizeof(fast_box) +
        options.fifo_slots * sizeof(fifo_slot) + options.peer_slots * sizeof(peer_slot) +
        options.export_slots * sizeof(export_slot);
    return 0 != set.segment_bytes ? set.segment_bytes
                                  : std::min(all, static_cast<std::size_t>(max_segment_bytes));
}

status make_segment(const settings &set, segment *own, std::string *why)
{
    segment_options options;
    options.directory = set.backing_directory.c_str();
    options.jobid = set.jobid;
    options.vpid = set.vpid;
    options.fifo_slots = std::bit_ceil(set.fifo_size);
    options.peer_slots = peer_slots;
    options.event_slots = event_slots;
    options.export_slots = export_slots;
    options.expected_peers = set.expected_peers;
    options.segment_bytes = segment_bytes(set, options);
    (void)segment_sweep(options.directory);
    const status s = segment::create(options, own, why);
    if (status::ok == s) {
        // A page of them, so that device messages do not all go in fragments where the file system
        // is full before the first one.
        (void)own->commit_exports(page_bytes / sizeof(export_slot));
    }
    return s;
}

} // namespace

local_process *local_process::acquire(const settings &set, std::string *why)
{
    instance &one = known();
    const std::lock_guard guard(one.lock);
    if (nullptr == one.process) {
        segment own;
        if (status::ok != make_segment(set, &own, why)) {
            return nullptr;
        }
        one.process = new local_process(set, std::move(own));
    }
    ++one.references;
    return one.process;
}

local_process *local_process::acquire_if_made()
{
    instance &one = known();
    const std::lock_guard guard(one.lock);
    one.references += nullptr == one.process ? 0 : 1;
    return one.process;
}

void local_process::release()
{
    instance &one = known();
    const std::lock_guard guard(one.lock);
    if (0 == --one.references) {
        delete std::exchange(one.process, nullptr);
    }
}

local_process::local_process(const settings &set, segment &&own)
    : set_(set), node_(std::move(own), set.fast_box_max)
{
}

local_process::~local_process()
{
    delete gpu_.exchange(nullptr);
}

void local_process::decide_to_meet(bool meets)
{
    auto undecided = meets_in_groups::undecided;
    (void)node_.own().view().header->meets.compare_exchange_strong(
        undecided, meets ? meets_in_groups::yes : meets_in_groups::no);
}

bool local_process::meets() const
{
    return meets_in_groups::yes == node_.own().view().header->meets.load(std::memory_order_relaxed);
}

bool local_process::is_device_memory(const void *buffer, bool (*ask)(const void *)) const
{
    if (nullptr == buffer) {
        return false;
    }
    gpu_side *side = gpu_if_made();
    if (nullptr == side) {
        return ask(buffer);
    }
    const std::lock_guard guard(side->lock);
    return side->devices.facts_of(reinterpret_cast<std::uint64_t>(buffer)).on_device;
}

gpu_side *local_process::make_gpu()
{
    const std::lock_guard guard(lock_);
    if (nullptr == gpu_ && set_.use_cuda_ipc) {
        if (const driver_api *driver = driver_load(); driver != nullptr) {
            gpu_ = new gpu_side(*driver, node_, set_, messages_);
        }
    }
    return gpu_;
}

sync_check *local_process::make_sync_checks()
{
    std::call_once(checks_made_, [this] {
        if (const driver_api *driver = driver_load(); driver != nullptr) {
            checks_ = std::make_unique<sync_check>(*driver, set_.vpid);
        }
    });
    return checks_.get();
}

void local_process::serve(message_services *messages)
{
    const std::lock_guard guard(lock_);
    messages_ = messages;
    if (gpu_side *side = gpu_; side != nullptr) {
        side->serve(messages);
    }
}

} // namespace gpusm
