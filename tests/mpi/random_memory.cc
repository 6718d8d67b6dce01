// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "tests/mpi/random_memory.h"

#include <algorithm>

namespace gpusm::exchange {

namespace {

constexpr std::ptrdiff_t guard_bytes = 64;
constexpr unsigned char sent_gap_byte = 0x3C;
constexpr std::size_t most_together = 64;

} // namespace

bool is_viewed(const context &c, memory_kind kind)
{
    return c.views && bench::is_gpu(kind) && memory_kind::managed != kind &&
           memory_kind::vmm_chunks != kind;
}

random_memory::random_memory(context &c, memory_kind kind, std::uint64_t seed,
                             const std::vector<basic_run> &signature, std::size_t elements)
    : from_(seed), layouts_(from_, is_viewed(c, kind) ? distances::any : distances::multiples),
      of_(layouts_.of(signature)), count_(elements)
{
    if (0 != elements) {
        const std::size_t together = some_divisor(elements, from_);
        if (1 < together && together < most_together) {
            of_ = layouts_.repeated(of_, together);
            count_ = elements / together;
        }
    }
    MPI_Type_commit(&of_.type);
    // An address before the memory, of elements that lie in it; Open MPI asks about that address.
    const bool is_tight = one_of(2, from_) && (is_viewed(c, kind) || !bench::is_gpu(kind));
    const std::ptrdiff_t begin = 0 == count_ ? 0 : of_.begin;
    const std::ptrdiff_t end =
        0 == count_ ? 0 : of_.end + of_.extent * static_cast<std::ptrdiff_t>(count_ - 1);
    origin_ = guard_bytes - (is_tight ? begin : std::min<std::ptrdiff_t>(0, begin)) +
              layouts_.alignment() * static_cast<std::ptrdiff_t>(draw(from_, 0, 15));
    memory_ = c.make(
        kind, static_cast<std::size_t>(origin_ + std::max<std::ptrdiff_t>(0, end) + guard_bytes));
}

std::string random_memory::fill(std::uint64_t seed)
{
    const auto bytes = image(seed, len_bytes(), sent_gap_byte);
    return memory_->write(0, bytes.data(), bytes.size());
}

std::string random_memory::poison()
{
    return memory_->poison();
}

std::string random_memory::compare_sent(std::uint64_t seed) const
{
    return compare(image(seed, len_bytes(), sent_gap_byte));
}

std::string random_memory::compare_received(std::uint64_t seed, std::size_t bytes) const
{
    return compare(image(seed, bytes, bench::poison_byte));
}

std::vector<unsigned char> random_memory::image(std::uint64_t seed, std::size_t bytes,
                                                unsigned char elsewhere) const
{
    std::vector<unsigned char> message(bytes);
    bench::write_pattern(message.data(), message.size(), seed, 0);
    std::vector<unsigned char> all(memory_->len_bytes(), elsewhere);
    auto next = message.begin();
    for (std::size_t i = 0; i < count_; ++i) {
        for (const layout::piece &each : of_.pieces) {
            const auto length =
                std::min(static_cast<std::ptrdiff_t>(each.len_bytes), message.end() - next);
            std::copy_n(next, length,
                        all.begin() + origin_ + of_.extent * static_cast<std::ptrdiff_t>(i) +
                            each.offset);
            next += length;
        }
    }
    return all;
}

std::string random_memory::compare(const std::vector<unsigned char> &expected) const
{
    std::vector<unsigned char> found(expected.size());
    std::string error = memory_->read(0, found.data(), found.size());
    const auto wrong = std::mismatch(found.begin(), found.end(), expected.begin());
    if (error.empty() && wrong.first != found.end()) {
        error = "byte " + std::to_string(wrong.first - found.begin() - origin_) +
                " from the address, in memory of " + std::to_string(found.size()) + " bytes, is " +
                std::to_string(*wrong.first) + " instead of " + std::to_string(*wrong.second);
    }
    return error;
}

} // namespace gpusm::exchange
