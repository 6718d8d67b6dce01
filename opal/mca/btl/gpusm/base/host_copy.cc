// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/base/host_copy.h"

#include <chrono>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace gpusm {

namespace {

// Shorter messages stay in a processor's own cache (the second level of current ones holds 1 to 2
// MiB), and the program may be about to read them.
constexpr std::size_t long_message_bytes = 1024 * 1024;
// Shorter parts of them are no measure.
constexpr std::size_t timed_bytes = 64 * 1024;

#if defined(__x86_64__)

// Shorter copies are over before what follows pays.
constexpr std::size_t least_bytes = 16 * 1024;

// The processor copies strings with an instruction of its own, fast ("enhanced rep movsb").
bool has_fast_strings()
{
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    constexpr unsigned erms = 1U << 9;
    return 0 != __get_cpuid_count(7, 0, &a, &b, &c, &d) && 0 != (b & erms);
}

constexpr std::size_t line_bytes = 64;

// `to` is the start of a line; both copy whole lines. A line that goes out by one store is faster
// where there is such a store (by a tenth to a quarter: docs/performance-mixed.md).
void stream_by_quarters(unsigned char *to, const unsigned char *from, std::size_t lines)
{
    for (; lines > 0; --lines, to += line_bytes, from += line_bytes) {
        for (std::size_t at = 0; at < line_bytes; at += sizeof(__m128i)) {
            _mm_stream_si128(reinterpret_cast<__m128i *>(to + at),
                             _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + at)));
        }
    }
}

__attribute__((target("avx512f"))) void
stream_by_lines(unsigned char *to, const unsigned char *from, std::size_t lines)
{
    for (; lines > 0; --lines, to += line_bytes, from += line_bytes) {
        _mm512_stream_si512(reinterpret_cast<__m512i *>(to), _mm512_loadu_si512(from));
    }
}

#endif

} // namespace

void copy_into_ring(void *to, const void *from, std::size_t len_bytes) noexcept
{
#if defined(__x86_64__)
    static const bool fast_strings = has_fast_strings();
    if (fast_strings && len_bytes >= least_bytes) {
        asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(len_bytes) : : "memory");
        return;
    }
#endif
    std::memcpy(to, from, len_bytes);
}

void copy_past_cache(void *to, const void *from, std::size_t len_bytes) noexcept
{
#if defined(__x86_64__)
    if (len_bytes >= least_bytes) {
        static const bool has_long_stores = 0 != __builtin_cpu_supports("avx512f");
        auto *out = static_cast<unsigned char *>(to);
        const auto *in = static_cast<const unsigned char *>(from);
        const std::size_t head = -reinterpret_cast<std::uintptr_t>(out) % line_bytes;
        const std::size_t lines = (len_bytes - head) / line_bytes;
        const std::size_t tail_at = head + lines * line_bytes;
        std::memcpy(out, in, head);
        (has_long_stores ? stream_by_lines : stream_by_quarters)(out + head, in + head, lines);
        std::memcpy(out + tail_at, in + tail_at, len_bytes - tail_at);
        _mm_sfence(); // these stores are not ordered with what follows otherwise
        return;
    }
#endif
    std::memcpy(to, from, len_bytes);
}

void copies_out_of_rings::copy(void *to, const void *from, std::size_t len_bytes,
                               std::size_t message_bytes) noexcept
{
    using clock = std::chrono::steady_clock;
    if (message_bytes < long_message_bytes || len_bytes < timed_bytes) {
        std::memcpy(to, from, len_bytes);
        return;
    }
    const auto began = way_.is_trial() ? clock::now() : clock::time_point{};
    way_.is_second() ? copy_past_cache(to, from, len_bytes)
                     : static_cast<void>(std::memcpy(to, from, len_bytes));
    const std::chrono::nanoseconds passed =
        way_.is_trial() ? clock::now() - began : clock::duration{};
    constexpr std::uint64_t kibi = 1024;
    way_.took(static_cast<std::uint64_t>(passed.count()) * kibi / len_bytes);
}

} // namespace gpusm
