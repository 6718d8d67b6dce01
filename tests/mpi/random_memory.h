// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// random_memory.h: memory of elements of a random datatype, of which every byte is known: those of
// a message, those in gaps and those around.
#ifndef GPUSM_TESTS_MPI_RANDOM_MEMORY_H
#define GPUSM_TESTS_MPI_RANDOM_MEMORY_H

#include "tests/mpi/exchange.h"
#include "tests/mpi/random_layout.h"

namespace gpusm::exchange {

// gpusm's kernels walk the blocks of such memory, and Open MPI never does.
bool is_viewed(const context &c, memory_kind kind);

class random_memory {
  public:
    // Room for that many elements of a signature, as elements of a datatype that `seed` decides.
    random_memory(context &c, memory_kind kind, std::uint64_t seed,
                  const std::vector<basic_run> &signature, std::size_t elements);

    void *at() const { return static_cast<char *>(memory_->at(0)) + origin_; }
    int count() const { return static_cast<int>(count_); }
    MPI_Datatype type() const { return of_.type; }

    // The whole message made of that seed, and bytes in the gaps that no receiver has there.
    std::string fill(std::uint64_t seed);
    std::string poison();
    // The sentence names the first wrong byte.
    std::string compare_sent(std::uint64_t seed) const; // nothing has changed since fill()
    // The first `bytes` of the message made of that seed have come after poison(), and nothing else
    // has changed.
    std::string compare_received(std::uint64_t seed, std::size_t bytes) const;

  private:
    std::vector<unsigned char> image(std::uint64_t seed, std::size_t bytes,
                                     unsigned char elsewhere) const;
    std::string compare(const std::vector<unsigned char> &expected) const;
    std::size_t len_bytes() const { return of_.size_bytes() * count_; }

    generator from_;
    layouts layouts_;
    layout of_;
    std::size_t count_;
    std::ptrdiff_t origin_; // of the first element, in the memory
    std::unique_ptr<buffer> memory_;
};

} // namespace gpusm::exchange

#endif
