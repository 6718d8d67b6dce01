// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_stage_writes.cc: the owner's side of staged gets of host memory that the program has
// page-locked: the copy engine reads it without the processor, so the range goes straight into the
// memory that the reader has named, in one copy.
#include "opal/mca/btl/gpusm/btl_gpusm_stage.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace gpusm {

namespace {

// Shorter messages go in pieces: what comes before a direct copy (a question to the driver, an
// export, a mapping) is for longer ones.
constexpr std::size_t direct_least_bytes = std::size_t{32} * 1024;

void count_failure(mca_btl_base_endpoint_t *reader, status why)
{
    if (failures_in_a_row == ++reader->failed_writes) {
        log_line(log_level::info,
                 "memory of process %u is not written from here any more (%s); host memory goes "
                 "there in pieces",
                 static_cast<unsigned>(reader->peer->identity().vpid), to_string(why));
    }
}

} // namespace

bool writes_to(const mca_btl_base_endpoint_t *reader, std::size_t len_bytes)
{
    return mca_btl_gpusm_component.use_direct_host && len_bytes >= direct_least_bytes &&
           reader->failed_writes < failures_in_a_row;
}

stage_write *stage_writes::take_write()
{
    if (nullptr == free_writes_) {
        free_writes_ = &writes_.emplace_back();
        free_writes_->next = nullptr;
    }
    stage_write *taken = std::exchange(free_writes_, free_writes_->next);
    *taken = stage_write{};
    taken->copy.part_of = static_cast<std::uint8_t>(copy_part::stage_write);
    return taken;
}

// Maps what the reader has named, in the thread's context, or in another one if that cannot reach
// it. `ok`: referenced, and *into is where.
status stage_writes::map(mca_btl_base_endpoint_t *reader, const remote_handle &handle,
                         std::uint64_t source, device **into, mapping **out)
{
    device *first = nullptr;
    if (status::ok != gpu_.devices.for_host(&first)) {
        const status s = gpu_.devices.for_memory(inspect_pointer(gpu_.driver, source), &first);
        if (status::ok != s) {
            return s;
        }
    }
    const auto try_in = [&](device *in) {
        const status s = gpu_.import(*reader, handle, *in, out);
        *into = status::ok == s ? in : nullptr;
        return s;
    };
    status s = try_in(first);
    const std::size_t known = gpu_.devices.all().size();
    for (std::size_t i = 0; i < known && (status::unsupported == s || status::driver_failed == s);
         ++i) {
        device *other = gpu_.devices.all()[i].get();
        if (other != first && gpu_.devices.is_alive(*other)) {
            s = try_in(other);
        }
    }
    return s;
}

bool stage_writes::fetch(mca_btl_base_endpoint_t *reader, const stage_message &message,
                         const stage_target &target)
{
    if (!can_be_written(target, message.len_bytes) || share_kind::host != message.handle.kind) {
        close_for_garbage(reader, message);
        return true;
    }
    const std::uint64_t address = message.handle.base + message.offset;
    const registration *source = registration_named(message.handle, address, message.len_bytes);
    if (nullptr == source || 0 == (source->handle.remote.flags & page_locked) ||
        !writes_to(reader, message.len_bytes)) {
        return false;
    }
    if (under_way_.size() <= reader->number) {
        under_way_.resize(reader->number + 1, 0);
    }
    if (under_way_[reader->number] >= stage_fetches_at_once) {
        close_for_garbage(reader, message);
        return true;
    }
    device *into = nullptr;
    mapping *mapped = nullptr;
    CUevent wait_for = nullptr;
    status s = map(reader, target.handle, address, &into, &mapped);
    if (status::ok == s) {
        s = gpu_.event_of(*reader, target.handle, *into, &wait_for);
        if (status::ok != s) {
            gpu_.imports.release(mapped);
        }
    }
    if (status::not_ready == s && share_kind::legacy != target.handle.kind) {
        (void)gpu_.fds.ask(reader->number, target.handle); // for the next one
        return false;
    }
    if (status::ok != s) {
        if (status::not_found != s) { // that export has been replaced meanwhile
            count_failure(reader, s);
        }
        return false;
    }
    stage_write *write = take_write();
    write->reader = reader;
    write->source = source;
    write->turn = source->turn;
    write->get = message.get;
    write->failures = reader->failed_writes;
    write->mapped = mapped;
    write->copy.destination = mapped->local_base + (target.address - mapped->remote_base);
    write->copy.source = address;
    write->copy.len_bytes = message.len_bytes;
    write->copy.wait_for = wait_for;
    ++under_way_[reader->number];
    gpu_.copies.submit(*into, &write->copy);
    return true;
}

void stage_writes::cancel(const mca_btl_base_endpoint_t *reader, std::uint32_t get)
{
    for (stage_write &each : writes_) {
        each.cancelled |= each.mapped != nullptr && each.reader == reader && each.get == get;
    }
}

void stage_writes::copied(copy_request *copy)
{
    stage_write *write = enclosing<stage_write>(copy, offsetof(stage_write, copy));
    mca_btl_base_endpoint_t *reader = write->reader;
    gpu_.imports.release(std::exchange(write->mapped, nullptr));
    --under_way_[reader->number];
    // Memory that has been deregistered meanwhile may have had other content already.
    const bool good =
        status::ok == copy->outcome && !write->cancelled && write->source->turn == write->turn;
    if (status::ok == copy->outcome) {
        reader->failed_writes = 0;
    } else if (write->failures ==
               reader->failed_writes) { // else one that failed with it has counted
        count_failure(reader, copy->outcome);
    }
    if (!reader->peer->closed()) {
        (void)send_stage_message(
            reader, stage_message_of(good ? stage_operation::written : stage_operation::failed,
                                     write->get));
    }
    write->next = std::exchange(free_writes_, write);
}

} // namespace gpusm
