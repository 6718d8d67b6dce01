// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "tests/mpi/random_type.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace gpusm::tests {

namespace {

// Not long double, of which Open MPI's MPI_Pack leaves out the padding, and not complex ones, which
// it packs wrongly when the distance of two is not a multiple of their size.
const MPI_Datatype basics[] = {MPI_CHAR,     MPI_SHORT,     MPI_INT,        MPI_FLOAT,
                               MPI_DOUBLE,   MPI_INT64_T,   MPI_DOUBLE_INT, MPI_SHORT_INT,
                               MPI_LONG_INT, MPI_FLOAT_INT, MPI_2INT};

} // namespace

random_type::random_type(std::uint64_t seed, std::size_t most_bytes) : random_(seed)
{
    if (0 == draw(0, 2)) {
        start_with_struct();
    } else {
        start_with_basic();
    }
    for (std::int64_t times = draw(0, 4); times > 0; --times) {
        grow(most_bytes);
    }
    if (!is_owned_) {
        duplicate();
    }
    MPI_Type_commit(&type_);
}

random_type::~random_type()
{
    MPI_Type_free(&type_);
}

std::size_t random_type::size_bytes() const
{
    int bytes = 0;
    MPI_Type_size(type_, &bytes);
    return static_cast<std::size_t>(bytes);
}

MPI_Aint random_type::extent() const
{
    MPI_Aint low = 0;
    MPI_Aint extent = 0;
    MPI_Type_get_extent(type_, &low, &extent);
    return extent;
}

MPI_Aint random_type::lowest(MPI_Aint count) const
{
    MPI_Aint low = 0;
    MPI_Aint true_extent = 0;
    MPI_Type_get_true_extent(type_, &low, &true_extent);
    return low + std::min<MPI_Aint>(0, (count - 1) * extent());
}

MPI_Aint random_type::highest(MPI_Aint count) const
{
    MPI_Aint low = 0;
    MPI_Aint true_extent = 0;
    MPI_Type_get_true_extent(type_, &low, &true_extent);
    return low + true_extent + std::max<MPI_Aint>(0, (count - 1) * extent());
}

std::int64_t random_type::draw(std::int64_t least, std::int64_t most)
{
    return least +
           static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most - least + 1));
}

void random_type::start_with_basic()
{
    type_ = basics[draw(0, std::size(basics) - 1)];
    char name[MPI_MAX_OBJECT_NAME] = "";
    int length = 0;
    MPI_Type_get_name(type_, name, &length);
    name_ = name;
}

// Of basic types side by side, in any order, with gaps or without.
void random_type::start_with_struct()
{
    const auto parts = static_cast<std::size_t>(draw(1, 5));
    std::vector<std::size_t> order(parts);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<int> lengths(parts);
    std::vector<MPI_Aint> places(parts);
    std::vector<MPI_Datatype> types(parts);
    MPI_Aint next = 4 * draw(-8, 8);
    for (std::size_t i : order) {
        types[i] = basics[draw(0, std::size(basics) - 1)];
        lengths[i] = static_cast<int>(draw(0, 4));
        places[i] = next;
        MPI_Aint low = 0;
        MPI_Aint extent = 0;
        MPI_Type_get_extent(types[i], &low, &extent);
        next += lengths[i] * extent + (0 == draw(0, 1) ? 0 : draw(1, 20));
    }
    MPI_Datatype made = MPI_DATATYPE_NULL;
    MPI_Type_create_struct(static_cast<int>(parts), lengths.data(), places.data(), types.data(),
                           &made);
    replace(made, "struct");
    name_ = "struct of " + std::to_string(parts) + " basic types";
}

void random_type::grow(std::size_t most_bytes)
{
    const auto bytes = std::max<std::size_t>(1, size_bytes());
    const auto most_times = static_cast<std::int64_t>(most_bytes / bytes);
    if (most_times < 2) {
        return;
    }
    // Often few, sometimes as many as there may be.
    repeat(std::min<std::int64_t>(most_times, std::int64_t{2} << draw(0, 12)));
}

void random_type::repeat(std::int64_t most_times)
{
    switch (draw(0, 8)) {
    case 0: {
        MPI_Datatype made = MPI_DATATYPE_NULL;
        const std::int64_t times = draw(1, most_times);
        if (spread() > extent()) {
            resize();
        }
        MPI_Type_contiguous(static_cast<int>(times), type_, &made);
        return replace(made, "contiguous " + std::to_string(times));
    }
    case 1:
        return vector(most_times, false);
    case 2:
        return vector(most_times, true);
    case 3:
        return indexed(most_times, false);
    case 4:
        return indexed(most_times, true);
    case 5:
        return subarray(most_times);
    case 6:
        return two_parts();
    case 7:
        return resize();
    default:
        return duplicate();
    }
}

