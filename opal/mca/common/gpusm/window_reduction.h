// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// window_reduction.h: elements of this process are combined into elements that another process has
// given to a window, by a kernel: an accumulate. Who calls it sees to it that nobody else does so
// at the same time.
#ifndef GPUSM_WINDOW_REDUCTION_H
#define GPUSM_WINDOW_REDUCTION_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/executor.h"
#include "opal/mca/common/gpusm/gpu/reduce_arguments.h"
#include "opal/mca/common/gpusm/packed_memory.h"
#include "opal/mca/common/gpusm/window_copies.h"

#include <cstdint>

namespace gpusm {

// One, from its beginning to its end.
class window_reduction {
  public:
    // As window_copy has them; neither of them is empty, and both are as many elements of the type.
    // What is not on the device of the other one, or has gaps, is packed there before.
    window_reduction(reduce_op op, reduce_type type, const window_elements &mine,
                     const window_elements &theirs, window_mapping &in);
    // It must be over.
    ~window_reduction();
    window_reduction(const window_reduction &) = delete;
    window_reduction &operator=(const window_reduction &) = delete;

    // Goes on as far as that is possible now, without the GPU lock. `busy`: again after progress;
    // `unsupported`: nothing has been written, and it is to be done in another way; else it has
    // failed, and what it was to write may be anything.
    status step();

  private:
    enum class stage : std::uint8_t { find, launch, run, over };

    status find();
    status bring_mine();
    status bring_theirs(const window_mapping::place &place);
    status launch();
    status put_back();

    gpu_side &side_;
    const reduce_op op_;
    const reduce_type type_;
    const window_elements mine_;
    const window_elements theirs_;
    window_mapping &in_;
    stage at_ = stage::find;
    device *on_ = nullptr;
    view *my_view_ = nullptr;
    view *their_view_ = nullptr;
    packed_block my_block_;
    packed_block their_block_;
    std::uint64_t source_ = 0; // for the kernel
    std::uint64_t target_ = 0;
    completion end_;
    unsigned refusals_ = 0; // of launches, in a row
};

} // namespace gpusm

#endif
