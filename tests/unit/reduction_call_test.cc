// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// reduction_call_test.cc: which rank of a collective reduction reads and writes what.
#include "opal/mca/common/gpusm/reduction_call.h"

#include <gtest/gtest.h>

namespace {

using namespace gpusm;

reduction_call call_of(reduction_kind kind, std::uint64_t elements,
                       reduce_type type = reduce_type::float32)
{
    reduction_call made{};
    made.kind = kind;
    made.op = reduce_op::sum;
    made.type = type;
    made.elements = elements;
    return made;
}

TEST(ReductionCall, PartsOfAllRanksAreAllElementsOnce)
{
    for (const reduction_kind kind : {reduction_kind::allreduce, reduction_kind::reduce}) {
        for (const reduce_type type :
             {reduce_type::int8, reduce_type::float32, reduce_type::complex64}) {
            for (const std::uint64_t elements : {1, 2, 3, 4, 15, 16, 17, 63, 64, 65, 1001, 4096}) {
                for (std::size_t ranks = 2; ranks <= reduce_most_ranks; ++ranks) {
                    const reduction_call call = call_of(kind, elements, type);
                    std::uint64_t next = 0;
                    for (std::size_t rank = 0; rank < ranks; ++rank) {
                        const reduction_part part = part_of(call, rank, ranks);
                        EXPECT_EQ(part.first, next);
                        EXPECT_EQ(part.to, part.first);
                        next += part.count;
                    }
                    EXPECT_EQ(next, elements) << ranks;
                }
            }
        }
    }
}

TEST(ReductionCall, PartsBeginAtWholeVectorsAndAreAboutAsLong)
{
    constexpr std::size_t ranks = 3;
    const reduction_call call = call_of(reduction_kind::allreduce, 1001);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        const reduction_part part = part_of(call, rank, ranks);
        EXPECT_EQ(part.first * element_bytes(call.type) % reduce_vector_bytes, 0U);
        EXPECT_NEAR(static_cast<double>(part.count), 1001.0 / ranks, 8);
    }
}

TEST(ReductionCall, OnlyWorkersHaveParts)
{
    reduction_call call = call_of(reduction_kind::allreduce, 64);
    call.workers = 0b1001;
    EXPECT_EQ(part_of(call, 0, 4).count, 32U);
    EXPECT_EQ(part_of(call, 1, 4).count, 0U);
    EXPECT_EQ(part_of(call, 3, 4).first, 32U);
    EXPECT_EQ(part_of(call, 3, 4).count, 32U);
}

TEST(ReductionCall, ScatteredPartsAreTheBlocksOfTheRanks)
{
    reduction_call call = call_of(reduction_kind::reduce_scatter, 12);
    EXPECT_EQ(part_of(call, 2, 4).first, 6U);
    EXPECT_EQ(part_of(call, 2, 4).count, 3U);
    EXPECT_EQ(part_of(call, 2, 4).to, 0U);
    call.parts = {0, 7, 5};
    call.has_parts = true;
    EXPECT_EQ(part_of(call, 0, 3).count, 0U);
    EXPECT_EQ(part_of(call, 2, 3).first, 7U);
    EXPECT_EQ(part_of(call, 2, 3).count, 5U);
    EXPECT_FALSE(receives(call, 0, 3));
    EXPECT_TRUE(receives(call, 1, 3));
}

TEST(ReductionCall, ScansReadTheRanksBefore)
{
    const reduction_call scan = call_of(reduction_kind::scan, 9);
    const reduction_call exscan = call_of(reduction_kind::exscan, 9);
    EXPECT_EQ(sources_of(scan, 0, 3), 1U);
    EXPECT_EQ(sources_of(exscan, 0, 3), 0U);
    EXPECT_EQ(sources_of(exscan, 2, 3), 2U);
    EXPECT_EQ(part_of(exscan, 0, 3).count, 0U);
    EXPECT_FALSE(receives(exscan, 0, 3));
    EXPECT_TRUE(receives(scan, 0, 3));
    EXPECT_EQ(part_of(exscan, 1, 3).count, 9U);
}

TEST(ReductionCall, OnlyTheRootOfAReductionReceives)
{
    reduction_call call = call_of(reduction_kind::reduce, 9);
    call.root = 1;
    EXPECT_FALSE(receives(call, 0, 3));
    EXPECT_TRUE(receives(call, 1, 3));
    EXPECT_TRUE(is_written_by_others(call, 1));
    EXPECT_EQ(sources_of(call, 0, 3), 3U);
}

TEST(ReductionCall, WhatCannotBeReducedOnTheDevices)
{
    const reduction_call call = call_of(reduction_kind::allreduce, 1);
    EXPECT_TRUE(can_reduce(call, 2));
    EXPECT_TRUE(can_reduce(call, reduce_most_ranks));
    EXPECT_FALSE(can_reduce(call, reduce_most_ranks + 1));
    EXPECT_FALSE(can_reduce(call, 1));
    EXPECT_FALSE(can_reduce(call_of(reduction_kind::allreduce, 0), 2));
    EXPECT_FALSE(can_reduce(call_of(reduction_kind::allreduce, 1, reduce_type::float_int), 2));
    EXPECT_TRUE(can_be_in_place(reduction_kind::reduce));
    EXPECT_FALSE(can_be_in_place(reduction_kind::scan));
}

TEST(ReductionCall, ALongReductionToOneRankSparesItsRoot)
{
    reduction_call call{reduction_kind::reduce, reduce_op::sum, reduce_type::float64};
    call.elements = (1 << 20) / 8;
    EXPECT_TRUE(spares_root(call));
    call.elements -= 1;
    EXPECT_FALSE(spares_root(call)) << "it is short";
    call.elements += 1;
    call.kind = reduction_kind::allreduce;
    EXPECT_FALSE(spares_root(call)) << "there is no root";
}

} // namespace
