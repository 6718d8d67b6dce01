// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/shm/stage.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace gpusm {

namespace {

// What a peer holds may be at most that many times what is left after its next piece. The first
// one that keeps all it gets leaves a quarter of the ring to the others.
constexpr std::uint32_t most_held = 3;

// The bits at which `count` set bits one behind the other begin.
std::uint64_t runs_of(std::uint64_t bits, std::uint32_t count)
{
    for (std::uint32_t have = 1; have < count;) {
        const std::uint32_t more = std::min(have, count - have);
        bits &= bits >> more;
        have += more;
    }
    return bits;
}

std::uint64_t bits_at(std::uint32_t first, std::uint32_t count)
{
    const std::uint64_t low = count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
    return low << first;
}

} // namespace

std::size_t stage_piece_len(const stage_shape &shape, std::uint32_t pieces, std::uint64_t remaining)
{
    std::size_t len = shape.first_bytes;
    for (; pieces > 0 && len < shape.piece_bytes; --pieces) {
        len *= 2;
    }
    len = std::min(len, shape.piece_bytes);
    if (remaining <= len) {
        return static_cast<std::size_t>(remaining);
    }
    if (remaining - len < shape.first_bytes / 2) {
        const auto half = static_cast<std::size_t>(remaining / 2);
        return half < page_bytes ? half : half / page_bytes * page_bytes;
    }
    return len;
}

stage_ring::peer_entry &stage_ring::peer_at(std::uint32_t peer)
{
    if (peer >= peers_.size()) {
        peers_.resize(peer + 1);
    }
    return peers_[peer];
}

void stage_ring::join_round(std::uint32_t peer)
{
    peer_entry &joins = peers_[peer];
    if (!joins.in_round) {
        joins.in_round = true;
        joins.next_in_round = none;
        (none == first_in_round_ ? first_in_round_ : peers_[last_in_round_].next_in_round) = peer;
        last_in_round_ = peer;
        ++in_round_;
    }
}

std::uint32_t stage_ring::leave_round()
{
    const std::uint32_t peer = first_in_round_;
    peers_[peer].in_round = false;
    first_in_round_ = peers_[peer].next_in_round;
    --in_round_;
    return peer;
}

status stage_ring::fetch(std::uint32_t peer, std::uint32_t get, std::uint64_t source,
                         std::uint64_t len_bytes, void *user, std::uint64_t tag, split_word *split)
{
    peer_entry &of = peer_at(peer);
    if (of.fetches >= stage_fetches_at_once || 0 == len_bytes) {
        return status::bad_peer;
    }
    if (nullptr == free_fetches_) {
        free_fetches_ = &fetch_entries_.emplace_back();
    }
    fetch_entry *made = std::exchange(free_fetches_, free_fetches_->next);
    *made = fetch_entry{};
    made->peer = peer;
    made->get = get;
    made->source = source;
    made->len_bytes = len_bytes;
    made->user = user;
    made->tag = tag;
    made->split = split;
    (nullptr == of.oldest ? of.oldest : of.newest->next) = made;
    of.newest = made;
    of.uncut = nullptr == of.uncut ? made : of.uncut;
    ++of.fetches;
    ++fetches_open_;
    join_round(peer);
    return status::ok;
}

void stage_ring::cancel(std::uint32_t peer, std::uint32_t get)
{
    fetch_entry *found = peer_at(peer).oldest;
    while (found != nullptr && (found->get != get || found->bad)) {
        found = found->next;
    }
    if (found != nullptr) {
        spoil(found);
    }
}

status stage_ring::release(std::uint32_t peer, std::uint32_t number)
{
    if (number >= pieces_.size() || piece_state::lent != pieces_[number].state ||
        peer != pieces_[number].peer) {
        return status::bad_peer;
    }
    free_piece(number);
    return status::ok;
}

void stage_ring::drop(std::uint32_t peer)
{
    for (fetch_entry *each = peer_at(peer).oldest; each != nullptr;) {
        if (!each->dropped) {
            each->dropped = true;
            --peers_[peer].fetches;
        }
        if (!each->bad) {
            spoil(each);
        }
        each = each->next;
    }
    forget_dropped();
    for (std::uint32_t number = 0; number < pieces_.size(); ++number) {
        if (piece_state::lent == pieces_[number].state && peer == pieces_[number].peer) {
            free_piece(number);
        }
    }
}

