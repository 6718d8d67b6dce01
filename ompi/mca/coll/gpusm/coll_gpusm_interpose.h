// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_interpose.h: messages of device memory with gaps. pml/ob1 is given a view (views.h) in
// the place of such a buffer: an address that stands for its packed bytes, and a datatype of as
// many bytes. ob1 keeps a reference to the datatype as long as it uses the address, and with the
// last one the view goes.
//
// A collective component is what Open MPI asks after it has chosen its PML and before there is any
// peer, whatever the user has selected: `--mca pml ob1` is still ob1.
#ifndef GPUSM_COLL_INTERPOSE_H
#define GPUSM_COLL_INTERPOSE_H

#include "ompi/mca/coll/gpusm/coll_gpusm_ompi.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_plans.h"

#include "opal/mca/common/gpusm/local_process.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace gpusm {

struct view_type;

// What most messages are: nothing has to be looked at but the datatype.
[[gnu::always_inline]] inline bool is_plain(const ompi_datatype_t *type)
{
    return 0 != (type->super.flags & OPAL_DATATYPE_FLAG_NO_GAPS) && 0 == type->super.true_lb;
}

inline bool has_gaps(const ompi_datatype_t *type, std::size_t count)
{
    return 0 == opal_datatype_is_contiguous_memory_layout(&type->super, 1 == count ? 1 : 2);
}

// Does Open MPI have to be told of it otherwise than by the buffer, if that is device memory? Also
// where the data has no gaps but begins elsewhere: it asks about the address that the program
// gives, which may be that of nothing.
inline bool may_need_view(const ompi_datatype_t *type, std::size_t count)
{
    return has_gaps(type, count) || 0 != type->super.true_lb;
}

// Functions in the place of those of ob1 that take a buffer, from the time it is made. Any thread.
class interposer {
  public:
    // Null: another PML is in use, or no btl/gpusm.
    static std::unique_ptr<interposer> install();
    // Puts ob1's functions back. No call of one of ours is under way.
    ~interposer();
    interposer(const interposer &) = delete;
    interposer &operator=(const interposer &) = delete;

    // What ob1 is given for that buffer, referenced once for the caller. Null: it goes as it is.
    view_type *open(const void *buffer, std::size_t count, ompi_datatype_t *type);
    // The view of that buffer, to be closed by the caller; null likewise.
    view *open_view(const void *buffer, std::size_t count, ompi_datatype_t *type);
    void close(view *given);

    // The process's; null: no GPU is in use.
    gpu_side *gpu() { return process_->gpu(); }

  private:
    interposer(local_process *process, std::unique_ptr<type_plans> plans)
        : process_(process), plans_(std::move(plans))
    {
    }
    bool is_served();

    local_process *process_; // acquired
    std::unique_ptr<type_plans> plans_;
    std::mutex lock_;
    std::atomic<bool> served_{false}; // Open MPI knows views
};

// Closes a view of the component's interposer, which must still be there.
struct view_closer {
    void operator()(view *opened) const;
};
using view_owner = std::unique_ptr<view, view_closer>;

} // namespace gpusm

#endif
