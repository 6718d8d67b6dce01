// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_cooperative.cc: long messages between host memories that both sides copy. While the
// receiver reads from the front, by the single copies of btl_gpusm_smsc.cc, the sender, which would
// only be waiting, writes from the end; they meet somewhere (shm/split.h). A sender that is busy
// elsewhere is not waited for: the receiver then reads all of it.
//
// Where messages go both ways at once, as in most collective operations, both processors are busy
// without that, and each had better read its own: chunks cost system calls, and what the other one
// has written is in its cache. So a receiver that has offered memory of its own reads alone. So it
// does where the processes are more than the processors that they may use: the sender is likely not
// to run, and if it is interrupted in a copy, the receiver waits for its next turn.
//
// The two share one word per message, in the receiver's segment. The receiver has a few per peer,
// and asks with the next one when the peer has answered the oldest: a peer that does not look is
// not asked any more until it does.
#include "opal/mca/btl/gpusm/btl_gpusm_smsc.h"

#include "opal/mca/btl/gpusm/base/log.h"
#include "opal/mca/btl/gpusm/btl_gpusm_get.h"
#include "opal/mca/btl/gpusm/shm/split.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>

namespace gpusm {

// The reader's side of one message.
struct cooperative_get {
    split_word *split;
    mca_btl_base_endpoint_t *endpoint;
    std::uint64_t remote_address;
    get_arguments get;
    std::uint64_t chunk_bytes;
    bool failed;
    bool over; // for the reader
    cooperative_get *next;
};

// What a process has for the messages of one peer. Under the component's lock.
struct cooperative_ring {
    static constexpr std::uint32_t places = 8;
    split_word *words = nullptr; // in our segment; null: there is no room
    std::uint32_t granule = 0;   // of the first one
    // Counted from the start of all: [answered, begun) may not be used again yet.
    std::uint32_t begun = 0;
    std::uint32_t answered = 0;
    std::uint32_t failures = 0; // of the peer, in a row
    std::array<cooperative_get, places> gets{};
};

namespace {

constexpr std::uint64_t most_chunk_bytes = 1024 * 1024;

cooperative_ring *make_ring()
{
    auto *ring = new cooperative_ring;
    segment &own = mca_btl_gpusm_component.node->own();
    if (status::ok == own.carve(cooperative_ring::places * sizeof(split_word), &ring->granule)) {
        ring->words = reinterpret_cast<split_word *>(own.at(ring->granule));
    }
    return ring;
}

// A word that the peer has answered, with the get that it was for; null: there is none.
cooperative_get *take_place(mca_btl_base_endpoint_t *endpoint, std::uint32_t *granule)
{
    const std::lock_guard guard(*mca_btl_gpusm_component.lock);
    if (nullptr == endpoint->cooperative) {
        endpoint->cooperative = make_ring();
    }
    cooperative_ring &ring = *endpoint->cooperative;
    if (nullptr == ring.words || ring.failures >= failures_before_refusal) {
        return nullptr;
    }
    for (; ring.answered != ring.begun; ++ring.answered) {
        const std::uint32_t oldest = ring.answered % cooperative_ring::places;
        if (!ring.gets[oldest].over ||
            split_answer::none == ring.words[oldest].answer.load(std::memory_order_acquire)) {
            break;
        }
    }
    if (ring.begun - ring.answered == cooperative_ring::places) {
        return nullptr;
    }
    const std::uint32_t place = ring.begun++ % cooperative_ring::places;
    *granule =
        ring.granule + place * static_cast<std::uint32_t>(sizeof(split_word) / granule_bytes);
    static_assert(0 == sizeof(split_word) % granule_bytes);
    cooperative_get *taken = &ring.gets[place];
    taken->split = &ring.words[place];
    taken->over = taken->failed = false;
    return taken;
}

void give_place(cooperative_get *place)
{
    const std::lock_guard guard(*mca_btl_gpusm_component.lock);
    place->over = true;
}

void call_back(mca_btl_base_endpoint_t *endpoint, const get_arguments &get, int result)
{
    get.cbfunc(&mca_btl_gpusm.super, endpoint, get.local_address, get.local_handle, get.cbcontext,
               get.cbdata, result);
}

// Begins the part of the peer; null: the peer has none.
cooperative_get *begin(mca_btl_base_endpoint_t *endpoint, const remote_handle &remote,
                       std::uint64_t remote_address, const get_arguments &get)
{
    const std::uint64_t chunk_bytes = cooperative_chunk_bytes(get.len_bytes);
    const std::uint64_t chunks = split_chunks(get.len_bytes, chunk_bytes);
    std::uint32_t granule = 0;
    if (chunks > UINT32_MAX || mca_btl_gpusm_component.oversubscribed ||
        mca_btl_gpusm_component.host_offers.load(std::memory_order_relaxed) > 0 ||
        !smsc_reads_plainly() || endpoint->peer->closed()) {
        return nullptr;
    }
    cooperative_get *made = take_place(endpoint, &granule);
    if (nullptr == made) {
        return nullptr;
    }
    made->endpoint = endpoint;
    made->remote_address = remote_address;
    made->get = get;
    made->chunk_bytes = chunk_bytes;
    split_begin(made->split, static_cast<std::uint32_t>(chunks));
    const cooperative_message message = {remote,
                                         remote_address,
                                         reinterpret_cast<std::uint64_t>(get.local_address),
                                         get.len_bytes,
                                         static_cast<std::uint32_t>(chunk_bytes),
                                         granule};
    const status s = post_control(endpoint, frag_kind::cooperative, &message, sizeof(message));
    if (status::ok != s && status::busy != s) {
        made->split->answer.store(split_answer::written, std::memory_order_relaxed);
        give_place(made);
        return nullptr;
    }
    return made;
}

status read_part(const cooperative_get &of, std::uint64_t place, std::uint64_t bytes)
{
    return smsc_read(of.endpoint, static_cast<unsigned char *>(of.get.local_address) + place,
                     of.remote_address + place, bytes);
}

// Reads chunks until there are none. What the peer has written over the word may say is not
// believed where it cannot be.
void read_front(cooperative_get *cooperative)
{
    const std::uint64_t len_bytes = cooperative->get.len_bytes;
    const std::uint64_t chunk_bytes = cooperative->chunk_bytes;
    const std::uint64_t chunks = split_chunks(len_bytes, chunk_bytes);
    std::uint32_t chunk = 0;
    std::uint32_t taken = 0;
    for (; split_take(cooperative->split, split_end::front, &chunk); ++taken) {
        if (chunk != taken || chunk >= chunks) {
            cooperative->failed = true;
            return;
        }
        // After a failure the rest is still taken, so that the peer has an end.
        cooperative->failed = cooperative->failed ||
                              status::ok != read_part(*cooperative, chunk * chunk_bytes,
                                                      split_bytes(chunk, len_bytes, chunk_bytes));
    }
    cooperative->failed = cooperative->failed || split_look(*cooperative->split).back != taken;
}

// The bytes in front of the peer's part.
std::uint64_t own_bytes(const cooperative_get &cooperative)
{
    return std::min(cooperative.get.len_bytes,
                    split_look(*cooperative.split).back * cooperative.chunk_bytes);
}

// The peer has answered, or never will.
void end(cooperative_get *cooperative)
{
    mca_btl_base_endpoint_t *endpoint = cooperative->endpoint;
    const get_arguments get = cooperative->get;
    const split_answer answer = cooperative->split->answer.load(std::memory_order_acquire);
    const std::uint64_t own = own_bytes(*cooperative);
    const bool written = split_answer::written == answer;
    if (!written && split_answer::none != answer && !cooperative->failed) {
        cooperative->failed = status::ok != read_part(*cooperative, own, get.len_bytes - own);
    }
    const bool good = !cooperative->failed && split_answer::none != answer;
    {
        const std::lock_guard guard(*mca_btl_gpusm_component.lock);
        endpoint->cooperative->failures = written ? 0 : endpoint->cooperative->failures + 1;
        cooperative->over = true;
    }
    if (good) {
        count_single_copy(get.len_bytes);
        count(counter::cooperative_copy_bytes, written ? get.len_bytes - own : 0);
    }
    call_back(endpoint, get, good ? OPAL_SUCCESS : OPAL_ERROR);
}

} // namespace

bool get_cooperatively(mca_btl_base_endpoint_t *endpoint, const remote_handle &remote,
                       std::uint64_t remote_address, const get_arguments &get, int *result)
{
    cooperative_get *cooperative = begin(endpoint, remote, remote_address, get);
    if (nullptr == cooperative) {
        return false;
    }
    *result = OPAL_SUCCESS;
    read_front(cooperative);
    if (own_bytes(*cooperative) < get.len_bytes) {
        const std::lock_guard guard(*mca_btl_gpusm_component.lock);
        cooperative->next =
            mca_btl_gpusm_component.cooperative_gets.load(std::memory_order_relaxed);
        mca_btl_gpusm_component.cooperative_gets.store(cooperative, std::memory_order_relaxed);
        return true;
    }
    const bool failed = cooperative->failed;
    give_place(cooperative);
    if (failed) {
        *result = OPAL_ERROR;
        return true;
    }
    count_single_copy(get.len_bytes);
    call_back(endpoint, get, OPAL_SUCCESS);
    return true;
}

int progress_cooperative_gets()
{
    cooperative_get *ended = nullptr;
    {
        const std::lock_guard guard(*mca_btl_gpusm_component.lock);
        cooperative_get *left = nullptr;
        cooperative_get **end_of_left = &left;
        cooperative_get *each =
            mca_btl_gpusm_component.cooperative_gets.load(std::memory_order_relaxed);
        while (each != nullptr) {
            cooperative_get *next = each->next;
            const bool waits =
                split_answer::none == each->split->answer.load(std::memory_order_acquire) &&
                !each->endpoint->peer->closed();
            if (waits) {
                each->next = nullptr;
                *end_of_left = each;
                end_of_left = &each->next;
            } else { // this turns them round: the oldest comes first
                each->next = ended;
                ended = each;
            }
            each = next;
        }
        mca_btl_gpusm_component.cooperative_gets.store(left, std::memory_order_relaxed);
    }
    int completed = 0;
    for (; ended != nullptr; ++completed) {
        cooperative_get *each = ended;
        ended = each->next;
        end(each);
    }
    return completed;
}

void cooperative_message_from(mca_btl_base_endpoint_t *endpoint, const unsigned char *payload,
                              std::size_t bytes)
{
    cooperative_message message{};
    const peer_segment &shared = endpoint->peer->shared();
    if (sizeof(message) == bytes) {
        std::memcpy(&message, payload, sizeof(message));
    }
    const std::uint64_t offset = std::uint64_t{message.granule} * granule_bytes;
    const std::uint64_t len_bytes = message.len_bytes;
    const std::uint64_t chunk_bytes = message.chunk_bytes;
    if (0 == len_bytes || chunk_bytes < page_bytes || chunk_bytes > most_chunk_bytes ||
        split_chunks(len_bytes, chunk_bytes) > UINT32_MAX ||
        share_kind::host != message.handle.kind || !shared.holds(offset, sizeof(split_word))) {
        log_line(log_level::error,
                 "process %u asked for a part of a message in a way that makes no sense; nothing "
                 "more is sent to it or taken from it",
                 static_cast<unsigned>(endpoint->peer->identity().vpid));
        endpoint->peer->close();
        return;
    }
    mca_btl_gpusm_component.cooperative_puts->push_back(
        {endpoint, message, reinterpret_cast<split_word *>(shared.base() + offset),
         split_chunks(len_bytes, chunk_bytes)});
}

// Copies chunks of a part. True: it is over.
static bool put_some(cooperative_put *part)
{
    constexpr std::uint64_t bytes_at_once = 512 * 1024;
    const cooperative_message &message = part->message;
    const std::uint64_t chunk_bytes = message.chunk_bytes;
    status s = status::ok;
    if (registration_named(message.handle, message.address, message.len_bytes) != nullptr) {
        std::uint64_t copied = 0;
        std::uint32_t chunk = 0;
        // A word that somebody changes by mistake ends this: each chunk comes once, in order.
        while (status::ok == s && split_take(part->split, split_end::back, &chunk) &&
               part->left > 0 && chunk == --part->left) {
            const std::uint64_t place = chunk * chunk_bytes;
            const std::uint64_t bytes = split_bytes(chunk, message.len_bytes, chunk_bytes);
            s = smsc_write(part->reader, reinterpret_cast<const void *>(message.address + place),
                           message.target + place, bytes);
            copied += bytes;
            if (status::ok == s && copied >= bytes_at_once) {
                return false;
            }
        }
    }
    part->split->answer.store(status::ok == s ? split_answer::written : split_answer::failed,
                              std::memory_order_release);
    return true;
}

void progress_cooperative_puts()
{
    std::deque<cooperative_put> &parts = *mca_btl_gpusm_component.cooperative_puts;
    if (put_some(&parts.front())) {
        parts.pop_front();
    }
}

void release_cooperative(mca_btl_base_endpoint_t *endpoint)
{
    delete std::exchange(endpoint->cooperative, nullptr);
}

} // namespace gpusm
