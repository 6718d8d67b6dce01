// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/group_work.h"

#include <span>
#include <utility>

namespace gpusm {

status group_work::find_device(const void *buffer, std::int64_t offset, std::uint64_t bytes)
{
    device *its = nullptr;
    std::uint64_t unused = 0;
    if (status::ok != side_->devices.for_address(address_of(buffer), &its, &unused, true)) {
        return status::unsupported;
    }
    const pointer_facts facts = side_->devices.facts_of(address_of(buffer), true);
    const std::uint64_t first = address_of(buffer) + static_cast<std::uint64_t>(offset);
    const bool can =
        facts.plain() && facts.holds(first) && bytes <= facts.len_bytes - (first - facts.start);
    if (!can || (on_ != nullptr && its != on_)) {
        return status::unsupported;
    }
    on_ = its;
    return status::ok;
}

status group_work::copy_to_scratch(const void *buffer, std::int64_t offset, std::uint64_t bytes,
                                   std::uint64_t *out)
{
    const std::lock_guard guard(side_->lock);
    if (nullptr == scratch_.on) {
        status s = find_device(buffer, offset, bytes);
        s = status::ok == s ? ready(side_->gatherers.of(*on_)) : s;
        if (status::ok != s) {
            return s;
        }
        scratch_ = side_->views.take_packed(*on_, bytes);
        if (nullptr == scratch_.on) {
            return status::no_memory;
        }
    }
    const std::uint64_t first = address_of(buffer) + static_cast<std::uint64_t>(offset);
    static_assert(packed_memory::most_bytes <= gather_most_len);
    const gather_copy copy{scratch_.address, first, static_cast<std::uint32_t>(bytes), 0};
    *out = scratch_.address;
    return go_on(
        side_->gatherers.of(*on_),
        [&](gatherer &by, std::span<const CUevent> wait_for, completion *end) {
            return by.start({&copy, 1}, wait_for, end);
        },
        &copying_);
}

status group_work::offer(const void *buffer, std::uint64_t bytes, export_use use,
                         remote_handle *handle)
{
    // Of the copy nobody has asked in this call.
    const bool is_own =
        scratch_.on != nullptr && address_of(buffer) - scratch_.address < scratch_.len_bytes;
    const unsigned long long id =
        is_own ? 0 : side_->devices.facts_of(address_of(buffer), true).buffer_id;
    exported *out = nullptr;
    const status s = side_->exports.export_range(address_of(buffer), bytes, id, use, &out, handle);
    if (out != nullptr) {
        offered_.push_back(out);
    }
    return s;
}

status group_work::map(peer &from, const remote_handle &handle, std::uint64_t address,
                       std::uint64_t bytes, their_memory *out)
{
    if (!names_export(handle.kind) || !covers(handle, address, bytes)) {
        return status::bad_peer;
    }
    if (out->is_ready) {
        return status::ok;
    }
    status s = status::ok;
    if (nullptr == out->mapped) {
        s = side_->import(from, handle, *on_, &out->mapped);
    }
    if (status::ok == s) {
        out->here = out->mapped->local_base + (address - out->mapped->remote_base);
        out->there = address;
        s = gpu_side::kernel_reads(*out->mapped, *on_) ? s : status::unsupported;
    }
    CUevent before = nullptr;
    if (status::ok == s) {
        s = side_->event_of(from, handle, *on_, &before);
    }
    if (status::ok == s && before != nullptr) {
        events_.push_back(before);
    }
    if (status::not_ready == s) {
        return descriptors_.after_import(side_->fds, from.number, handle);
    }
    descriptors_.end();
    out->is_ready = status::ok == s;
    return s;
}

status group_work::ready(slot_launches &by) const
{
    const driver_scope scope(side_->driver, on_->context);
    return scope.entered() && by.is_ready() ? status::ok : status::unsupported;
}

void group_work::release(std::initializer_list<std::vector<their_memory> *> theirs)
{
    if (nullptr == side_) {
        return;
    }
    const std::lock_guard guard(side_->lock);
    for (std::vector<their_memory> *all : theirs) {
        for (their_memory &each : *all) {
            if (each.mapped != nullptr) {
                side_->imports.release(std::exchange(each.mapped, nullptr));
            }
        }
    }
    side_->views.give_packed(std::exchange(scratch_, {}));
    for (exported *each : offered_) {
        side_->exports.release(each);
    }
    offered_.clear();
}

} // namespace gpusm
