// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_views.h: some derived datatypes and memory for messages of them; where their bytes lie
// is kept beside MPI's datatype, so that what arrives is compared without asking MPI.
#ifndef GPUSM_TESTS_MPI_EXCHANGE_VIEWS_H
#define GPUSM_TESTS_MPI_EXCHANGE_VIEWS_H

#include "tests/mpi/exchange.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpusm::exchange {

struct sample_type {
    struct piece {
        std::ptrdiff_t offset;
        std::size_t len_bytes;
    };
    const char *name;
    MPI_Datatype type;
    std::vector<piece> pieces; // of an element, in the order in which they are sent
    std::ptrdiff_t extent;

    std::size_t size_bytes() const;
    std::ptrdiff_t lowest() const;
    std::ptrdiff_t highest() const;
};

// A vector, an indexed one, a subarray whose first byte is far behind its address, one with
// negative strides, and a copy of MPI_DOUBLE_INT. Freed with the object.
class sample_types {
  public:
    sample_types();
    ~sample_types();
    sample_types(const sample_types &) = delete;
    sample_types &operator=(const sample_types &) = delete;
    const std::vector<sample_type> &all() const { return all_; }

  private:
    std::vector<sample_type> all_;
};

sample_type plain_bytes(); // MPI_BYTE

// Memory of elements of a datatype, with other bytes around and in the gaps.
class strided_memory {
  public:
    // `is_tight`: the memory begins a little before the first byte of the elements, and their
    // address may lie before that; else it lies in the memory.
    strided_memory(context &c, memory_kind kind, const sample_type &of, int count,
                   bool is_tight = false);

    void *at() const { return memory_->at(static_cast<std::size_t>(origin_)); }
    void *element(int i) const { return static_cast<char *>(at()) + of_.extent * i; }
    int count() const { return count_; }
    MPI_Datatype type() const { return of_.type; }
    std::size_t len_bytes() const { return of_.size_bytes() * static_cast<std::size_t>(count_); }

    void fill(std::uint64_t seed);                          // a message
    void fill(int first, int elements, std::uint64_t seed); // one in these elements
    void poison();
    // The first `bytes` of the message of that seed have come, and nothing else has changed.
    void check(std::uint64_t seed, std::size_t bytes, const std::string &what);
    void check(std::uint64_t seed, const std::string &what) { check(seed, len_bytes(), what); }
    // Likewise for some elements of it, before check_all().
    void expect_message(int first, int elements, std::uint64_t seed, std::size_t bytes);
    void check_all(const std::string &what);

  private:
    context &c_;
    sample_type of_;
    int count_;
    std::ptrdiff_t origin_;            // of the first element, in the memory
    std::vector<unsigned char> image_; // what the memory should hold
    std::unique_ptr<buffer> memory_;
};

// Messages of derived datatypes from one kind of memory to another. Ranks 2n and 2n + 1 are a pair.
// Where it matters, the first of them sends.
class view_pair {
  public:
    view_pair(context &c, memory_kind from, memory_kind to);

  protected:
    static constexpr int tag = 91;

    // `each(type, count, seed, what)` on all ranks that have a peer, for all types and counts. The
    // seed and the next one are the pair's own.
    template <typename Each> void for_all(const char *how, const Each &each)
    {
        for (const sample_type &of : types_.all()) {
            for (int count : counts_) {
                const std::uint64_t seed = next_seed();
                const std::string what = describe(how, of, count);
                at_step(what);
                if (has_peer_) {
                    each(of, count, seed, what);
                }
            }
        }
    }
    std::uint64_t next_seed();
    std::string describe(const char *how, const sample_type &of, int count) const;
    // Of messages that go both ways.
    std::uint64_t mine(std::uint64_t seed) const { return sends_ ? seed : seed + 1; }
    std::uint64_t peers(std::uint64_t seed) const { return sends_ ? seed + 1 : seed; }

    bool ok(int code, const std::string &what) { return c_.mpi(code, what); }
    void expect_status(const MPI_Status &status, MPI_Datatype type, int count,
                       const std::string &what);
    void meet(); // both of the pair have come here
    int send(const strided_memory &out);

    context &c_;
    memory_kind from_;
    memory_kind to_;
    int peer_;
    bool has_peer_;
    bool sends_;
    std::vector<int> counts_ = {1, 3, 16}; // up to 64 KiB
    sample_types types_;
};

// Subtests in exchange_views_more.cc, in the midst of those in exchange_views.cc.
void run_more_views(context &c, memory_kind from, memory_kind to);

} // namespace gpusm::exchange

#endif
