// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/stage.h: the bookkeeping of staged gets (stage_message in shm/wire.h): who gets which part of
// a ring, and when a get is over. Moves no bytes and sends no messages. docs/staging.md has the
// states as tables.
//
//   stage_shape    how a ring is cut
//   stage_ring     owner's side: the fetches that go through one ring, and the pieces of it
//   can_be_written owner's side: what a reader's fetch names as target
//   staged_get     reader's side: one get
//   staged_gets    reader's side: all gets, by number
#ifndef GPUSM_SHM_STAGE_H
#define GPUSM_SHM_STAGE_H

#include "opal/mca/btl/gpusm/base/status.h"
#include "opal/mca/btl/gpusm/shm/split.h"
#include "opal/mca/btl/gpusm/shm/wire.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace gpusm {

inline constexpr std::uint32_t stage_ring_blocks = 64;

// A ring is that many blocks. A piece is some blocks one behind the other, and has their first
// one's index as its number. The pieces of a fetch begin small, so that the reader starts early,
// and double up to the longest.
struct stage_shape {
    std::size_t block_bytes = 0;
    std::size_t first_bytes = 0; // of the first piece of a fetch, 1 or more
    std::size_t piece_bytes = 0; // of the longest, first_bytes or more
};

// How long the next piece of a fetch is to be, of which `pieces` have been cut and `remaining`
// bytes are left. Avoids a last piece that costs as much as a whole one and brings next to nothing.
std::size_t stage_piece_len(const stage_shape &shape, std::uint32_t pieces,
                            std::uint64_t remaining);

// A piece to be filled.
struct stage_piece {
    std::uint32_t number = 0;
    std::uint64_t source = 0;  // address of its first byte
    std::size_t position = 0;  // in the ring
    std::size_t len_bytes = 0; // never 0
    void *user = nullptr;      // as given to fetch()
    std::uint64_t tag = 0;     // likewise
};

// What a reader is to be told. The order is that of stage_ring::next_word.
struct stage_word {
    std::uint32_t peer = 0;
    std::uint32_t get = 0;
    bool failed = false;
    bool all_told = false; // of a split range: no pieces come any more
    // If it is neither, it is a piece, and this is about it:
    std::uint32_t number = 0;
    std::uint64_t offset = 0; // in the range that was asked for
    std::size_t position = 0;
    std::size_t len_bytes = 0;
};

// Peers are small numbers that the caller gives out. Fetches are served round robin over the peers,
// a piece each, and oldest first within one. A peer that keeps its pieces, because it is busy with
// something else, cannot get the whole ring: the more it has, the more must be left after its next
// piece.
//
// Every fetch that is taken ends in words: pieces that are its whole range, in order, each once; or
// fewer, and then `failed`. Of a range that is split it is those that were taken, and `all_told`.
// Its source is not touched afterwards. Only of a dropped peer nothing is said any more.
//
// Not thread-safe: the caller holds its lock. Memory is allocated by fetch() only, bounded by
// stage_fetches_at_once for each peer, and recycled.
class stage_ring {
  public:
    explicit stage_ring(const stage_shape &shape) : shape_(shape) {}
    stage_ring(const stage_ring &) = delete;
    stage_ring &operator=(const stage_ring &) = delete;

    // A peer asks for [source, source + len_bytes), and calls that `get`. `split`: it copies a part
    // by itself, and chunks are taken from the front; stays the caller's, and valid until the last
    // word. `bad_peer`: more fetches than a reader may have under way, or an empty one; nothing
    // will be said about it.
    status fetch(std::uint32_t peer, std::uint32_t get, std::uint64_t source,
                 std::uint64_t len_bytes, void *user, std::uint64_t tag,
                 split_word *split = nullptr);

    // The reader wants no more of it. Ends in `failed`, unless all of it has been told already.
    void cancel(std::uint32_t peer, std::uint32_t get);

    // The reader gives a piece back. `bad_peer`: it has no such piece.
    status release(std::uint32_t peer, std::uint32_t number);

    // The peer is gone: forgets its fetches and takes its pieces back. One that is being filled is
    // free when that has ended.
    void drop(std::uint32_t peer);

    // The next piece to be filled, which filled() has to follow, at once or later. False: nothing
    // to do, or no room for those who wait.
    bool cut(stage_piece *out);

    // The piece is complete, or could not be filled, which is the end of its fetch.
    void filled(std::uint32_t number, bool good);

    // Takes the next word that has to be sent; false: there is none now.
    bool next_word(stage_word *out);

    // No fetch, and every piece is back.
    bool idle() const { return 0 == fetches_open_ && all_free == free_; }

    std::uint32_t fetches() const { return fetches_open_; }
    // Blocks that pieces of that peer occupy.
    std::uint32_t held(std::uint32_t peer) const
    {
        return peer < peers_.size() ? peers_[peer].held : 0;
    }

  private:
    static constexpr std::uint64_t all_free = ~std::uint64_t{0};
    static constexpr std::uint32_t none = UINT32_MAX;

