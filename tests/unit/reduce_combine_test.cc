// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// reduce_combine_test.cc: what a reduction makes of elements, without any driver: the software
// driver and the kernel do it by the same functions.
#include "opal/mca/common/gpusm/gpu/reduce_combine.h"

#include "tests/unit/reduce_support.h"

#include <limits>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

template <typename element>
element combine_one(reduce_op op, reduce_type type, element a, element b)
{
    vector16 left = {};
    vector16 right = {};
    std::memcpy(&left, &a, sizeof(a));
    std::memcpy(&right, &b, sizeof(b));
    left = combine(op, type, left, right);
    std::memcpy(static_cast<void *>(&a), &left, sizeof(a));
    return a;
}

TEST(ReduceCombine, ElementsAreAsLongAsThoseOfC)
{
    for (unsigned type = 0; type < type_count; ++type) {
        const std::size_t wanted =
            with_type(static_cast<reduce_type>(type), [](auto element) { return sizeof(element); });
        EXPECT_EQ(element_bytes(static_cast<reduce_type>(type)), wanted) << type;
        EXPECT_EQ(reduce_vector_bytes % wanted, 0U) << type;
    }
    EXPECT_EQ(element_bytes(reduce_type::count), 0U);
    EXPECT_EQ(element_bytes(static_cast<reduce_type>(200)), 0U);
}

TEST(ReduceCombine, OperationsAreDefinedAsMpiDefinesThem)
{
    int defined = 0;
    for (unsigned op = 0; op < op_count; ++op) {
        for (unsigned type = 0; type < type_count; ++type) {
            const auto o = static_cast<reduce_op>(op);
            const auto t = static_cast<reduce_type>(type);
            EXPECT_EQ(is_defined(o, t), mpi_defines(o, t)) << op << ' ' << type;
            defined += is_defined(o, t) ? 1 : 0;
        }
        EXPECT_FALSE(is_defined(static_cast<reduce_op>(op), reduce_type::count));
        EXPECT_FALSE(is_defined(static_cast<reduce_op>(op), static_cast<reduce_type>(200)));
    }
    EXPECT_EQ(defined, 2 * 12 + 2 * 14 + 6 * 8 + 2 * 7);
    EXPECT_FALSE(is_defined(reduce_op::count, reduce_type::int32));
    EXPECT_FALSE(is_defined(static_cast<reduce_op>(200), reduce_type::int32));
}

TEST(ReduceCombine, EveryOperationGivesWhatMpiSaysForEveryType)
{
    std::mt19937_64 random(1);
    for_all_that_mpi_defines([&](reduce_op op, reduce_type type) {
        const std::size_t count = 512 * reduce_vector_bytes / element_bytes(type);
        const std::vector<std::string> sources = {random_elements(type, count, random),
                                                  random_elements(type, count, random)};
        std::string made(sources[0].size(), '\0');
        for (std::size_t at = 0; at < made.size(); at += reduce_vector_bytes) {
            vector16 a;
            vector16 b;
            std::memcpy(&a, &sources[0][at], sizeof(a));
            std::memcpy(&b, &sources[1][at], sizeof(b));
            a = combine(op, type, a, b);
            std::memcpy(&made[at], &a, sizeof(a));
        }
        EXPECT_EQ(first_difference(type, made, reduced(op, type, sources)), count)
            << "operation " << static_cast<int>(op) << " of type " << static_cast<int>(type);
    });
}

TEST(ReduceCombine, SumsAndProductsOfIntegersWrap)
{
    constexpr reduce_op sum = reduce_op::sum;
    constexpr reduce_op prod = reduce_op::prod;
    EXPECT_EQ(combine_one<std::int8_t>(sum, reduce_type::int8, 127, 1), -128);
    EXPECT_EQ(combine_one<std::int16_t>(prod, reduce_type::int16, -32768, -1), -32768);
    EXPECT_EQ(combine_one<std::uint16_t>(prod, reduce_type::uint16, 65535, 65535), 1);
    using int32 = std::numeric_limits<std::int32_t>;
    EXPECT_EQ(combine_one(sum, reduce_type::int32, int32::max(), 1), int32::min());
    using int64 = std::numeric_limits<std::int64_t>;
    EXPECT_EQ(combine_one<std::int64_t>(sum, reduce_type::int64, int64::min(), -1), int64::max());
    using uint64 = std::numeric_limits<std::uint64_t>;
    EXPECT_EQ(combine_one(prod, reduce_type::uint64, uint64::max(), uint64::max()), 1U);
}

