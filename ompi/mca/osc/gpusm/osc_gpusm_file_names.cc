// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/osc/gpusm/osc_gpusm_file_names.h"

#include "ompi/mca/osc/gpusm/osc_gpusm_ompi.h"

#include <algorithm>

namespace gpusm {

std::string file_names::take(const std::string &segment_path)
{
    std::string path;
    {
        const std::lock_guard guard(mutex_);
        const auto free = std::ranges::find(all_, false, &name::is_taken);
        if (free != all_.end()) {
            free->is_taken = true;
            return free->path;
        }
        path = segment_path + ".window" + std::to_string(all_.size());
        all_.push_back({path, true});
    }
    (void)opal_pmix_register_cleanup(path.data(), false, false, false);
    return path;
}

void file_names::give_back(const std::string &path)
{
    const std::lock_guard guard(mutex_);
    std::ranges::find(all_, path, &name::path)->is_taken = false;
}

} // namespace gpusm
