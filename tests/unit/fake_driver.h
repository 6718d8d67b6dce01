// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fake_driver.h: a driver_api table without a driver. It keeps what it was told, and fails when a
// test says so: the n-th call of a function, or until further notice.
//
// Functions of a table carry no context, so there is one fake at a time: fake().
#ifndef GPUSM_TESTS_FAKE_DRIVER_H
#define GPUSM_TESTS_FAKE_DRIVER_H

#include "opal/mca/common/gpusm/gpu/driver.h"
#include "opal/mca/common/gpusm/gpu/gather_arguments.h"
#include "opal/mca/common/gpusm/gpu/reduce_arguments.h"
#include "opal/mca/common/gpusm/gpu/strided_arguments.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
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
    CUcontext context; // that was current
};

// Copies that have one end: those of one stream before an event, or of one launch.
struct fake_unit {
    std::string way = "single";
    CUstream stream = nullptr;
    CUcontext context = nullptr;
    CUevent event = nullptr; // not of a launch
    std::size_t launch = 0;  // of a launch: which one
    std::vector<fake_copy> copies;
    bool ended = false;
    bool badly = false;       // and
    bool handed_back = false; // are kept by the test

    bool by_kernel() const { return nullptr == event; }
};

struct fake_launch {
    CUstream stream;
    CUcontext context;  // that was current
    const char *kernel; // its name
    unsigned blocks;
    unsigned threads;
    // Of the other kernels: what all have in common, too.
    gpusm::gather_arguments<gpusm::gather_most_copies> arguments;
    gpusm::strided_arguments<gpusm::strided_most_copies> strided;
    gpusm::reduce_arguments reduce;
    bool finished = false;

    bool is_strided() const { return 0 == std::strncmp(kernel, "gpusm_strided", 13); }
    bool is_reduce() const { return 0 == std::strncmp(kernel, "gpusm_reduce", 12); }
};

// Where the device sees pinned host memory: elsewhere than the host, to tell mistakes.
inline constexpr std::uint64_t fake_device_view = 1ULL << 46;

struct fake_driver {
    // What the caller of gpusm has current, as CUDA sees it: the innermost context is last.
    std::vector<CUcontext> stack;
    CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::map<CUcontext, int> device_of; // a context's device
    std::set<int> active_primary;       // devices whose primary context is active
    std::set<int> under_mps;            // devices whose contexts are in an MPS server
    std::size_t memory_bytes = 0;       // of each device
    std::map<int, int> retained;        // primary contexts: references taken here

    std::vector<fake_unit> units;       // with an end that can be seen
    std::map<CUstream, fake_unit> open; // started, and no event after them yet
    std::vector<CUevent> waited;        // one entry per cuStreamWaitEvent
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
    std::string module_text; // of the last one, or the beginning of its code
    std::map<CUfunction, std::string> functions;
    std::vector<fake_launch> launches;
    std::map<CUstream, CUresult> stream_answer; // of cuStreamQuery, instead of the usual one

    std::map<std::string, int> calls;
    std::map<std::string, int> good; // of them, of a driver that is real: those that succeeded
    std::map<std::string, std::map<int, CUresult>> failing; // n-th call from now on, 0: all
    bool quiet = false; // keeps no record of calls, and allocates nothing; events have happened
    std::uintptr_t next_handle = 0x1000;

    CUcontext current() const { return stack.empty() ? nullptr : stack.back(); }