bool stage_ring::may_take(const peer_entry &of, std::uint32_t blocks) const
{
    const auto left = static_cast<std::uint32_t>(std::popcount(free_));
    return 0 == of.held || (blocks <= left && of.held + blocks <= most_held * (left - blocks));
}

// The lowest free blocks that are one behind the other, `wanted` of them or else as many as there
// are. The lowest, because those have been used last and are in the processor's cache.
std::uint32_t stage_ring::take_blocks(std::uint32_t wanted, std::uint32_t *taken)
{
    std::uint64_t starts = 0;
    while (0 == (starts = runs_of(free_, wanted))) {
        --wanted; // ends at 1 at the latest, as some block is free
    }
    const auto first = static_cast<std::uint32_t>(std::countr_zero(starts));
    free_ &= ~bits_at(first, wanted);
    *taken = wanted;
    return first;
}

void stage_ring::free_piece(std::uint32_t number)
{
    piece_entry &piece = pieces_[number];
    peers_[piece.peer].held -= piece.blocks;
    free_ |= bits_at(number, piece.blocks);
    piece = piece_entry{};
}

void stage_ring::find_uncut(peer_entry *of)
{
    while (of->uncut != nullptr &&
           (of->uncut->bad || of->uncut->cut_bytes == of->uncut->len_bytes)) {
        of->uncut = of->uncut->next;
    }
}

// Of a split range: takes chunks for the piece at `number`, for which *blocks are taken, and gives
// back those that are too many. False: there is no such piece now, and all have been given back.
bool stage_ring::size_piece(fetch_entry *of, std::uint32_t number, std::uint32_t *blocks,
                            std::size_t *len_bytes)
{
    const std::size_t room = *blocks * shape_.block_bytes / pull_chunk_bytes;
    const std::size_t wanted = std::max<std::size_t>(1, *len_bytes / pull_chunk_bytes);
    std::uint32_t first = 0;
    std::uint32_t taken = 0;
    if (room > 0) {
        taken = split_take_some(of->split, split_end::front,
                                static_cast<std::uint32_t>(std::min(room, wanted)), &first);
        if (0 == taken) {
            of->len_bytes = of->cut_bytes; // the rest is the reader's
            if (none == of->oldest_unsaid) {
                speak(of);
            }
        } else if (first * pull_chunk_bytes != of->cut_bytes || of->cut_bytes >= of->len_bytes) {
            taken = 0; // a peer's word
            spoil(of);
        }
    }
    if (taken > 0) {
        *len_bytes = std::min(taken * pull_chunk_bytes, of->len_bytes - of->cut_bytes);
    }
    const auto needed =
        taken > 0
            ? static_cast<std::uint32_t>((*len_bytes + shape_.block_bytes - 1) / shape_.block_bytes)
            : 0;
    if (needed < *blocks) {
        free_ |= bits_at(number + needed, *blocks - needed);
    }
    *blocks = needed;
    return taken > 0;
}

bool stage_ring::cut(stage_piece *out)
{
    for (std::uint32_t tries = in_round_; tries > 0 && free_ != 0; --tries) {
        const std::uint32_t peer = leave_round();
        peer_entry &of = peers_[peer];
        fetch_entry *from = of.uncut;
        if (nullptr == from) {
            continue; // what it waited with has been cancelled
        }
        std::size_t len = stage_piece_len(shape_, from->pieces, from->len_bytes - from->cut_bytes);
        if (from->split != nullptr) {
            len = std::max<std::size_t>(len, pull_chunk_bytes);
        }
        const auto wanted = static_cast<std::uint32_t>(std::min<std::size_t>(
            (len + shape_.block_bytes - 1) / shape_.block_bytes, stage_ring_blocks));
        if (!may_take(of, wanted)) {
            join_round(peer);
            continue;
        }
        std::uint32_t blocks = 0;
        const std::uint32_t number = take_blocks(wanted, &blocks);
        if (from->split != nullptr && !size_piece(from, number, &blocks, &len)) {
            find_uncut(&of);
            if (of.uncut != nullptr) {
                join_round(peer);
                tries += of.uncut == from ? 0 : 1;
            }
            continue;
        }
        piece_entry &piece = pieces_[number];
        piece.state = piece_state::filling;
        piece.peer = peer;
        piece.blocks = blocks;
        piece.of = from;
        piece.offset = from->cut_bytes;
        piece.len_bytes = std::min(len, blocks * shape_.block_bytes);
        (none == from->oldest_unsaid ? from->oldest_unsaid
                                     : pieces_[from->newest_unsaid].next_unsaid) = number;
        from->newest_unsaid = number;
        *out = {number,
                from->source + piece.offset,
                number * shape_.block_bytes,
                piece.len_bytes,
                from->user,
                from->tag};
        of.held += blocks;
        from->cut_bytes += piece.len_bytes;
        ++from->pieces;
        ++from->filling;
        find_uncut(&of);
        if (of.uncut != nullptr) {
            join_round(peer);
        }
        return true;
    }
    return false;
}

