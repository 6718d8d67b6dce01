// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/protocol/stream.h"

#include <mutex>

namespace gpusm {

namespace {

// By this processor, with each ring, in one call of progress.
constexpr std::uint64_t bytes_at_once = 128 * 1024;

template <typename Ring, typename Done> void unlist(std::vector<Ring *> *all, Done done)
{
    for (std::size_t i = 0; i < all->size();) {
        Ring *each = (*all)[i];
        if (done(each)) {
            each->listed = false;
            (*all)[i] = all->back();
            all->pop_back();
        } else {
            ++i;
        }
    }
}

} // namespace

stream_engine::stream_engine(node &local, stream_services &services, bool threads)
    : local_(local), services_(services), mutex_(threads)
{
}

void stream_engine::count_active()
{
    active_.store(sending_.size() + receiving_.size(), std::memory_order_relaxed);
}

stream_fetch *stream_engine::progress(bool receives)
{
    ended_list ended;
    {
        const std::lock_guard guard(mutex_);
        const std::uint64_t most = bytes_at_once * (sending_.size() + receiving_.size());
        std::uint64_t copied = 0;
        bool any = true;
        for (std::uint32_t steps = 0; any && copied < most && steps < stream_pieces; ++steps) {
            any = false;
            for (outlet *each : sending_) {
                any = send_some(each, &copied) || any;
            }
            for (inlet *each : receiving_) {
                const bool came = receives && receive_some(each, &copied, &ended);
                each->came = each->came || came;
                any = any || came;
            }
        }
        unlist(&sending_, [&](outlet *each) {
            if (each->to->closed()) {
                drop(each);
            }
            return each->wants.empty();
        });
        unlist(&receiving_, [&](inlet *each) {
            if (!receives) {
                return false;
            }
            if (each->came) {
                each->quiet_since_ns = 0;
                each->came = false;
            } else {
                wait_for(each, &ended);
            }
            begin_backs(each);
            const bool over = each->fetches.empty() && each->copies.empty() && each->backs.empty();
            if (over && !each->from->closed()) { // which may still write to the ring
                each->from = nullptr;
            }
            return over;
        });
        count_active();
    }
    if (!to_begin_.empty()) {
        // These may be system calls that copy a gigabyte.
        for (back_part *each : to_begin_) {
            services_.copy_back(*each->from, *each->of->message, &each->copy);
        }
        to_begin_.clear();
        const std::lock_guard guard(mutex_);
        for (inlet *each : receiving_) {
            (void)end_backs(each, &ended);
        }
    }
    return ended.first;
}

} // namespace gpusm
