// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/bounce_copies.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gpusm {

namespace {

// By the processor, in one call of progress.
constexpr std::size_t progress_copy_bytes = std::size_t{256} * 1024;

// The first of the long pieces of a job, so that the processor's part begins early; then they
// double.
constexpr std::size_t first_bytes = 32 * 1024;

// Of messages of that length the program finds nothing in its processor's own caches.
constexpr std::uint64_t past_caches_bytes = 1024 * 1024;

// By non-temporal stores: the lines that they fill are not read before, and push no others out.
void copy_past_caches(unsigned char *to, const unsigned char *from, std::size_t bytes)
{
    std::size_t at = 0;
#if defined(__SSE2__)
    at = std::min(bytes, -reinterpret_cast<std::uintptr_t>(to) % sizeof(__m128i));
    std::memcpy(to, from, at);
    for (; bytes - at >= sizeof(__m128i); at += sizeof(__m128i)) {
        _mm_stream_si128(reinterpret_cast<__m128i *>(to + at),
                         _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + at)));
    }
    _mm_sfence(); // others may see what is stored from here on before them
#endif
    std::memcpy(to + at, from + at, bytes - at);
}

bool has_failed(const bounce &job)
{
    return status::ok != job.copy.outcome;
}

bool all_sent(const bounce &job)
{
    return has_failed(job) || job.sent_bytes == job.copy.len_bytes;
}

void end_if_over(bounce *job)
{
    if (0 == job->under_way && !job->waits && all_sent(*job)) {
        job->over(job);
    }
}

// The first of them has all its pieces.
void end_wait(queue<bounce> *of)
{
    bounce *job = of->take();
    job->waits = false;
    end_if_over(job);
}

void give_piece(bounce_piece *piece)
{
    piece->next = std::exchange(piece->pool->free, piece);
}

// Where the segment has no room for all pieces, a quarter of them will do.
constexpr std::size_t small_share = 4;

} // namespace

// The processor's part of a piece that the device has filled.
status bounce_copies::deliver(const bounce_piece &piece)
{
    const bounce &job = *piece.job;
    const std::uint64_t to = job.copy.destination + piece.place;
    if (bounce_way::push == job.way) {
        return services_.write(job.peer, piece.at, to, piece.copy.len_bytes);
    }
    auto *out = reinterpret_cast<unsigned char *>(to);
    if (job.message_bytes >= past_caches_bytes) {
        copy_past_caches(out, piece.at, piece.copy.len_bytes);
    } else {
        std::memcpy(out, piece.at, piece.copy.len_bytes);
    }
    return status::ok;
}

// Its copy by the engine, between the place in the job where it begins and the piece.
void bounce_copies::send_piece(bounce *job, bounce_piece *piece, std::uint64_t bytes)
{
    const auto at = reinterpret_cast<std::uint64_t>(piece->at);
    const bool is_pull = bounce_way::pull == job->way;
    piece->job = job;
    piece->place = job->sent_bytes;
    piece->copy.destination = is_pull ? job->copy.destination + piece->place : at;
    piece->copy.source = is_pull ? at : job->copy.source + piece->place;
    piece->copy.len_bytes = bytes;
    piece->copy.wait_for = job->copy.wait_for;
    piece->copy.kernel_reaches =
        job->copy.kernel_reaches && services_.kernel_touches(*job->on, piece->at);
    job->sent_bytes += bytes;
    ++job->under_way;
    engine_.submit(*job->on, &piece->copy);
}

// Sends out what has places. False: some of the job has to wait for one.
bool bounce_copies::send_out(bounce *job)
{
    while (!all_sent(*job)) {
        const std::uint64_t left = job->copy.len_bytes - job->sent_bytes;
        bounce_pool &from = left <= pools_[short_piece].piece_bytes    ? pools_[short_piece]
                            : left <= pools_[middle_piece].piece_bytes ? pools_[middle_piece]
                                                                       : pools_[long_piece];
        bounce_piece *piece = from.free;
        if (nullptr == piece) {
            return false;
        }
        from.free = piece->next;
        const std::uint64_t most = job->message_bytes > job->copy.len_bytes
                                       ? left
                                       : std::max<std::uint64_t>(first_bytes, job->sent_bytes);
        send_piece(job, piece, std::min({left, most, std::uint64_t{from.piece_bytes}}));
    }
    return true;
}

void bounce_copies::send_waiting()
{
    while (waiting_.first() != nullptr && send_out(waiting_.first())) {
        end_wait(&waiting_);
    }
}

