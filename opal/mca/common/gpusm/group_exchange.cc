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

static_assert(exchange_most_ranks <= gather_few_copies && exchange_most_bytes <= gather_most_len);

// What each process tells the others. Read as a peer's word.
struct exchange_told {
    memory_told memory; // of what it sends and receives
    exchange_kind kind;
    std::uint32_t root;
    std::uint32_t on_device; // not 0: it has device memory, though `memory` may say host
    remote_handle source_in;
    std::uint64_t source[exchange_most_ranks]; // by rank: address of what is for that one
    std::uint32_t bytes[exchange_most_ranks];
};
static_assert(sizeof(exchange_told) <= board_said_bytes &&
              std::is_trivially_copyable_v<exchange_told>);

} // namespace

struct group_exchange::work : group_work {
    work(gpu_side *side, std::size_t ranks) : group_work(side), told(ranks), sources(ranks)
    {
        copies.reserve(ranks);
    }

    // Fills in what of *out is about memory. Anything but `ok`: others cannot map it.
    status describe(const exchange_call &call, std::size_t rank, exchange_told *out);

    std::vector<exchange_told> told; // by rank, as what follows
    std::vector<their_memory> sources;
    std::vector<gather_copy> copies; // of the members before `mapped`
    std::size_t mapped = 0;
};

status group_exchange::work::describe(const exchange_call &call, std::size_t rank,
                                      exchange_told *out)
{
    std::uint64_t received_bytes = 0;
    for (std::size_t i = 0; i < told.size(); ++i) {
        const exchange_block &sent = call.sends[i];
        received_bytes += call.receives[i].bytes;
        if (std::max(received_bytes, sent.bytes) > exchange_most_bytes) {
            return status::unsupported;
        }
        out->source[i] = address_of(call.send) + static_cast<std::uint64_t>(sent.offset);
        out->bytes[i] = static_cast<std::uint32_t>(sent.bytes);
    }
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
    exchange_blocks others_read = call.sends;
    others_read[rank] = {};
    const exchange_block offered = span_of(others_read);
    if (status::ok == s && 0 != offered.bytes) {
        s = offer(static_cast<const unsigned char *>(call.send) + offered.offset, offered.bytes,
                  &out->source_in);
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

bool group_exchange::tell()
{
    exchange_told &mine = work_->told[rank()];
    mine.memory = memory_told::host;
    mine.kind = call_.kind;
    mine.root = call_.root;
    mine.on_device = on_device_ ? 1 : 0;
    const status s = call_.can_be ? work_->describe(call_, rank(), &mine) : status::unsupported;
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
    if (!has_any(call_.receives)) {
        return status::ok;
    }
    const std::lock_guard guard(its.side()->lock);
    for (; its.mapped < ranks(); ++its.mapped) {
        const std::size_t i = its.mapped;
        const std::uint64_t source = its.told[i].source[rank()];
        const std::uint32_t bytes = its.told[i].bytes[rank()];
        if (0 == bytes) {
            continue;
        }
        if (i == rank()) {
            its.sources[i].here = source;
        } else if (const status s =
                       its.map(member(i), its.told[i].source_in, source, bytes, &its.sources[i]);
                   status::ok != s) {
            return s;
        }
        its.copies.push_back(
            {address_of(call_.receive) + static_cast<std::uint64_t>(call_.receives[i].offset),
             its.sources[i].here, bytes, 0});
    }
    return its.ready(its.side()->gatherers.of(*its.on()));
}

status group_exchange::carry_out()
{
    work &its = *work_;
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
    work_->release({&work_->sources});
}

} // namespace gpusm
