// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"
#include "opal/mca/btl/gpusm/btl_gpusm_smsc.h"

#include "opal/mca/btl/gpusm/base/log.h"
#include "opal/mca/btl/gpusm/protocol/select.h"
#include "opal/mca/btl/gpusm/protocol/stream.h"

#include <algorithm>
#include <cstring>

using gpusm::stream_fetch;

namespace gpusm {

// What ob1 has given btl_get, for the callback.
struct get_arguments {
    void *local_address;
    mca_btl_base_registration_handle_t *local_handle;
    std::size_t len_bytes;
    mca_btl_base_rdma_completion_fn_t cbfunc;
    void *cbcontext;
    void *cbdata;
};

// A btl_get that is streamed, or that both sides copy. Recycled through a free list.
struct host_get {
    opal_free_list_item_t super;
    stream_fetch fetch;
    mca_btl_base_endpoint_t *endpoint;
    get_arguments arguments;
    std::size_t due;    // bytes of leads that are on their way
    std::size_t due_at; // where the next one goes
    bool lead_lost;     // they will not come
    bool streamed;      // the rest is on its way through a ring
};

} // namespace gpusm

using gpusm::host_get;
OBJ_CLASS_DECLARATION(host_get);
OBJ_CLASS_INSTANCE(host_get, opal_free_list_item_t, nullptr, nullptr);

namespace gpusm {

namespace {

opal_free_list_t host_gets;
host_facts facts;

host_get *get_around(const stream_fetch *fetch)
{
    return enclosing<host_get>(const_cast<stream_fetch *>(fetch), offsetof(host_get, fetch));
}

// Shortest message of which the sender copies a part by itself: a shorter one is there before the
// request and the further system calls have paid.
constexpr std::size_t cooperative_least_bytes = 256 * 1024;
// Every part costs a system call.
constexpr stream_parts cooperative_parts = {64 * 1024, 256 * 1024, 1};

class services final : public stream_services {
  public:
    status send(peer &to, const stream_message &message, const stream_memory *memory) override
    {
        return post_stream_message(to, frag_kind::stream, message, memory);
    }

    void open(peer &to, const stream_message &message, const stream_memory *memory,
              stream_source *out) override
    {
        registration *named =
            share_kind::host == message.handle.kind
                ? registration_named(message.handle, message.address, message.len_bytes)
                : nullptr;
        if (memory != nullptr) {
            mca_btl_base_endpoint_t *reader = endpoint_of(to);
            out->user = reader;
            out->by_services = true;
            out->target = memory->address;
            out->parts = cooperative_parts;
            out->unreachable = !smsc_writes_to(reader);
        }
        if (named != nullptr && !out->unreachable) {
            named->streamed = true;
            out->owner = named;
            out->memory = reinterpret_cast<const unsigned char *>(message.address);
        }
    }

    void copy_in(const stream_source &source, stream_copy *copy) override
    {
        copy->state = made(smsc_write(static_cast<mca_btl_base_endpoint_t *>(source.user),
                                      reinterpret_cast<const void *>(copy->source),
                                      copy->destination, copy->len_bytes));
    }

    void copy_back(peer &, const stream_fetch &fetch, stream_copy *copy) override
    {
        copy->state = made(smsc_read(get_around(&fetch)->endpoint,
                                     reinterpret_cast<void *>(copy->destination), copy->source,
                                     copy->len_bytes));
    }

  private:
    static stream_copy::is made(status s)
    {
        return status::ok == s ? stream_copy::is::done : stream_copy::is::failed;
    }
};
services of_streams;
stream_pool rings = {16 * 1024, 4, 8};
stream_pool rings_without_slots = {cache_line_bytes, stream_pieces, 8};

} // namespace

void setup_host()
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    (void)parse_host_protocol(component.host_protocol, &facts.asked_for); // it has been checked
    facts.single_copies = smsc_reads_plainly();
    facts.oversubscribed = component.oversubscribed;
    facts.call_ns = smsc_call_ns();
    log_line(log_level::info, "a single copy costs %llu ns; host messages are %s",
             static_cast<unsigned long long>(facts.call_ns),
             host_way::stream == select_for_host(facts) ? "streamed" : "read by single copies");
    setup_free_list(&host_gets, sizeof(host_get), OBJ_CLASS(host_get), nullptr);
    component.streams = new stream_engine(*component.node, of_streams, component.threads);
    component.lead = {};
}

void release_host()
{
    if (mca_btl_gpusm_component.streams != nullptr) {
        delete std::exchange(mca_btl_gpusm_component.streams, nullptr);
        OBJ_DESTRUCT(&host_gets);
    }
}

bool streams_to(bool single)
{
    host_facts of_peer = facts;
    of_peer.single_copies = single;
    return host_way::stream == select_for_host(of_peer);
}

