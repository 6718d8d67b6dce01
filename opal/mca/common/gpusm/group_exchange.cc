// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/group_exchange.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/group_work.h"
#include "opal/mca/common/gpusm/local_process.h"

#include <algorithm>
#include <mutex>
#include <span>
#include <type_traits>
#include <vector>

namespace gpusm {

namespace {

static_assert(exchange_most_ranks <= gather_most_copies && exchange_most_bytes <= gather_most_len);

// What each process tells the others. Read as a peer's word.
struct exchange_told {
    memory_told memory; // of what it sends and receives
    exchange_kind kind;
    std::uint32_t root;
    std::uint32_t on_device; // not 0: it has device memory, though `memory` may say host
    device_uuid device;      // where it is
    remote_handle source_in; // kind `none`: nobody else reads there
    remote_handle target_in; // likewise, writes
    std::uint64_t source[exchange_most_ranks]; // by rank: address of what is for that one
    std::uint64_t target[exchange_most_ranks]; // and of where what comes from it is to be
    std::uint32_t bytes[exchange_most_ranks];  // for that one
};
static_assert(sizeof(exchange_told) <= board_said_bytes &&
              std::is_trivially_copyable_v<exchange_told>);

std::uint64_t longest_of(const exchange_call &call)
{
    const auto longest = [](const exchange_blocks &of) {
        return std::max_element(
                   of.begin(), of.end(),
                   [](const auto &one, const auto &other) { return one.bytes < other.bytes; })
            ->bytes;
    };
    return std::max(longest(call.sends), longest(call.receives));
}

// Too long ones go by messages.
bool is_short(const exchange_call &call)
{
    return longest_of(call) <= exchange_most_bytes;
}

bool may_be_in_parts(const exchange_call &call, std::size_t ranks)
{
    return exchange_kind::bcast == call.kind && is_sent_in_parts(ranks, longest_of(call));
}

} // namespace

struct group_exchange::work : group_work {
    work(gpu_side *side, std::size_t ranks)
        : group_work(side), told(ranks), sources(ranks), targets(ranks)
    {
    }

    // Fills in what of *out is about memory. `for_others`: one rank may launch for others. Anything
    // but `ok`: others cannot map it.
    status describe(const exchange_call &call, std::size_t rank, bool for_others,
                    exchange_told *out);
    // The rank that launches for that one: itself, or the first on the same device. Kernels of
    // processes that share a device run one after the other, with a switch between them.
    std::size_t launcher_of(std::size_t rank) const;
    bool shares_a_device() const;
    // Of a bcast, are all addresses multiples of what the reduce kernel moves at once?
    bool is_aligned(std::size_t root) const;

    std::vector<exchange_told> told; // by rank, as what follows
    std::vector<their_memory> sources;
    std::vector<their_memory> targets;
    std::vector<gather_copy> copies; // of what is mapped so far
    reduction part{};                // of a bcast in parts; no target: nothing
    std::uint64_t scratch = 0;       // where what is sent has been copied to; 0: nowhere
};

// Also where this call is not for kernels.
bool group_exchange::work::shares_a_device() const
{
    for (auto one = told.begin(); one != told.end(); ++one) {
        const auto same = [&](const exchange_told &other) { return other.device == one->device; };
        if (device_uuid{} != one->device && std::any_of(one + 1, told.end(), same)) {
            return true;
        }
    }
    return false;
}

bool group_exchange::work::is_aligned(std::size_t root) const
{
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < told.size(); ++i) {
        bits |= i == root ? 0 : told[root].source[i] | told[i].target[root];
    }
    return 0 == bits % reduce_vector_bytes;
}

std::size_t group_exchange::work::launcher_of(std::size_t rank) const
{
    const auto is_here = [&](const exchange_told &each) {
        return memory_told::device == each.memory && each.device == told[rank].device;
    };
    const bool by_sender = is_copied_by_sender(told[rank].kind);
    const auto copies_of = [&](const exchange_told &each) {
        const auto is_some = [](std::uint64_t of) { return 0 != of; };
        return static_cast<std::size_t>(
            by_sender ? std::count_if(each.bytes, each.bytes + told.size(), is_some)
                      : std::count_if(each.target, each.target + told.size(), is_some));
    };
    const auto first = std::find_if(told.begin(), told.end(), is_here);
    std::size_t all_copies = 0;
    for (auto each = first; each != told.end(); ++each) {
        const std::size_t its_copies = is_here(*each) ? copies_of(*each) : 0;
        const remote_handle &its = by_sender ? each->source_in : each->target_in;
        all_copies += its_copies;
        if (each != first && 0 != its_copies && !names_export(its.kind)) {
            return rank; // as on all ranks
        }
    }
    return all_copies <= gather_most_copies ? static_cast<std::size_t>(first - told.begin()) : rank;
}

