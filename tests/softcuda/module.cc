// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// module.cc: modules from PTX text, functions by name, launches.
#include "capture.h"
#include "kernels.h"

#include <cstring>
#include <string>

namespace softcuda {

struct module_image {
    context *ctx;
    std::string text;
    std::map<std::string, std::unique_ptr<struct function>> functions;
};

struct function {
    module_image *of;
    const kernel *code;
    std::string name;
};

namespace {

// A copy finds memory of any context; loads and stores find their own and what it was given
// access to: that of its peers, and handles that were opened in it.
bool mapped_for(const context &ctx, const range &what)
{
    const bool of_a_context = what.kind == memory_kind::device || what.kind == memory_kind::ipc;
    return !of_a_context || what.ctx == &ctx ||
           (what.kind == memory_kind::device && ctx.peers.count(what.ctx->device) != 0);
}

} // namespace

void *launch::touch(std::uint64_t address, std::size_t len, bool write) const
{
    hold lock(drv().lock);
    std::vector<stretch> parts;
    const range *first = drv().space.find(address);
    if (first == nullptr || !mapped_for(*ctx, *first) ||
        !drv().space.resolve(address, len, device, write, &parts) || parts.size() != 1) {
        failed = true; // CUDA_ERROR_ILLEGAL_ADDRESS
        return nullptr;
    }
    if (parts[0].keep != nullptr &&
        (held->empty() || held->back().keep.get() != parts[0].keep.get())) {
        held->push_back(parts[0]);
    }
    return parts[0].at;
}

namespace {

std::unordered_set<module_image *> modules;
std::unordered_set<function *> functions;

// The text has ".entry name" followed by something that ends a name.
bool has_entry(const std::string &text, const std::string &name)
{
    for (std::size_t at = text.find(".entry"); at != std::string::npos;
         at = text.find(".entry", at + 1)) {
        std::size_t from = text.find_first_not_of(" \t\r\n", at + 6);
        std::size_t to = text.find_first_of(" \t\r\n(", from);
        if (from != std::string::npos && text.substr(from, to - from) == name) {
            return true;
        }
    }
    return false;
}

CUresult launch_kernel(function *f, const unsigned grid[3], const unsigned block[3],
                       CUstream handle, void **arguments, void **extra)
{
    hold held(drv().lock);
    stream_ref s;
    CUresult answer = find_stream(held, handle, &s, use::node);
    if (answer != CUDA_SUCCESS) {
        return answer;
    }
    if (functions.count(f) == 0 || f->of->ctx != s->ctx) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    std::uint64_t threads = std::uint64_t(block[0]) * block[1] * block[2];
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || threads == 0 || threads > 1024 ||
        (arguments == nullptr && extra == nullptr)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const kernel *code = f->code;
    std::size_t bytes = 0;
    std::vector<std::size_t> offsets;
    for (std::size_t size : code->argument_bytes) {
        bytes = round_up(bytes, size < 8 ? size : 8);
        offsets.push_back(bytes);
        bytes += size;
    }
    std::vector<char> values(bytes + 8);
    if (arguments != nullptr) {
        for (std::size_t i = 0; i < offsets.size(); ++i) {
            std::memcpy(values.data() + offsets[i], arguments[i], code->argument_bytes[i]);
        }
    } else {
        for (std::size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
            if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
                std::memcpy(values.data(), extra[i + 1], bytes);
            }
        }
    }
    launch l{};
    std::copy(grid, grid + 3, l.grid);
    std::copy(block, block + 3, l.block);
    l.device = s->ctx->device;
    l.ctx = s->ctx;
    operation op;
    op.run = [code, l, values = std::move(values), offsets = std::move(offsets),
              ctx = s->ctx]() mutable {
        std::vector<const void *> pointers;
        for (std::size_t at : offsets) {
            pointers.push_back(values.data() + at);
        }
        std::vector<stretch> touched;
        l.arguments = pointers.data();
        l.held = &touched;
        code->run(l);
        if (l.failed) {
            set_sticky(ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
        }
    };
    if (capture_of(held, s) != nullptr) {
        record_node(held, s, CU_GRAPH_NODE_TYPE_KERNEL, std::move(op.run));
    } else {
        submit(held, s, std::move(op));
    }
    return CUDA_SUCCESS;
}

} // namespace

} // namespace softcuda