    struct fetch_entry {
        std::uint32_t peer = 0;
        std::uint32_t get = 0;
        std::uint64_t source = 0;
        std::uint64_t len_bytes = 0;
        std::uint64_t cut_bytes = 0;
        void *user = nullptr;
        std::uint64_t tag = 0;
        split_word *split = nullptr;
        std::uint32_t pieces = 0;  // cut so far
        std::uint32_t filling = 0; // of those, being filled
        std::uint32_t oldest_unsaid = none;
        std::uint32_t newest_unsaid = none;
        bool bad = false;            // will not be completed
        bool dropped = false;        // and nobody is to be told
        bool speaks = false;         // is on the list of those that may have something to say
        fetch_entry *next = nullptr; // the peer's next younger one, or a free one
        fetch_entry *next_speaker = nullptr;
    };
    enum class piece_state : std::uint8_t { free, filling, filled, lent };
    struct piece_entry {
        piece_state state = piece_state::free;
        std::uint32_t peer = 0;
        std::uint32_t blocks = 0;
        std::uint32_t next_unsaid = none; // of the same fetch
        fetch_entry *of = nullptr;        // until it is lent
        std::uint64_t offset = 0;
        std::size_t len_bytes = 0;
    };
    struct peer_entry {
        fetch_entry *oldest = nullptr; // of the open ones
        fetch_entry *newest = nullptr;
        fetch_entry *uncut = nullptr; // the oldest of which a piece can be cut
        std::uint32_t fetches = 0;
        std::uint32_t held = 0;
        std::uint32_t next_in_round = none;
        bool in_round = false;
    };

    peer_entry &peer_at(std::uint32_t peer);
    void join_round(std::uint32_t peer);
    std::uint32_t leave_round();
    bool may_take(const peer_entry &of, std::uint32_t blocks) const;
    std::uint32_t take_blocks(std::uint32_t wanted, std::uint32_t *taken);
    void free_piece(std::uint32_t number);
    bool size_piece(fetch_entry *of, std::uint32_t number, std::uint32_t *blocks,
                    std::size_t *len_bytes);
    static void find_uncut(peer_entry *of);
    void spoil(fetch_entry *of);
    void speak(fetch_entry *of);
    void stop_speaking();
    void forget_dropped();
    void end(fetch_entry *of);

    const stage_shape shape_;
    std::uint64_t free_ = all_free; // a bit for each block
    std::array<piece_entry, stage_ring_blocks> pieces_{};
    std::vector<peer_entry> peers_;
    std::uint32_t first_in_round_ = none; // peers of which a piece can be cut, or were
    std::uint32_t last_in_round_ = none;
    std::uint32_t in_round_ = 0;
    fetch_entry *first_speaker_ = nullptr;
    fetch_entry *last_speaker_ = nullptr;
    std::deque<fetch_entry> fetch_entries_; // all ever made: stable addresses
    fetch_entry *free_fetches_ = nullptr;
    std::uint32_t fetches_open_ = 0;
};

// Is it a target for a range of that length: an export of the reader's, in which the range ends, as
// far as the message says?
bool can_be_written(const stage_target &target, std::uint64_t len_bytes);

// One get of the reader's, from its FETCH to its end. The owner's part of it is over when all bytes
// have arrived, in pieces or written by the owner, or it has said `failed`; the get itself, when
// the copies that are under way have ended as well.
struct staged_get {
    std::uint32_t number = 0;
    std::uint32_t peer = 0;
    std::uint64_t len_bytes = 0;
    std::uint64_t arrived_bytes = 0;
    std::uint32_t copying = 0; // pieces that have come and have not been copied
    bool bad = false;          // will not be completed
    bool owner_failed = false; // nothing more comes
    bool again = false;        // free for the caller
    bool has_target = false;   // the owner may write all of it
    bool is_shared = false;    // the owner writes a part of it, and no pieces come
    bool is_split = false;     // the owner's pieces are a part of it; how much, it says at the end
    bool all_told = false;     // and has said it
    std::uint32_t split = 0;   // free for the caller
    void *user = nullptr;      // as given to open()

    // A piece has come. False: it cannot be one of this get. Else it counts as being copied until
    // `copying` is lowered, whatever is done with it.
    bool accept(std::uint64_t offset, std::uint64_t piece_bytes);

    // The owner says that it has written all of it. False: it cannot have.
    bool accept_written();

    // The owner says that it has told all pieces of a split range. False: it cannot have, as they
    // have to be the first `owners_bytes` of it.
    bool accept_all_told(std::uint64_t owners_bytes);

    bool owner_is_done() const
    {
        return owner_failed || (is_split ? all_told : arrived_bytes == len_bytes);
    }
    bool over() const { return owner_is_done() && 0 == copying; }
};

// Not thread-safe. Memory is allocated by open() only, and recycled.
class staged_gets {
  public:
    // A get of 1 byte or more. Stays where it is until close().
    staged_get *open(std::uint32_t peer, std::uint64_t len_bytes, void *user);
    // The open get that this peer's message names, or null.
    staged_get *find(std::uint32_t peer, std::uint32_t number);
    void close(staged_get *get);
    // The i-th place, null when no get is open there; for looking at all of them, i < places().
    staged_get *at(std::size_t i);
    std::size_t places() const { return entries_.size(); }
    std::size_t open_count() const { return open_; }

  private:
    // A number is an index and, above it, how often that has been used.
    static constexpr std::uint32_t index_bits = 20;

    struct entry {
        staged_get get;
        bool is_open = false;
        std::uint32_t next_free = 0;
    };
    std::deque<entry> entries_; // stable addresses
    std::uint32_t first_free_ = UINT32_MAX;
    std::size_t open_ = 0;
};

} // namespace gpusm

#endif
