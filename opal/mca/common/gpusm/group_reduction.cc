// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/group_reduction.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/group_work.h"
#include "opal/mca/common/gpusm/local_process.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <span>
#include <type_traits>
#include <vector>

namespace gpusm {

namespace {

// What each process tells the others. Read as a peer's word.
struct reduction_told {
    memory_told memory;
    reduction_kind kind;
    reduce_op op;
    reduce_type type;
    device_uuid device;     // where the buffers are
    std::uint8_t on_device; // not 0: it is device memory, though `memory` may say host
    std::uint64_t elements;
    std::uint64_t root;
    std::uint64_t source; // address of the input in its process
    remote_handle source_in;
    std::uint64_t target; // of the result, where others write it
    remote_handle target_in;
};
static_assert(sizeof(reduction_told) <= board_said_bytes &&
              std::is_trivially_copyable_v<reduction_told>);

bool is_same_call(const reduction_told &one, const reduction_told &other)
{
    return one.kind == other.kind && one.op == other.op && one.type == other.type &&
           one.elements == other.elements && one.root == other.root;
}

} // namespace

struct group_reduction::work : group_work {
    work(gpu_side *side, std::size_t ranks)
        : group_work(side), told(ranks), sources(ranks), targets(ranks)
    {
    }

    // Fills in what of *out is about memory. Anything but `ok`: others cannot map it.
    status describe(const reduction_call &call, std::size_t rank, reduction_told *out);
    // The part of the reduction that is this rank's.
    reduction part(const reduction_call &call, std::size_t rank) const;

