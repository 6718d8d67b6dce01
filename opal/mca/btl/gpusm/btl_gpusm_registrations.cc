// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_registrations.cc: what register_mem has made, by the number that handles carry.
#include "opal/mca/btl/gpusm/btl_gpusm.h"

#include <mutex>

namespace gpusm {

int registration_table::number(opal_free_list_item_t *item, void *table) noexcept
{
    auto *made = reinterpret_cast<registration *>(item);
    auto *of = static_cast<registration_table *>(table);
    const std::lock_guard guard(of->lock_);
    made->number = static_cast<std::uint32_t>(of->numbered_.size());
    made->turn = 0;
    of->numbered_.push_back(made);
    (void)hand_over(made);
    return OPAL_SUCCESS;
}

registration *registration_table::take()
{
    registration *made = list_.take();
    if (made != nullptr) {
        ++made->turn;
        made->exported = nullptr;
        made->device = nullptr;
        made->view = nullptr;
        made->packed = {};
        made->streamed = false;
        made->unusable = false;
        made->plain_until = 0;
        made->handle.remote = {no_export_slot, no_event_slot, share_kind::none, 0, 0, 0, 0};
    }
    return made;
}

registration *registration_table::named(const remote_handle &handle, std::uint64_t address,
                                        std::uint64_t len_bytes)
{
    registration *found = nullptr;
    {
        const std::lock_guard guard(lock_);
        if (handle.slot < numbered_.size()) {
            found = numbered_[handle.slot];
        }
    }
    const bool registered = found != nullptr && 0 != found->turn % 2 &&
                            found->turn == handle.generation &&
                            found->handle.remote.kind == handle.kind;
    return registered && covers(found->handle.remote, address, len_bytes) ? found : nullptr;
}

} // namespace gpusm
