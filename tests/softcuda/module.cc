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

CUresult launch_kernel(function *f, unsigned blocks, unsigned threads, CUstream handle,
                       void **arguments)
{
    hold held(drv().lock);
    stream_ref s;
    TRY(find_stream(held, handle, &s, use::node));
    REQUIRE(functions.count(f) != 0 && f->of->ctx == s->ctx, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(blocks > 0 && threads > 0 && threads <= 1024, CUDA_ERROR_INVALID_VALUE);
    const kernel *code = f->code;
    std::vector<std::vector<char>> values;
    for (std::size_t i = 0; i < code->argument_bytes.size(); ++i) {
        const auto *from = static_cast<const char *>(arguments[i]);
        values.emplace_back(from, from + code->argument_bytes[i]);
    }
    launch l{};
    l.device = s->ctx->device;
    l.ctx = s->ctx;
    operation op;
    op.run = [code, l, values = std::move(values), ctx = s->ctx]() mutable {
        std::vector<const void *> pointers;
        for (const auto &value : values) {
            pointers.push_back(value.data());
        }
        std::vector<stretch> touched;
        l.arguments = pointers.data();
        l.held = &touched;
        code->run(l);
        if (l.failed) {
            hold inner(drv().lock);
            ctx->sticky = ctx->sticky == CUDA_SUCCESS ? CUDA_ERROR_ILLEGAL_ADDRESS : ctx->sticky;
        }
    };
    if (capture_of(held, s) != nullptr) {
        record_node(held, s, std::move(op.run));
    } else {
        submit(held, s, std::move(op));
    }
    return CUDA_SUCCESS;
}

} // namespace

} // namespace softcuda

using namespace softcuda;

SOFTCUDA_LOCKED(context, cuModuleLoadDataEx,
                (CUmodule * out, const void *image, unsigned count, CUjit_option *options,
                 void **values),
                (out, image, count, options, values))
{
    const auto *text = static_cast<const char *>(image);
    REQUIRE(std::strstr(text, ".version") != nullptr, CUDA_ERROR_INVALID_IMAGE); // not PTX text
    auto *m = new module_image{current_context(), text, {}};
    modules.insert(m);
    *out = reinterpret_cast<CUmodule>(m);
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(context, cuModuleUnload, (CUmodule handle), (handle))
{
    auto *m = reinterpret_cast<module_image *>(handle);
    REQUIRE(modules.erase(m) != 0, CUDA_ERROR_INVALID_HANDLE);
    for (auto &[name, f] : m->functions) {
        functions.erase(f.get());
    }
    delete m;
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(context, cuModuleGetFunction, (CUfunction * out, CUmodule handle, const char *name),
                (out, handle, name))
{
    auto *m = reinterpret_cast<module_image *>(handle);
    REQUIRE(modules.count(m) != 0, CUDA_ERROR_INVALID_HANDLE);
    const kernel *code = find_kernel(name);
    REQUIRE(code != nullptr && has_entry(m->text, name), CUDA_ERROR_NOT_FOUND);
    auto &f = m->functions[name];
    if (f == nullptr) {
        f = std::make_unique<function>(function{m, code});
        functions.insert(f.get());
    }
    *out = reinterpret_cast<CUfunction>(f.get());
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuLaunchKernel,
             (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
              unsigned bz, unsigned shared, CUstream s, void **arguments, void **extra),
             (f, gx, gy, gz, bx, by, bz, shared, s, arguments, extra))
{
    return launch_kernel(reinterpret_cast<function *>(f), gx * gy * gz, bx * by * bz, s, arguments);
}
