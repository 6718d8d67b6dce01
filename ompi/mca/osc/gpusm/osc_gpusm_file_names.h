// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// osc_gpusm_file_names.h: names of the files in which windows share memory, before all have mapped
// them.
#ifndef GPUSM_OSC_FILE_NAMES_H
#define GPUSM_OSC_FILE_NAMES_H

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

namespace gpusm {

// Of this process. Few, because the runtime keeps each that it has been told until the process
// ends. Any thread.
class file_names {
  public:
    file_names() = default;
    file_names(const file_names &) = delete;
    file_names &operator=(const file_names &) = delete;

    // The path of a file beside the process's segment, for one file at a time. Should the process
    // die while there is one, the runtime removes it, or segment_sweep() where that has died too.
    std::string take(const std::string &segment_path);
    void give_back(const std::string &path);

  private:
    struct name {
        std::string path;
        bool is_taken;
    };
    std::mutex mutex_; // of all below
    std::vector<name> all_;
};

} // namespace gpusm

#endif