void stage_ring::filled(std::uint32_t number, bool good)
{
    piece_entry &piece = pieces_[number];
    fetch_entry *of = piece.of;
    --of->filling;
    if (good && !of->bad) {
        piece.state = piece_state::filled;
        speak(of);
        return;
    }
    if (!of->bad) {
        piece.state = piece_state::filled; // spoil() frees it with the others
        spoil(of);
        return;
    }
    free_piece(number);
    if (0 == of->filling) {
        if (of->dropped) {
            end(of);
        } else {
            speak(of);
        }
    }
}

// The fetch will not be completed. Frees what has been filled and not been told; what is being
// filled follows in filled().
void stage_ring::spoil(fetch_entry *of)
{
    of->bad = true;
    find_uncut(&peers_[of->peer]);
    for (std::uint32_t each = std::exchange(of->oldest_unsaid, none); each != none;) {
        const std::uint32_t next = pieces_[each].next_unsaid;
        if (piece_state::filled == pieces_[each].state) {
            free_piece(each);
        }
        each = next;
    }
    if (0 == of->filling) {
        speak(of);
    }
}

void stage_ring::speak(fetch_entry *of)
{
    if (!of->speaks) {
        of->speaks = true;
        of->next_speaker = nullptr;
        (nullptr == first_speaker_ ? first_speaker_ : last_speaker_->next_speaker) = of;
        last_speaker_ = of;
    }
}

void stage_ring::stop_speaking()
{
    first_speaker_->speaks = false;
    first_speaker_ = first_speaker_->next_speaker;
}

// Nothing is said about these, so there is nothing to wait for once their sources are left alone.
void stage_ring::forget_dropped()
{
    fetch_entry **link = &first_speaker_;
    last_speaker_ = nullptr;
    while (*link != nullptr) {
        fetch_entry *each = *link;
        if (each->dropped) {
            *link = each->next_speaker;
            each->speaks = false;
            if (0 == each->filling) {
                end(each);
            }
        } else {
            last_speaker_ = each;
            link = &each->next_speaker;
        }
    }
}

bool stage_ring::next_word(stage_word *out)
{
    while (first_speaker_ != nullptr) {
        fetch_entry *of = first_speaker_;
        if (of->bad && 0 == of->filling) {
            *out = stage_word{};
            out->peer = of->peer;
            out->get = of->get;
            out->failed = true;
            stop_speaking();
            end(of);
            return true;
        }
        const std::uint32_t number = of->oldest_unsaid;
        if (of->split != nullptr && !of->bad && none == number && of->cut_bytes == of->len_bytes) {
            *out = stage_word{};
            out->peer = of->peer;
            out->get = of->get;
            out->all_told = true;
            stop_speaking();
            end(of);
            return true;
        }
        if (of->bad || none == number || piece_state::filled != pieces_[number].state) {
            stop_speaking();
            continue;
        }
        piece_entry &piece = pieces_[number];
        *out = {of->peer,
                of->get,
                false,
                false,
                number,
                piece.offset,
                number * shape_.block_bytes,
                piece.len_bytes};
        piece.state = piece_state::lent;
        piece.of = nullptr;
        of->oldest_unsaid = piece.next_unsaid;
        if (nullptr == of->split && of->cut_bytes == of->len_bytes && none == of->oldest_unsaid) {
            stop_speaking();
            end(of);
        }
        return true;
    }
    return false;
}

void stage_ring::end(fetch_entry *of)
{
    peer_entry &peer = peers_[of->peer];
    fetch_entry *before = nullptr;
    for (fetch_entry *each = peer.oldest; each != of; each = each->next) {
        before = each;
    }
    (nullptr == before ? peer.oldest : before->next) = of->next;
    if (peer.newest == of) {
        peer.newest = before;
    }
    peer.fetches -= of->dropped ? 0 : 1;
    --fetches_open_;
    of->next = std::exchange(free_fetches_, of);
}

} // namespace gpusm
