// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_transfer.h"
#include "opal/mca/btl/gpusm/btl_gpusm_views.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <algorithm>
#include <utility>

namespace gpusm {

namespace {

void count_both(counter messages, counter bytes, std::uint64_t so_many)
{
    count(messages, 1);
    count(bytes, so_many);
}

// What has been copied, by the mode in which it came.
void count_copied(const transfer &over)
{
    const std::uint64_t len_bytes = over.copy.len_bytes;
    const stream_fetch &stream = over.stream;
    switch (over.goes) {
    case mode::host_ring:
    case mode::both_copy: {
        const std::uint64_t by_ring =
            mode::host_ring == over.goes ? std::min(stream.received, len_bytes) : 0;
        if (by_ring > 0) {
            count_both(counter::host_ring_messages, counter::host_ring_bytes, by_ring);
        }
        if (by_ring < len_bytes) {
            count_both(counter::single_copy_messages, counter::single_copy_bytes,
                       len_bytes - by_ring);
            count(counter::cooperative_copy_bytes, stream.written);
        }
        return;
    }
    case mode::device_ring:
    case mode::pushed:
    case mode::pulled:
    case mode::staged_ring:
        if (stream.written > 0) {
            count_both(counter::direct_host_messages, counter::direct_host_bytes, len_bytes);
        } else if (stream.received > 0 && mode::device_ring == over.goes) {
            count_both(counter::device_ring_messages, counter::device_ring_bytes, stream.received);
        } else if (stream.received > 0) {
            count_both(counter::host_ring_messages, counter::host_ring_bytes, stream.received);
        }
        break;
    default: // mapped, bounced, shared, self
        break;
    }
    if (over.into_view != nullptr) {
        count_both(counter::unpacked_messages, counter::unpacked_bytes, len_bytes);
    }
    if (over.known.own_process) {
        count_both(counter::self_messages, counter::self_bytes, len_bytes);
    } else {
        count_both(counter::get_messages, counter::get_bytes, len_bytes);
    }
}

} // namespace

transfer *new_transfer(mca_btl_base_endpoint_t *endpoint, const get_arguments &given,
                       const facts &known)
{
    transfer *get = endpoint->transport->gets->all.take();
    if (get != nullptr) { // the free list gives what was there before
        get->endpoint = endpoint;
        get->mapping = nullptr;
        get->target = nullptr;
        get->into_view = nullptr;
        get->from_view = nullptr;
        get->from_blocks = false;
        get->has_waited = false;
        get->kernel_reads = false;
        get->given = given;
        get->known = known;
        get->goes = mode::fragments;
        get->copy = {};
        get->copy.destination = reinterpret_cast<std::uint64_t>(given.local_address);
        get->copy.len_bytes = known.len_bytes;
        get->copy.part_of = static_cast<std::uint8_t>(copy_part::get);
    }
    return get;
}

stream_fetch &new_stream(transfer *get, stream_pool *pool)
{
    get->stream = {};
    get->stream.source = get->remote;
    get->stream.address = get->remote_address;
    get->stream.destination = get->copy.destination;
    get->stream.len_bytes = get->copy.len_bytes;
    get->stream.pool = pool;
    return get->stream;
}

void release_memory(transfer *get)
{
    if (get->mapping != nullptr) {
        get->gpu().imports.release(std::exchange(get->mapping, nullptr));
    }
    if (get->target != nullptr) {
        get->gpu().exports.release(std::exchange(get->target, nullptr));
    }
    if (get->from_view != nullptr) {
        get->gpu().views.close(std::exchange(get->from_view, nullptr));
    }
}

void finish(transfer *get, status outcome)
{
    release_memory(get);
    get->copy.outcome = outcome;
    get->endpoint->transport->gets->ended.append(get);
}

void complete(transfer *get, status outcome)
{
    const bool good = status::ok == outcome;
    if (good) {
        count_copied(*get);
    } else {
        log_line(log_level::info, "a get of %zu bytes (%s) failed, fragments take its place: %s",
                 get->copy.len_bytes, to_string(get->goes), to_string(outcome));
    }
    mca_btl_base_endpoint_t *endpoint = get->endpoint;
    const get_arguments given = get->given;
    endpoint->transport->gets->all.give(get);
    // Any failure but NOT_AVAILABLE makes ob1 fetch that region by fragments instead.
    if (is_awaited(endpoint, good)) {
        given.call_back(endpoint, good ? OPAL_SUCCESS : OPAL_ERROR);
    }
}

} // namespace gpusm
