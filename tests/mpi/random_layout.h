// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// random_layout.h: random datatypes of a given signature: nested vectors, indexed blocks, structs,
// subarrays, interleaved columns and resized types, forwards and backwards, below and above their
// address. Where the bytes lie is kept beside MPI's datatype, so that what arrives is compared
// without asking MPI.
#ifndef GPUSM_TESTS_MPI_RANDOM_LAYOUT_H
#define GPUSM_TESTS_MPI_RANDOM_LAYOUT_H

#include <mpi.h>

#include <cstddef>
#include <random>
#include <vector>

namespace gpusm::exchange {

using generator = std::mt19937_64;

// A draw of [least, most]; the same with every library.
std::size_t draw(generator &from, std::size_t least, std::size_t most);
inline bool one_of(std::size_t n, generator &from) // in n
{
    return 1 == draw(from, 1, n);
}
// Of every order of magnitude as often.
std::size_t draw_length(generator &from, std::size_t least, std::size_t most);
std::size_t some_divisor(std::size_t of, generator &from);

// A datatype, and its bytes in the order in which they are sent. No byte is there twice, not in
// several elements side by side either.
struct layout {
    struct piece {
        std::ptrdiff_t offset;
        std::size_t len_bytes;
    };
    MPI_Datatype type = MPI_DATATYPE_NULL;
    std::vector<piece> pieces;
    std::ptrdiff_t extent = 0; // from one to the next, as MPI says
    std::ptrdiff_t begin = 0;  // its lowest byte
    std::ptrdiff_t end = 0;    // behind its highest byte

    std::ptrdiff_t span() const { return end - begin; }
    std::size_t size_bytes() const;
    void add(const layout &part, std::ptrdiff_t at);
};

// So many of one basic type; several of them are the signature of an element.
struct basic_run {
    MPI_Datatype type;
    std::size_t times;
};
std::vector<basic_run> draw_signature(generator &from);
std::size_t size_bytes(const std::vector<basic_run> &signature);

// From one basic element to another. Open MPI packs datatypes wrongly in fragments where these are
// not multiples of an element's size, such as two ints at 0 and 9.
enum class distances { any, multiples };

// Makes layouts; their datatypes are freed with it.
class layouts {
  public:
    layouts(generator &from, distances apart);
    ~layouts();
    layouts(const layouts &) = delete;
    layouts &operator=(const layouts &) = delete;

    layout of(const std::vector<basic_run> &signature);
    // The same `times` times.
    layout repeated(const layout &part, std::size_t times);

    // What addresses and distances in bytes are multiples of.
    std::ptrdiff_t alignment() const { return alignment_; }

  private:
    layout basic(MPI_Datatype type);
    layout of(const basic_run &run);
    layout finished(layout made);
    layout resized(layout of);
    layout resized(layout of, std::ptrdiff_t low, std::ptrdiff_t extent);
    layout structure(const std::vector<layout> &parts);
    layout contiguous(const layout &part, std::size_t times);
    layout in_steps(const layout &part, std::size_t times, bool by_bytes);
    layout in_blocks(const layout &part, std::size_t times, bool by_bytes);
    layout in_even_blocks(const layout &part, std::size_t times, bool by_bytes);
    layout subarray(const layout &part, std::size_t times);
    layout in_columns(const layout &part, std::size_t times);

    std::ptrdiff_t aligned(std::ptrdiff_t offset) const;
    std::ptrdiff_t gap();
    std::ptrdiff_t shift(); // either way
    std::vector<std::size_t> some_order(std::size_t of);

    generator &from_;
    std::ptrdiff_t alignment_;
    std::vector<MPI_Datatype> made_;
};

} // namespace gpusm::exchange

#endif
