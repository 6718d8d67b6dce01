// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// choose.h: in which mode a message goes. One table, `mode_rows`, is read from above: the first row
// whose memories, length and facts are those of the message gives the mode; where there is none the
// message goes in fragments. docs/architecture.md shows the same table.
//
// It is asked three times for a message. Its sender, who does not know the receiver's buffer, asks
// whether to offer it. The receiver, who has the handle that was offered, asks for the mode. And
// where the receiver wants bytes streamed the sender asks for the mode of what it is to send.
// When something turns out to be impossible (the driver refuses, there is no ring) that fact is
// set, and the caller asks again.
//
// Facts may cost a call of the driver, so the table asks for one when a row depends on it, cheap
// ones first, and each once.
#ifndef GPUSM_CHOOSE_H
#define GPUSM_CHOOSE_H

#include "opal/mca/common/gpusm/mode.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>

namespace gpusm {

// What the source is, by the handle that was offered.
constexpr memory_kind memory_named(share_kind kind)
{
    return share_kind::host == kind     ? memory_kind::host
           : share_kind::staged == kind ? memory_kind::unmappable
                                        : memory_kind::mappable;
}

// --- lengths
//
// bench/ has the programs by which they were measured, docs/performance.md the figures.

// Host messages, where two copies are faster: of one of that length ob1 sends the first half with
// its request, and the second half in one more fragment, which is copied in while the first one is
// copied out.
inline constexpr std::uint64_t two_fragments_bytes = 16 * 1024;
// Shorter messages out of memory that the peer cannot map go in fragments: a stream takes a message
// and a copy on either side, whatever its length.
inline constexpr std::uint64_t staged_least_bytes = 16 * 1024;
// Shortest host message of which the sender makes a single copy of a part: a shorter one is there
// before the request and the further system calls have paid.
inline constexpr std::uint64_t both_copy_least_bytes = 256 * 1024;
// Shorter messages are streamed: what comes before a copy into the receiver's device memory (a
// question to the driver, an export, a mapping) is for longer ones.
inline constexpr std::uint64_t pushed_least_bytes = 32 * 1024;
// Shorter messages between host and device memory are copied by one side alone: what the other one
// would take does not pay for the message that it costs.
inline constexpr std::uint64_t shared_least_bytes = 128 * 1024;
// The driver takes a microsecond to say whether a buffer is page-locked; the processor copies so
// many bytes in less.
inline constexpr std::uint64_t not_worth_asking_bytes = 8 * 1024;
// The memory of a ring takes as long to make as so many bytes to copy, so host messages are
// streamed once so many have come from a peer: the default where two copies are faster.
inline constexpr std::uint64_t warm_ring_bytes = 64 * 1024 * 1024;

// How long a part is of a message of which both sides copy some.
struct part_bytes {
    std::uint64_t least; // as each part has its price
    std::uint64_t most;  // as what one side has begun cannot be the other's
};
// Host memory: a system call each.
inline constexpr part_bytes both_copy_part = {64 * 1024, 256 * 1024};
// Of host memory that the receiver reads for its device: a system call and a copy of the device.
inline constexpr part_bytes pulled_part = {64 * 1024, 256 * 1024};
// Of device memory that either side copies into the receiver's host memory: the same.
inline constexpr part_bytes shared_part = {32 * 1024, 128 * 1024};

// Of device memory with gaps: the receiver's kernel reads the blocks where they lie. Over NVLink
// blocks that are shorter than two sectors of their caches (of 32 bytes) take as
// long as whole ones, so the sender packs them first where that outweighs its launch.
inline constexpr std::uint64_t described_block_bytes = 64;
inline constexpr std::uint64_t described_most_bytes = 4 * 1024 * 1024;

// `block_bytes`: of the innermost loop; 0: the blocks are listed, in the sender's memory only.
constexpr bool offers_blocks(std::uint64_t block_bytes, std::uint64_t len_bytes)
{
    return block_bytes >= described_block_bytes ||
           (0 != block_bytes && len_bytes <= described_most_bytes);
}

// --- the table

struct memory_set {
    std::uint8_t bits = 0;

