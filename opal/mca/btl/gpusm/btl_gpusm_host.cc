// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"
#include "opal/mca/btl/gpusm/btl_gpusm_stage_services.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/base/single_copies.h"

#include <mutex>
#include <utility>

namespace gpusm {

namespace {

// Single copies are not tried between PID namespaces. Elsewhere it is known per pair and direction
// only when it is tried: permissions and kinds of memory are in the way. A get that fails makes ob1
// send that region in fragments. Who has failed some times in a row counts that in the sender's
// slot of its own segment, where the sender sees it before it offers the next message. The sender
// then lets it try again after a while (base/reach.h).

// As long as one lives what the framework knows of that peer stays (smsc_forget).
class smsc_user {
  public:
    explicit smsc_user(mca_btl_base_endpoint_t *endpoint) : users_(endpoint->single.users)
    {
        users_.add(1);
        if (has_threads()) {
            // Before smsc_of asks whether the peer is closed; one of us sees the other.
            std::atomic_thread_fence(std::memory_order_seq_cst);
        }
    }
    ~smsc_user()
    {
        std::atomic_thread_fence(std::memory_order_release); // pairs with smsc_forget
        users_.add(~std::uint32_t{0});                       // one less
    }
    smsc_user(const smsc_user &) = delete;
    smsc_user &operator=(const smsc_user &) = delete;

