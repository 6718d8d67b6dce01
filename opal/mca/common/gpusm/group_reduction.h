// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// group_reduction.h: a collective reduction on device memory (group_call.h). Every element is
// combined once, in the order of the ranks: the result is the same bits on all ranks, and in every
// run with as many.
#ifndef GPUSM_GROUP_REDUCTION_H
#define GPUSM_GROUP_REDUCTION_H

#include "opal/mca/common/gpusm/group_call.h"
#include "opal/mca/common/gpusm/reduction_call.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace gpusm {

class local_process;

class group_reduction final : public group_call {
  public:
    // `ask`: see local_process::is_device_memory.
    group_reduction(local_process &process, process_group &group, const reduction_call &call,
                    bool (*ask)(const void *));
    ~group_reduction() override;

  private:
    struct work;

    status prepare() override;
    bool tell() override;
    bool hear(std::size_t from) override;
    bool can_be() override;
    status map() override;
    status carry_out() override;
    void release() override;
    std::uint32_t workers() const;

    reduction_call call_;
    bool on_device_; // all its buffers are device memory
    std::unique_ptr<work> work_;
    status preparing_ = status::ok;
};

} // namespace gpusm

#endif
