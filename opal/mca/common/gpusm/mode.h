// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// mode.h: the modes in which a message can go, and the facts on which that depends, each in words
// for the documentation and the user. Which fact makes which mode: choose.h.
#ifndef GPUSM_MODE_H
#define GPUSM_MODE_H

#include <cstdint>
#include <initializer_list>

namespace gpusm {

// --- modes

enum class mode : std::uint8_t {
    fragments,
    offered,
    single_copy,
    both_copy,
    host_ring,
    mapped,
    delegated,
    bounced,
    shared,
    pushed,
    pulled,
    device_ring,
    staged_ring,
    self,
};

struct mode_description {
    mode described;
    const char *name;
    const char *who_copies;
};
inline constexpr mode_description modes[] = {
    {mode::fragments, "fragments", "both processors, through fragments of shared memory"},
    {mode::offered, "offered", "not known yet: the receiver chooses"},
    {mode::single_copy, "single_copy", "the receiver's processor, out of the sender's memory"},
    {mode::both_copy, "both_copy", "both processors, each a part, between the two memories"},
    {mode::host_ring, "host_ring", "both processors, through a ring in host memory"},
    {mode::mapped, "mapped", "the receiver's copy engine, out of the sender's memory"},
    {mode::delegated, "delegated",
     "a kernel of the process that submits for the device, between the two memories"},
    {mode::bounced, "bounced",
     "the receiver's copy engine and processor, one after the other through registered memory"},
    {mode::shared, "shared",
     "as bounced, from the end; from the front the sender's copy engine and processor"},
    {mode::pushed, "pushed", "the sender's copy engine, into the receiver's memory"},
    {mode::pulled, "pulled",
     "as staged_ring, from the front; from the end the receiver's processor and copy engine"},
    {mode::device_ring, "device_ring",
     "both copy engines, through a ring on the receiver's device"},
    {mode::staged_ring, "staged_ring",
     "through a ring in host memory: copy engines between it and devices, else processors"},
    {mode::self, "self", "the own processor or copy engine, once"},
};

constexpr const char *to_string(mode named)
{
    for (const mode_description &each : modes) {
        if (each.described == named) {
            return each.name;
        }
    }
    return "?";
}

// --- facts

// What an end of the message is. A buffer on a device counts as mappable until its export is
// refused.
enum class memory_kind : std::uint8_t {
    host,       // page-locked or not is a fact of its own
    mappable,   // device memory that another process can map
    unmappable, // device memory that it cannot
    unknown,    // the receiver's buffer, as its sender sees it
};

// In the order in which they are asked for: what costs a call of the driver comes last.
enum class fact : std::uint8_t {
    peer_fetches,
    uses_device,
    two_copies_are_faster,
    oversubscribed,
    ring_is_warm,
    readable,
    sender_writes,
    sends_too,
    single_copies,
    rings,
    event,
    delegates,
    pushes,
    page_locked_source,
    page_locked_target,
    device_rings,
    bounce_copies,
    count
};

struct fact_description {
    fact described;
    const char *if_so;
    const char *if_not; // null: no row asks for that
};
inline constexpr fact_description fact_descriptions[] = {
    // The handshake has not been refused, and this process has a GPU side.
    {fact::peer_fetches, "the peer fetches device memory", nullptr},
    // If it does the receiver's buffer may lie on a device, too.
    {fact::uses_device, "the sender uses a device", "the sender uses no device"},
    // Than a single copy: AMD processors, and both processes at one L3 cache.
    {fact::two_copies_are_faster, "two copies are faster than one", nullptr},
    // Then only one of the two processes is likely to run.
    {fact::oversubscribed, "oversubscribed", "not oversubscribed"},
    // btl_gpusm_stream_host_after bytes have come from the peer.
    {fact::ring_is_warm, "enough has come for a ring's memory to pay", nullptr},
    // The handle says so: the receiver has not refused.
    {fact::readable, "single copies of the sender's memory", nullptr},
    // By single copies into the receiver's memory.
    {fact::sender_writes, "the sender writes a part", nullptr},
    // Then both processors are busy already.
    {fact::sends_too, "the receiver sends host messages", "the receiver sends no host messages"},
    // btl_gpusm_use_single_copy, and a component of smsc that needs no registration.
    {fact::single_copies, "this process makes single copies", nullptr},
    // And memory for the request.
    {fact::rings, "a ring is free", "no ring is free"},
    // btl_gpusm_use_cuda_events: only the receiver waits for it.
    {fact::event, "an event to wait for", "no event to wait for"},
    // Both memories are on one device, which is used by several processes without MPS, and another
    // one than the receiver copies for all (delegated_copies.h).
    {fact::delegates, "another process submits for the device", nullptr},
    // btl_gpusm_use_direct_host, and writing there has not failed lately.
    {fact::pushes, "the sender writes device memory", nullptr},
    {fact::page_locked_source, "page-locked source", "source not page-locked"},
    {fact::page_locked_target, "page-locked target", nullptr},
    // btl_gpusm_staging_device_bytes, and the sender can map one.
    {fact::device_rings, "a ring on the device", nullptr},
    // Registered memory of this process's for them.
    {fact::bounce_copies, "registered memory", nullptr},
};

struct fact_set {
    std::uint32_t bits = 0;

    constexpr fact_set() = default;
    constexpr fact_set(std::initializer_list<fact> all)
    {
        for (const fact each : all) {
            add(each);
        }
    }
    constexpr void add(fact each) { bits |= 1U << static_cast<unsigned>(each); }
    constexpr void remove(fact each) { bits &= ~(1U << static_cast<unsigned>(each)); }
    constexpr bool has(fact each) const { return 0 != (bits >> static_cast<unsigned>(each) & 1U); }
};
static_assert(static_cast<unsigned>(fact::count) <= 32);

// All that a mode depends on.
struct facts {
    memory_kind source;
    memory_kind target;
    std::uint64_t len_bytes;
    bool own_process = false; // the message is one to oneself
    fact_set yes{};           // what has been asked so far
    fact_set no{};

    constexpr void set(fact which, bool so)
    {
        (so ? yes : no).add(which);
        (so ? no : yes).remove(which);
    }
    // The same message, of which nothing has been asked.
    constexpr facts unasked() const { return {source, target, len_bytes, own_process}; }
};

} // namespace gpusm

#endif
