// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fake_driver.h: a driver_api table without a driver. It keeps what it was told, and fails when a
// test says so: the n-th call of a function, or until further notice.
//
// Functions of a table carry no context, so there is one fake at a time: fake().
#ifndef GPUSM_TESTS_FAKE_DRIVER_H
#define GPUSM_TESTS_FAKE_DRIVER_H

#include "opal/mca/btl/gpusm/gpu/driver.h"
#include "opal/mca/btl/gpusm/gpu/gather_arguments.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace gpusm_test {

template <typename Handle> Handle handle_of(std::uintptr_t number)
{
    return reinterpret_cast<Handle>(number);
}

struct fake_copy {
    std::uint64_t destination;
    std::uint64_t source;
    std::size_t len_bytes;
    CUstream stream;
    CUcontext context; // that was current
};

struct fake_launch {
    CUstream stream;
    CUcontext context;  // that was current
    const char *kernel; // its name
    unsigned blocks;
    unsigned threads;
    gpusm::gather_arguments<gpusm::gather_most_copies> arguments; // of the few kernel too
    bool finished = false;
};

// Where the device sees pinned host memory: elsewhere than the host, to tell mistakes.
inline constexpr std::uint64_t fake_device_view = 1ULL << 46;

struct fake_driver {
    // What the caller of gpusm has current, as CUDA sees it: the innermost context is last.
    std::vector<CUcontext> stack;
    CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::map<CUcontext, int> device_of; // a context's device
    std::set<int> active_primary;       // devices whose primary context is active
    std::map<int, int> retained;        // primary contexts: references taken here

    std::vector<fake_copy> copies;
    std::vector<CUevent> recorded; // one entry per cuEventRecord
    std::vector<CUevent> waited;   // one entry per cuStreamWaitEvent
    std::map<CUevent, CUresult> query_answer;
    std::map<CUevent, CUcontext> events;     // live ones, and where they were made
    std::map<CUevent, unsigned> event_flags; // of all ever made
    std::map<CUstream, CUcontext> streams;
    std::vector<std::pair<unsigned, int>> stream_arguments; // flags, priority

    struct registration {
        std::size_t len_bytes;
        unsigned flags;
    };
    std::map<std::uintptr_t, registration> registered; // cuMemHostRegister
    std::map<CUmodule, CUcontext> modules;             // live ones
    std::string module_text;                           // of the last one
    std::map<CUfunction, std::string> functions;
    std::vector<fake_launch> launches;
    std::map<CUstream, CUresult> stream_answer; // of cuStreamQuery, instead of the usual one

    std::map<std::string, int> calls;
    std::map<std::string, std::map<int, CUresult>> failing; // n-th call from now on, 0: all
    bool quiet = false;                                     // keeps no record of calls

    CUcontext current() const { return stack.empty() ? nullptr : stack.back(); }

    void fail(const std::string &function, int nth, CUresult result)
    {
        failing[function][0 == nth ? 0 : calls[function] + nth] = result;
    }
    void heal() { failing.clear(); }
    // The work that the n-th event record stands for is done; or it went wrong.
    void finish(std::size_t record, CUresult result = CUDA_SUCCESS)
    {
        query_answer[recorded.at(record)] = result;
    }
    // The n-th launch has ended: its flag is written. Or it went wrong, and with it its stream.
    void finish_launch(std::size_t nth, CUresult result = CUDA_SUCCESS)
    {
        fake_launch &launch = launches.at(nth);
        if (CUDA_SUCCESS != result) {
            stream_answer[launch.stream] = result;
            return;
        }
        launch.finished = true;
        auto *flag = reinterpret_cast<std::atomic<std::uint32_t> *>(launch.arguments.done -
                                                                    fake_device_view);
        flag->store(launch.arguments.done_value, std::memory_order_release);
    }
    // Whatever was recorded or launched has ended well.
    void finish_all()
    {
        for (std::size_t i = 0; i < launches.size(); ++i) {
            if (!launches[i].finished) {
                finish_launch(i);
            }
        }
        for (auto &[event, answer] : query_answer) {
            answer = CUDA_SUCCESS;
        }
    }

