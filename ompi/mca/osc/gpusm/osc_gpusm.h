// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// osc_gpusm.h: the component osc/gpusm: windows of processes of one node, in host and device memory
// (docs/windows.md). The origin carries out each operation alone, on memory that it has mapped, or
// by single copies; accumulates exclude each other by a lock of the target's.
//
//   osc_gpusm_component.cc    parameters, selection, progress
//   osc_gpusm_functions.cc    what Open MPI calls
//   osc_gpusm_window.h        a window, and
//     osc_gpusm_make.cc         its beginning and end
//     osc_gpusm_memory.cc       what each process gives to it
//     osc_gpusm_copies.cc       puts and gets
//     osc_gpusm_accumulate.cc   accumulates
//     osc_gpusm_sync.cc         synchronisation
//   osc_gpusm_at_once.h       what the processor does on the spot
//   osc_gpusm_elements.*      elements of datatypes, and the processor's copies
//   osc_gpusm_file_names.*    names of the files in which windows share memory
//   osc_gpusm_owner.*         memory that only its owner can touch
//   osc_gpusm_requests.*      requests of operations
//   osc_gpusm_shared.h        what the processes share
#ifndef GPUSM_OSC_H
#define GPUSM_OSC_H

#include "ompi/mca/osc/gpusm/osc_gpusm_file_names.h"
#include "ompi/mca/osc/gpusm/osc_gpusm_ompi.h"
#include "ompi/mca/osc/gpusm/osc_gpusm_requests.h"
#include "ompi/mca/osc/gpusm/osc_gpusm_window.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace gpusm {

// Performance variables.
struct window_counters {
    using number = std::atomic<unsigned long long>;
    number device_copies; // puts and gets with a side on a device, made by this process's device
    number device_bytes;  // their bytes
    number device_reductions; // accumulates by kernels
    number owner_bytes;       // that only the owner could copy
};

// Of this process.
struct open_windows {
    std::mutex mutex; // of `all`
    std::vector<window *> all;
    std::atomic<std::uint32_t> serving{0};        // of these, whose memory others may ask for
    std::atomic<std::uint32_t> rounds{0};         // of progress, while there is such a one
    std::atomic<window_copies *> copies{nullptr}; // once there are some
    window_requests requests;
    file_names files;
};

} // namespace gpusm

struct ompi_osc_gpusm_component_t {
    ompi_osc_base_component_t super;
    int priority;              // osc_gpusm_priority
    gpusm::open_windows *open; // owned
    gpusm::window_counters counted;
    bool tells_summary;        // btl_gpusm_summary
    gpusm::sync_check *checks; // of the process while there is a window; null unless asked for
};
extern "C" OPAL_DECLSPEC ompi_osc_gpusm_component_t mca_osc_gpusm_component;

struct ompi_osc_gpusm_module_t {
    ompi_osc_base_module_t super;
    gpusm::window *its; // owned
};

namespace gpusm {

extern const ompi_osc_base_module_t window_functions;

// Whether there are windows, of which progress has to be made.
void follow_progress(bool there_are);

} // namespace gpusm

#endif
