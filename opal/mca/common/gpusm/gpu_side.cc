// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu_side.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/ipc/legacy.h"
#include "opal/mca/common/gpusm/window_copies.h"

#include <algorithm>
#include <ctime>

namespace gpusm {

gpu_side::gpu_side(const driver_api &api, node &local, const settings &set,
                   message_services *messages)
    : driver(api), devices(api),
      copies(api, {.kernel_blocks = set.kernel_blocks, .batches = set.use_batch_copies}, &views),
      exports(driver, devices, local.own(), set.use_cuda_events), fds(local.own(), exports, *this),
      imports(driver, devices, fds, set.cache_max_bytes, 0 == set.kernel_blocks),
      gatherers(driver, {.kernel_blocks = set.kernel_blocks}),
      reducers(driver, {.kernel_blocks = set.kernel_blocks}),
      bounces(copies, *this, static_cast<std::uint8_t>(copy_part::bounce)), views(*this, api),
      described(local.own()), board(local.own()),
      delegated(*this, local, board, set.delegate_wait_us),
      for_others(*this, local, board, {.kernel_blocks = set.kernel_blocks}), node_(local), set_(set)
{
    serve(messages);
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

window_copies &gpu_side::windows()
{
    if (nullptr == windows_) {
        windows_ =
            std::make_unique<window_copies>(*this, copy_limits{.kernel_blocks = set_.kernel_blocks,
                                                               .batches = set_.use_batch_copies});
    }
    return *windows_;
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
    for (std::size_t i = 0; const peer *each = node_.live_peer_at(i); ++i) {
        imports.close_over(each->number, *each);
    }
    timespec now{};
    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    imports.close_idle(now.tv_sec);
    imports.close_postponed();
    views.sweep();
    for_others.publish();
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
    segment &own = node_.own();
    device *any = nullptr;
    if (!set_.register_segments || !registration_.may_try() ||
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
    return has_kernels() && scope.entered() && driver.legacy_stream_is_idle();
}

CUevent gpu_side::event_before_copies(device &of)
{
    if (marked_.size() <= of.index) {
        marked_.resize(of.index + 1, mark::unknown);
    }
    mark &known = marked_[of.index];
    if (mark::unknown == known && marks_.may_try(of.index)) {
        const log_as_retry quiet(marks_.has_failed(of.index));
        status s = make_copies_synchronous(driver, of);
        s = status::ok == s ? wait_for_earlier_copies(driver, of, of.marks.of_context) : s;
        const bool is_done = status::ok == s && of.marks.waited_for >= of.marks.of_context;
        known = is_done                    ? mark::synchronous
                : status::unsupported == s ? mark::cannot
                                           : mark::unknown;
        if (status::ok == s || status::unsupported == s) {
            (void)marks_.worked(of.index);
        } else {
            (void)marks_.failed(of.index, s);
        }
    }
    return mark::synchronous == known && !set_.use_cuda_events ? nullptr
                                                               : devices.record_ipc_event(of);
}

bool gpu_side::kernel_touches(device &in, const unsigned char *at)
{
    const device *by = nullptr;
    for (const auto &[start, in_context_of] : registrations_) { // one behind the other
        by = at >= start ? in_context_of : by;
    }
    // With a context goes what was registered in it.
    if (by != &in || at >= node_.own().base() + registered_to_) {
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

status gpu_side::registered_memory(std::size_t bytes, carved_memory *kept, unsigned char **out)
{
    segment &own = node_.own();
    if (!set_.register_segments) {
        return status::unsupported;
    }
    // In this order, as what is carved cannot be given back. It is kept for the next question.
    if (!is_registered(own.base() + own.view().frag_offset, 1)) {
        return status::driver_failed;
    }
    if (kept->len_bytes < bytes) {
        std::uint32_t granule = 0;
        if (const status s = own.carve(bytes, &granule, page_bytes); status::ok != s) {
            return s;
        }
        *kept = {own.at(granule), bytes};
    }
    if (!is_registered(kept->at, bytes)) {
        return status::driver_failed;
    }
    *out = kept->at;
    return status::ok;
}

status gpu_side::read(void *from, void *local, std::uint64_t remote, std::size_t bytes)
{
    return nullptr == messages_ ? status::peer_gone
                                : messages_->read(*static_cast<peer *>(from), local, remote, bytes);
}

status gpu_side::write(void *to, const void *local, std::uint64_t remote, std::size_t bytes)
{
    return nullptr == messages_ ? status::peer_gone
                                : messages_->write(*static_cast<peer *>(to), local, remote, bytes);
}

// Without messages nobody asks for copies.
void gpu_side::serve(message_services *messages)
{
    messages_ = messages;
    for_others.serve(messages != nullptr);
}

bool gpu_side::send(peer &to, const delegated_copy &message)
{
    return messages_ != nullptr && messages_->send(to, message);
}

bool gpu_side::send(std::uint32_t to, const ipc_message &message)
{
    peer *reader = node_.peer_at(to);
    return reader != nullptr && messages_ != nullptr && messages_->send(*reader, message);
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
    const segment &own = node_.own();
    return at + len_bytes <= own.base() + registered_to_;
}

} // namespace gpusm
