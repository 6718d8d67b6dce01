// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/wire.h: every byte that two processes share, declared once and sealed.
//
// A segment is one file, made and grown by its owner and mapped by the peers that talk to it:
//
//   segment_header | FIFO slots | peer slots | event slots | export slots | fragments, fast boxes,
//   rings, registered memory ...
//
// Segment, exports and fragments are written by the owner. FIFO slots, fast boxes and rings are
// written by the peers that send to the owner, peer slots by both. Positions are offsets from the
// start of the segment; no pointer, function or C++ object crosses. Whatever a peer wrote is
// checked before it is used.
#ifndef GPUSM_SHM_WIRE_H
#define GPUSM_SHM_WIRE_H

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gpusm {

inline constexpr std::uint64_t segment_magic = 0x31306d7375706721ULL; // "!gpusm01"
// Raised whenever anything in this file, in what goes through the modex or in what processes say on
// a board changes its meaning or its place.
inline constexpr std::uint32_t wire_version = 25;

inline constexpr std::size_t cache_line_bytes = 64;
inline constexpr std::size_t page_bytes = 4096;
// Fragments start at multiples of a granule, so that a fragment's place fits into 24 bits of
// a FIFO word. 2^24 granules bound a segment to 1 GiB.
inline constexpr std::size_t granule_bytes = 64;
inline constexpr std::uint64_t max_segment_bytes = granule_bytes << 24;
inline constexpr std::uint32_t max_peer_slots = 1U << 16;

// Who owns a segment. `nonce` is random, made anew with every segment, and part of the file
// name: a file that an earlier run left behind can never be mistaken for a live one.
struct segment_identity {
    std::uint32_t jobid;
    std::uint32_t vpid;
    std::uint64_t nonce;

    bool operator==(const segment_identity &) const = default;
};
static_assert(sizeof(segment_identity) == 16);

// How long the sections are; so each of them says where the next one begins (shm/segment.h).
struct segment_counts {
    std::uint32_t fifo_slots = 0; // a power of two
    std::uint32_t peer_slots = 0;
    std::uint32_t event_slots = 0;
    std::uint32_t export_slots = 0;
};

// Whether the process takes part in collectives on device memory (shm/board.h).
enum class meets_in_groups : std::uint32_t {
    undecided = 0, // it has not come so far
    yes = 1,
    no = 2,
};

// How far the owner of a segment is with its use of MPI.
enum class use_of_mpi : std::uint32_t {
    goes_on = 0, // one whose process ends so has failed
    ending = 1,  // it reads no message any more, and posts what waits; so nobody waits for it
    ended = 2,   // in order: all that it has sent has been posted
};

// Written by the owner before the file gets its name's meaning through the modex; constant
// from then on, but for the counters at the end; each cache line of them has one kind of writer.
struct segment_header {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t reserved;
    segment_identity identity;
    std::uint64_t segment_bytes; // mapped length; the file has it, memory behind it grows
    segment_counts counts;

    // Next FIFO ticket as far as the senders have moved it; writers: all senders. See fifo.h.
    alignas(cache_line_bytes) std::atomic<std::uint64_t> fifo_tail;
    // Where the next free peer slot is likely to be; writers: peers that connect.
    alignas(cache_line_bytes) std::atomic<std::uint32_t> peers_claimed;
    // Writer: the owner. Bytes of the file that have memory behind them, counted from 0.
    alignas(cache_line_bytes) std::atomic<std::uint64_t> committed_bytes;
    // Writer: the owner. Export slots that have memory behind them.
    std::atomic<std::uint32_t> exports_committed;
    // Writer: the owner.
    std::atomic<use_of_mpi> use;
    // Writer: the owner. The granule of the board that it has made last; 0: it has made none.
    std::atomic<std::uint32_t> newest_board;
    // Writer: the owner. The granule of its delegation_board; 0: it has none.
    std::atomic<std::uint32_t> delegations;
    // Writer: the owner: before others can send to it, and when it cannot meet any more.
    std::atomic<meets_in_groups> meets;
    // Writer: the owner, after it ended an export's generation. An importer that sees a new
    // value looks through its mappings of this owner for generations that are over.
    std::atomic<std::uint64_t> retire_epoch;
};
static_assert(sizeof(segment_header) == 4 * cache_line_bytes);
static_assert(offsetof(segment_header, fifo_tail) == cache_line_bytes);
static_assert(offsetof(segment_header, peers_claimed) == 2 * cache_line_bytes);
static_assert(offsetof(segment_header, committed_bytes) == 3 * cache_line_bytes);

// One FIFO slot is one word: lap (24 bits) | sender's peer slot (16) | granule (24). The whole
// message is the word, so claiming a slot and publishing it is one compare-and-swap and a
// sender that dies leaves the slot either empty or complete. Granule 0 is the segment header
// and never a fragment: it marks an empty slot.
struct fifo_slot {
    std::atomic<std::uint64_t> word;
};
static_assert(sizeof(fifo_slot) == 8);

// A peer that sends to the owner describes itself here, once, before its first post. When its
// process has ended and all that it has sent has been read, the owner gives the slot to others.
struct alignas(cache_line_bytes) peer_slot {
    segment_identity identity; // writer: the peer
    // 0: nobody's; 2: taken; 1: its identity is complete. Writer: the peer that has taken it, and
    // of 0 the owner.
    std::atomic<std::uint32_t> ready;
    std::uint32_t reserved;
    // Writer: the owner. The owner is done with all messages of that peer before this sequence
    // number; told after fragments only. They are handled in the order of their posting, so one
    // counter gives them all back.
    std::atomic<std::uint64_t> consumed;
    // Writer: the owner. How often it has asked for fragments, as it could not read that peer's
    // host memory, since it last could. The peer offers its memory again after a while.
    std::atomic<std::uint32_t> single_copy_refusals;
    // Writer: the owner. The granule of that peer's fast box; 0: it has none.
    std::atomic<std::uint32_t> fast_box;
    // Writer: the owner. Units of the fast box that it has read, from the start of all; wraps.
    std::atomic<std::uint32_t> fast_box_taken;
    std::uint8_t reserved2[12];
};
static_assert(sizeof(peer_slot) == cache_line_bytes);

enum class frag_kind : std::uint8_t {
    active_message = 1, // payload for the function registered under `tag`
    ipc_control = 2,    // payload is an ipc_message
    stage = 4,          // payload is a stream_message, of a stream that a device takes part in
    cooperative = 6,    // payload is a stream_message, between host memories
    delegated = 8,      // payload is a delegated_copy
};

// Stands in front of a fragment's payload. Writer: the sender; the receiver only reads.
struct frag_header {
    std::uint64_t sequence; // counts the messages of this sender to this receiver, from 0
    std::uint32_t payload_bytes;
    frag_kind kind;
    std::uint8_t tag;
    std::uint8_t reserved[2];
};
static_assert(sizeof(frag_header) == 16);

// A fast box is a ring of these, half a cache line each. A message begins with a word and goes on
// through the payload and the units behind it (shm/fast_box.h). Writer: the one peer whose fast box
// it is.
struct alignas(cache_line_bytes / 2) fast_box_unit {
    std::atomic<std::uint64_t> word; // sequence (32 bits) | tag (8) | kind (8) | bytes (16); or 0
    unsigned char payload[cache_line_bytes / 2 - sizeof(std::uint64_t)];
};
static_assert(sizeof(fast_box_unit) == cache_line_bytes / 2);
// Of the ring, and of the longest message. A longer one is faster in a fragment: the ring's lines
// are in the other processor's cache, and few such messages would fill it.
inline constexpr std::uint32_t fast_box_units = 128;
inline constexpr std::uint32_t fast_box_most_units = 18;
struct fast_box {
    fast_box_unit unit[fast_box_units + fast_box_most_units]; // a message begins in the ring
};

enum class ipc_operation : std::uint8_t {
    none = 0, // never sent
    req = 1,
    // With a reason: it cannot map the memory that `handle` names, and fetches what its owner
    // stages in host memory. That may be said without a question, too. With such a handle and no
    // reason: it can, after all.
    ack = 2,
    not_ready = 3,
    refuse = 4,
    // Of an importer: it needs the file descriptors of the export that `handle` names.
    want_descriptors = 5,
    // The owner's answers. `sent`: they are in the importer's descriptor socket, which is filled
    // before this message is posted. `not_sent`: they cannot be had, now or ever.
    descriptors_sent = 6,
    descriptors_not_sent = 7,
};

// Why a peer refused, or wants all of it staged; a help text says it in words.
enum class refuse_reason : std::uint8_t {
    none = 0,
    switched_off = 1,   // its parameter use_cuda_ipc says no
    no_driver = 3,      // no CUDA driver there
    no_peer_access = 4, // the driver cannot map that memory there
};

// How a peer gets at the memory that a handle names.
enum class share_kind : std::uint8_t {
    none = 0,
    legacy = 1,      // device memory: an export with a CUDA IPC handle
    descriptors = 2, // VMM memory: an export of one or more chunks, a file descriptor each
    pool = 3,        // memory of an exportable pool: an export, and the pool's file descriptor
    staged = 4,      // other device memory: its owner streams it on demand
    host = 5,        // host memory: single copy by the system, or streamed on demand
    strided = 6,     // blocks in one of the first three, described in the owner's segment
};
constexpr bool names_export(share_kind kind)
{
    return share_kind::legacy == kind || share_kind::descriptors == kind ||
           share_kind::pool == kind;
}

// Names memory of the sender: what ob1 carries in its RGET header. Of the first three kinds it
// names an export, which is described in the owner's directory and read there only when the
// importer has not mapped it yet; `base` and `len_bytes` are the export's. Of the other two it
// names a registration, which only the owner can look up: `slot` is its number and `generation` its
// turn; `base` and `len_bytes` are those of the message. Of kind `strided` it names a description
// (view_directory.h): `slot` is its granule, `base` an address of the owner's that means nothing.
struct remote_handle {
    std::uint32_t slot;
    std::uint16_t event_slot; // no_event_slot, or where the event to wait for is
    share_kind kind;
    std::uint8_t flags; // of kind `host`: no_single_copy, page_locked; else asks_for_answer
    std::uint64_t generation;
    std::uint64_t base;
    std::uint64_t len_bytes;
};
static_assert(sizeof(remote_handle) == 32);
// Does [address, address + len_bytes) lie in memory that has a base and a length? Both may be a
// peer's word, so nothing here wraps around.
template <typename Memory>
constexpr bool covers(const Memory &memory, std::uint64_t address, std::uint64_t len_bytes)
{
    return address >= memory.base && len_bytes <= memory.len_bytes &&
           address - memory.base <= memory.len_bytes - len_bytes;
}
inline constexpr std::uint16_t no_event_slot = 0xffffU;
inline constexpr std::uint8_t no_single_copy = 1; // the reader has refused or cannot
// The program has page-locked the memory, and its owner would copy it into memory of the reader.
inline constexpr std::uint8_t page_locked = 2;
// With an export: the importer is to say whether it can map it, as it could not before.
inline constexpr std::uint8_t asks_for_answer = 4;
inline constexpr std::uint32_t no_export_slot = 0xffffffffU;

struct ipc_message {
    ipc_operation operation;
    refuse_reason reason; // with a refuse, and an ack about memory that cannot be mapped
    std::uint8_t reserved[6];
    remote_handle handle; // with an ack that has a reason, and what is about descriptors
};
static_assert(sizeof(ipc_message) == 40);

// A ring of pieces that its owner lends to a sender (shm/stream_ring.h). This part of it lies in
// the owner's segment, at a page. The bytes of the pieces lie in slots of one length, one for each
// piece, at stream_slots_offset behind its beginning or in memory of a device.
inline constexpr std::uint32_t most_stream_pieces = 128;
enum class stream_answer : std::uint32_t {
    bytes = 0,       // the next ones of the range
    skipped = 1,     // none: the copy has failed, and `ended` follows
    ended = 2,       // none, and no more of this range will come
    written = 3,     // what is before `offset` is in the target that the message has named
    unreachable = 4, // as `ended`: the sender cannot reach the memory of the ring, or the target
};
struct alignas(cache_line_bytes) stream_piece {
    std::atomic<std::uint64_t> sequence; // writer of all: the sender; one more than its number
    std::uint64_t offset;                // of the first byte in the range
    std::uint32_t bytes;
    std::uint32_t want;
    stream_answer answer;
    std::uint8_t reserved[36];
};
static_assert(sizeof(stream_piece) == cache_line_bytes);
// Ranges that are wanted of a sender through one ring, and which it has not answered to their end.
inline constexpr std::uint32_t stream_wants = 256;
struct alignas(page_bytes) stream_ring {
    std::atomic<std::uint64_t> released; // writer: the owner
    // Writer: the owner. How many bytes of a range, from its beginning, are still wanted, by the
    // number of its message: what is behind them has come in another way. Never becomes more.
    alignas(cache_line_bytes) std::atomic<std::uint64_t> wanted_bytes[stream_wants];
    // Writer: the sender, once it has the message. How much of a range it has begun to copy.
    alignas(cache_line_bytes) std::atomic<std::uint64_t> begun_bytes[stream_wants];
    alignas(cache_line_bytes) stream_piece pieces[most_stream_pieces];
};
// In the middle of a page. Processors of AMD's copy with REP MOVSB, which glibc before 2.40 takes
// for 2 KiB and more, at a twentieth of their speed when the destination lies up to 31 bytes
// further on in its page than the source (glibc bug 30994), and most long buffers begin at a page
// or 16 bytes behind it.
inline constexpr std::size_t stream_slots_offset = sizeof(stream_ring) + page_bytes / 2;

// A receiver wants a range of memory to be streamed to it. The ranges that it wants through one
// ring come in the order of these messages, and every one is answered in the ring: by all of its
// bytes in order, or by some of them and `ended` (or `unreachable`), or by `written`.
enum class stream_memory_use : std::uint32_t {
    none = 0,
    slots = 1,  // the bytes of the ring's pieces lie there
    target = 2, // the sender may copy the range there by itself, which no piece is for then
};
struct stream_message {
    remote_handle handle;  // the source: not an export, but when the target is host memory
    std::uint64_t address; // where the range begins in it
    std::uint64_t len_bytes;
    std::uint64_t sequence;   // of the first piece, in a ring that has been empty; else not used
    std::uint32_t granule;    // of the ring in the receiver's segment
    std::uint32_t want;       // number of this message; counts up, and wraps
    std::uint32_t slot_bytes; // of each piece
    std::uint32_t pieces;     // that the ring has, most_stream_pieces at most
    stream_memory_use uses;   // of the stream_memory behind this; none: there is none
    std::uint32_t reserved;
};
static_assert(sizeof(stream_message) == 80);
// Memory of the receiver, and an address of the receiver in it: an export, or, of kind `host`,
// memory that the sender can reach by single copies.
struct stream_memory {
    remote_handle handle;
    std::uint64_t address;
};
static_assert(sizeof(stream_memory) == 40);

inline constexpr std::size_t ipc_handle_bytes = 64; // CU_IPC_HANDLE_SIZE of every CUDA version
inline constexpr std::size_t device_uuid_bytes = 16;

// An export: memory of the owner that peers may map. Writer: the owner. The fields belong to
// `generation`; it is 0 while they are being written. A reader takes the generation, the
// fields, and the generation again.
struct alignas(cache_line_bytes) export_slot {
    std::atomic<std::uint64_t> generation;
    std::uint64_t base;
    std::uint64_t len_bytes;
    std::uint8_t device_uuid[device_uuid_bytes];
    // Of kind `legacy` a CUipcMemHandle, of kind `pool` a CUmemPoolPtrExportData, else unused.
    std::uint8_t memory_handle[ipc_handle_bytes];
    share_kind kind; // one of those that are exported
    std::uint8_t reserved[3];
    // Of kind `legacy`: the slot of a few bytes of the same context, which live as long as it does;
    // no_export_slot: there are none.
    std::uint32_t anchor_slot;
    std::uint8_t also_reserved[16];
};
static_assert(sizeof(export_slot) == 2 * cache_line_bytes);

// An interprocess event of one of the owner's contexts. Writer: the owner, once.
struct alignas(cache_line_bytes) event_slot {
    std::atomic<std::uint32_t> ready;
    std::uint8_t reserved[60];
    std::uint8_t event_handle[ipc_handle_bytes]; // CUipcEventHandle
};
static_assert(sizeof(event_slot) == 2 * cache_line_bytes);

// What the members of a group have in common: a communicator's extended context id.
struct board_key {
    std::uint64_t base = 0; // a communicator
    std::uint64_t sub = 0;
    std::uint32_t call = 0; // of its persistent calls; 0: all others

    bool operator==(const board_key &) const = default;
};

enum class board_standing : std::uint32_t {
    none = 0,     // nobody's
    meets = 1,    // a group's
    declines = 2, // of a group in which its owner meets nobody
};

// Meetings of one group that a process can be in at a time.
inline constexpr std::size_t board_places = 8;
inline constexpr std::size_t board_said_bytes = 7 * cache_line_bytes;

// Writer: the owner. The word is a board_word; what is said has a line for itself, as others look
// at the word all the time.
struct board_place {
    alignas(cache_line_bytes) std::atomic<std::uint64_t> word;
    alignas(cache_line_bytes) unsigned char said[board_said_bytes];
};
static_assert(sizeof(board_place) == 8 * cache_line_bytes);

// See shm/board.h. Writer: the owner.
struct board {
    std::atomic<std::uint32_t> turn; // odd while the rest of this line is being written
    std::atomic<std::uint32_t> next; // granule of the one that was made before; 0: none
    std::atomic<std::uint64_t> key_base;
    std::atomic<std::uint64_t> key_sub;
    std::atomic<std::uint32_t> key_call;
    std::atomic<board_standing> standing;
    board_place places[board_places];
};
static_assert(sizeof(board) == (1 + 8 * board_places) * cache_line_bytes);

// Copies within a device that a process makes for another one (delegated_copies.h).

// A device that the board's owner submits work to by itself, and not through MPS. Writer: the
// owner.
struct used_device {
    std::atomic<std::uint32_t> in_use; // 0: it is none, or not any more
    std::uint8_t uuid[device_uuid_bytes];
    std::uint8_t reserved[12];
};
static_assert(sizeof(used_device) == cache_line_bytes / 2);

// How far such a copy is.
enum class delegation_stage : std::uint32_t {
    none = 0,
    offered = 1,   // writer: the requester; or the submitter, which gives it back
    withdrawn = 2, // writer: the requester, after `offered`: it makes the copy itself
    taken = 3,     // writer: the submitter, after `offered`, and of what follows
    refused = 4,   // it cannot, and has written nothing
    launched = 5,  // it is done when the flag of the launch says so
    failed = 6,    // the target may hold anything, and is not written any more
};
struct alignas(cache_line_bytes) delegation_slot {
    std::atomic<std::uint32_t> word; // a delegation_word
    // Writer: the submitter, before `launched`. Its device writes the flag, a 32-bit word in the
    // submitter's segment, which counts: it is done once the flag has this value, or a later one.
    std::uint32_t flag_granule;
    std::uint32_t flag_value;
};
inline constexpr std::uint32_t delegation_slots = 128;
struct alignas(cache_line_bytes) delegation_board {
    used_device devices[16];
    delegation_slot slots[delegation_slots]; // of copies that the owner has asked for
};

// Memory of some process, in an export of its own; `address` is one there.
struct delegated_memory {
    segment_identity owner;
    remote_handle handle;
    std::uint64_t address;
};
static_assert(sizeof(delegated_memory) == 56);

// The receiver is to copy from one memory to the other, on the device that both are on.
struct delegated_copy {
    delegated_memory source;
    delegated_memory target;
    std::uint64_t len_bytes;
    std::uint8_t device_uuid[device_uuid_bytes];
    std::uint32_t granule; // of the sender's board, and there
    std::uint32_t slot;
    std::uint32_t turn; // of the slot
    std::uint32_t reserved;
};
static_assert(sizeof(delegated_copy) == 152);

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

} // namespace gpusm

#endif
