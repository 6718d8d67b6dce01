// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/coll/gpusm/coll_gpusm_plans.h"

#include "ompi/mca/coll/gpusm/coll_gpusm_type_walk.h"

#include <cstdint>
#include <utility>

namespace gpusm {

namespace {

extern "C" int type_is_freed(ompi_datatype_t *type, int, void *, void *plans) noexcept
{
    static_cast<type_plans *>(plans)->forget(type);
    return MPI_SUCCESS;
}

} // namespace

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