void forget_source(registration *given)
{
    for (stream_engine *each : {mca_btl_gpusm_component.streams, mca_btl_gpusm_component.stages}) {
        each->forget(given);
    }
}

void deliver_with_lead(mca_btl_base_endpoint_t *from, const frag_header &header,
                       const unsigned char *payload)
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    const std::size_t handle_bytes = mca_btl_gpusm.super.btl_registration_handle_size;
    end_lead(from); // no more of it can come behind this
    if (!component.threads && header.payload_bytes >= handle_bytes) {
        component.lead = {from, payload + header.payload_bytes - handle_bytes,
                          payload - sizeof(header) + lead_offset(header.payload_bytes),
                          header.lead_bytes, header.more_bytes};
    }
    deliver(from, header.tag, payload, header.payload_bytes);
    component.lead = {};
}

bool stream_message_from(mca_btl_base_endpoint_t *from, const unsigned char *payload,
                         std::size_t bytes)
{
    return stream_message_for(mca_btl_gpusm_component.streams, from, payload, bytes);
}

static void call_back(mca_btl_base_endpoint_t *endpoint, const get_arguments &get, int result)
{
    get.cbfunc(&mca_btl_gpusm.super, endpoint, get.local_address, get.local_handle, get.cbcontext,
               get.cbdata, result);
}

// Calls back, and gives `get` back.
static void finish(host_get *get)
{
    mca_btl_base_endpoint_t *endpoint = get->endpoint;
    const get_arguments arguments = get->arguments;
    const stream_fetch &fetch = get->fetch;
    const bool good = status::ok == fetch.outcome && !get->lead_lost;
    if (fetch.sender_cannot) {
        endpoint->reads_alone = true;
    }
    if (fetch.read > 0 || fetch.written > 0) {
        count_single_copy(arguments.len_bytes);
        count(counter::cooperative_copy_bytes, fetch.written);
    } else {
        count(counter::stream_messages, 1);
        count(counter::stream_bytes, arguments.len_bytes);
    }
    opal_free_list_return(&host_gets, &get->super);
    call_back(endpoint, arguments, good ? OPAL_SUCCESS : OPAL_ERROR);
}

int progress_streams()
{
    int ended = 0;
    for (stream_fetch *each = mca_btl_gpusm_component.streams->progress(); each != nullptr;) {
        host_get *get = get_around(each);
        each = each->next;
        get->streamed = false;
        if (0 == get->due) {
            finish(get);
            ++ended;
        }
    }
    return ended;
}

void lead_from(mca_btl_base_endpoint_t *from, const unsigned char *payload, std::size_t bytes)
{
    host_get *get = from->lead_for;
    if (nullptr == get) {
        return; // of an offer that was not expected: that get asks for all of it
    }
    bytes = std::min(bytes, get->due); // a receive may be shorter than what was offered
    std::memcpy(static_cast<unsigned char *>(get->arguments.local_address) + get->due_at, payload,
                bytes);
    get->due -= bytes;
    get->due_at += bytes;
    if (0 == get->due) {
        from->lead_for = nullptr;
        if (!get->streamed) {
            finish(get);
        }
    }
}

void end_lead(mca_btl_base_endpoint_t *from)
{
    if (host_get *get = std::exchange(from->lead_for, nullptr); get != nullptr) {
        get->due = 0;
        get->lead_lost = true;
        if (!get->streamed) {
            finish(get);
        }
    }
}

// The bytes that came along with the offer of that message; null: there are none.
static const lead *lead_of(const mca_btl_base_endpoint_t *endpoint, const remote_handle &remote,
                           std::uint64_t remote_address)
{
    const lead &at_hand = mca_btl_gpusm_component.lead;
    return endpoint == at_hand.from && remote_address == remote.base &&
                   0 == std::memcmp(at_hand.handle, &remote, sizeof(remote))
               ? &at_hand
               : nullptr;
}

// Messages go both ways, so both processors are busy: a single copy is half the work, and what the
// other one writes is in its cache.
static bool has_offers()
{
    return mca_btl_gpusm_component.host_offers.load(std::memory_order_relaxed) > 0;
}

// True: what does not come with the offer is here.
static bool read_alone(host_get *get)
{
    stream_fetch &rest = get->fetch;
    if (0 != (rest.source.flags & no_single_copy) || !has_offers() ||
        status::ok != smsc_read(get->endpoint,
                                reinterpret_cast<unsigned char *>(rest.destination) + rest.received,
                                rest.address + rest.received, rest.len_bytes - rest.received)) {
        return false;
    }
    rest.read = rest.len_bytes - rest.received;
    return true;
}