    CUresult enter(const char *function)
    {
        if (quiet) {
            return CUDA_SUCCESS;
        }
        const int nth = ++calls[function];
        const auto about = failing.find(function);
        if (about == failing.end()) {
            return CUDA_SUCCESS;
        }
        const auto &answers = about->second;
        const auto found = answers.count(nth) != 0 ? answers.find(nth) : answers.find(0);
        return found == answers.end() ? CUDA_SUCCESS : found->second;
    }
    std::uintptr_t next_handle = 0x1000;
};

inline fake_driver &fake()
{
    static fake_driver the_one;
    return the_one;
}

#define GPUSM_FAKE_ENTER(function)                                                                 \
    if (const CUresult failed = fake().enter(function); CUDA_SUCCESS != failed) {                  \
        return failed;                                                                             \
    }

inline void add_host_memory(gpusm::driver_api &api)
{
    api.mem_host_register = [](void *memory, size_t len_bytes, unsigned flags) {
        GPUSM_FAKE_ENTER("mem_host_register")
        const auto at = reinterpret_cast<std::uintptr_t>(memory);
        return fake().registered.emplace(at, fake_driver::registration{len_bytes, flags}).second
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    };
    api.mem_host_unregister = [](void *memory) {
        GPUSM_FAKE_ENTER("mem_host_unregister")
        return 1 == fake().registered.erase(reinterpret_cast<std::uintptr_t>(memory))
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    };
    api.mem_host_get_device_pointer = [](CUdeviceptr *out, void *memory, unsigned) {
        GPUSM_FAKE_ENTER("mem_host_get_device_pointer")
        const auto at = reinterpret_cast<std::uintptr_t>(memory);
        if (0 == fake().registered.count(at)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *out = at + fake_device_view;
        return CUDA_SUCCESS;
    };
}

// Modules and launches.
inline void add_kernels(gpusm::driver_api &api)
{
    api.module_load_data = [](CUmodule *out, const void *text, unsigned, CUjit_option *, void **) {
        GPUSM_FAKE_ENTER("module_load_data")
        fake().module_text = static_cast<const char *>(text);
        *out = handle_of<CUmodule>(fake().next_handle++);
        fake().modules[*out] = fake().current();
        return CUDA_SUCCESS;
    };
    api.module_unload = [](CUmodule module) {
        GPUSM_FAKE_ENTER("module_unload")
        return 1 == fake().modules.erase(module) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    };
    api.module_get_function = [](CUfunction *out, CUmodule module, const char *name) {
        GPUSM_FAKE_ENTER("module_get_function")
        if (0 == fake().modules.count(module)) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        *out = handle_of<CUfunction>(fake().next_handle++);
        fake().functions[*out] = name;
        return CUDA_SUCCESS;
    };
    api.launch_kernel = [](CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned,
                           CUstream stream, void **parameters, void **) {
        GPUSM_FAKE_ENTER("launch_kernel")
        const auto found = fake().functions.find(function);
        if (found == fake().functions.end() || grid_y * grid_z * block_y * block_z != 1) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (fake().quiet) {
            std::erase_if(fake().launches, [](const fake_launch &each) { return each.finished; });
        }
        fake_launch &made = fake().launches.emplace_back();
        made.stream = stream;
        made.context = fake().current();
        made.kernel = found->second.c_str();
        made.blocks = grid_x;
        made.threads = block_x;
        // The driver copies a parameter as long as the kernel declares it.
        std::memcpy(static_cast<void *>(&made.arguments), parameters[0],
                    "gpusm_gather_few" == found->second
                        ? sizeof(gpusm::gather_arguments<gpusm::gather_few_copies>)
                        : sizeof(made.arguments));
        return CUDA_SUCCESS;
    };
}

// The table of a fresh fake. The fake knows the contexts 0xc0 and 0xc1 on devices 0 and 1.
inline gpusm::driver_api reset_fake()
{
    fake() = fake_driver{};
    fake().device_of = {{handle_of<CUcontext>(0xc0), 0}, {handle_of<CUcontext>(0xc1), 1}};
    gpusm::driver_api api;
    api.ctx_get_current = [](CUcontext *out) {
        GPUSM_FAKE_ENTER("ctx_get_current")
        *out = fake().current();
        return CUDA_SUCCESS;
    };
    api.ctx_push_current = [](CUcontext context) {
        GPUSM_FAKE_ENTER("ctx_push_current")
        fake().stack.push_back(context);
        return CUDA_SUCCESS;
    };
    api.ctx_pop_current = [](CUcontext *out) {
        GPUSM_FAKE_ENTER("ctx_pop_current")
        if (fake().stack.empty()) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        *out = fake().current();
        fake().stack.pop_back();
        return CUDA_SUCCESS;
    };
    api.ctx_get_device = [](CUdevice *out) {
        GPUSM_FAKE_ENTER("ctx_get_device")
        if (nullptr == fake().current()) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        *out = fake().device_of[fake().current()];
        return CUDA_SUCCESS;
    };
    api.device_get_uuid = [](CUuuid *out, CUdevice device) {
        GPUSM_FAKE_ENTER("device_get_uuid")
        std::memset(out->bytes, 0x10 + device, sizeof(out->bytes));
        return CUDA_SUCCESS;
    };
    api.primary_ctx_get_state = [](CUdevice device, unsigned *flags, int *active) {
        GPUSM_FAKE_ENTER("primary_ctx_get_state")
        *flags = 0;
        *active = fake().active_primary.count(device) != 0 ? 1 : 0;
        return CUDA_SUCCESS;
    };
    api.primary_ctx_retain = [](CUcontext *out, CUdevice device) {
        GPUSM_FAKE_ENTER("primary_ctx_retain")
        *out = handle_of<CUcontext>(0xa0U + static_cast<unsigned>(device));
        fake().device_of[*out] = device;
        ++fake().retained[device];
        return CUDA_SUCCESS;
    };
    api.primary_ctx_release = [](CUdevice device) {
        GPUSM_FAKE_ENTER("primary_ctx_release")
        --fake().retained[device];
        return CUDA_SUCCESS;
    };
    api.stream_create = [](CUstream *out, unsigned flags, int priority) {
        GPUSM_FAKE_ENTER("stream_create")
        *out = handle_of<CUstream>(fake().next_handle++);
        fake().streams[*out] = fake().current();
        fake().stream_arguments.emplace_back(flags, priority);
        return CUDA_SUCCESS;
    };
    api.stream_destroy = [](CUstream stream) {
        GPUSM_FAKE_ENTER("stream_destroy")
        return 1 == fake().streams.erase(stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    };
    api.stream_synchronize = [](CUstream) {
        GPUSM_FAKE_ENTER("stream_synchronize")
        return CUDA_SUCCESS;
    };
    api.stream_wait_event = [](CUstream, CUevent event, unsigned) {
        GPUSM_FAKE_ENTER("stream_wait_event")
        fake().waited.push_back(event);
        return CUDA_SUCCESS;
    };
    api.event_create = [](CUevent *out, unsigned flags) {
        GPUSM_FAKE_ENTER("event_create")
        *out = handle_of<CUevent>(fake().next_handle++);
        fake().events[*out] = fake().current();
        fake().event_flags[*out] = flags;
        return CUDA_SUCCESS;
    };
    api.event_destroy = [](CUevent event) {
        GPUSM_FAKE_ENTER("event_destroy")
        return 1 == fake().events.erase(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    };
    api.event_record = [](CUevent event, CUstream) {
        GPUSM_FAKE_ENTER("event_record")
        if (!fake().quiet) {
            fake().recorded.push_back(event);
        }
        fake().query_answer[event] = CUDA_ERROR_NOT_READY;
        return CUDA_SUCCESS;
    };
    api.event_query = [](CUevent event) {
        GPUSM_FAKE_ENTER("event_query")
        return fake().query_answer[event];
    };
    api.stream_query = [](CUstream stream) {
        GPUSM_FAKE_ENTER("stream_query")
        if (fake().stream_answer.count(stream) != 0) {
            return fake().stream_answer[stream];
        }
        for (const fake_launch &each : fake().launches) {
            if (each.stream == stream && !each.finished) {
                return CUDA_ERROR_NOT_READY;
            }
        }
        return CUDA_SUCCESS;
    };
    api.memcpy_async = [](CUdeviceptr to, CUdeviceptr from, size_t len_bytes, CUstream stream) {
        GPUSM_FAKE_ENTER("memcpy_async")
        if (!fake().quiet) {
            fake().copies.push_back({to, from, len_bytes, stream, fake().current()});
        }
        return CUDA_SUCCESS;
    };
    api.exchange_capture_mode = [](CUstreamCaptureMode *mode) {
        GPUSM_FAKE_ENTER("exchange_capture_mode")
        std::swap(*mode, fake().capture_mode);
        return CUDA_SUCCESS;
    };
    api.get_error_name = [](CUresult result, const char **out) {
        GPUSM_FAKE_ENTER("get_error_name")
        *out = CUDA_ERROR_INVALID_VALUE == result ? "CUDA_ERROR_INVALID_VALUE" : "SOME_ERROR";
        return CUDA_SUCCESS;
    };
    api.mem_get_address_range = [](CUdeviceptr *base, size_t *len_bytes, CUdeviceptr address) {
        GPUSM_FAKE_ENTER("mem_get_address_range")
        *base = address / 0x10000 * 0x10000;
        *len_bytes = 0x8000;
        return CUDA_SUCCESS;
    };
    api.ipc_get_mem_handle = [](CUipcMemHandle *out, CUdeviceptr base) {
        GPUSM_FAKE_ENTER("ipc_get_mem_handle")
        std::memset(out, 0, sizeof(*out));
        std::memcpy(out->reserved, &base, sizeof(base));
        return CUDA_SUCCESS;
    };
    api.ipc_open_mem_handle = [](CUdeviceptr *out, CUipcMemHandle handle, unsigned) {
        GPUSM_FAKE_ENTER("ipc_open_mem_handle")
        std::memcpy(out, handle.reserved, sizeof(*out));
        *out += 0x100000000ULL;
        return CUDA_SUCCESS;
    };
    api.ipc_close_mem_handle = [](CUdeviceptr) {
        GPUSM_FAKE_ENTER("ipc_close_mem_handle")
        return CUDA_SUCCESS;
    };
    api.ipc_get_event_handle = [](CUipcEventHandle *out, CUevent event) {
        GPUSM_FAKE_ENTER("ipc_get_event_handle")
        std::memset(out, 0, sizeof(*out));
        std::memcpy(out->reserved, &event, sizeof(event));
        return CUDA_SUCCESS;
    };
    api.ipc_open_event_handle = [](CUevent *out, CUipcEventHandle handle) {
        GPUSM_FAKE_ENTER("ipc_open_event_handle")
        std::memcpy(out, handle.reserved, sizeof(*out));
        return CUDA_SUCCESS;
    };
    api.pointer_set_attribute = [](const void *, CUpointer_attribute, CUdeviceptr) {
        GPUSM_FAKE_ENTER("pointer_set_attribute")
        return CUDA_SUCCESS;
    };
    add_host_memory(api);
    add_kernels(api);
    return api;
}

#undef GPUSM_FAKE_ENTER

} // namespace gpusm_test

#endif