using namespace softcuda;

SOFTCUDA_API(context, cuModuleLoadData, (CUmodule * out, const void *image), (out, image))
{
    if (out == nullptr || image == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto *text = static_cast<const char *>(image);
    if (std::strstr(text, ".version") == nullptr) {
        return CUDA_ERROR_INVALID_IMAGE; // not PTX text
    }
    hold held(drv().lock);
    auto *m = new module_image{current_context(), text, {}};
    modules.insert(m);
    *out = reinterpret_cast<CUmodule>(m);
    return CUDA_SUCCESS;
}
SOFTCUDA_SAME(context, cuModuleLoadDataEx, cuModuleLoadData,
              (CUmodule * out, const void *image, unsigned count, CUjit_option *options,
               void **values),
              (out, image, count, options, values), (out, image))

SOFTCUDA_API(context, cuModuleUnload, (CUmodule handle), (handle))
{
    hold held(drv().lock);
    auto *m = reinterpret_cast<module_image *>(handle);
    if (modules.erase(m) == 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (auto &[name, f] : m->functions) {
        functions.erase(f.get());
    }
    delete m;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuModuleGetFunction, (CUfunction * out, CUmodule handle, const char *name),
             (out, handle, name))
{
    hold held(drv().lock);
    auto *m = reinterpret_cast<module_image *>(handle);
    if (out == nullptr || name == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (modules.count(m) == 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const kernel *code = find_kernel(name);
    if (code == nullptr || !has_entry(m->text, name)) {
        return CUDA_ERROR_NOT_FOUND;
    }
    auto &f = m->functions[name];
    if (f == nullptr) {
        f = std::make_unique<function>(function{m, code, name});
        functions.insert(f.get());
    }
    *out = reinterpret_cast<CUfunction>(f.get());
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuFuncSetAttribute, (CUfunction f, CUfunction_attribute what, int value),
             (f, what, value))
{
    (void)what;
    (void)value;
    hold held(drv().lock);
    return functions.count(reinterpret_cast<function *>(f)) != 0 ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_INVALID_HANDLE;
}

SOFTCUDA_API(context, cuFuncGetAttribute, (int *out, CUfunction_attribute what, CUfunction f),
             (out, what, f))
{
    *out = what == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return do_cuFuncSetAttribute(f, what, 0);
}

SOFTCUDA_API(context, cuOccupancyMaxActiveBlocksPerMultiprocessor,
             (int *out, CUfunction f, int block_size, size_t shared), (out, f, block_size, shared))
{
    (void)shared;
    *out = block_size > 0 ? 2048 / block_size : 0;
    return do_cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 0);
}

#define SOFTCUDA_LAUNCH(name, which)                                                               \
    SOFTCUDA_API(context, name,                                                                    \
                 (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,   \
                  unsigned bz, unsigned shared, CUstream s, void **arguments, void **extra),       \
                 (f, gx, gy, gz, bx, by, bz, shared, s, arguments, extra))                         \
    {                                                                                              \
        (void)shared;                                                                              \
        const unsigned grid[3] = {gx, gy, gz};                                                     \
        const unsigned block[3] = {bx, by, bz};                                                    \
        return launch_kernel(reinterpret_cast<function *>(f), grid, block, which, arguments,       \
                             extra);                                                               \
    }
SOFTCUDA_LAUNCH(cuLaunchKernel, s)
SOFTCUDA_LAUNCH(cuLaunchKernel_ptsz, per_thread(s))

SOFTCUDA_API(context, cuLaunchKernelEx,
             (const CUlaunchConfig *c, CUfunction f, void **arguments, void **extra),
             (c, f, arguments, extra))
{
    return do_cuLaunchKernel(f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,
                             c->blockDimZ, c->sharedMemBytes, c->hStream, arguments, extra);
}