// Null: there is no memory.
static host_get *make_get(mca_btl_base_endpoint_t *endpoint, std::uint64_t remote_address,
                          const remote_handle &remote, const get_arguments &get)
{
    auto *made = reinterpret_cast<host_get *>(opal_free_list_get(&host_gets));
    if (made != nullptr) {
        made->endpoint = endpoint;
        made->arguments = get;
        made->due = made->due_at = 0;
        made->lead_lost = made->streamed = false;
        made->fetch = {};
        made->fetch.source = remote;
        made->fetch.address = remote_address;
        made->fetch.destination = reinterpret_cast<std::uint64_t>(get.local_address);
        made->fetch.len_bytes = get.len_bytes;
    }
    return made;
}

// Asks the sender for what has not been received. False: it is not to be had so; `get` is given
// back.
static bool fetch(host_get *get)
{
    get->streamed = true;
    if (status::ok == mca_btl_gpusm_component.streams->fetch(*get->endpoint->peer, &get->fetch)) {
        return true;
    }
    opal_free_list_return(&host_gets, &get->super);
    return false;
}

// True: it ends in finish(), or has ended.
static bool stream(mca_btl_base_endpoint_t *endpoint, std::uint64_t remote_address,
                   const mca_btl_base_registration_handle_t *remote_handle,
                   const get_arguments &get)
{
    const lead *at_hand = lead_of(endpoint, remote_handle->remote, remote_address);
    const std::size_t received = nullptr == at_hand ? 0 : std::min(get.len_bytes, at_hand->bytes);
    if (received == get.len_bytes) {
        std::memcpy(get.local_address, at_hand->data, received);
        call_back(endpoint, get, OPAL_SUCCESS);
        return true;
    }
    host_get *made = make_get(endpoint, remote_address, remote_handle->remote, get);
    if (nullptr == made) {
        return false;
    }
    made->due = received > 0 ? std::min(get.len_bytes - received, at_hand->more_bytes) : 0;
    made->due_at = received;
    made->fetch.pool = &rings;
    made->fetch.back = 0 == (remote_handle->remote.flags & no_single_copy) ? stream_back::if_late
                                                                           : stream_back::never;
    made->fetch.received = received + made->due;
    // The rest is asked for first: the sender is at it while the lead is copied.
    if (made->fetch.received < get.len_bytes && !read_alone(made) && !fetch(made)) {
        return false;
    }
    if (received > 0) {
        std::memcpy(get.local_address, at_hand->data, received);
    }
    if (made->due > 0) {
        endpoint->lead_for = made;
    } else if (!made->streamed) {
        finish(made);
    }
    return true;
}

// While this process reads from the end, by single copies, the sender, which would only be waiting,
// writes from the front. One that is busy elsewhere is not waited for: then this process reads all
// of it. True: it ends in finish().
static bool share(mca_btl_base_endpoint_t *endpoint, std::uint64_t remote_address,
                  const remote_handle &remote, const get_arguments &get)
{
    // Where processes are more than the processors that they may use the sender is likely not to
    // run, and if it is interrupted in a copy, the receiver waits for its next turn.
    if (get.len_bytes < cooperative_least_bytes || mca_btl_gpusm_component.oversubscribed ||
        has_offers() || endpoint->reads_alone) {
        return false;
    }
    host_get *made = make_get(endpoint, remote_address, remote, get);
    if (nullptr == made) {
        return false;
    }
    stream_fetch &both = made->fetch;
    both.pool = &rings_without_slots;
    both.back = stream_back::at_once;
    both.back_parts = cooperative_parts;
    both.target = host_target(both.destination, both.len_bytes);
    return fetch(made);
}

int get_host(mca_btl_base_module_t *btl, mca_btl_base_endpoint_t *endpoint, void *local_address,
             std::uint64_t remote_address, mca_btl_base_registration_handle_t *local_handle,
             mca_btl_base_registration_handle_t *remote_handle, std::size_t size, int, int,
             mca_btl_base_rdma_completion_fn_t cbfunc, void *cbcontext, void *cbdata)
{
    const gpusm::remote_handle &remote = remote_handle->remote;
    // The handle is the peer's word.
    if (!covers(remote, remote_address, size)) {
        return OPAL_ERROR;
    }
    const get_arguments get = {local_address, local_handle, size, cbfunc, cbcontext, cbdata};
    const bool can_read = 0 == (remote.flags & no_single_copy);
    if (0 != (remote.flags & by_stream)) {
        if (stream(endpoint, remote_address, remote_handle, get)) {
            return OPAL_SUCCESS;
        }
    } else if (can_read && share(endpoint, remote_address, remote, get)) {
        return OPAL_SUCCESS;
    }
    if (!can_read || status::ok != smsc_read(endpoint, local_address, remote_address, size)) {
        return OPAL_ERROR; // ob1 takes fragments
    }
    count_single_copy(size);
    cbfunc(btl, endpoint, local_address, local_handle, cbcontext, cbdata, OPAL_SUCCESS);
    return OPAL_SUCCESS;
}

} // namespace gpusm