status group_exchange::work::describe(const exchange_call &call, std::size_t rank, bool for_others,
                                      exchange_told *out)
{
    const exchange_block sent = span_of(call.sends);
    const exchange_block received = span_of(call.receives);
    if (0 == sent.bytes && 0 == received.bytes) {
        out->memory = memory_told::nothing;
        return status::ok;
    }
    if (nullptr == side()) {
        return status::unsupported;
    }
    const std::lock_guard guard(side()->lock);
    status s = status::ok;
    if (0 != received.bytes) {
        s = find_device(call.receive, received.offset, received.bytes);
    }
    if (status::ok == s && 0 != sent.bytes) {
        s = find_device(call.send, sent.offset, sent.bytes);
    }
    if (status::ok == s) {
        out->device = on()->uuid;
    }
    if (!is_short(call)) {
        return status::unsupported;
    }
    // Of its copy, where there is one.
    const std::uint64_t send =
        0 == scratch ? address_of(call.send) : scratch - static_cast<std::uint64_t>(sent.offset);
    for (std::size_t i = 0; i < told.size(); ++i) {
        const exchange_block &sends = call.sends[i];
        const exchange_block &receives = call.receives[i];
        out->source[i] = send + static_cast<std::uint64_t>(sends.offset);
        out->target[i] = 0 == receives.bytes ? 0
                                             : address_of(call.receive) +
                                                   static_cast<std::uint64_t>(receives.offset);
        out->bytes[i] = static_cast<std::uint32_t>(sends.bytes);
    }
    // Who launches for this rank copies its own block, too.
    const auto touched_by_others = [&](exchange_blocks blocks) {
        blocks[rank] = for_others ? blocks[rank] : exchange_block{};
        return span_of(blocks);
    };
    const bool by_sender = is_copied_by_sender(call.kind);
    const exchange_block read = touched_by_others(call.sends);
    if (status::ok == s && 0 != read.bytes && (for_others || !by_sender)) {
        s = offer(reinterpret_cast<const void *>(send + static_cast<std::uint64_t>(read.offset)),
                  read.bytes, export_use::read, &out->source_in);
    }
    const exchange_block written = touched_by_others(call.receives);
    if (status::ok == s && 0 != written.bytes &&
        (for_others || by_sender || may_be_in_parts(call, told.size()))) {
        s = offer(static_cast<unsigned char *>(call.receive) + written.offset, written.bytes,
                  export_use::written, &out->target_in);
    }
    out->memory = status::ok == s ? memory_told::device : out->memory;
    return s;
}

group_exchange::group_exchange(local_process &process, process_group &group,
                               const exchange_call &call, bool (*ask)(const void *))
    : group_call(group), call_(call)
{
    // Both are asked about, as find_device() takes for granted.
    const bool sends = has_any(call.sends) && process.is_device_memory(call.send, ask);
    const bool receives = has_any(call.receives) && process.is_device_memory(call.receive, ask);
    on_device_ = sends || receives;
    work_ =
        std::make_unique<work>(on_device_ ? process.gpu() : process.gpu_if_made(), group.size());
}

group_exchange::~group_exchange() = default;

status group_exchange::prepare()
{
    const exchange_block sent = span_of(call_.sends);
    if (call_.in_place && call_.can_be && on_device_ && work_->side() != nullptr &&
        0 != sent.bytes && is_short(call_)) {
        preparing_ = work_->copy_to_scratch(call_.send, sent.offset, sent.bytes, &work_->scratch);
    }
    return preparing_;
}

bool group_exchange::tell()
{
    exchange_told &mine = work_->told[rank()];
    mine.memory = memory_told::host;
    mine.kind = call_.kind;
    mine.root = call_.root;
    mine.on_device = on_device_ ? 1 : 0;
    const status s = !call_.can_be ? status::unsupported
                     : status::ok != preparing_
                         ? preparing_
                         : work_->describe(call_, rank(), ranks_share_a_device(), &mine);
    if (status::ok != s && on_device_) {
        log_line(log_level::info, "a collective goes by messages: %s", to_string(s));
    }
    say(&mine, sizeof(mine));
    return on_device_;
}

bool group_exchange::hear(std::size_t from)
{
    exchange_told &told = work_->told[from];
    read(from, &told, sizeof(told));
    return 0 != told.on_device;
}

bool group_exchange::can_be()
{
    if (work_->shares_a_device()) {
        note_shared_device(); // in time for the next call
    }
    return std::all_of(work_->told.begin(), work_->told.end(), [&](const exchange_told &each) {
        return memory_told::host != each.memory && each.kind == call_.kind &&
               each.root == call_.root;
    });
}

