// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// group_exchange.h: a collective exchange of device memory (group_call.h): each rank copies what it
// sends into the others' memory, or what it receives out of it, with one launch of the gather
// kernel; or, of a long bcast, a part of it, which it writes to all.
#ifndef GPUSM_GROUP_EXCHANGE_H
#define GPUSM_GROUP_EXCHANGE_H

#include "opal/mca/common/gpusm/exchange_call.h"
#include "opal/mca/common/gpusm/group_call.h"

#include <cstddef>
#include <memory>

namespace gpusm {

class local_process;

class group_exchange final : public group_call {
  public:
    // `ask`: see local_process::is_device_memory.
    group_exchange(local_process &process, process_group &group, const exchange_call &call,
                   bool (*ask)(const void *));
    ~group_exchange() override;

  private:
    struct work;

    status prepare() override;
    bool tell() override;
    bool hear(std::size_t from) override;
    bool can_be() override;
    status map() override;
    status map_for(std::size_t of);
    status map_block(std::size_t from, std::size_t to);
    status map_part();
    status carry_out() override;
    void release() override;

    const exchange_call call_;
    bool on_device_; // any of its buffers is device memory
    std::unique_ptr<work> work_;
    status preparing_ = status::ok;
};

} // namespace gpusm

#endif
