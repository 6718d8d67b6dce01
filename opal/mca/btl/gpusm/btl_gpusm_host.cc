// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"
#include "opal/mca/btl/gpusm/btl_gpusm_smsc.h"

#include "opal/mca/btl/gpusm/protocol/stream_receiver.h"
#include "opal/mca/btl/gpusm/protocol/stream_sender.h"

using gpusm::stream_fetch;

namespace gpusm {

// What ob1 has given btl_get, for the callback.
struct host_arguments {
    void *local_address;
    mca_btl_base_registration_handle_t *local_handle;
    mca_btl_base_rdma_completion_fn_t cbfunc;
    void *cbcontext;
    void *cbdata;
};

// A btl_get of which both sides copy a part. Recycled through a free list.
struct host_get {
    opal_free_list_item_t super;
    stream_fetch fetch;
    mca_btl_base_endpoint_t *endpoint;
    host_arguments arguments;
};

} // namespace gpusm

using gpusm::host_get;
OBJ_CLASS_DECLARATION(host_get);
OBJ_CLASS_INSTANCE(host_get, opal_free_list_item_t, nullptr, nullptr);

namespace gpusm {

namespace {

opal_free_list_t host_gets;

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
        return post_stream_message(to, frag_kind::cooperative, message, memory);
    }

    void open(peer &to, const stream_message &message, const stream_memory *memory,
              stream_source *out) override
    {
        mca_btl_base_endpoint_t *reader = endpoint_of(to);
        registration *named =
            share_kind::host == message.handle.kind
                ? registration_named(message.handle, message.address, message.len_bytes)
                : nullptr;
        out->user = reader;
        out->by_services = true;
        out->parts = cooperative_parts;
        out->unreachable = nullptr == memory || !smsc_writes_to(reader);
        if (named != nullptr && !out->unreachable) {
            named->streamed = true;
            out->target = memory->address;
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
services of_host;
stream_pool rings_without_slots = {cache_line_bytes, 8};

void call_back(mca_btl_base_endpoint_t *endpoint, const host_arguments &get, int result)
{
    get.cbfunc(&mca_btl_gpusm.super, endpoint, get.local_address, get.local_handle, get.cbcontext,
               get.cbdata, result);
}

// While this process reads from the end, by single copies, the sender, which would only be waiting,
// writes from the front. One that is busy elsewhere is not waited for: then this process reads all
// of it. True: it ends in progress_host().
bool share(mca_btl_base_endpoint_t *endpoint, std::uint64_t remote_address,
           const remote_handle &remote, std::size_t len_bytes, const host_arguments &arguments)
{
    // Where processes are more than the processors that they may use the sender is likely not to
    // run, and if it is interrupted in a copy, the receiver waits for its next turn. Where messages
    // go both ways both processors are busy already.
    const mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    if (len_bytes < cooperative_least_bytes || component.oversubscribed || endpoint->reads_alone ||
        component.host_offers.load(std::memory_order_relaxed) > 0) {
        return false;
    }
    auto *get = reinterpret_cast<host_get *>(opal_free_list_get(&host_gets));
    if (nullptr == get) {
        return false;
    }
    get->endpoint = endpoint;
    get->arguments = arguments;
    stream_fetch &both = get->fetch;
    both = {};
    both.source = remote;
    both.address = remote_address;
    both.destination = reinterpret_cast<std::uint64_t>(arguments.local_address);
    both.len_bytes = len_bytes;
    both.pool = &rings_without_slots;
    both.back_parts = cooperative_parts;
    both.target = host_target(both.destination, both.len_bytes);
    if (status::ok == component.host_receiver->fetch(*endpoint->peer, &both)) {
        return true;
    }
    opal_free_list_return(&host_gets, &get->super);
    return false;
}

} // namespace

void setup_host()
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    setup_free_list(&host_gets, sizeof(host_get), OBJ_CLASS(host_get), nullptr);
    component.host_receiver = new stream_receiver(*component.node, of_host, component.threads);
    component.host_sender = new stream_sender(of_host, component.threads);
}

void release_host()
{
    if (mca_btl_gpusm_component.host_sender != nullptr) {
        delete std::exchange(mca_btl_gpusm_component.host_sender, nullptr);
        delete std::exchange(mca_btl_gpusm_component.host_receiver, nullptr);
        OBJ_DESTRUCT(&host_gets);
    }
}

void forget_source(registration *given)
{
    mca_btl_gpusm_component.host_sender->forget(given);
    mca_btl_gpusm_component.stage_sender->forget(given);
}

bool cooperative_message_from(mca_btl_base_endpoint_t *from, const unsigned char *payload,
                              std::size_t bytes)
{
    return stream_message_for(mca_btl_gpusm_component.host_sender, from, payload, bytes);
}

int progress_host()
{
    int ended = 0;
    if (!mca_btl_gpusm_component.host_sender->idle()) {
        mca_btl_gpusm_component.host_sender->progress();
    }
    stream_receiver &host = *mca_btl_gpusm_component.host_receiver;
    for (stream_fetch *each = host.idle() ? nullptr : host.progress(); each != nullptr; ++ended) {
        host_get *get = get_around(each);
        mca_btl_base_endpoint_t *endpoint = get->endpoint;
        const bool good = status::ok == each->outcome;
        endpoint->reads_alone = endpoint->reads_alone || each->sender_cannot;
        count_single_copy(each->len_bytes);
        count(counter::cooperative_copy_bytes, each->written);
        each = each->next;
        const host_arguments arguments = get->arguments;
        opal_free_list_return(&host_gets, &get->super);
        call_back(endpoint, arguments, good ? OPAL_SUCCESS : OPAL_ERROR);
    }
    return ended;
}

int get_host(mca_btl_base_module_t *, mca_btl_base_endpoint_t *endpoint, void *local_address,
             std::uint64_t remote_address, mca_btl_base_registration_handle_t *local_handle,
             mca_btl_base_registration_handle_t *remote_handle, std::size_t size, int, int,
             mca_btl_base_rdma_completion_fn_t cbfunc, void *cbcontext, void *cbdata)
{
    const gpusm::remote_handle &remote = remote_handle->remote;
    // The handle is the peer's word.
    if (!covers(remote, remote_address, size) || 0 != (remote.flags & no_single_copy)) {
        return OPAL_ERROR; // ob1 takes fragments
    }
    const host_arguments arguments = {local_address, local_handle, cbfunc, cbcontext, cbdata};
    if (share(endpoint, remote_address, remote, size, arguments)) {
        return OPAL_SUCCESS;
    }
    if (status::ok != smsc_read(endpoint, local_address, remote_address, size)) {
        return OPAL_ERROR;
    }
    count_single_copy(size);
    call_back(endpoint, arguments, OPAL_SUCCESS);
    return OPAL_SUCCESS;
}

} // namespace gpusm
