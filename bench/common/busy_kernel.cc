// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// busy_kernel.cc: the kernel, as text that the driver compiles, and its launches.
#include "bench/common/busy_kernel.h"

#include <cstdint>

namespace gpusm::bench {

namespace {

// %globaltimer counts nanoseconds. The software driver has a kernel of this name, too.
constexpr const char *text = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry gpusm_busy(.param .u64 busy_ns)
{
.reg .u64 %busy, %begin, %now;
.reg .pred %goes_on;
ld.param.u64 %busy, [busy_ns];
mov.u64 %begin, %globaltimer;
again:
mov.u64 %now, %globaltimer;
sub.u64 %now, %now, %begin;
setp.lt.u64 %goes_on, %now, %busy;
@%goes_on bra again;
ret;
}
)";

constexpr unsigned blocks = 8;
constexpr unsigned threads = 64;

} // namespace

std::unique_ptr<busy_kernel> busy_kernel::make(const device &gpu, std::string *why)
{
    std::unique_ptr<busy_kernel> made(new busy_kernel(gpu));
    const driver_api &driver = gpu.driver();
    *why = gpu.judge("cuModuleLoadDataEx",
                     driver.module_load_data(&made->module_, text, 0, nullptr, nullptr));
    if (why->empty()) {
        *why = gpu.judge("cuModuleGetFunction",
                         driver.module_get_function(&made->function_, made->module_, "gpusm_busy"));
    }
    if (why->empty()) {
        *why = gpu.judge("cuStreamCreate",
                         driver.stream_create(&made->stream_, CU_STREAM_NON_BLOCKING));
    }
    return why->empty() ? std::move(made) : nullptr;
}

busy_kernel::~busy_kernel()
{
    if (nullptr != stream_) {
        (void)gpu_.driver().stream_destroy(stream_);
    }
    if (nullptr != module_) {
        (void)gpu_.driver().module_unload(module_);
    }
}

std::string busy_kernel::launch(int us, CUstream stream) const
{
    std::uint64_t busy_ns = static_cast<std::uint64_t>(us) * 1000;
    void *arguments[] = {&busy_ns};
    return gpu_.judge("cuLaunchKernel",
                      gpu_.driver().launch_kernel(function_, blocks, 1, 1, threads, 1, 1, 0, stream,
                                                  arguments, nullptr));
}

std::string busy_kernel::run(int us) const
{
    const std::string why = launch(us, stream_);
    return why.empty()
               ? gpu_.judge("cuStreamSynchronize", gpu_.driver().stream_synchronize(stream_))
               : why;
}

} // namespace gpusm::bench
