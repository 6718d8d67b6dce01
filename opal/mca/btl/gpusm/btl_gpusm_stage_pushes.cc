// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_stage_pushes.cc: the owner's side of gets of device memory into ordinary host memory,
// which both sides copy: the owner takes chunks from the end (shm/split.h), brings them into its
// registered pages and writes them into the reader's memory by single copies.
#include "opal/mca/btl/gpusm/btl_gpusm_stage.h"
#include "opal/mca/btl/gpusm/btl_gpusm_smsc.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace gpusm {

void stage_pushes::fetch(mca_btl_base_endpoint_t *reader, const stage_message &message,
                         const stage_target &target, split_word *split)
{
    if (under_way_.size() <= reader->number) {
        under_way_.resize(reader->number + 1, 0);
    }
    if (!covers(target.handle, target.address, message.len_bytes) ||
        under_way_[reader->number] >= stage_fetches_at_once) {
        close_for_garbage(reader, message);
        return;
    }
    const std::uint64_t address = message.handle.base + message.offset;
    exported *source = nullptr;
    device *on = nullptr;
    std::uint64_t plain_bytes = 0;
    if (covers(message.handle, address, message.len_bytes) && smsc_reads_plainly()) {
        source = gpu_.live_export(message.handle);
    }
    if (nullptr == source || status::ok != gpu_.devices.for_address(address, &on, &plain_bytes) ||
        nullptr == on || !can_bounce()) {
        (void)send_stage_message(reader, stage_message_of(stage_operation::failed, message.get));
        return;
    }
    if (nullptr == free_pushes_) {
        free_pushes_ = &pushes_.emplace_back();
        free_pushes_->next = nullptr;
    }
    stage_push *push = std::exchange(free_pushes_, free_pushes_->next);
    *push = stage_push{};
    push->source = source;
    push->get = message.get;
    gpu_.exports.add_reference(source);
    ++under_way_[reader->number];
    push->job.way = bounce_way::push;
    push->job.on = on;
    push->job.source = address;
    push->job.destination = target.address;
    push->job.len_bytes = message.len_bytes;
    push->job.peer = reader;
    push->job.split = split;
    start_bounce(&push->job);
}

void stage_pushes::over(bounce *job)
{
    stage_push *push = enclosing<stage_push>(job, offsetof(stage_push, job));
    mca_btl_base_endpoint_t *reader = job->peer;
    gpu_.exports.release(std::exchange(push->source, nullptr));
    --under_way_[reader->number];
    if (!reader->peer->closed()) {
        (void)send_stage_message(reader, stage_message_of(job->failed ? stage_operation::failed
                                                                      : stage_operation::written,
                                                          push->get));
    }
    push->next = std::exchange(free_pushes_, push);
}

} // namespace gpusm