    constexpr memory_set(std::initializer_list<memory_kind> all)
    {
        for (const memory_kind each : all) {
            bits |= static_cast<std::uint8_t>(1U << static_cast<unsigned>(each));
        }
    }
    constexpr bool has(memory_kind each) const
    {
        return 0 != (bits >> static_cast<unsigned>(each) & 1U);
    }
};
inline constexpr memory_set host_memory = {memory_kind::host};
inline constexpr memory_set device_memory = {memory_kind::mappable, memory_kind::unmappable};
inline constexpr memory_set any_memory = {memory_kind::host, memory_kind::mappable,
                                          memory_kind::unmappable};
inline constexpr memory_set mappable_memory = {memory_kind::mappable};
inline constexpr memory_set unmappable_memory = {memory_kind::unmappable};
inline constexpr memory_set unknown_memory = {memory_kind::unknown};

struct length_range {
    std::uint64_t least_bytes;
    std::uint64_t most_bytes;

    constexpr bool has(std::uint64_t bytes) const
    {
        return bytes >= least_bytes && bytes <= most_bytes;
    }
};
inline constexpr length_range any_length = {0, UINT64_MAX};
inline constexpr length_range not_empty = {1, UINT64_MAX};
constexpr length_range from_bytes(std::uint64_t bytes)
{
    return {bytes, UINT64_MAX};
}
constexpr length_range above_bytes(std::uint64_t bytes)
{
    return from_bytes(bytes + 1);
}
constexpr length_range up_to_bytes(std::uint64_t bytes)
{
    return {0, bytes};
}

struct mode_row {
    memory_set source;
    memory_set target;
    length_range length;
    fact_set needs;
    fact_set lacks;
    mode gives;
};

// clang-format off
inline constexpr mode_row mode_rows[] = {
    // Between host memories.
    {host_memory, host_memory, any_length,
     {fact::readable, fact::rings, fact::two_copies_are_faster, fact::ring_is_warm},
     {fact::oversubscribed}, mode::host_ring},
    {host_memory, host_memory, from_bytes(both_copy_least_bytes),
     {fact::readable, fact::rings, fact::sender_writes},
     {fact::oversubscribed, fact::sends_too}, mode::both_copy},
    {host_memory, host_memory, any_length, {fact::readable}, {}, mode::single_copy},
    // To a peer whose buffer may be anything.
    {host_memory, unknown_memory, up_to_bytes(two_fragments_bytes),
     {fact::two_copies_are_faster}, {fact::uses_device}, mode::fragments},
    {host_memory, unknown_memory, any_length, {}, {}, mode::offered},
    {mappable_memory, unknown_memory, any_length, {fact::peer_fetches}, {}, mode::offered},
    {unmappable_memory, unknown_memory, from_bytes(staged_least_bytes),
     {fact::peer_fetches}, {}, mode::offered},
    // Device memory that the receiver maps.
    {mappable_memory, mappable_memory, not_empty, {fact::delegates}, {fact::event},
     mode::delegated},
    {mappable_memory, device_memory, any_length, {}, {}, mode::mapped},
    {mappable_memory, host_memory, above_bytes(not_worth_asking_bytes),
     {fact::page_locked_target}, {}, mode::mapped},
    {mappable_memory, host_memory, from_bytes(shared_least_bytes),
     {fact::single_copies, fact::sender_writes, fact::rings, fact::bounce_copies},
     {fact::event}, mode::shared},
    {mappable_memory, host_memory, not_empty, {fact::bounce_copies}, {}, mode::bounced},
    {mappable_memory, host_memory, any_length, {}, {}, mode::mapped},
    // Host memory for a device. Where no ring is free, or too much is wanted of the sender already,
    // the receiver reads it by itself: a sender that is outside MPI gives no ring back.
    {host_memory, device_memory, not_empty,
     {fact::readable, fact::single_copies, fact::bounce_copies}, {fact::rings}, mode::bounced},
    {host_memory, mappable_memory, from_bytes(pushed_least_bytes),
     {fact::pushes, fact::page_locked_source}, {}, mode::pushed},
    {host_memory, device_memory, from_bytes(shared_least_bytes),
     {fact::readable, fact::single_copies, fact::bounce_copies},
     {fact::page_locked_source}, mode::pulled},
    {host_memory, device_memory, any_length, {}, {}, mode::staged_ring},
    // Device memory that the receiver cannot map.
    {unmappable_memory, device_memory, any_length, {fact::device_rings}, {}, mode::device_ring},
    {unmappable_memory, any_memory, any_length, {}, {}, mode::staged_ring},
};

// Messages to oneself.
inline constexpr mode_row self_rows[] = {
    {mappable_memory, mappable_memory, not_empty, {fact::delegates}, {}, mode::delegated},
    {device_memory, host_memory, above_bytes(not_worth_asking_bytes),
     {fact::page_locked_target}, {}, mode::self},
    {device_memory, host_memory, not_empty, {fact::bounce_copies}, {}, mode::bounced},
    {any_memory, any_memory, any_length, {}, {}, mode::self},
};
// clang-format on

// --- the function

// A message's memories are known, so of each pair of them the table's rows are kept apart, and
// where the compiler knows them too it leaves out all others.
struct row_list {
    std::array<mode_row, 8> rows;
    std::size_t count;
};
inline constexpr std::size_t memory_kinds = static_cast<std::size_t>(memory_kind::unknown) + 1;
static_assert((host_memory.bits | device_memory.bits) == any_memory.bits &&
                  (any_memory.bits | unknown_memory.bits) == (1U << memory_kinds) - 1,
              "a kind is in none of the sets, or is not before `unknown`");
using row_lists = std::array<row_list, memory_kinds * memory_kinds>;

constexpr std::size_t index_of(memory_kind source, memory_kind target)
{
    return static_cast<std::size_t>(source) * memory_kinds + static_cast<std::size_t>(target);
}

// A pair that has more rows than a list can hold does not compile.
template <std::size_t count> consteval row_lists by_memories(const mode_row (&all)[count])
{
    row_lists made{};
    for (const mode_row &row : all) {
        for (std::size_t i = 0; i < made.size(); ++i) {
            if (row.source.has(static_cast<memory_kind>(i / memory_kinds)) &&
                row.target.has(static_cast<memory_kind>(i % memory_kinds))) {
                made[i].rows.at(made[i].count++) = row;
            }
        }
    }
    return made;
}
inline constexpr row_lists mode_row_lists = by_memories(mode_rows);
inline constexpr row_lists self_row_lists = by_memories(self_rows);

// Whether a row holds of which the length does, and which needs and lacks those facts. `open`:
// those of them that may have to be asked for.
template <std::uint32_t needs, std::uint32_t lacks, std::uint32_t open, typename Answer>
[[gnu::always_inline]] constexpr bool holds(facts *known, Answer &answer)
{
    if (0 != ((needs & known->no.bits) | (lacks & known->yes.bits))) {
        return false;
    }
    if constexpr (0 == open) {
        return true;
    } else {
        constexpr std::uint32_t first = open & -open;
        if (0 == ((known->yes.bits | known->no.bits) & first)) {
            constexpr auto asked = static_cast<fact>(std::countr_zero(first));
            known->set(asked, answer(asked));
        }
        return holds<needs, lacks, open - first>(known, answer);
    }
}

// The rows of one pair of memories, each with its own facts and lengths in the code: short enough
// for every message.
template <bool own_process, std::size_t pair, std::size_t at = 0, typename Answer>
[[gnu::always_inline]] constexpr mode choose_from(facts *known, Answer &answer)
{
    constexpr const row_list &list = (own_process ? self_row_lists : mode_row_lists)[pair];
    if constexpr (at == list.count) {
        return mode::fragments;
    } else {
        constexpr const mode_row &row = list.rows[at];
        constexpr std::uint32_t asks = row.needs.bits | row.lacks.bits;
        return row.length.has(known->len_bytes) &&
                       holds<row.needs.bits, row.lacks.bits, asks>(known, answer)
                   ? row.gives
                   : choose_from<own_process, pair, at + 1>(known, answer);
    }
}

template <bool own_process, typename Answer, std::size_t... pairs>
[[gnu::always_inline]] constexpr mode choose_among(std::index_sequence<pairs...>, facts *known,
                                                   Answer &answer)
{
    const std::size_t is = index_of(known->source, known->target);
    mode found = mode::fragments;
    (void)(... ||
           (is == pairs && ((found = choose_from<own_process, pairs>(known, answer)), true)));
    return found;
}

// `answer(fact)` says whether it is so. It is called for facts on which the mode depends and which
// are not known yet; *known keeps what it says.
template <typename Answer> [[gnu::always_inline]] constexpr mode choose(facts *known, Answer answer)
{
    constexpr auto pairs = std::make_index_sequence<memory_kinds * memory_kinds>{};
    return known->own_process ? choose_among<true>(pairs, known, answer)
                              : choose_among<false>(pairs, known, answer);
}

// The same of what is known: what is not is not so.
constexpr mode choose(facts known)
{
    return choose(&known, [](fact) { return false; });
}

} // namespace gpusm

#endif