// A rank that is sent another length than it expects declines, and messages tell the program.
status group_exchange::map()
{
    work &its = *work_;
    for (std::size_t i = 0; i < ranks(); ++i) {
        if (its.told[i].bytes[rank()] != call_.receives[i].bytes) {
            return status::unsupported;
        }
    }
    if (may_be_in_parts(call_, ranks()) && !its.shares_a_device() && its.is_aligned(call_.root)) {
        return map_part();
    }
    if (memory_told::device != its.told[rank()].memory || rank() != its.launcher_of(rank())) {
        return status::ok;
    }
    const std::lock_guard guard(its.side()->lock);
    its.copies.clear();
    for (std::size_t of = 0; of < ranks(); ++of) {
        if (memory_told::device == its.told[of].memory && rank() == its.launcher_of(of)) {
            if (const status s = map_for(of); status::ok != s) {
                return s;
            }
        }
    }
    return its.copies.empty() ? status::ok : its.ready(its.side()->gatherers.of(*its.on()));
}

// What that rank copies, with the rank behind it first: the kernel takes the copies in their order,
// and if all began with the same rank its links would carry what they can while others rest.
status group_exchange::map_for(std::size_t of)
{
    const bool by_sender = is_copied_by_sender(call_.kind);
    status s = status::ok;
    for (std::size_t distance = 1; status::ok == s && distance <= ranks(); ++distance) {
        const std::size_t other = (of + distance) % ranks();
        s = by_sender ? map_block(of, other) : map_block(other, of);
    }
    return s;
}

status group_exchange::map_block(std::size_t from, std::size_t to)
{
    work &its = *work_;
    const std::uint64_t source = its.told[from].source[to];
    const std::uint64_t target = its.told[to].target[from];
    const std::uint32_t bytes = its.told[from].bytes[to];
    if (0 == bytes) {
        return status::ok;
    }
    status s = status::ok;
    gather_copy copy{target, source, bytes, 0};
    if (from != rank()) {
        s = its.map(member(from), its.told[from].source_in, source, bytes, &its.sources[from]);
        copy.source = its.sources[from].here + (source - its.sources[from].there);
    }
    if (status::ok == s && to != rank()) {
        s = its.map(member(to), its.told[to].target_in, target, bytes, &its.targets[to]);
        copy.destination = its.targets[to].here + (target - its.targets[to].there);
    }
    if (status::ok == s) {
        its.copies.push_back(copy);
    }
    return s;
}

// Of a bcast, that this rank copies: the reduction of one source is a copy to several targets.
status group_exchange::map_part()
{
    constexpr std::uint64_t line_bytes = 128; // that the links carry at once
    work &its = *work_;
    const std::size_t root = call_.root;
    if (rank() == root) {
        return status::ok;
    }
    const std::uint64_t bytes = call_.receives[root].bytes;
    const std::uint64_t share = (bytes / (ranks() - 1) / line_bytes + 1) * line_bytes;
    const std::uint64_t before = (rank() + ranks() - root - 1) % ranks() * share;
    reduction part{};
    part.op = reduce_op::bor;
    part.type = reduce_type::uint8;
    part.elements = before < bytes ? std::min(share, bytes - before) : 0;
    if (0 == part.elements) {
        return status::ok;
    }
    const std::lock_guard guard(its.side()->lock);
    for (std::size_t i = 0; i < ranks(); ++i) {
        const exchange_told &says = its.told[i];
        const bool is_root = i == root;
        const std::uint64_t there = is_root ? says.source[rank()] : says.target[root];
        group_work::their_memory &its_memory = is_root ? its.sources[i] : its.targets[i];
        std::uint64_t here = there;
        if (i != rank()) {
            const status s = its.map(member(i), is_root ? says.source_in : says.target_in, there,
                                     bytes, &its_memory);
            if (status::ok != s) {
                return s;
            }
            here = its_memory.here;
        }
        (is_root ? part.sources[part.source_count++] : part.targets[part.target_count++]) =
            here + before;
    }
    its.part = part;
    return its.ready(its.side()->reducers.of(*its.on()));
}

status group_exchange::carry_out()
{
    work &its = *work_;
    if (0 != its.part.target_count) {
        return its.carry_out(its.side()->reducers,
                             [&](reducer &by, std::span<const CUevent> wait_for, completion *end) {
                                 return by.start(its.part, wait_for, end);
                             });
    }
    if (its.copies.empty()) {
        return status::ok;
    }
    return its.carry_out(its.side()->gatherers,
                         [&](gatherer &by, std::span<const CUevent> wait_for, completion *end) {
                             return by.start(its.copies, wait_for, end);
                         });
}

void group_exchange::release()
{
    work_->release({&work_->sources, &work_->targets});
}

} // namespace gpusm
