// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// random_type.h: random datatypes of every constructor, for tests that leave it to MPI to tell
// where their bytes lie.
#ifndef GPUSM_TESTS_MPI_RANDOM_TYPE_H
#define GPUSM_TESTS_MPI_RANDOM_TYPE_H

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

namespace gpusm::tests {

// One committed datatype, freed with the object. Its bytes do not overlap.
class random_type {
  public:
    // The same one for the same seed. At most about so many bytes.
    random_type(std::uint64_t seed, std::size_t most_bytes);
    ~random_type();
    random_type(const random_type &) = delete;
    random_type &operator=(const random_type &) = delete;

    MPI_Datatype get() const { return type_; }
    const std::string &name() const { return name_; } // its constructors, the outermost first
    std::size_t size_bytes() const;
    MPI_Aint extent() const;
    // Of `count` elements: the place of the lowest byte and that behind the highest.
    MPI_Aint lowest(MPI_Aint count) const;
    MPI_Aint highest(MPI_Aint count) const;

  private:
    std::int64_t draw(std::int64_t least, std::int64_t most);
    void start_with_basic();
    void start_with_struct();
    void grow(std::size_t most_bytes);
    void repeat(std::int64_t most_times);
    void vector(std::int64_t most_times, bool by_bytes);
    void indexed(std::int64_t most_times, bool by_bytes);
    void subarray(std::int64_t most_times);
    void two_parts();
    void resize();
    void duplicate();
    void replace(MPI_Datatype made, const std::string &how);
    MPI_Aint spread() const; // from one element to where the next does not overlap it

    std::mt19937_64 random_;
    MPI_Datatype type_ = MPI_DATATYPE_NULL;
    bool is_owned_ = false; // not predefined
    std::string name_;
};

} // namespace gpusm::tests

#endif
