// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_push.cc: gets of mapped device memory into ordinary host memory, which both sides copy,
// because one processor does not keep up with the bus: the reader from the front, the owner, which
// writes into the reader's memory by single copies, from the back (shm/split.h). Both bring the
// bytes through registered memory of their own (btl_gpusm_bounce.h).
//
// The reader asks by one message, with a word in its segment. An owner that comes late finds
// nothing to do, and is not waited for; what it has taken it must bring, or answer that it could
// not.
#include "opal/mca/btl/gpusm/btl_gpusm_get.h"
#include "opal/mca/btl/gpusm/btl_gpusm_smsc.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

namespace gpusm {

namespace {

// --- reader ---

// A word of ours, and who is to answer there.
struct shared_word {
    split_word *split;
    mca_btl_base_endpoint_t *owner; // has not answered; null: the word is free
    get_request *get;               // waits for the answer, or will; null: it is not waited for
    bool own_part_over;
};
constexpr std::size_t most_words = 64;
std::array<shared_word, most_words> words{};
std::uint32_t first_granule = 0; // where they are in our segment; 0: nowhere
bool asked_for_words = false;
std::size_t awaited_answers = 0;

bool has_answered(const shared_word &word)
{
    return split_answer::none != word.split->answer.load(std::memory_order_acquire);
}

// The owner will not look at the word again. True: it has brought what it had taken.
bool end_answer(shared_word *word)
{
    mca_btl_base_endpoint_t *owner = std::exchange(word->owner, nullptr);
    const bool good = split_answer::written == word->split->answer.load(std::memory_order_relaxed);
    owner->failed_pushes = good ? 0 : owner->failed_pushes + 1;
    return good;
}

// Null: there is none.
shared_word *take_word()
{
    if (!std::exchange(asked_for_words, true)) {
        segment &own = mca_btl_gpusm_component.node->own();
        if (status::ok == own.carve(most_words * sizeof(split_word), &first_granule)) {
            for (std::size_t i = 0; i < most_words; ++i) {
                words[i] = {reinterpret_cast<split_word *>(own.at(first_granule)) + i, nullptr,
                            nullptr, false};
            }
        }
    }
    for (shared_word &each : words) {
        if (each.owner != nullptr && nullptr == each.get && has_answered(each)) {
            (void)end_answer(&each);
        }
        if (each.split != nullptr && nullptr == each.owner) {
            return &each;
        }
    }
    return nullptr;
}

shared_word *word_of(const get_request *get)
{
    return get->bouncing.split == nullptr
               ? nullptr
               : &words[static_cast<std::size_t>(get->bouncing.split - words[0].split)];
}

void end_get(get_request *get, bool good)
{
    mca_btl_gpusm_component.gpu.load()->imports.release(std::exchange(get->mapping, nullptr));
    finish_get(get, good ? status::ok : status::driver_failed);
}

// This process has copied what it has come to.
void own_part_over(bounce *job)
{
    get_request *get = enclosing<get_request>(job, offsetof(get_request, bouncing));
    shared_word *word = word_of(get);
    if (nullptr == word) {
        end_get(get, !job->failed);
    } else if (!job->failed && job->chunks == split_chunks(job->len_bytes, push_chunk_bytes)) {
        word->get = nullptr; // the owner, when it comes, will find nothing to do
        --awaited_answers;
        end_get(get, true);
    } else {
        word->own_part_over = true;
    }
}

// Both parts are over.
void end_shared(shared_word *word)
{
    get_request *get = std::exchange(word->get, nullptr);
    mca_btl_base_endpoint_t *owner = word->owner;
    --awaited_answers;
    bounce &job = get->bouncing;
    if (!has_answered(*word)) { // nor will it
        end_get(get, false);
        return;
    }
    const bool good = end_answer(word);
    const std::uint64_t pushed_from = job.chunks * push_chunk_bytes; // as they have met there
    if (good || job.failed || owner->peer->closed()) {
        count(counter::pushed_host_bytes, good && !job.failed ? job.len_bytes - pushed_from : 0);
        end_get(get, good && !job.failed);
        return;
    }
    // What the owner has not been able to push is copied here.
    job.source += pushed_from;
    job.destination += pushed_from;
    job.len_bytes -= pushed_from;
    job.split = nullptr;
    start_bounce(&job);
}

// Asks the owner to push a part of the get, if that is worth it.
void share(get_request *get)
{
    mca_btl_base_endpoint_t *owner = get->endpoint;
    bounce &job = get->bouncing;
    shared_word *word = nullptr;
    if (job.len_bytes < split_least_bytes || job.wait_for != nullptr || !smsc_reads_plainly() ||
        owner->peer->refuses_single_copies() || owner->failed_pushes >= failures_in_a_row ||
        split_chunks(job.len_bytes, push_chunk_bytes) > UINT32_MAX ||
        nullptr == (word = take_word())) {
        return;
    }
    split_begin(word->split,
                static_cast<std::uint32_t>(split_chunks(job.len_bytes, push_chunk_bytes)));
    const auto place = static_cast<std::uint32_t>(word - words.data());
    const push_message message = {
        get->remote,
        get->remote_address,
        job.destination,
        job.len_bytes,
        first_granule + place * static_cast<std::uint32_t>(sizeof(split_word) / granule_bytes),
        0};
    const status s = post_control(owner, frag_kind::push, &message, sizeof(message));
    if (status::ok == s || status::busy == s) {
        word->owner = owner;
        word->get = get;
        word->own_part_over = false;
        job.split = word->split;
        ++awaited_answers;
    }
}

// --- owner ---

// A part of a reader's get.
struct push {
    bounce job;
    exported *source; // referenced
};
recycled<push> *pushes = nullptr;

void push_over(bounce *job)
{
    push *over = enclosing<push>(job, offsetof(push, job));
    mca_btl_gpusm_component.gpu.load()->exports.release(over->source);
    --job->peer->pushes;
    job->split->answer.store(job->failed ? split_answer::failed : split_answer::written,
                             std::memory_order_release);
    pushes->give(over);
}

// A reader has at most that many words.
bool has_sense(const mca_btl_base_endpoint_t *reader, const push_message &message)
{
    return message.len_bytes > 0 && reader->pushes < most_words &&
           covers(message.handle, message.address, message.len_bytes) &&
           split_chunks(message.len_bytes, push_chunk_bytes) <= UINT32_MAX &&
           reader->peer->shared().holds(std::uint64_t{message.granule} * granule_bytes,
                                        sizeof(split_word));
}

bool begin_push(gpu_side &side, mca_btl_base_endpoint_t *reader, const push_message &message,
                split_word *split)
{
    exported *source = smsc_reads_plainly() ? side.live_export(message.handle) : nullptr;
    device *on = nullptr;
    std::uint64_t plain_bytes = 0;
    if (nullptr == source ||
        status::ok != side.devices.for_address(message.address, &on, &plain_bytes) ||
        nullptr == on || !can_bounce()) {
        return false;
    }
    if (nullptr == pushes) {
        pushes = new recycled<push>;
    }
    push *made = pushes->take();
    made->source = source;
    side.exports.add_reference(source);
    ++reader->pushes;
    made->job.way = bounce_way::push;
    made->job.on = on;
    made->job.source = message.address;
    made->job.destination = message.target;
    made->job.len_bytes = message.len_bytes;
    made->job.peer = reader;
    made->job.split = split;
    made->job.over = push_over;
    start_bounce(&made->job);
    return true;
}

} // namespace

bool bounce_failed_get(get_request *get)
{
    if (0 == get->copy.len_bytes || !can_bounce()) {
        return false;
    }
    bounce &job = get->bouncing;
    job = {};
    job.way = bounce_way::out;
    job.on = get->into;
    job.source = get->copy.source;
    job.destination = get->copy.destination;
    job.len_bytes = get->copy.len_bytes;
    job.wait_for = get->copy.wait_for;
    job.for_kernel =
        get->mapping != nullptr && gpu_side::kernel_reads(*get->mapping, get->remote, *get->into);
    job.over = own_part_over;
    share(get);
    start_bounce(&job);
    return true;
}

void progress_pushes()
{
    if (0 == awaited_answers) {
        return;
    }
    for (shared_word &each : words) {
        if (each.get != nullptr && each.own_part_over &&
            (has_answered(each) || each.owner->peer->closed())) {
            end_shared(&each);
        }
    }
}

bool push_message_from(mca_btl_base_endpoint_t *reader, const unsigned char *payload,
                       std::size_t bytes)
{
    push_message message;
    if (sizeof(message) != bytes) {
        return false;
    }
    std::memcpy(&message, payload, sizeof(message));
    if (!has_sense(reader, message)) {
        return false;
    }
    auto *split = reinterpret_cast<split_word *>(reader->peer->shared().base() +
                                                 std::uint64_t{message.granule} * granule_bytes);
    gpu_side *side = gpu();
    bool begun = false;
    if (side != nullptr) {
        const std::lock_guard guard(side->lock);
        begun = begin_push(*side, reader, message, split);
    }
    if (!begun) {
        split->answer.store(split_answer::failed, std::memory_order_release);
    }
    return true;
}

void release_pushes()
{
    delete std::exchange(pushes, nullptr);
    words = {};
    asked_for_words = false;
    first_granule = 0;
    awaited_answers = 0;
}

} // namespace gpusm
