// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// windows_shapes.h: derived datatypes of twelve elements each, made by MPI's constructors, with
// where the elements lie.
#ifndef GPUSM_TESTS_MPI_WINDOWS_SHAPES_H
#define GPUSM_TESTS_MPI_WINDOWS_SHAPES_H

#include "tests/mpi/random_layout.h"
#include "tests/mpi/windows.h"

namespace gpusm::exchange::windows {

struct shape {
    const char *name;
    layout made;
};

class shapes {
  public:
    explicit shapes(const element &of) : of_(of), unit_(static_cast<MPI_Aint>(of.extent))
    {
        contiguous();
        vector();
        backwards();
        indexed("indexed", {5, 1, 6}, {0, 7, 11});
        indexed("indexed backwards", {4, 4, 4}, {20, 10, 0});
        indexed("indexed below its address", {2, 3, 7}, {-9, 4, 8});
        structure();
        resized();
        subarray();
        nested();
    }
    ~shapes()
    {
        for (shape &each : all_) {
            MPI_Type_free(&each.made.type);
        }
    }
    shapes(const shapes &) = delete;
    shapes &operator=(const shapes &) = delete;
    const std::vector<shape> &all() const { return all_; }

  private:
    // `places`: where the elements lie, in units of one.
    void add(const char *name, MPI_Datatype type, const std::vector<int> &places)
    {
        layout one;
        one.pieces = {{0, of_.extent}};
        one.end = unit_;
        layout made;
        for (const int place : places) {
            made.add(one, place * unit_);
        }
        MPI_Type_commit(&type);
        MPI_Aint low = 0;
        MPI_Aint extent = 0;
        MPI_Type_get_extent(type, &low, &extent);
        made.type = type;
        made.extent = extent;
        all_.push_back({name, made});
    }
    static std::vector<int> blocks(const std::vector<int> &lengths, const std::vector<int> &at)
    {
        std::vector<int> places;
        for (std::size_t i = 0; i < lengths.size(); ++i) {
            for (int k = 0; k < lengths[i]; ++k) {
                places.push_back(at[i] + k);
            }
        }
        return places;
    }
    void contiguous()
    {
        MPI_Datatype type = MPI_DATATYPE_NULL;
        MPI_Type_contiguous(12, of_.type, &type);
        add("contiguous", type, blocks({12}, {0}));
    }
    void vector()
    {
        MPI_Datatype type = MPI_DATATYPE_NULL;
        MPI_Type_vector(4, 3, 5, of_.type, &type);
        add("vector", type, blocks({3, 3, 3, 3}, {0, 5, 10, 15}));
    }
    void backwards()
    {
        MPI_Datatype type = MPI_DATATYPE_NULL;
        MPI_Type_create_hvector(3, 4, -7 * unit_, of_.type, &type);
        add("hvector backwards", type, blocks({4, 4, 4}, {0, -7, -14}));
    }
    void indexed(const char *name, const std::vector<int> &lengths, const std::vector<int> &at)
    {
        MPI_Datatype type = MPI_DATATYPE_NULL;
        MPI_Type_indexed(static_cast<int>(at.size()), lengths.data(), at.data(), of_.type, &type);
        add(name, type, blocks(lengths, at));
    }
    void structure()
    {
        MPI_Datatype type = MPI_DATATYPE_NULL;
        MPI_Datatype pair = MPI_DATATYPE_NULL;
        MPI_Type_contiguous(2, of_.type, &pair);
        const int lengths[] = {3, 4, 1};
        const MPI_Aint at[] = {9 * unit_, 13 * unit_, 0};
        const MPI_Datatype types[] = {of_.type, pair, of_.type};
        MPI_Type_create_struct(3, lengths, at, types, &type);
        MPI_Type_free(&pair);
        add("struct", type, blocks({3, 8, 1}, {9, 13, 0}));
    }
    void resized()
    {
        MPI_Datatype inner = MPI_DATATYPE_NULL;
        MPI_Datatype type = MPI_DATATYPE_NULL;
        MPI_Type_vector(2, 6, 9, of_.type, &inner);
        MPI_Type_create_resized(inner, -3 * unit_, 20 * unit_, &type);
        MPI_Type_free(&inner);
        add("resized, lower bound below", type, blocks({6, 6}, {0, 9}));
    }
    void subarray()
    {
        MPI_Datatype type = MPI_DATATYPE_NULL;
        const int sizes[] = {6, 5};
        const int part[] = {4, 3};
        const int first[] = {1, 1};
        MPI_Type_create_subarray(2, sizes, part, first, MPI_ORDER_C, of_.type, &type);
        add("subarray", type, blocks({3, 3, 3, 3}, {6, 11, 16, 21}));
    }
    void nested()
    {
        MPI_Datatype two = MPI_DATATYPE_NULL;
        MPI_Datatype wide = MPI_DATATYPE_NULL;
        MPI_Datatype type = MPI_DATATYPE_NULL;
        MPI_Type_vector(2, 1, 2, of_.type, &two);
        MPI_Type_create_resized(two, 0, 4 * unit_, &wide);
        const MPI_Aint at[] = {0, 11 * unit_, 22 * unit_};
        MPI_Type_create_hindexed_block(3, 2, at, wide, &type);
        MPI_Type_free(&two);
        MPI_Type_free(&wide);
        add("blocks of vectors", type, {0, 2, 4, 6, 11, 13, 15, 17, 22, 24, 26, 28});
    }

    const element &of_;
    MPI_Aint unit_;
    std::vector<shape> all_;
};

} // namespace gpusm::exchange::windows

#endif