TEST(ReduceCombine, OfEqualNumbersOrWithANaNTheMaximumIsThatOfTheHigherRank)
{
    for (const reduce_op op : {reduce_op::max, reduce_op::min}) {
        constexpr reduce_type type = reduce_type::float32;
        EXPECT_TRUE(std::signbit(combine_one(op, type, 0.0F, -0.0F)));
        EXPECT_FALSE(std::signbit(combine_one(op, type, -0.0F, 0.0F)));
        EXPECT_EQ(combine_one(op, type, NAN, 1.0F), 1.0F);
        EXPECT_TRUE(std::isnan(combine_one(op, type, 1.0F, NAN)));
        const half nan = half::nearest(NAN);
        const half one = half::nearest(1);
        EXPECT_EQ(combine_one(op, reduce_type::float16, nan, one).bits, one.bits);
        EXPECT_EQ(combine_one(op, reduce_type::float16, one, nan).bits, nan.bits);
    }
}

TEST(ReduceCombine, OfEqualValuesTheSmallerIndexIsTaken)
{
    for (const reduce_op op : {reduce_op::minloc, reduce_op::maxloc}) {
        for (const int other : {3, 7}) {
            const auto made = combine_one<located<std::int64_t, int>>(op, reduce_type::int64_int,
                                                                      {-9, 5}, {-9, other});
            EXPECT_EQ(made.value, -9);
            EXPECT_EQ(made.index, std::min(5, other));
        }
    }
}

// All 65536 of them. A NaN stays a NaN.
template <typename number, typename reference> void expect_round_trips()
{
    for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
        const number from{static_cast<std::uint16_t>(bits)};
        const double wanted = reference{from.bits}.value();
        const float made = number_of(from);
        if (std::isnan(wanted)) {
            EXPECT_TRUE(std::isnan(made)) << bits;
            EXPECT_TRUE(std::isnan(reference{nearest<number>::to(made).bits}.value())) << bits;
            continue;
        }
        ASSERT_EQ(static_cast<double>(made), wanted) << bits;
        ASSERT_EQ(std::signbit(made), bits > 0x7fff) << bits;
        ASSERT_EQ(nearest<number>::to(made).bits, bits);
    }
}

TEST(ReduceCombine, EveryNumberOf16BitsSurvivesTheWayThroughAFloat)
{
    expect_round_trips<half_number, half>();
    expect_round_trips<bfloat_number, brain>();
}

// Between every two neighbours: the middle, and what is next to it on either side.
template <typename number, typename reference> void expect_nearest()
{
    for (std::uint32_t bits = 0; bits < reference::infinity; ++bits) {
        const auto below = static_cast<std::uint16_t>(bits);
        const auto above = static_cast<std::uint16_t>(bits + 1);
        const double step = 0 == bits ? reference{above}.value()
                                      : reference{below}.value() -
                                            reference{static_cast<std::uint16_t>(bits - 1)}.value();
        // Behind the greatest one there is infinity, from where the next one would round to it.
        const double high = above < reference::infinity ? reference{above}.value()
                                                        : reference{below}.value() + step;
        const auto middle = static_cast<float>((reference{below}.value() + high) / 2);
        const std::uint16_t even = bits % 2 == 0 ? below : above;
        ASSERT_EQ(nearest<number>::to(middle).bits, even) << bits;
        ASSERT_EQ(nearest<number>::to(std::nextafter(middle, 0.0F)).bits, below) << bits;
        ASSERT_EQ(nearest<number>::to(std::nextafter(middle, INFINITY)).bits, above) << bits;
        ASSERT_EQ(nearest<number>::to(-middle).bits, even | 0x8000) << bits;
        ASSERT_EQ(reference::nearest(static_cast<double>(middle)).bits, even) << "the test's own";
    }
}

TEST(ReduceCombine, FloatsAreRoundedToTheNearestNumberOf16BitsAndTiesToTheEvenOne)
{
    expect_nearest<half_number, half>();
    expect_nearest<bfloat_number, brain>();
    EXPECT_EQ(nearest<half_number>::to(3e38F).bits, half::infinity);
    EXPECT_EQ(nearest<half_number>::to(-INFINITY).bits, 0x8000 | half::infinity);
    EXPECT_EQ(nearest<half_number>::to(1e-30F).bits, 0);
    EXPECT_EQ(nearest<half_number>::to(NAN).bits, 0x7fff);
    EXPECT_EQ(nearest<bfloat_number>::to(-NAN).bits, 0x7fff);
}

} // namespace
