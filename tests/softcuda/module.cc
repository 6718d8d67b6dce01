// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// module.cc: modules from PTX text, functions by name, launches; and the kernels of this project,
// written once more for the CPU. One is launched by the name that its PTX entry has. A new one: a
// function here and a line in `kernels`; what is not listed there cannot be launched.
#include "stream.h"

#include "opal/mca/common/gpusm/gpu/gather_arguments.h"
#include "opal/mca/common/gpusm/gpu/reduce_combine.h"
#include "opal/mca/common/gpusm/gpu/strided_arguments.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

namespace softcuda {

namespace {

// A copy finds memory of any context; loads and stores find their own and what it was given
// access to: that of its peers, and handles that were opened in it.
bool mapped_for(const context &ctx, const range &what)
{
    const bool of_a_context = what.kind == memory_kind::device || what.kind == memory_kind::ipc;
    return !of_a_context || what.ctx == &ctx ||
           (what.kind == memory_kind::device && ctx.peers.count(what.ctx->device) != 0);
}

struct launch {
    const context *ctx;                     // whose stream it runs on
    const void *const *arguments = nullptr; // one pointer per parameter, to a copy of its value
    bool failed = false;

    template <class T> T argument(int i) const { return *static_cast<const T *>(arguments[i]); }

    // Where the CPU finds [address, +len): device memory, managed or pinned host memory. For
    // anything else, memory of another context without peer access included, the launch has failed:
    // return at once.
    stretch touch(std::uint64_t address, std::size_t len, bool write)
    {
        hold lock(drv().lock);
        std::vector<stretch> parts;
        const range *first = drv().space.find(address);
        if (first == nullptr || !mapped_for(*ctx, *first) ||
            !drv().space.resolve(address, len, ctx->device, write, &parts) || parts.size() != 1) {
            failed = true; // CUDA_ERROR_ILLEGAL_ADDRESS
            return {};
        }
        return parts[0];
    }
};

// The bytes from `address` to the end of what is mapped in one piece at most.
std::uint64_t room(std::uint64_t address)
{
    return block_granularity - address % block_granularity;
}

void copy(launch &l, std::uint64_t to, std::uint64_t from, std::uint64_t bytes)
{
    while (bytes > 0) {
        const std::uint64_t now = std::min({bytes, room(to), room(from)});
        const stretch destination = l.touch(to, now, true);
        const stretch source = l.touch(from, now, false);
        if (l.failed) {
            return;
        }
        std::memmove(destination.at, source.at, now);
        to += now;
        from += now;
        bytes -= now;
    }
}

// Between device memory and memory of the CPU's own.
void fetch(launch &l, void *into, std::uint64_t from, std::uint64_t bytes)
{
    for (auto *to = static_cast<char *>(into); bytes > 0;) {
        const std::uint64_t now = std::min(bytes, room(from));
        const stretch found = l.touch(from, now, false);
        if (l.failed) {
            return;
        }
        std::memcpy(to, found.at, now);
        to += now;
        from += now;
        bytes -= now;
    }
}

void put(launch &l, std::uint64_t to, const void *from, std::uint64_t bytes)
{
    for (const auto *next = static_cast<const char *>(from); bytes > 0;) {
        const std::uint64_t now = std::min(bytes, room(to));
        const stretch found = l.touch(to, now, true);
        if (l.failed) {
            return;
        }
        std::memcpy(found.at, next, now);
        next += now;
        to += now;
        bytes -= now;
    }
}

// What the kernels of this project do in the end.
void tell_end(launch &l, std::uint64_t done, std::uint32_t value)
{
    const stretch flag = l.failed ? stretch{} : l.touch(done, sizeof(value), true);
    if (!l.failed) {
        __atomic_store_n(reinterpret_cast<std::uint32_t *>(flag.at), value, __ATOMIC_RELEASE);
    }
}

// gpusm_gather*(gather_arguments): the pieces one after the other, then the flag
// (opal/mca/common/gpusm/gpu/gather_kernel.cu).
template <unsigned most> void gather(launch &l)
{
    const auto arguments = l.argument<gpusm::gather_arguments<most>>(0);
    for (std::uint32_t piece = 0; piece < arguments.pieces; ++piece) {
        const gpusm::gather_copy *found =
            std::upper_bound(arguments.copy, arguments.copy + std::min(arguments.copies, most),
                             piece, [](std::uint32_t wanted, const gpusm::gather_copy &c) {
                                 return wanted < c.first_piece;
                             });
        --found;
        const gpusm::gather_piece part =
            gpusm::gather_piece_of(found->destination, found->len_bytes, piece - found->first_piece,
                                   arguments.piece_shift);
        copy(l, found->destination + part.begin, found->source + part.begin, part.end - part.begin);
        if (l.failed) {
            return;
        }
    }
    tell_end(l, arguments.done, arguments.done_value);
}

// The list of a side's blocks, if it has one, and as much of its guide as is needed, as the CPU
// finds them.
void fetch_blocks(launch &l, gpusm::strided_layout *layout, std::vector<gpusm::strided_block> *list)
{
    if (layout->blocks == 0) {
        return;
    }
    constexpr std::uint64_t block_bytes = sizeof(gpusm::strided_block);
    const std::uint64_t guides = ((layout->element_bytes - 1) >> layout->guide_shift) + 2;
    const std::uint64_t bytes = layout->block_count * block_bytes + guides * sizeof(std::uint32_t);
    list->resize((bytes + block_bytes - 1) / block_bytes);
    fetch(l, list->data(), layout->blocks, bytes);
    layout->blocks = reinterpret_cast<std::uint64_t>(list->data());
}

// gpusm_strided*(strided_arguments): the copies one after the other, by what lies together on both
// sides, then the flag (opal/mca/common/gpusm/gpu/strided_kernel.cu).
template <unsigned most> void strided(launch &l)
{
    auto arguments = l.argument<gpusm::strided_arguments<most>>(0);
    for (std::uint32_t i = 0; i < std::min(arguments.copies, most); ++i) {
        gpusm::strided_copy &each = arguments.work[i].copy;
        std::vector<gpusm::strided_block> lists[2];
        fetch_blocks(l, &each.source.layout, &lists[0]);
        fetch_blocks(l, &each.destination.layout, &lists[1]);
        for (std::uint64_t at = 0; at < each.len_bytes && !l.failed;) {
            const gpusm::strided_place from = gpusm::strided_place_of(each.source, at);
            const gpusm::strided_place to = gpusm::strided_place_of(each.destination, at);
            const std::uint64_t now = std::min({from.together, to.together, each.len_bytes - at});
            // As much as a GPU would say about a word that is not aligned, or cut in two.
            l.failed = now % each.word_bytes != 0 || from.address % each.word_bytes != 0 ||
                       to.address % each.word_bytes != 0;
            copy(l, to.address, from.address, l.failed ? 0 : now);
            at += now;
        }
    }
    tell_end(l, arguments.done, arguments.done_value);
}

// gpusm_reduce*(reduce_arguments): some vectors of all sources, and then of all targets, one after
// the other, then the flag (opal/mca/common/gpusm/gpu/reduce_kernel.cu). `aligned`: what its
// buffers must be.
template <bool aligned> void reduce(launch &l)
{
    const auto arguments = l.argument<gpusm::reduce_arguments>(0);
    const gpusm::reduction &what = arguments.what;
    const std::uint64_t word = aligned ? sizeof(gpusm::vector16) : arguments.word_bytes;
    const std::uint64_t tail = aligned ? 0 : arguments.tail_bytes;
    std::vector<std::uint64_t> all(what.sources, what.sources + what.source_count);
    all.insert(all.end(), what.targets, what.targets + what.target_count);
    // As much as a GPU would say about a word that is not aligned, or cut in two.
    for (const std::uint64_t each : all) {
        l.failed = l.failed || each % word != 0 ||
                   (tail > 0 && (each % arguments.tail_word_bytes != 0 ||
                                 tail % arguments.tail_word_bytes != 0));
    }
    constexpr std::uint64_t chunk_vectors = 4096;
    std::vector<gpusm::vector16> result(chunk_vectors);
    std::vector<gpusm::vector16> next(chunk_vectors);
    const std::uint64_t end = arguments.vectors * sizeof(gpusm::vector16) + tail;
    for (std::uint64_t at = 0; at < end && !l.failed;) {
        const std::uint64_t now = std::min(end - at, chunk_vectors * sizeof(gpusm::vector16));
        fetch(l, result.data(), what.sources[0] + at, now);
        for (std::uint32_t source = 1; source < what.source_count && !l.failed; ++source) {
            fetch(l, next.data(), what.sources[source] + at, now);
            for (std::uint64_t i = 0; i * sizeof(gpusm::vector16) < now; ++i) {
                result[i] = gpusm::combine(what.op, what.type, result[i], next[i]);
            }
        }
        for (std::uint32_t target = 0; target < what.target_count && !l.failed; ++target) {
            fetch(l, next.data(), what.targets[target] + at, now);
            for (std::uint64_t i = 0; i < now; ++i) {
                const bool is_written = (arguments.written >> i % sizeof(gpusm::vector16) & 1) != 0;
                auto *const to = reinterpret_cast<unsigned char *>(next.data());
                to[i] = is_written ? reinterpret_cast<unsigned char *>(result.data())[i] : to[i];
            }
            put(l, what.targets[target] + at, next.data(), now);
        }
        at += now;
    }
    tell_end(l, arguments.done, arguments.done_value);
}

// gpusm_busy(nanoseconds): bench/common/busy_kernel.cc.
void busy(launch &l)
{
    std::this_thread::sleep_for(std::chrono::nanoseconds(l.argument<std::uint64_t>(0)));
}

const struct kernel {
    const char *name;
    std::vector<std::size_t> argument_bytes;
    void (*run)(launch &);
} kernels[] = {
    {"gpusm_busy", {sizeof(std::uint64_t)}, busy},
    {"gpusm_gather",
     {sizeof(gpusm::gather_arguments<gpusm::gather_most_copies>)},
     gather<gpusm::gather_most_copies>},
    {"gpusm_gather_few",
     {sizeof(gpusm::gather_arguments<gpusm::gather_few_copies>)},
     gather<gpusm::gather_few_copies>},
    {"gpusm_reduce", {sizeof(gpusm::reduce_arguments)}, reduce<true>},
    {"gpusm_reduce_any", {sizeof(gpusm::reduce_arguments)}, reduce<false>},
    {"gpusm_strided_short_few",
     {sizeof(gpusm::strided_arguments<gpusm::strided_few_copies>)},
     strided<gpusm::strided_few_copies>},
    {"gpusm_strided_short",
     {sizeof(gpusm::strided_arguments<gpusm::strided_most_copies>)},
     strided<gpusm::strided_most_copies>},
    {"gpusm_strided_long_few",
     {sizeof(gpusm::strided_arguments<gpusm::strided_few_copies>)},
     strided<gpusm::strided_few_copies>},
    {"gpusm_strided_long",
     {sizeof(gpusm::strided_arguments<gpusm::strided_most_copies>)},
     strided<gpusm::strided_most_copies>},
    {"gpusm_strided_wide",
     {sizeof(gpusm::strided_arguments<gpusm::strided_most_copies>)},
     strided<gpusm::strided_most_copies>},
};

struct function;
struct module_image {
    context *ctx;
    std::map<std::string, std::unique_ptr<function>> functions;
};

struct function {
    module_image *of;
    const kernel *code;
};

std::unordered_map<module_image *, std::unique_ptr<module_image>> modules;
std::unordered_set<function *> functions;

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
    submit_node(held, s, [code, values = std::move(values), ctx = s->ctx] {
        std::vector<const void *> pointers;
        for (const auto &value : values) {
            pointers.push_back(value.data());
        }
        launch l{ctx, pointers.data()};
        code->run(l);
        if (l.failed) {
            hold inner(drv().lock);
            ctx->sticky = ctx->sticky == CUDA_SUCCESS ? CUDA_ERROR_ILLEGAL_ADDRESS : ctx->sticky;
        }
    });
    return CUDA_SUCCESS;
}

} // namespace

} // namespace softcuda

