// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/base/host_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace gpusm {

namespace {

#if defined(__x86_64__)

// Shorter copies are over before what follows pays.
constexpr std::size_t least_bytes = 16 * 1024;
constexpr std::size_t long_bytes = 1024 * 1024;
constexpr std::size_t ahead_bytes = 1024;
constexpr std::size_t line_bytes = 64;

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

// Whole lines, `to` at the beginning of one.
__attribute__((target("avx2"))) void stream_lines(unsigned char *to, const unsigned char *from,
                                                  std::size_t lines)
{
    for (std::size_t i = 0; i < lines; ++i, to += line_bytes, from += line_bytes) {
        _mm_prefetch(from + ahead_bytes, _MM_HINT_T0);
        const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
        const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from) + 1);
        _mm256_stream_si256(reinterpret_cast<__m256i *>(to), low);
        _mm256_stream_si256(reinterpret_cast<__m256i *>(to) + 1, high);
    }
    _mm_sfence(); // these stores wait for nobody else's order
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

void copy_out_of_ring(void *to, const void *from, std::size_t len_bytes,
                      std::size_t message_bytes) noexcept
{
#if defined(__x86_64__)
    static const bool has_avx2 = __builtin_cpu_supports("avx2");
    if (has_avx2 && len_bytes >= least_bytes && message_bytes >= long_bytes) {
        auto *out = static_cast<unsigned char *>(to);
        const auto *in = static_cast<const unsigned char *>(from);
        const std::size_t head = -reinterpret_cast<std::uintptr_t>(out) % line_bytes;
        std::memcpy(out, in, head);
        const std::size_t lines = (len_bytes - head) / line_bytes;
        stream_lines(out + head, in + head, lines);
        const std::size_t done = head + lines * line_bytes;
        std::memcpy(out + done, in + done, len_bytes - done);
        return;
    }
#endif
    (void)message_bytes;
    std::memcpy(to, from, len_bytes);
}

} // namespace gpusm