    std::vector<reduction_told> told; // by rank, as what follows
    std::vector<their_memory> sources;
    std::vector<their_memory> targets;
    std::size_t mapped = 0;    // of the members, those before that one
    std::uint64_t scratch = 0; // where the input has been copied to; 0: nowhere
};

status group_reduction::work::describe(const reduction_call &call, std::size_t rank,
                                       reduction_told *out)
{
    const std::uint64_t bytes = call.elements * element_bytes(call.type);
    const std::uint64_t input = 0 == scratch ? address_of(call.input) : scratch;
    status s = find_device(call.input, 0, bytes);
    if (status::ok == s) {
        s = offer(reinterpret_cast<const void *>(input), bytes, export_use::read, &out->source_in);
    }
    if (status::ok == s && call.receive != nullptr) {
        const std::uint64_t received = received_elements(call, rank, told.size());
        s = find_device(call.receive, 0, received * element_bytes(call.type));
    }
    if (status::ok == s && is_written_by_others(call, rank)) {
        s = offer(call.receive, bytes, export_use::written, &out->target_in);
    }
    out->source = input;
    out->target = address_of(call.receive);
    return s;
}

reduction group_reduction::work::part(const reduction_call &call, std::size_t rank) const
{
    const reduction_part its = part_of(call, rank, told.size());
    const std::uint64_t in_element = element_bytes(call.type);
    reduction what = {};
    what.op = call.op;
    what.type = call.type;
    what.elements = its.count;
    for (std::size_t i = 0; i < sources_of(call, rank, told.size()); ++i) {
        what.sources[what.source_count++] = sources[i].here + its.first * in_element;
    }
    for (std::size_t i = 0; i < told.size(); ++i) {
        if (i == rank ? is_written_at_home(call, rank) : is_written_by_others(call, i)) {
            what.targets[what.target_count++] = targets[i].here + its.to * in_element;
        }
    }
    return what;
}

group_reduction::group_reduction(local_process &process, process_group &group,
                                 const reduction_call &call, bool (*ask)(const void *))
    : group_call(group), call_(call)
{
    if (!receives(call, rank(), ranks())) {
        call_.receive = nullptr;
    }
    on_device_ = process.is_device_memory(call_.input, ask) &&
                 (nullptr == call_.receive || process.is_device_memory(call_.receive, ask));
    work_ =
        std::make_unique<work>(on_device_ ? process.gpu() : process.gpu_if_made(), group.size());
}

group_reduction::~group_reduction() = default;

status group_reduction::prepare()
{
    const std::uint64_t bytes = call_.elements * element_bytes(call_.type);
    if (call_.in_place && !can_be_in_place(call_.kind) && on_device_ && work_->side() != nullptr) {
        preparing_ = work_->copy_to_scratch(call_.input, 0, bytes, &work_->scratch);
    }
    return preparing_;
}

bool group_reduction::tell()
{
    reduction_told &mine = work_->told[rank()];
    mine.memory = memory_told::host;
    mine.kind = call_.kind;
    mine.op = call_.op;
    mine.type = call_.type;
    mine.elements = call_.elements;
    mine.root = call_.root;
    if (on_device_ && work_->side() != nullptr) {
        const std::lock_guard guard(work_->side()->lock);
        const status s =
            status::ok == preparing_ ? work_->describe(call_, rank(), &mine) : preparing_;
        if (status::ok == s) {
            mine.memory = memory_told::device;
            mine.device = work_->on()->uuid;
        } else {
            log_line(log_level::info, "a reduction goes through host memory: %s", to_string(s));
        }
    }
    mine.on_device = on_device_ ? 1 : 0;
    say(&mine, sizeof(mine));
    return on_device_;
}

bool group_reduction::hear(std::size_t from)
{
    reduction_told &told = work_->told[from];
    read(from, &told, sizeof(told));
    return 0 != told.on_device;
}

bool group_reduction::can_be()
{
    const std::vector<reduction_told> &all = work_->told;
    call_.workers = workers();
    return std::all_of(all.begin(), all.end(), [&](const reduction_told &each) {
        return memory_told::device == each.memory && is_same_call(each, all[rank()]);
    });
}

// The ranks whose buffers are on another device than those of all ranks before them, but perhaps
// the one on the root's device.
std::uint32_t group_reduction::workers() const
{
    std::uint32_t found = 0;
    std::uint32_t at_root = 0; // of these, the one on the root's device
    const auto &all = work_->told;
    for (auto each = all.begin(); each != all.end(); ++each) {
        const auto is_there_too = [&](const reduction_told &before) {
            return before.device == each->device;
        };
        if (std::none_of(all.begin(), each, is_there_too)) {
            const std::uint32_t bit = 1U << (each - all.begin());
            found |= bit;
            at_root |= each->device == all[call_.root].device ? bit : 0;
        }
    }
    return spares_root(call_) && std::popcount(found) > 2 ? found & ~at_root : found;
}

status group_reduction::map()
{
    work &its = *work_;
    const bool has_part = 0 != part_of(call_, rank(), ranks()).count;
    const std::uint64_t bytes = call_.elements * element_bytes(call_.type);
    const std::lock_guard guard(its.side()->lock);
    for (; has_part && its.mapped < ranks(); ++its.mapped) {
        const std::size_t i = its.mapped;
        const reduction_told &says = its.told[i];
        if (i == rank()) {
            its.sources[i].here = says.source;
            its.targets[i].here = says.target;
            continue;
        }
        status s = status::ok;
        if (i < sources_of(call_, rank(), ranks())) {
            s = its.map(member(i), says.source_in, says.source, bytes, &its.sources[i]);
        }
        if (status::ok == s && is_written_by_others(call_, i)) {
            s = its.map(member(i), says.target_in, says.target, bytes, &its.targets[i]);
        }
        if (status::ok != s) {
            return s;
        }
    }
    return its.ready(its.side()->reducers.of(*its.on()));
}

status group_reduction::carry_out()
{
    work &its = *work_;
    if (0 == part_of(call_, rank(), ranks()).count) {
        return status::ok;
    }
    return its.carry_out(its.side()->reducers,
                         [&](reducer &by, std::span<const CUevent> wait_for, completion *end) {
                             return by.start(its.part(call_, rank()), wait_for, end);
                         });
}

void group_reduction::release()
{
    work_->release({&work_->sources, &work_->targets});
}

} // namespace gpusm