void random_type::vector(std::int64_t most_times, bool by_bytes)
{
    if (spread() > extent()) {
        resize();
    }
    const std::int64_t length = draw(1, std::min<std::int64_t>(4, most_times));
    const std::int64_t count = draw(1, most_times / length);
    const std::int64_t sign = 0 == draw(0, 2) ? -1 : 1;
    MPI_Datatype made = MPI_DATATYPE_NULL;
    std::string how = std::to_string(count) + " x " + std::to_string(length);
    if (by_bytes) {
        const MPI_Aint stride = sign * (extent() * length + draw(0, 3) * draw(0, 16));
        MPI_Type_create_hvector(static_cast<int>(count), static_cast<int>(length), stride, type_,
                                &made);
        how = "hvector " + how + " by " + std::to_string(stride);
    } else {
        const std::int64_t stride = sign * (length + draw(0, 3));
        MPI_Type_vector(static_cast<int>(count), static_cast<int>(length), static_cast<int>(stride),
                        type_, &made);
        how = "vector " + how + " by " + std::to_string(stride);
    }
    replace(made, how);
}

void random_type::indexed(std::int64_t most_times, bool by_bytes)
{
    if (spread() > extent()) {
        resize();
    }
    const auto blocks = static_cast<std::size_t>(draw(1, std::min<std::int64_t>(most_times, 600)));
    std::vector<std::size_t> order(blocks);
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (0 == draw(0, 1)) {
        std::shuffle(order.begin(), order.end(), random_);
    }
    const bool same_length = 0 == draw(0, 2);
    std::vector<int> lengths(blocks, 1);
    std::vector<MPI_Aint> places(blocks);
    MPI_Aint next = draw(-20, 20);
    for (std::size_t i : order) {
        lengths[i] = same_length ? 1 : static_cast<int>(draw(0, 3));
        places[i] = next;
        next += (by_bytes ? extent() : 1) * lengths[i] + (0 == draw(0, 1) ? 0 : draw(0, 9));
    }
    MPI_Datatype made = MPI_DATATYPE_NULL;
    const int n = static_cast<int>(blocks);
    const std::vector<int> elements(places.begin(), places.end());
    if (by_bytes && same_length) {
        MPI_Type_create_hindexed_block(n, 1, places.data(), type_, &made);
    } else if (by_bytes) {
        MPI_Type_create_hindexed(n, lengths.data(), places.data(), type_, &made);
    } else if (same_length) {
        MPI_Type_create_indexed_block(n, 1, elements.data(), type_, &made);
    } else {
        MPI_Type_indexed(n, lengths.data(), elements.data(), type_, &made);
    }
    replace(made, std::string(by_bytes ? "h" : "") + "indexed" + (same_length ? " block " : " ") +
                      std::to_string(blocks));
}

void random_type::subarray(std::int64_t most_times)
{
    if (spread() > extent()) {
        resize();
    }
    const int dimensions = static_cast<int>(draw(1, 4));
    std::vector<int> sizes;
    std::vector<int> parts;
    std::vector<int> starts;
    std::int64_t left = most_times;
    std::string how = "subarray";
    for (int i = 0; i < dimensions; ++i) {
        parts.push_back(static_cast<int>(draw(1, std::min<std::int64_t>(left, 12))));
        left /= parts.back();
        starts.push_back(static_cast<int>(draw(0, 2)));
        sizes.push_back(parts.back() + starts.back() + static_cast<int>(draw(0, 2)));
        how += " " + std::to_string(parts.back()) + "/" + std::to_string(sizes.back());
    }
    MPI_Datatype made = MPI_DATATYPE_NULL;
    MPI_Type_create_subarray(dimensions, sizes.data(), parts.data(), starts.data(),
                             0 == draw(0, 1) ? MPI_ORDER_C : MPI_ORDER_FORTRAN, type_, &made);
    replace(made, how);
}

// Twice, with something of another type behind them.
void random_type::two_parts()
{
    const MPI_Aint step = spread();
    const MPI_Datatype last = basics[draw(0, std::size(basics) - 1)];
    int lengths[3] = {1, 1, 1};
    MPI_Aint places[3] = {0, step, 2 * step + std::max<MPI_Aint>(0, highest(1))};
    MPI_Datatype types[3] = {type_, type_, last};
    MPI_Datatype made = MPI_DATATYPE_NULL;
    MPI_Type_create_struct(3, lengths, places, types, &made);
    replace(made, "struct of two");
}

void random_type::resize()
{
    const MPI_Aint low = lowest(1) + 4 * draw(-4, 4);
    const MPI_Aint extent = spread() + (0 == draw(0, 1) ? 0 : draw(0, 24));
    MPI_Datatype made = MPI_DATATYPE_NULL;
    MPI_Type_create_resized(type_, low, extent, &made);
    replace(made, "resized to " + std::to_string(extent));
}

void random_type::duplicate()
{
    MPI_Datatype made = MPI_DATATYPE_NULL;
    MPI_Type_dup(type_, &made);
    replace(made, "dup");
}

void random_type::replace(MPI_Datatype made, const std::string &how)
{
    if (is_owned_) {
        MPI_Type_free(&type_);
    }
    type_ = made;
    is_owned_ = true;
    name_ = how + " of " + name_;
}

MPI_Aint random_type::spread() const
{
    return std::max<MPI_Aint>(1, highest(1) - lowest(1));
}

} // namespace gpusm::tests
