// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// local_process_support.h: what a process has once, with a device in use, in a folder of its own.
#ifndef GPUSM_TESTS_LOCAL_PROCESS_SUPPORT_H
#define GPUSM_TESTS_LOCAL_PROCESS_SUPPORT_H

#include "opal/mca/common/gpusm/local_process.h"

#include "tests/unit/shm_support.h"

#include <gtest/gtest.h>

#include <string>

namespace gpusm_test {

class with_gpu {
  public:
    with_gpu()
    {
        gpusm::settings set;
        set.backing_directory = folder_.path();
        std::string why;
        process_ = gpusm::local_process::acquire(set, &why);
        EXPECT_NE(process_, nullptr) << why;
    }
    ~with_gpu() { process_->release(); }
    with_gpu(const with_gpu &) = delete;
    with_gpu &operator=(const with_gpu &) = delete;

    gpusm::local_process &process() { return *process_; }
    gpusm::gpu_side &side() { return *process_->gpu(); }
    const std::string &folder() const { return folder_.path(); }

  private:
    scratch_folder folder_;
    gpusm::local_process *process_ = nullptr;
};

} // namespace gpusm_test

#endif
