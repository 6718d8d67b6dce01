// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_transfer.h"
#include "opal/mca/btl/gpusm/btl_gpusm_device.h"
#include "opal/mca/btl/gpusm/btl_gpusm_self.h"
#include "opal/mca/btl/gpusm/btl_gpusm_views.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <algorithm>
#include <utility>

namespace gpusm {

namespace {

// What has been copied, by the mode in which it came.
void count_copied(const transfer &over)
{
    const std::uint64_t len_bytes = over.job.copy.len_bytes;
    count(over.endpoint, messages_in(over.goes), 1);
    count(over.endpoint, bytes_in(over.goes), len_bytes);
    switch (over.goes) { // who has copied how much of it
    case mode::host_ring:
        count(over.endpoint, counter::host_ring_written_bytes,
              std::min(over.stream.received, len_bytes));
        break;
    case mode::both_copy:
        count(over.endpoint, counter::both_copy_written_bytes, over.stream.written);
        break;
    case mode::shared:
        count(over.endpoint, counter::shared_written_bytes, over.stream.written);
        break;
    default:
        break;
    }
    if (over.into_view != nullptr) {
        count(over.endpoint, counter::unpacked_messages, 1);
        count(over.endpoint, counter::unpacked_bytes, len_bytes);
    }
}

// Whether ob1 is to be called back about a get that has ended. Not about one from a peer that is
// closed, or whose process has ended, which then is closed: with fault tolerance ob1 takes back its
// messages from a process that has failed when the runtime says so, and uses their requests for
// others; a get that failed then would be asked for again, of a process that has never heard of it.
bool is_awaited(mca_btl_base_endpoint_t *from, bool good)
{
    return is_self(from) || (good ? !from->peer->closed() : from->peer->lives());
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
        get->source = nullptr;
        get->packed = {};
        get->into_view = nullptr;
        get->from_view = nullptr;
        get->from_blocks = false;
        get->has_waited = false;
        get->kernel_reads = false;
        get->given = given;
        get->known = known;
        get->goes = mode::fragments;
        get->job.copy = {};
        get->job.copy.destination = reinterpret_cast<std::uint64_t>(given.local_address);
        get->job.copy.len_bytes = known.len_bytes;
        get->job.copy.part_of = static_cast<std::uint8_t>(copy_part::get);
    }
    return get;
}

stream_fetch &new_stream(transfer *get, stream_pool *pool)
{
    get->stream = {};
    get->stream.source = get->remote;
    get->stream.address = get->remote_address;
    get->stream.destination = get->job.copy.destination;
    get->stream.len_bytes = get->job.copy.len_bytes;
    get->stream.pool = pool;
    return get->stream;
}

void release_memory(transfer *get)
{
    if (get->mapping != nullptr) {
        get->gpu().imports.release(std::exchange(get->mapping, nullptr));
    }
    for (struct exported **each : {&get->target, &get->source}) {
        if (*each != nullptr) {
            get->gpu().exports.release(std::exchange(*each, nullptr));
        }
    }
    if (get->packed.on != nullptr) {
        get->gpu().views.give_packed(std::exchange(get->packed, {}));
    }
    if (get->from_view != nullptr) {
        get->gpu().views.close(std::exchange(get->from_view, nullptr));
    }
}

void finish(transfer *get, status outcome)
{
    release_memory(get);
    get->job.copy.outcome = outcome;
    get->endpoint->transport->gets->ended.append(get);
}

bool source_has_ended(const transfer *get)
{
    return !is_self(get->endpoint) && get->endpoint->peer->has_ended();
}

void start_get_again(transfer *get)
{
    const status s = source_has_ended(get) ? status::peer_gone : start_get(get);
    if (status::ok != s && status::busy != s) {
        finish(get, s);
    }
}

void complete(transfer *get, status outcome)
{
    const bool good = status::ok == outcome;
    if (good) {
        count_copied(*get);
    } else {
        fell_back(get->endpoint, std::string("a get (") + to_string(get->goes) + ") failed",
                  outcome, get->job.copy.len_bytes);
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