    void fail(const std::string &function, int nth, CUresult result)
    {
        failing[function][0 == nth ? 0 : calls[function] + nth] = result;
    }
    void heal() { failing.clear(); }
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
    // The n-th unit is done, or it went wrong.
    void finish(std::size_t nth, CUresult result = CUDA_SUCCESS)
    {
        fake_unit &unit = units.at(nth);
        unit.ended = true;
        if (unit.by_kernel()) {
            finish_launch(unit.launch, result);
        } else {
            query_answer[unit.event] = result;
        }
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
    template <typename Handle> Handle make() { return handle_of<Handle>(next_handle++); }
};

inline fake_driver &fake()
{
    static fake_driver the_one;
    return the_one;
}

// A function of the table: counted, and failing when it is to; what it does otherwise, up to a
// `return` of another answer than success.
#define GPUSM_FAKE(member, parameters, ...)                                                        \
    api.member = [] parameters {                                                                   \
        if (const CUresult failed = fake().enter(#member); CUDA_SUCCESS != failed) {               \
            return failed;                                                                         \
        }                                                                                          \
        __VA_ARGS__                                                                                \
        return CUDA_SUCCESS;                                                                       \
    };

inline CUresult if_one(std::size_t erased, CUresult otherwise)
{
    return 1 == erased ? CUDA_SUCCESS : otherwise;
}

// One line of these for each statement.
// clang-format off
inline void add_contexts(gpusm::driver_api &api)
{
    GPUSM_FAKE(ctx_get_current, (CUcontext *out), *out = fake().current();)
    GPUSM_FAKE(ctx_push_current, (CUcontext context), fake().stack.push_back(context);)
    GPUSM_FAKE(ctx_pop_current, (CUcontext *out),
        if (fake().stack.empty()) { return CUDA_ERROR_INVALID_CONTEXT; }
        *out = fake().current();
        fake().stack.pop_back();)
    GPUSM_FAKE(ctx_get_device, (CUdevice *out),
        if (nullptr == fake().current()) { return CUDA_ERROR_INVALID_CONTEXT; }
        *out = fake().device_of[fake().current()];)
    GPUSM_FAKE(device_get_uuid, (CUuuid *out, CUdevice device),
        std::memset(out->bytes, 0x10 + device, sizeof(out->bytes));)
    GPUSM_FAKE(device_total_mem, (size_t *out, CUdevice), *out = fake().memory_bytes;)
    GPUSM_FAKE(device_get_attribute, (int *out, CUdevice_attribute, CUdevice device),
        *out = fake().under_mps.count(device) != 0 ? 1 : 0;)
    GPUSM_FAKE(primary_ctx_get_state, (CUdevice device, unsigned *flags, int *active),
        *flags = 0;
        *active = fake().active_primary.count(device) != 0 ? 1 : 0;)
    GPUSM_FAKE(primary_ctx_retain, (CUcontext *out, CUdevice device),
        *out = handle_of<CUcontext>(0xa0U + static_cast<unsigned>(device));
        fake().device_of[*out] = device;
        ++fake().retained[device];)
    GPUSM_FAKE(mem_get_address_range, (CUdeviceptr *base, size_t *len_bytes, CUdeviceptr address),
        *base = address / 0x10000 * 0x10000;
        *len_bytes = 0x8000;)
    GPUSM_FAKE(mem_alloc, (CUdeviceptr *, size_t), return CUDA_ERROR_NOT_SUPPORTED;)
    GPUSM_FAKE(primary_ctx_release, (CUdevice device), --fake().retained[device];)
    GPUSM_FAKE(exchange_capture_mode, (CUstreamCaptureMode *mode),
        std::swap(*mode, fake().capture_mode);)
    GPUSM_FAKE(get_error_name, (CUresult result, const char **out),
        *out = CUDA_ERROR_INVALID_VALUE == result ? "CUDA_ERROR_INVALID_VALUE" : "SOME_ERROR";)
}

inline void add_streams(gpusm::driver_api &api)
{
    GPUSM_FAKE(stream_create, (CUstream *out, unsigned flags, int priority),
        *out = fake().make<CUstream>();
        fake().streams[*out] = fake().current();
        fake().stream_arguments.emplace_back(flags, priority);)
    GPUSM_FAKE(stream_destroy, (CUstream stream),
        return if_one(fake().streams.erase(stream), CUDA_ERROR_INVALID_HANDLE);)
    GPUSM_FAKE(stream_synchronize, (CUstream), )
    GPUSM_FAKE(stream_is_capturing, (CUstream, CUstreamCaptureStatus *), )
    GPUSM_FAKE(stream_wait_event, (CUstream, CUevent event, unsigned),
        fake().waited.push_back(event);)
    GPUSM_FAKE(event_create, (CUevent *out, unsigned flags),
        *out = fake().make<CUevent>();
        if (!fake().quiet) {
            fake().events[*out] = fake().current();
            fake().event_flags[*out] = flags;
        })
    GPUSM_FAKE(event_destroy, (CUevent event),
        return if_one(fake().events.erase(event), CUDA_ERROR_INVALID_HANDLE);)
    GPUSM_FAKE(event_record, (CUevent event, CUstream stream),
        if (!fake().quiet) {
            fake().query_answer[event] = CUDA_ERROR_NOT_READY;
            fake_unit made = std::exchange(fake().open[stream], {});
            made.stream = stream;
            made.context = fake().current();
            made.event = event;
            fake().units.push_back(std::move(made));
        })
    GPUSM_FAKE(event_query, (CUevent event),
        if (!fake().quiet) { return fake().query_answer[event]; })
    GPUSM_FAKE(stream_query, (CUstream stream),
        if (fake().stream_answer.count(stream) != 0) { return fake().stream_answer[stream]; }
        for (const fake_launch &each : fake().launches) {
            if (each.stream == stream && !each.finished) { return CUDA_ERROR_NOT_READY; }
        })
    GPUSM_FAKE(memcpy_async, (CUdeviceptr to, CUdeviceptr from, size_t len_bytes, CUstream stream),
        if (!fake().quiet) {
            fake().open[stream].copies.push_back({to, from, len_bytes, fake().current()});
        })
}

// The driver copies a parameter as long as the kernel declares it.
inline void take_parameter(const void *parameter, fake_launch *into)
{
    const std::string_view name = into->kernel;
    void *room = &into->arguments;
    std::size_t len_bytes = sizeof(into->arguments);
    if (into->is_strided()) {
        room = &into->strided;
        len_bytes = name.ends_with("_few")
                        ? sizeof(gpusm::strided_arguments<gpusm::strided_few_copies>)
                        : sizeof(into->strided);
    } else if (into->is_reduce()) {
        room = &into->reduce;
        len_bytes = sizeof(into->reduce);
    } else if ("gpusm_gather_few" == name) {
        len_bytes = sizeof(gpusm::gather_arguments<gpusm::gather_few_copies>);
    }
    std::memcpy(room, parameter, len_bytes);
    if (into->is_strided()) {
        into->arguments.done = into->strided.done;
        into->arguments.done_value = into->strided.done_value;
        into->arguments.slot = into->strided.slot;
        into->arguments.copies = into->strided.copies;
    } else if (into->is_reduce()) {
        into->arguments.done = into->reduce.done;
        into->arguments.done_value = into->reduce.done_value;
        into->arguments.slot = into->reduce.slot;
        into->arguments.copies = 0;
    }
}
inline fake_copy copy_of(const fake_launch &launch, std::uint32_t nth)
{
    if (launch.is_strided()) {
        const gpusm::strided_copy &copy = launch.strided.work[nth].copy;
        return {copy.destination.address, copy.source.address, copy.len_bytes, fake().current()};
    }
    const gpusm::gather_copy &copy = launch.arguments.copy[nth];
    return {copy.destination, copy.source, copy.len_bytes, fake().current()};
}

// Page-locked memory, modules and launches.
inline void add_kernels(gpusm::driver_api &api)
{
    GPUSM_FAKE(mem_host_register, (void *memory, size_t len_bytes, unsigned flags),
        const auto at = reinterpret_cast<std::uintptr_t>(memory);
        const fake_driver::registration made{len_bytes, flags};
        return if_one(fake().registered.emplace(at, made).second,
                      CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);)
    GPUSM_FAKE(mem_host_unregister, (void *memory),
        return if_one(fake().registered.erase(reinterpret_cast<std::uintptr_t>(memory)),
                      CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);)
    GPUSM_FAKE(mem_host_get_device_pointer, (CUdeviceptr *out, void *memory, unsigned),
        const auto at = reinterpret_cast<std::uintptr_t>(memory);
        *out = at + fake_device_view;
        return if_one(fake().registered.count(at), CUDA_ERROR_INVALID_VALUE);)
    GPUSM_FAKE(module_load_data,
               (CUmodule *out, const void *text, unsigned, CUjit_option *, void **),
        fake().module_text = static_cast<const char *>(text);
        *out = fake().make<CUmodule>();
        fake().modules[*out] = fake().current();)
    GPUSM_FAKE(module_unload, (CUmodule module),
        return if_one(fake().modules.erase(module), CUDA_ERROR_INVALID_HANDLE);)
    GPUSM_FAKE(module_get_function, (CUfunction *out, CUmodule module, const char *name),
        *out = fake().make<CUfunction>();
        fake().functions[*out] = name;
        return if_one(fake().modules.count(module), CUDA_ERROR_INVALID_HANDLE);)
    GPUSM_FAKE(launch_kernel,
               (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                unsigned block_x, unsigned block_y, unsigned block_z, unsigned, CUstream stream,
                void **parameters, void **),
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
        take_parameter(parameters[0], &made);
        if (!fake().quiet) {
            fake_unit &unit = fake().units.emplace_back();
            unit.way = made.is_strided()  ? "strided"
                       : made.is_reduce() ? "reduce"
                                          : "kernel";
            unit.stream = stream;
            unit.context = fake().current();
            unit.launch = fake().launches.size() - 1;
            for (std::uint32_t i = 0; i < made.arguments.copies; ++i) {
                unit.copies.push_back(copy_of(made, i));
            }
        })
}
// clang-format on

// The table of a fresh fake. The fake knows the contexts 0xc0 and 0xc1 on devices 0 and 1.
inline gpusm::driver_api reset_fake()
{
    fake() = fake_driver{};
    fake().device_of = {{handle_of<CUcontext>(0xc0), 0}, {handle_of<CUcontext>(0xc1), 1}};
    gpusm::driver_api api;
    add_contexts(api);
    add_streams(api);
    add_kernels(api);
    return api;
}

#undef GPUSM_FAKE

} // namespace gpusm_test

#endif