  private:
    tally<std::uint32_t> &users_;
};

// The framework's idea of the peer; null when it cannot reach that process, never or now. For an
// smsc_user.
mca_smsc_endpoint_t *smsc_of(mca_btl_base_endpoint_t *endpoint)
{
    single_copy &with = endpoint->single;
    if (endpoint->peer->closed()) {
        return nullptr;
    }
    if (with.asked.load(std::memory_order_acquire)) {
        return with.peer;
    }
    opal_proc_t *proc = endpoint->proc.get();
    if (nullptr == proc || !with.found.may_try()) {
        return nullptr; // a sender that add_procs has not spoken of yet
    }
    // Outside of the lock, since it asks the runtime. CMA finds a process by the number that it has
    // in its own PID namespace; in another one some other process has it, or this one.
    const bool same_pids = endpoint->proc.shares_pids();
    mca_smsc_endpoint_t *made = same_pids ? MCA_SMSC_CALL(get_endpoint, proc) : nullptr;
    if (same_pids && nullptr == made) {
        if (with.found.failed(status::system_failed)) {
            log_line(log_level::info, "host memory of process %u is read in fragments for now",
                     static_cast<unsigned>(endpoint->peer->identity().vpid));
        }
        return nullptr;
    }
    (void)with.found.worked();
    {
        const std::lock_guard guard(endpoint->transport->lock);
        if (!with.asked.load(std::memory_order_relaxed)) {
            with.peer = std::exchange(made, nullptr);
            with.asked.store(true, std::memory_order_release);
        }
    }
    if (made != nullptr) {
        MCA_SMSC_CALL(return_endpoint, made); // another thread was faster
    }
    log_line(log_level::info, "host memory of process %u is read %s",
             static_cast<unsigned>(endpoint->peer->identity().vpid),
             with.peer != nullptr ? "in a single copy"
                                  : "in fragments, because it may be in another PID namespace");
    return with.peer;
}

constexpr stream_parts both_copy_parts = {both_copy_part.least, both_copy_part.most, 1};
// Polls that find nothing, of a tenth of a microsecond each. A sender that polls, too, answers in
// fewer. One that does not, or to which lines move so slowly that a single copy is as fast, is not
// waited for longer than a part takes.
constexpr std::uint32_t stream_empty_polls = 32;

stream_copy::is made(status s)
{
    return status::ok == s ? stream_copy::is::done : stream_copy::is::failed;
}

// Receiver's side, of a message between host memories.
bool is_so(fact asked, mca_btl_base_endpoint_t *endpoint, const remote_handle &remote)
{
    switch (asked) {
    case fact::two_copies_are_faster:
        return two_copies_are_faster_to(endpoint);
    case fact::oversubscribed:
        return endpoint->transport->oversubscribed;
    case fact::ring_is_warm:
        return endpoint->received_bytes.load(std::memory_order_relaxed) >=
               mca_btl_gpusm_component.stream_host_after;
    case fact::readable:
        return 0 == (remote.flags & no_single_copy);
    case fact::sender_writes:
        return endpoint->its_writes.may_try();
    case fact::sends_too:
        return endpoint->transport->host_offers.value() > 0;
    case fact::rings:
        return true; // until there is none
    default:
        return false;
    }
}

// Sender's side. A receiver that has named no target copies out of a ring at the same time.
bool is_so(fact asked, const mca_btl_base_endpoint_t *to, const stream_message &message)
{
    switch (asked) {
    case fact::two_copies_are_faster:
    case fact::ring_is_warm:
        return stream_memory_use::none == message.uses;
    case fact::readable:
    case fact::rings:
        return true;
    case fact::sender_writes:
        return smsc_writes_to(to);
    default: // the receiver knows it, and has asked all the same
        return false;
    }
}

} // namespace

host_side::host_side(transport &of)
    : transport_(of), rings_{slot_bytes, most_stream_pieces, most_rings, nullptr, false},
      rings_without_slots_{cache_line_bytes, 1, most_rings},
      receiver_(of.process.own_node(), *this), sender_(*this)
{
}

status host_side::send(peer &to, const stream_message &message, const stream_memory *memory)
{
    return post_stream_message(transport_.endpoint_of(to), frag_kind::cooperative, message, memory);
}

void host_side::open(peer &to, const stream_message &message, const stream_memory *memory,
                     stream_source *out)
{
    mca_btl_base_endpoint_t *reader = transport_.endpoint_of(to);
    registration *named =
        share_kind::host == message.handle.kind
            ? transport_.registrations->named(message.handle, message.address, message.len_bytes)
            : nullptr;
    facts known{memory_kind::host, memory_kind::host, message.len_bytes};
    const mode goes = choose(&known, [&](fact asked) { return is_so(asked, reader, message); });
    out->unreachable = mode::host_ring != goes && mode::both_copy != goes;
    if (mode::both_copy == goes) {
        out->user = reader;
        out->by_services = true;
        out->parts = both_copy_parts;
        out->target = memory->address;
    }
    if (named != nullptr && !out->unreachable) {
        named->streamed = true;
        out->owner = named;
        out->memory = reinterpret_cast<const unsigned char *>(message.address);
    }
}

void host_side::copy_in(const stream_source &source, stream_copy *copy)
{
    copy->state = made(smsc_write(static_cast<mca_btl_base_endpoint_t *>(source.user),
                                  reinterpret_cast<const void *>(copy->source), copy->destination,
                                  copy->len_bytes));
}

void host_side::copy_back(const stream_fetch &fetch, stream_copy *copy)
{
    copy->state =
        made(smsc_read(transfer_of(&fetch)->endpoint, reinterpret_cast<void *>(copy->destination),
                       copy->source, copy->len_bytes));
}

bool host_side::fetch(transfer *get)
{
    stream_fetch &both = new_stream(get, &rings_);
    both.back_parts = both_copy_parts;
    if (mode::host_ring == get->goes) {
        both.empty_polls = stream_empty_polls;
    } else {
        both.pool = &rings_without_slots_;
        both.target = host_target(both.destination, both.len_bytes);
    }
    return status::ok == receiver_.fetch(*get->endpoint->peer, &both);
}

int host_side::progress()
{
    int ended = 0;
    if (!sender_.idle()) {
        sender_.progress();
    }
    for (stream_fetch *each = receiver_.idle() ? nullptr : receiver_.progress(); each != nullptr;
         ++ended) {
        transfer *get = transfer_of(each);
        note_part_of_sender(get->endpoint, &get->endpoint->its_writes, *each);
        each = each->next;
        complete(get, get->stream.outcome);
    }
    return ended;
}

void note_part_of_sender(const mca_btl_base_endpoint_t *sender, reach *fact,
                         const stream_fetch &over)
{
    if (over.written > 0) {
        (void)fact->worked();
    } else if (over.sender_cannot && fact->refused(status::unsupported)) {
        log_line(log_level::info, "process %u does not write a part of its messages for now",
                 static_cast<unsigned>(sender->peer->identity().vpid));
    }
}

// Between L3 caches, as between sockets, every line of shared memory takes as long as one of the
// sender's memory, twice.
bool two_copies_are_faster_to(const mca_btl_base_endpoint_t *endpoint)
{
    const opal_proc_t *proc = endpoint->proc.get();
    return mca_btl_gpusm_component.stream_host_after < SIZE_MAX && proc != nullptr &&
           OPAL_PROC_ON_LOCAL_L3CACHE(proc->proc_flags);
}

void offer_host(mca_btl_base_endpoint_t *endpoint, registration *made, void *base, std::size_t size)
{
    const bool single = smsc_reaches_us(endpoint);
    transport &ours = *endpoint->transport;
    gpu_side *side = ours.process.gpu_if_made();
    const auto address = reinterpret_cast<std::uint64_t>(base);
    made->name(share_kind::host, address, size);
    // Only what is written into a device has to be page-locked.
    const auto answer = [&](fact asked) {
        switch (asked) {
        case fact::pushes:
            return pushes_to(endpoint);
        case fact::page_locked_source:
            return side->is_page_locked(address, size);
        default: // the receiver knows it
            return false;
        }
    };
    facts into_device{memory_kind::host, memory_kind::mappable, size};
    const bool locked = side != nullptr && mode::pushed == choose(&into_device, answer);
    made->handle.remote.flags =
        static_cast<std::uint8_t>((single ? 0 : no_single_copy) | (locked ? page_locked : 0));
    ours.host_offers.add(1);
}

int get_host(mca_btl_base_module_t *btl, mca_btl_base_endpoint_t *endpoint, void *local_address,
             std::uint64_t remote_address, mca_btl_base_registration_handle_t *local_handle,
             mca_btl_base_registration_handle_t *remote_handle, std::size_t size, int, int,
             mca_btl_base_rdma_completion_fn_t cbfunc, void *cbcontext, void *cbdata)
{
    const gpusm::remote_handle &remote = remote_handle->remote;
    if (!covers(remote, remote_address, size)) {
        return OPAL_ERROR; // the handle is the peer's word
    }
    const get_arguments arguments = {btl, local_address, local_handle, cbfunc, cbcontext, cbdata};
    const auto answer = [&](fact asked) { return is_so(asked, endpoint, remote); };
    facts known{memory_kind::host, memory_kind::host, size};
    mode goes = choose(&known, answer);
    if (mode::fragments != goes) {
        add_to(endpoint->received_bytes, std::uint64_t{size});
    }
    if (mode::host_ring == goes || mode::both_copy == goes) {
        transfer *get = new_transfer(endpoint, arguments, known);
        if (get != nullptr) {
            get->remote_address = remote_address;
            get->remote = remote;
            get->goes = goes;
            if (endpoint->transport->host->fetch(get)) {
                return OPAL_SUCCESS;
            }
            endpoint->transport->gets->all.give(get);
        }
        known.set(fact::rings, false);
        goes = choose(&known, answer);
    }
    if (mode::single_copy != goes ||
        status::ok != smsc_read(endpoint, local_address, remote_address, size)) {
        return OPAL_ERROR; // ob1 takes fragments
    }
    count(endpoint, counter::single_copy_messages, 1);
    count(endpoint, counter::single_copy_bytes, size);
    arguments.call_back(endpoint, OPAL_SUCCESS);
    return OPAL_SUCCESS;
}

// --- single copies

bool smsc_reads_plainly()
{
    return mca_btl_gpusm_component.use_single_copy && has_plain_single_copies();
}

bool reads_our_memory(mca_btl_base_endpoint_t *endpoint)
{
    single_copy &with = endpoint->single;
    const std::uint32_t refusals = endpoint->peer->single_copy_refusals();
    if (refusals != with.its_refusals.load(std::memory_order_relaxed)) [[unlikely]] {
        with.its_refusals.store(refusals, std::memory_order_relaxed);
        (void)(0 == refusals ? with.its_reads.worked()
                             : with.its_reads.refused(status::unsupported));
    }
    return with.its_reads.may_try();
}

bool smsc_reaches_us(mca_btl_base_endpoint_t *endpoint)
{
    const smsc_user user(endpoint);
    return smsc_reads_plainly() && reads_our_memory(endpoint) && smsc_of(endpoint) != nullptr;
}

status smsc_read(mca_btl_base_endpoint_t *endpoint, void *local, std::uint64_t remote_address,
                 std::size_t bytes)
{
    const smsc_user user(endpoint);
    if (endpoint->peer->closed()) {
        return status::peer_gone; // others may have its slot already
    }
    mca_smsc_endpoint_t *from = smsc_reads_plainly() ? smsc_of(endpoint) : nullptr;
    single_copy &with = endpoint->single;
    // The range is the peer's word, of the peer's own memory: it lies in what the peer has named.
    // CMA has the system look whether it is there; XPMEM copies by this processor, which faults
    // where a peer names what it has not.
    if (from != nullptr &&
        OPAL_SUCCESS == MCA_SMSC_CALL(copy_from, from, local,
                                      reinterpret_cast<void *>(remote_address), bytes, nullptr)) {
        if (with.reads.worked()) {
            endpoint->transport->process.own_node().refuse_single_copies(*endpoint->peer, false);
        }
        return status::ok;
    }
    const bool never = !smsc_reads_plainly() || (nullptr == from && with.asked);
    if (never ? with.reads.never_again(status::unsupported)
              : with.reads.failed(status::system_failed)) {
        log_line(log_level::info, "host memory of process %u cannot be read here%s",
                 static_cast<unsigned>(endpoint->peer->identity().vpid),
                 never ? "" : "; it is tried again later");
    }
    if (with.reads.is_refused()) {
        endpoint->transport->process.own_node().refuse_single_copies(*endpoint->peer);
    }
    return status::unsupported;
}

status smsc_write(mca_btl_base_endpoint_t *endpoint, const void *local,
                  std::uint64_t remote_address, std::size_t bytes)
{
    const smsc_user user(endpoint);
    mca_smsc_endpoint_t *to = smsc_reads_plainly() ? smsc_of(endpoint) : nullptr;
    const bool good =
        to != nullptr &&
        OPAL_SUCCESS == MCA_SMSC_CALL(copy_to, to, const_cast<void *>(local),
                                      reinterpret_cast<void *>(remote_address), bytes, nullptr);
    (void)(good ? endpoint->single.writes.worked()
                : endpoint->single.writes.failed(status::system_failed));
    return good ? status::ok : status::unsupported;
}

bool smsc_writes_to(const mca_btl_base_endpoint_t *endpoint)
{
    return smsc_reads_plainly() && endpoint->proc.get() != nullptr &&
           endpoint->proc.shares_pids() && endpoint->single.writes.may_try();
}

void smsc_release(mca_btl_base_endpoint_t *endpoint)
{
    single_copy &with = endpoint->single;
    if (mca_smsc_endpoint_t *peer = std::exchange(with.peer, nullptr); peer != nullptr) {
        MCA_SMSC_CALL(return_endpoint, peer);
    }
    with.asked.store(false, std::memory_order_relaxed);
}

bool smsc_forget(mca_btl_base_endpoint_t *endpoint)
{
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool is_used = 0 != endpoint->single.users.value();
    std::atomic_thread_fence(std::memory_order_acquire);
    if (is_used) {
        return false;
    }
    smsc_release(endpoint);
    return true;
}

} // namespace gpusm