using namespace softcuda;

SOFTCUDA_LOCKED(context_uncaptured, cuModuleLoadDataEx,
                (CUmodule * out, const void *image, unsigned count, CUjit_option *options,
                 void **values),
                (out, image, count, options, values))
{
    const auto *text = static_cast<const char *>(image);
    REQUIRE(std::strncmp(text, "\x50\xed\x55\xba", 4) != 0, CUDA_ERROR_NO_BINARY_FOR_GPU);
    wait_for_context(held, current_context());
    REQUIRE(std::strstr(text, ".version") != nullptr, CUDA_ERROR_INVALID_IMAGE); // not PTX text
    auto m = std::make_unique<module_image>(module_image{current_context(), {}});
    *out = reinterpret_cast<CUmodule>(m.get());
    modules.emplace(m.get(), std::move(m));
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(context_uncaptured, cuModuleUnload, (CUmodule handle), (handle))
{
    auto *m = reinterpret_cast<module_image *>(handle);
    REQUIRE(modules.count(m) != 0, CUDA_ERROR_INVALID_HANDLE);
    for (auto &[name, f] : m->functions) {
        functions.erase(f.get());
    }
    modules.erase(m);
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(context, cuModuleGetFunction, (CUfunction * out, CUmodule handle, const char *name),
                (out, handle, name))
{
    auto *m = reinterpret_cast<module_image *>(handle);
    REQUIRE(modules.count(m) != 0, CUDA_ERROR_INVALID_HANDLE);
    const kernel *code = std::find_if(std::begin(kernels), std::end(kernels), [&](const kernel &k) {
        return std::strcmp(k.name, name) == 0;
    });
    REQUIRE(code != std::end(kernels), CUDA_ERROR_NOT_FOUND);
    auto &f = m->functions[name];
    if (f == nullptr) {
        f = std::make_unique<function>(function{m, code});
        functions.insert(f.get());
    }
    return give(out, reinterpret_cast<CUfunction>(f.get()));
}

SOFTCUDA_API(context, cuLaunchKernel,
             (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
              unsigned bz, unsigned shared, CUstream s, void **arguments, void **extra),
             (f, gx, gy, gz, bx, by, bz, shared, s, arguments, extra))
{
    return launch_kernel(reinterpret_cast<function *>(f), gx * gy * gz, bx * by * bz, s, arguments);
}
