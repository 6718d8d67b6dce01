// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_delegate.h"
#include "opal/mca/btl/gpusm/btl_gpusm_device.h"
#include "opal/mca/btl/gpusm/btl_gpusm_self.h"

#include <mutex>
#include <utility>

namespace gpusm {

namespace {

// The own copy of a process lets the device change as much as one of a peer's message does.
bool may_delegate_own(const transfer *get)
{
    const copy_request &copy = get->job.copy;
    return copy.within_device && nullptr == copy.wait_for && !is_view_address(copy.source) &&
           !is_view_address(copy.destination) &&
           get->gpu().delegated.submitter_of(*get->into) != nullptr;
}

} // namespace

// Buffers with gaps are for the kernels of their own processes. Where each process has a device of
// its own, most messages come out of the export that the one before came out of.
bool may_delegate(const transfer *get)
{
    if (is_self(get->endpoint)) {
        return may_delegate_own(get);
    }
    if (!names_export(get->remote.kind) || get->from_blocks || get->into_view != nullptr) {
        return false;
    }
    last_elsewhere &last = get->endpoint->elsewhere;
    if (get->remote.slot == last.slot && get->remote.generation == last.generation &&
        get->into->index == last.into) {
        return false;
    }
    if (!import_table::is_on(*get->endpoint->peer, get->remote, get->into->uuid)) {
        last = {get->remote.slot, get->into->index, get->remote.generation};
        return false;
    }
    return get->gpu().delegated.submitter_of(*get->into) != nullptr;
}

status delegate(transfer *get)
{
    gpu_side &side = get->gpu();
    peer *submitter = side.delegated.submitter_of(*get->into);
    if (nullptr == submitter) {
        return status::not_found;
    }
    const copy_request &copy = get->job.copy;
    const segment_identity &own = get->endpoint->transport->process.own_node().own().identity();
    delegated_memory source{};
    status s = status::ok;
    if (is_self(get->endpoint)) {
        source = {own, {}, copy.source};
        s = side.exports.export_range(copy.source, copy.len_bytes, 0, export_use::read,
                                      &get->source, &source.handle);
    } else {
        source = {get->endpoint->peer->identity(), get->remote, get->remote_address};
        source.handle.flags = 0;
    }
    delegated_memory target{own, {}, copy.destination};
    if (status::ok == s) {
        s = side.exports.export_range(copy.destination, copy.len_bytes, 0, export_use::written,
                                      &get->target, &target.handle);
    }
    if (status::ok == s) {
        s = side.delegated.ask(&get->delegated, *submitter, source, target, copy.len_bytes,
                               get->into->uuid);
    }
    if (status::ok != s) {
        release_memory(get);
    }
    return s;
}

void progress_delegated(gpu_side &side)
{
    side.for_others.progress();
    delegated_request *over = side.delegated.progress();
    while (over != nullptr) {
        delegated_request *each = std::exchange(over, over->next);
        auto *get = enclosing<transfer>(each, offsetof(transfer, delegated));
        if (status::ok == each->outcome) {
            finish(get, status::ok);
            continue;
        }
        release_memory(get);
        get->known.set(fact::delegates, false);
        start_get_again(get);
    }
}

bool delegated_message_from(mca_btl_base_endpoint_t *from, const unsigned char *payload,
                            std::size_t bytes)
{
    gpu_side *side = from->transport->process.gpu();
    if (nullptr == side) {
        return true; // it has been withdrawn, or will be
    }
    const std::lock_guard guard(side->lock);
    return side->for_others.message_from(*from->peer, payload, bytes);
}

} // namespace gpusm
