// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// kernels.cc: the list of kernels. A new one: a function here and a line in `list`.
#include "kernels.h"

#include "memory.h"
#include "opal/mca/btl/gpusm/gpu/gather_arguments.h"

#include <algorithm>
#include <cstring>

namespace softcuda {

namespace {

// The bytes from `address` to the end of what is mapped in one piece at most.
std::uint64_t room(std::uint64_t address)
{
    return block_granularity - address % block_granularity;
}

// False when the device cannot reach all of it.
bool copy(const launch &l, std::uint64_t to, std::uint64_t from, std::uint64_t bytes)
{
    while (bytes > 0) {
        const std::uint64_t now = std::min({bytes, room(to), room(from)});
        void *destination = l.touch(to, now, true);
        const void *source = l.touch(from, now, false);
        if (destination == nullptr || source == nullptr) {
            return false;
        }
        std::memmove(destination, source, now);
        to += now;
        from += now;
        bytes -= now;
    }
    return true;
}

// gpusm_gather*(gather_arguments): the pieces one after the other, then the flag
// (opal/mca/btl/gpusm/gpu/gather_kernel.cu).
template <unsigned most> void gather(const launch &l)
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
        if (!copy(l, found->destination + part.begin, found->source + part.begin,
                  part.end - part.begin)) {
            return;
        }
    }
    if (void *done = l.touch(arguments.done, sizeof(std::uint32_t), true)) {
        __atomic_store_n(static_cast<std::uint32_t *>(done), arguments.done_value,
                         __ATOMIC_RELEASE);
    }
}

const kernel list[] = {
    {"gpusm_gather",
     {sizeof(gpusm::gather_arguments<gpusm::gather_most_copies>)},
     gather<gpusm::gather_most_copies>},
    {"gpusm_gather_few",
     {sizeof(gpusm::gather_arguments<gpusm::gather_few_copies>)},
     gather<gpusm::gather_few_copies>},
};

} // namespace

const kernel *find_kernel(const char *name)
{
    for (const kernel &k : list) {
        if (std::strcmp(k.name, name) == 0) {
            return &k;
        }
    }
    return nullptr;
}

} // namespace softcuda