// The next piece of a job that pulls. False: there is no place for it.
bool bounce_copies::pull_piece(bounce *job)
{
    bounce_pool &pool = pools_[pulled_piece];
    bounce_piece *piece = pool.free;
    if (nullptr == piece) {
        return false;
    }
    const std::uint64_t bytes =
        std::min<std::uint64_t>(pool.piece_bytes, job->copy.len_bytes - job->sent_bytes);
    if (status::ok !=
        services_.read(job->peer, piece->at, job->copy.source + job->sent_bytes, bytes)) {
        job->copy.outcome = status::driver_failed;
        return true;
    }
    pool.free = piece->next;
    send_piece(job, piece, bytes);
    return true;
}

// About so many bytes, and at least one piece.
void bounce_copies::progress_pulls(std::size_t bytes)
{
    for (std::size_t pulled = 0; pulling_.first() != nullptr && pulled < bytes;) {
        bounce *job = pulling_.first();
        if (!has_failed(*job) && !pull_piece(job)) {
            return;
        }
        pulled += pools_[pulled_piece].piece_bytes;
        if (all_sent(*job)) {
            end_wait(&pulling_);
        }
    }
}

// A piece has arrived, or has been taken up. The processor waits for no further ones as long as it
// has more to copy than arrives meanwhile.
void bounce_copies::count_to_deliver(const bounce_piece &piece, bool arrives)
{
    constexpr std::uint64_t enough_bytes = 256 * 1024;
    if (piece.job->way != bounce_way::pull) {
        const std::uint64_t bytes = piece.copy.len_bytes;
        to_deliver_bytes_ += arrives ? bytes : -bytes;
        engine_.processor_has_work(to_deliver_bytes_ >= enough_bytes);
    }
}

void bounce_copies::make_pieces(unsigned char *memory, std::size_t share)
{
    std::size_t count = 0;
    for (const bounce_pool &each : pools_) {
        count += each.pieces / share;
    }
    pieces_.resize(count);
    bounce_piece *next = pieces_.data();
    for (bounce_pool &pool : pools_) {
        for (std::size_t i = 0; i < pool.pieces / share; ++i, ++next) {
            next->pool = &pool;
            next->at = memory;
            next->copy.part_of = part_of_;
            next->copy.processor_waits = true;
            memory += pool.piece_bytes;
            give_piece(next);
        }
    }
}

bool bounce_copies::available()
{
    if (!pieces_.empty()) {
        return true;
    }
    if (!memory_.may_try()) {
        return false;
    }
    std::size_t share = 1;
    unsigned char *memory = nullptr;
    status s = services_.bounce_memory(memory_bytes(), &memory);
    if (status::no_memory == s) {
        share = small_share;
        s = services_.bounce_memory(memory_bytes(share), &memory);
    }
    if (status::ok == s) {
        (void)memory_.worked();
        make_pieces(memory, share);
        return true;
    }
    const bool never = status::unsupported == s;
    if (never ? memory_.never_again(s) : memory_.failed(s)) {
        log_line(log_level::info,
                 "device memory goes to host memory directly, without registered memory between "
                 "(%s)%s",
                 to_string(s), never ? "" : "; that is asked for again later");
    }
    return false;
}

std::size_t bounce_copies::memory_bytes(std::size_t share)
{
    std::size_t bytes = 0;
    for (const bounce_pool &each : bounce_pools) {
        bytes += each.pieces / share * each.piece_bytes;
    }
    return bytes;
}

void bounce_copies::start(bounce *job)
{
    job->sent_bytes = 0;
    job->under_way = 0;
    job->copy.outcome = status::ok;
    // A pull begins with the next call of progress().
    const bool is_pull = bounce_way::pull == job->way;
    job->waits = is_pull || waiting_.first() != nullptr || !send_out(job);
    if (job->waits) {
        (is_pull ? pulling_ : waiting_).append(job);
    }
}

void bounce_copies::copied(copy_request *copy)
{
    bounce_piece *piece = reinterpret_cast<bounce_piece *>(copy);
    arrived_.append(piece);
    count_to_deliver(*piece, true);
}

void bounce_copies::go_on()
{
    for (std::size_t copied = 0; arrived_.first() != nullptr && copied < progress_copy_bytes;) {
        bounce_piece *piece = arrived_.take();
        count_to_deliver(*piece, false);
        bounce *job = piece->job;
        const bool is_pull = bounce_way::pull == job->way;
        const bool is_here = status::ok == piece->copy.outcome;
        if (!is_here || (!is_pull && status::ok != deliver(*piece))) {
            job->copy.outcome = status::driver_failed;
        }
        copied += is_here && !is_pull ? piece->copy.len_bytes : 0;
        give_piece(piece);
        --job->under_way;
        end_if_over(job);
        // The processor's time goes to either direction in turns.
        pulls_are_next_ = !pulls_are_next_;
        if (pulls_are_next_) {
            progress_pulls(1);
        }
        send_waiting();
    }
    progress_pulls(progress_copy_bytes);
}

} // namespace gpusm
