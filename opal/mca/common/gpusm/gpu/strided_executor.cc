// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/strided_executor.h"

#include "opal/mca/common/gpusm/gpu/strided.h"

#include <algorithm>

namespace gpusm {

namespace {

// A thread of this kernel has half as many loads in flight as one of the gather kernel, and they
// may be as short as a byte, so for the same share of a link more blocks are needed. Four times as
// many, 128 by default, are as fast as eight times as many (two H200, blocks of 8 B to 4 KiB).
// Small copies take fewer: a block for each chunk.
unsigned blocks_for(std::uint32_t kernel_blocks)
{
    constexpr std::uint32_t most_blocks = 1U << 16;
    return 4 * std::clamp(kernel_blocks, std::uint32_t{1}, most_blocks);
}

// For copy_now(), behind those that copies of requests use.
constexpr std::uint32_t own_stream = kernel_streams;
constexpr std::uint32_t own_slot = strided_slots - 1;
static_assert(copy_limits{}.depth <= own_slot);

} // namespace

strided_executor::strided_executor(const driver_api &driver, const device &on,
                                   const copy_limits &limits)
    : driver_(driver), kernel_(driver, blocks_for(limits.kernel_blocks)),
      launches_(driver, on, &kernel_, kernel_streams + 1, limits, "copies with gaps")
{
    copies_.reserve(strided_most_copies);
}

start_answer strided_executor::start(std::uint32_t turn, copy_list *list, copy_list *failed,
                                     completion *end)
{
    if (!launches_.is_ready()) {
        return start_answer::failed;
    }
    turn_ = turn;
    launches_.prepare(copy_way::strided, turn, list->first->within_device, end);
    copies_.clear();
    copy_list all = list->take_all();
    while (copy_request *each = all.take_first()) {
        const bool can_be_made =
            strided_is_valid(*each->strided) && waits(end->stream, each->wait_for);
        (can_be_made ? list : failed)->append(each);
        if (can_be_made) {
            copies_.push_back(each->strided);
        }
    }
    if (list->empty()) {
        return start_answer::failed;
    }
    const CUresult result =
        kernel_.launch(end->stream, end->slot, copies_.data(), list->load.copies);
    return status::ok == launches_.launched(result) ? start_answer::started : start_answer::failed;
}

// What the stream is told next is done behind the event of the request, if it has one.
bool strided_executor::waits(CUstream stream, CUevent event) const
{
    return nullptr == event ||
           status::ok ==
               driver_.report("cuStreamWaitEvent", driver_.stream_wait_event(stream, event, 0));
}

status strided_executor::copy_now(const strided_copy &copy, CUevent wait_for)
{
    if (!strided_is_valid(copy)) {
        return status::bad_argument;
    }
    if (!launches_.is_ready()) {
        return status::unsupported;
    }
    completion end;
    end.slot = own_slot;
    launches_.prepare(copy_way::strided, own_stream, true, &end);
    if (!waits(end.stream, wait_for)) {
        return status::unsupported;
    }
    const strided_copy *only = &copy;
    status s = launches_.launched(kernel_.launch(end.stream, own_slot, &only, 1));
    if (status::ok != s) {
        return status::unsupported;
    }
    // As long as the driver says that it runs: it cannot be taken back.
    while (status::busy == (s = launches_.ask(&end))) {
    }
    return s;
}

} // namespace gpusm
