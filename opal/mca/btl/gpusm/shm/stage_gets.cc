// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// stage_gets.cc: the reader's side of shm/stage.h, and what both sides say of a target.
#include "opal/mca/btl/gpusm/shm/stage.h"

#include <utility>

namespace gpusm {

bool can_be_written(const stage_target &target, std::uint64_t len_bytes)
{
    const remote_handle &handle = target.handle;
    const bool is_export = share_kind::legacy == handle.kind ||
                           share_kind::descriptors == handle.kind ||
                           share_kind::pool == handle.kind;
    return is_export && covers(handle, target.address, len_bytes);
}

bool staged_get::accept(std::uint64_t offset, std::uint64_t piece_bytes)
{
    if (owner_failed || is_shared || all_told || offset != arrived_bytes || 0 == piece_bytes ||
        piece_bytes > len_bytes - arrived_bytes) {
        return false;
    }
    arrived_bytes += piece_bytes;
    ++copying;
    return true;
}

bool staged_get::accept_written()
{
    if (!has_target || is_split || owner_failed || 0 != arrived_bytes) {
        return false;
    }
    arrived_bytes = len_bytes;
    return true;
}

bool staged_get::accept_all_told(std::uint64_t owners_bytes)
{
    if (!is_split || owner_failed || all_told || arrived_bytes != owners_bytes) {
        return false;
    }
    all_told = true;
    return true;
}

staged_get *staged_gets::open(std::uint32_t peer, std::uint64_t len_bytes, void *user)
{
    if (UINT32_MAX == first_free_) {
        if (entries_.size() >= (std::size_t{1} << index_bits)) {
            return nullptr;
        }
        first_free_ = static_cast<std::uint32_t>(entries_.size());
        entries_.emplace_back();
        entries_.back().get.number = first_free_;
        entries_.back().next_free = UINT32_MAX;
    }
    entry &made = entries_[first_free_];
    first_free_ = made.next_free;
    const std::uint32_t number = made.get.number + (1U << index_bits); // may wrap around
    made.get = staged_get{};
    made.get.number = number;
    made.get.peer = peer;
    made.get.len_bytes = len_bytes;
    made.get.user = user;
    made.is_open = true;
    ++open_;
    return &made.get;
}

staged_get *staged_gets::find(std::uint32_t peer, std::uint32_t number)
{
    staged_get *found = at(number & ((1U << index_bits) - 1));
    return found != nullptr && number == found->number && peer == found->peer ? found : nullptr;
}

staged_get *staged_gets::at(std::size_t i)
{
    return i < entries_.size() && entries_[i].is_open ? &entries_[i].get : nullptr;
}

void staged_gets::close(staged_get *get)
{
    const std::uint32_t index = get->number & ((1U << index_bits) - 1);
    entries_[index].is_open = false;
    entries_[index].next_free = std::exchange(first_free_, index);
    --open_;
}

} // namespace gpusm
