// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/reduction_work.h"

#include <mutex>
#include <utility>

namespace gpusm {

namespace {

std::uint64_t address_of(const void *buffer)
{
    return reinterpret_cast<std::uint64_t>(buffer);
}

} // namespace

status reduction_work::find_device(const void *buffer)
{
    const pointer_facts facts = side->devices.facts_of(address_of(buffer));
    device *its = nullptr;
    const status s = facts.plain() ? side->devices.for_memory(facts, &its) : status::unsupported;
    if (status::ok != s || (on != nullptr && its != on)) {
        return status::unsupported;
    }
    on = its;
    return status::ok;
}

status reduction_work::offer(const void *buffer, std::uint64_t bytes, exported **out,
                             remote_handle *handle)
{
    const pointer_facts facts = side->devices.facts_of(address_of(buffer), true);
    return side->exports.export_range(address_of(buffer), bytes, facts.buffer_id, out, handle);
}

status reduction_work::describe(const reduction_call &call, std::size_t rank, reduction_told *out)
{
    const std::uint64_t bytes = call.elements * element_bytes(call.type);
    status s = find_device(call.input);
    if (status::ok == s) {
        s = offer(call.input, bytes, &source, &out->source_in);
    }
    if (status::ok == s && call.receive != nullptr) {
        s = find_device(call.receive);
    }
    if (status::ok == s && is_written_by_others(call, rank)) {
        s = offer(call.receive, bytes, &target, &out->target_in);
    }
    out->source = address_of(call.input);
    out->target = address_of(call.receive);
    return s;
}

status reduction_work::map(peer &from, const remote_handle &handle, std::uint64_t address,
                           std::uint64_t bytes, mapping **out, std::uint64_t *here)
{
    if (*out != nullptr) {
        return status::ok;
    }
    if (!names_export(handle.kind) || !covers(handle, address, bytes)) {
        return status::bad_peer;
    }
    status s = side->import(from, handle, *on, out);
    if (status::ok == s) {
        *here = (*out)->local_base + (address - (*out)->remote_base);
        s = gpu_side::kernel_reads(**out, *on) ? s : status::unsupported;
    }
    CUevent before = nullptr;
    if (status::ok == s) {
        s = side->event_of(from, handle, *on, &before);
    }
    if (status::ok == s && before != nullptr) {
        events.push_back(before);
    }
    if (status::not_ready != s) {
        descriptors = nullptr;
        return s;
    }
    if (nullptr == descriptors) {
        descriptors = std::make_shared<bool>(false);
        give_up = clock::now() + std::chrono::seconds(10);
        const auto come = [flag = descriptors] { *flag = true; };
        return side->fds.ask(from.number, handle, come) ? status::busy : status::unsupported;
    }
    // Once they have come, they should have helped.
    return !*descriptors && clock::now() < give_up ? status::busy : status::unsupported;
}

void reduction_work::release()
{
    if (nullptr == side) {
        return;
    }
    const std::lock_guard guard(side->lock);
    for (member &each : members) {
        for (mapping **its : {&each.source, &each.target}) {
            if (*its != nullptr) {
                side->imports.release(std::exchange(*its, nullptr));
            }
        }
    }
    for (exported **its : {&source, &target}) {
        if (*its != nullptr) {
            side->exports.release(std::exchange(*its, nullptr));
        }
    }
}

status reduction_work::launch(const reduction_call &call, std::size_t rank)
{
    const reduction_part part = part_of(call, rank, members.size());
    const std::uint64_t in_element = element_bytes(call.type);
    what = {};
    what.op = call.op;
    what.type = call.type;
    what.elements = part.count;
    for (std::size_t i = 0; i < sources_of(call, rank, members.size()); ++i) {
        what.sources[what.source_count++] = members[i].source_here + part.first * in_element;
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
        if (i == rank ? is_written_at_home(call, rank) : is_written_by_others(call, i)) {
            what.targets[what.target_count++] = members[i].target_here + part.to * in_element;
        }
    }
    const std::size_t of_others = events.size();
    if (CUevent before = side->event_before_copies(*on); before != nullptr) {
        events.push_back(before);
    }
    const driver_scope scope(side->driver, on->context);
    const status s =
        scope.entered() ? side->reducers.of(*on).start(what, events, &end) : status::driver_failed;
    events.resize(of_others);
    return s;
}

} // namespace gpusm
