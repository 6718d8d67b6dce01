// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/kernel_module.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/base/pages.h"

#include <cstdlib>
#include <memory>
#include <utility>

namespace gpusm {

bool kernel_module::can(const char *what, CUresult result, const char *said) const
{
    if (CUDA_SUCCESS != result) {
        log_line(log_level::info, "the %s kernel cannot be used: %s failed: %s%s%s", code_.name,
                 what, driver_.error_name(result), '\0' == said[0] ? "" : ": ", said);
    }
    return CUDA_SUCCESS == result;
}

void kernel_module::free_flags(void *memory) const
{
    if (memory != given_flags_) {
        std::free(memory);
    }
}

// The flags live in memory of ours that the driver is told about: what the driver gives goes with
// its context, which the program may destroy while we still look at a flag.
bool kernel_module::make_flags()
{
    const std::size_t flags_bytes = in_system_pages(slots() * sizeof(flag));
    void *memory = given_flags_ != nullptr ? given_flags_
                                           : std::aligned_alloc(system_page_bytes(), flags_bytes);
    if (nullptr == memory ||
        !can("cuMemHostRegister", driver_.mem_host_register(memory, flags_bytes,
                                                            CU_MEMHOSTREGISTER_PORTABLE |
                                                                CU_MEMHOSTREGISTER_DEVICEMAP))) {
        free_flags(memory);
        return false;
    }
    flags_ = static_cast<flag *>(memory);
    for (std::uint32_t slot = 0; slot < slots(); ++slot) {
        std::construct_at(&flags_[slot])->done.store(launches_[slot], std::memory_order_relaxed);
    }
    return can("cuMemHostGetDevicePointer",
               driver_.mem_host_get_device_pointer(&device_flags_, memory, 0));
}

// The module and its functions. A driver that loads lazily does so when it is asked for a function,
// and may then wait for the context to be idle: here, not at the first launch.
bool kernel_module::load_module()
{
    char said[1024] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {said, reinterpret_cast<void *>(sizeof(said) - 1)};
    CUmodule module = nullptr;
    // Compiled code is loaded in a tenth of a millisecond. None of it is for a GPU that nvcc did
    // not know, and a driver may be too old to read it.
    if (nullptr == code_.code ||
        CUDA_SUCCESS != driver_.module_load_data(&module, code_.code, 0, nullptr, nullptr)) {
        if (!can("cuModuleLoadDataEx",
                 driver_.module_load_data(&module, code_.ptx, 2, options, values), said)) {
            return false;
        }
        log_line(log_level::info, "the driver has compiled the %s kernel for this GPU", code_.name);
    }
    module_ = module;
    for (std::size_t entry = 0; entry < functions_.size(); ++entry) {
        if (!can("cuModuleGetFunction",
                 driver_.module_get_function(&functions_[entry], module_, code_.entries[entry]))) {
            return false;
        }
    }
    return true;
}

bool kernel_module::load()
{
    if (!loaded() && !(make_flags() && load_module())) {
        unload();
    }
    return loaded();
}

void kernel_module::unload(bool context_lives)
{
    if (context_lives && module_ != nullptr) {
        (void)driver_.report("cuModuleUnload", driver_.module_unload(module_));
    }
    if (context_lives && flags_ != nullptr) {
        (void)driver_.report("cuMemHostUnregister", driver_.mem_host_unregister(flags_));
    }
    module_ = nullptr;
    free_flags(std::exchange(flags_, nullptr));
}

CUresult kernel_module::launch_entry(std::size_t entry, unsigned blocks, unsigned threads,
                                     CUstream stream, std::uint32_t slot, void *argument)
{
    void *parameters[] = {argument};
    const CUresult result = driver_.launch_kernel(functions_[entry], blocks, 1, 1, threads, 1, 1, 0,
                                                  stream, parameters, nullptr);
    launches_[slot] += CUDA_SUCCESS == result ? 1 : 0;
    return result;
}

} // namespace gpusm
