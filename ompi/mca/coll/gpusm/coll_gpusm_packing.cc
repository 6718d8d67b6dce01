// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/coll/gpusm/coll_gpusm_packing.h"

#include "ompi/mca/coll/gpusm/coll_gpusm.h"
#include "ompi/mca/coll/gpusm/pack_calls.h"

#include "opal/mca/common/gpusm/gpu/device.h"

#include <climits>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>

#include <dlfcn.h>

namespace gpusm {

namespace {

interposer &ours()
{
    return *mca_coll_gpusm_component.interposer;
}

bool is_usable(const void *buffer, int count, const ompi_datatype_t *type)
{
    return count > 0 && type != nullptr &&
           0 != (type->super.flags & OPAL_DATATYPE_FLAG_COMMITTED) &&
           (buffer != nullptr || 0 != type->super.true_lb); // MPI_BOTTOM
}

// The bytes that are packed; 0: they do not fit behind *position in memory of that length.
std::size_t room_for(int count, const ompi_datatype_t *type, int packed_bytes, const int *position)
{
    const std::size_t bytes = static_cast<std::size_t>(count) * type->super.size;
    const bool fits = position != nullptr && *position >= 0 && *position <= packed_bytes &&
                      bytes <= static_cast<std::size_t>(packed_bytes - *position);
    return fits ? bytes : 0;
}

view_owner open(const void *buffer, int count, ompi_datatype_t *type)
{
    return view_owner(ours().open_view(buffer, static_cast<std::size_t>(count), type));
}

void *address_of(const view_owner &of)
{
    return reinterpret_cast<void *>(of->address);
}

// A processor must not touch it.
bool is_on_device(const void *address) noexcept
{
    const driver_api *driver = driver_load();
    const memory_place place = nullptr == driver ? memory_place{} : place_of(*driver, address);
    return place.on_device && !place.managed;
}

bool copy(void *to, const void *from, std::size_t bytes) noexcept
{
    gpu_side *side = ours().gpu();
    return side != nullptr && status::ok == side->views.copy(to, from, bytes);
}

// Between a buffer with gaps and packed bytes. One without gaps is one copy for Open MPI, too.
bool copy_packed(const void *buffer, int count, MPI_Datatype type, const void *packed,
                 int packed_bytes, int *position, bool packs)
{
    if (!is_usable(buffer, count, type) || nullptr == packed ||
        !may_need_view(type, static_cast<std::size_t>(count))) {
        return false;
    }
    const std::size_t bytes = room_for(count, type, packed_bytes, position);
    if (0 == bytes) {
        return false;
    }
    const view_owner view = open(buffer, count, type);
    void *at = const_cast<unsigned char *>(static_cast<const unsigned char *>(packed)) + *position;
    if (nullptr == view ||
        !copy(packs ? at : address_of(view), packs ? address_of(view) : at, bytes)) {
        return false;
    }
    *position += static_cast<int>(bytes);
    return true;
}

bool pack(const void *buffer, int count, MPI_Datatype type, void *packed, int packed_bytes,
          int *position) noexcept
{
    return copy_packed(buffer, count, type, packed, packed_bytes, position, true);
}

bool unpack(const void *packed, int packed_bytes, int *position, void *buffer, int count,
            MPI_Datatype type) noexcept
{
    return copy_packed(buffer, count, type, packed, packed_bytes, position, false);
}

void give_copy(const packed_copy &given) noexcept
{
    const std::unique_ptr<packed_block> block(static_cast<packed_block *>(given.owner));
    gpu_side &side = *ours().gpu();
    const std::lock_guard guard(side.lock);
    side.views.give_packed(*block);
}

bool take_copy(const void *buffer, int count, MPI_Datatype type, packed_copy *out) noexcept
{
    if (!is_usable(buffer, count, type) || 0 == type->super.size ||
        type->super.size > static_cast<std::size_t>(INT_MAX / count)) {
        return false;
    }
    const auto *first = static_cast<const unsigned char *>(buffer) + type->super.true_lb;
    if (!is_on_device(first)) {
        return false;
    }
    const bool has_gaps = may_need_view(type, static_cast<std::size_t>(count));
    const view_owner from = has_gaps ? open(buffer, count, type) : nullptr;
    gpu_side *side = ours().gpu();
    if (nullptr == side || (has_gaps && nullptr == from)) {
        return false;
    }
    std::unique_ptr<packed_block> block(new (std::nothrow) packed_block());
    if (nullptr == block) {
        return false;
    }
    out->len_bytes = static_cast<std::size_t>(count) * type->super.size;
    {
        const std::lock_guard guard(side->lock);
        device *on = nullptr;
        std::uint64_t plain_bytes = 0;
        if (status::ok == side->devices.for_address(reinterpret_cast<std::uint64_t>(first), &on,
                                                    &plain_bytes) &&
            on != nullptr) {
            *block = side->views.take_packed(*on, out->len_bytes);
        }
    }
    if (nullptr == block->on) {
        return false;
    }
    out->address = reinterpret_cast<void *>(block->address);
    out->owner = block.release();
    if (!copy(out->address, has_gaps ? address_of(from) : buffer, out->len_bytes)) {
        give_copy(*out);
        return false;
    }
    return true;
}

constexpr pack_calls calls{pack, unpack, take_copy, give_copy, is_on_device, copy};

} // namespace

void serve_packing(bool serve)
{
    auto *hooks = static_cast<pack_hooks *>(dlsym(RTLD_DEFAULT, pack_hooks_name));
    if (hooks != nullptr && sizeof(pack_calls) == hooks->calls_bytes) {
        hooks->calls.store(serve ? &calls : nullptr, std::memory_order_release);
    }
}

} // namespace gpusm
