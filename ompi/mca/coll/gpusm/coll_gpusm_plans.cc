// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/coll/gpusm/coll_gpusm_plans.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <utility>

namespace gpusm {

namespace {

// Stands for the address of an element; far from both ends, so that nothing wraps around below it.
constexpr std::uintptr_t origin = std::uintptr_t{1} << 62;

// For one element; it only computes addresses.
class walk {
  public:
    explicit walk(const opal_datatype_t &type)
    {
        OBJ_CONSTRUCT(&convertor_, opal_convertor_t);
        is_ready_ = OPAL_SUCCESS == opal_convertor_copy_and_prepare_for_send(
                                        ompi_mpi_local_convertor, &type, 1,
                                        reinterpret_cast<const void *>(origin),
                                        CONVERTOR_SKIP_ACCELERATOR_INIT, &convertor_);
    }
    ~walk() { OBJ_DESTRUCT(&convertor_); }
    walk(const walk &) = delete;
    walk &operator=(const walk &) = delete;

    // Feeds all blocks, in packed order; at most so many bytes. False when there is no end.
    bool feed(layout_builder &builder, std::size_t most_bytes)
    {
        bool is_over = false;
        while (is_ready_ && !is_over) {
            std::array<iovec, 256> blocks;
            auto count = static_cast<std::uint32_t>(blocks.size());
            std::size_t bytes = 0;
            is_over = 0 != opal_convertor_raw(&convertor_, blocks.data(), &count, &bytes);
            for (std::uint32_t i = 0; i < count; ++i) {
                const auto at = reinterpret_cast<std::uintptr_t>(blocks[i].iov_base);
                builder.add(static_cast<std::int64_t>(at - origin), blocks[i].iov_len);
            }
            if ((0 == count && !is_over) || builder.total_bytes() > most_bytes) {
                return false;
            }
        }
        return is_over;
    }

  private:
    opal_convertor_t convertor_;
    bool is_ready_;
};

extern "C" int type_is_freed(ompi_datatype_t *type, int, void *, void *plans) noexcept
{
    static_cast<type_plans *>(plans)->forget(type);
    return MPI_SUCCESS;
}

} // namespace

type_plans::pointer make_plan(const ompi_datatype_t &type)
{
    const opal_datatype_t &layout = type.super;
    if (0 == layout.size || nullptr == layout.opt_desc.desc) {
        return nullptr;
    }
    try {
        layout_builder builder;
        if (!walk(layout).feed(builder, layout.size) || builder.total_bytes() != layout.size) {
            return nullptr;
        }
        std::optional<datatype_plan> plan = builder.finish(layout.ub - layout.lb);
        return plan.has_value() ? share(*std::move(plan)) : nullptr;
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

std::unique_ptr<type_plans> type_plans::install()
{
    std::unique_ptr<type_plans> plans(new type_plans());
    ompi_attribute_fn_ptr_union_t copy;
    ompi_attribute_fn_ptr_union_t drop;
    copy.attr_datatype_copy_fn = MPI_TYPE_NULL_COPY_FN; // MPI_Type_dup: a datatype of its own
    drop.attr_datatype_delete_fn = type_is_freed;
    if (OMPI_SUCCESS !=
        ompi_attr_create_keyval(TYPE_ATTR, copy, drop, &plans->keyval_, plans.get(), 0, nullptr)) {
        plans->keyval_ = MPI_KEYVAL_INVALID;
        return nullptr;
    }
    return plans;
}

type_plans::~type_plans()
{
    for (;;) {
        ompi_datatype_t *type = nullptr;
        {
            const std::lock_guard guard(mutex_);
            if (plans_.empty()) {
                break;
            }
            type = plans_.begin()->first;
        }
        if (!ompi_datatype_is_predefined(type)) {
            (void)ompi_attr_delete(TYPE_ATTR, type, type->d_keyhash, keyval_, false);
        }
        forget(type);
    }
    if (MPI_KEYVAL_INVALID != keyval_) {
        (void)ompi_attr_free_keyval(TYPE_ATTR, &keyval_, false);
    }
}

type_plans::pointer type_plans::of(ompi_datatype_t *type)
{
    {
        const std::lock_guard guard(mutex_);
        if (0 != type->pml_data) {
            return *reinterpret_cast<const pointer *>(type->pml_data);
        }
    }
    if (!ompi_datatype_is_committed(type)) {
        return nullptr;
    }
    pointer plan = make_plan(*type);
    {
        const std::lock_guard guard(mutex_);
        const auto [place, is_new] = plans_.try_emplace(type, plan);
        if (!is_new) { // another thread has been faster
            return place->second;
        }
        type->pml_data = reinterpret_cast<std::uintptr_t>(&place->second);
    }
    // Without an attribute nobody would tell when the datatype is freed.
    if (!ompi_datatype_is_predefined(type) &&
        OMPI_SUCCESS != ompi_attr_set_c(TYPE_ATTR, type, &type->d_keyhash, keyval_, this, false)) {
        forget(type);
    }
    return plan;
}

void type_plans::forget(ompi_datatype_t *type)
{
    pointer last; // freed without the lock
    const std::lock_guard guard(mutex_);
    const auto found = plans_.find(type);
    if (plans_.end() != found) {
        last = std::move(found->second);
        plans_.erase(found);
        type->pml_data = 0;
    }
}

std::size_t type_plans::count()
{
    const std::lock_guard guard(mutex_);
    return plans_.size();
}

} // namespace gpusm
