// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_plans.h: for each of Open MPI's datatypes where its bytes lie, found out once.
#ifndef GPUSM_COLL_PLANS_H
#define GPUSM_COLL_PLANS_H

#include "ompi/mca/coll/gpusm/coll_gpusm_ompi.h"

#include "opal/mca/common/gpusm/gpu/layout.h"

#include <memory>
#include <mutex>
#include <unordered_map>

namespace gpusm {

// The plans of the datatypes that have been asked for. Each is kept until its datatype is freed,
// which an attribute of the datatype tells. Predefined ones have no attributes and are never freed.
// For any thread. pml_data of datatypes is ours: no other PML than ob1, which leaves it alone, may
// be in use. Open MPI holds the lock of its attributes while it calls attribute functions of the
// program: these may not lead to a call of of().
class type_plans {
  public:
    using pointer = shared_plan; // also after the datatype has been freed

    // Null when there is no room for one more attribute. Open MPI's attributes must still be there
    // when it is destroyed, and no datatype may be freed meanwhile by another thread.
    static std::unique_ptr<type_plans> install();
    ~type_plans();
    type_plans(const type_plans &) = delete;
    type_plans &operator=(const type_plans &) = delete;

    // Null when there is none: of a datatype that is not committed or has no bytes, or one that has
    // too many blocks, or that Open MPI tells of wrongly.
    pointer of(ompi_datatype_t *type);

    // The datatype's plan is not kept any more.
    void forget(ompi_datatype_t *type);

    std::size_t count(); // of datatypes whose plans are kept

  private:
    type_plans() = default;

    int keyval_ = MPI_KEYVAL_INVALID;
    std::mutex mutex_; // nothing of Open MPI's is called under it
    // pml_data of each datatype is the address of its plan in here.
    std::unordered_map<ompi_datatype_t *, pointer> plans_;
};

} // namespace gpusm

#endif
