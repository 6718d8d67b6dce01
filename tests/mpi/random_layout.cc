// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "tests/mpi/random_layout.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>

namespace gpusm::exchange {

namespace {

// More bytes of memory for each that is sent are not spread any further.
constexpr std::ptrdiff_t most_sparse = 12;

constexpr std::size_t most_shift = 4; // alignments of up to 16 bytes

struct basic_type {
    MPI_Datatype type;
    std::vector<layout::piece> pieces;
    std::ptrdiff_t extent;
};

template <typename First, typename Second> basic_type pair_of(MPI_Datatype type)
{
    struct both {
        First first;
        Second second;
    };
    return {
        type,
        {{0, sizeof(First)}, {static_cast<std::ptrdiff_t>(offsetof(both, second)), sizeof(Second)}},
        sizeof(both)};
}

// Not complex ones, which Open MPI packs wrongly when the distance of two is not a multiple of
// their size, and not long double, of which it leaves out the padding.
const std::vector<basic_type> &basic_types()
{
    static const std::vector<basic_type> all = {
        {MPI_CHAR, {{0, 1}}, 1},
        {MPI_SHORT, {{0, sizeof(short)}}, sizeof(short)},
        {MPI_INT, {{0, sizeof(int)}}, sizeof(int)},
        {MPI_FLOAT, {{0, sizeof(float)}}, sizeof(float)},
        {MPI_DOUBLE, {{0, sizeof(double)}}, sizeof(double)},
        {MPI_INT64_T, {{0, sizeof(std::int64_t)}}, sizeof(std::int64_t)},
        pair_of<double, int>(MPI_DOUBLE_INT),
        pair_of<short, int>(MPI_SHORT_INT)};
    return all;
}

const basic_type &known(MPI_Datatype type)
{
    return *std::find_if(basic_types().begin(), basic_types().end(),
                         [&](const basic_type &each) { return type == each.type; });
}

std::ptrdiff_t signed_of(std::size_t n)
{
    return static_cast<std::ptrdiff_t>(n);
}

} // namespace

std::size_t draw(generator &from, std::size_t least, std::size_t most)
{
    return least + from() % (most - least + 1);
}

std::size_t draw_length(generator &from, std::size_t least, std::size_t most)
{
    std::size_t top = least;
    while (top < most && !one_of(10, from)) {
        top *= 2;
    }
    return draw(from, least, std::min(top, most));
}

std::size_t some_divisor(std::size_t of, generator &from)
{
    std::size_t found = draw(from, 1, of);
    while (0 != of % found) {
        --found;
    }
    return found;
}

std::size_t layout::size_bytes() const
{
    return std::accumulate(pieces.begin(), pieces.end(), std::size_t{0},
                           [](std::size_t sum, const piece &each) { return sum + each.len_bytes; });
}

void layout::add(const layout &part, std::ptrdiff_t at)
{
    begin = pieces.empty() ? at + part.begin : std::min(begin, at + part.begin);
    end = pieces.empty() ? at + part.end : std::max(end, at + part.end);
    for (const piece &each : part.pieces) {
        const std::ptrdiff_t offset = at + each.offset;
        if (!pieces.empty() &&
            pieces.back().offset + signed_of(pieces.back().len_bytes) == offset) {
            pieces.back().len_bytes += each.len_bytes;
        } else {
            pieces.push_back({offset, each.len_bytes});
        }
    }
}

std::vector<basic_run> draw_signature(generator &from)
{
    std::vector<basic_run> signature(draw(from, 1, 4));
    for (basic_run &each : signature) {
        each.type = basic_types()[draw(from, 0, basic_types().size() - 1)].type;
        each.times = draw_length(from, 1, 60);
    }
    return signature;
}

std::size_t size_bytes(const std::vector<basic_run> &signature)
{
    std::size_t bytes = 0;
    for (const basic_run &run : signature) {
        for (const layout::piece &each : known(run.type).pieces) {
            bytes += run.times * each.len_bytes;
        }
    }
    return bytes;
}

layouts::layouts(generator &from, distances apart)
    : from_(from),
      alignment_(std::ptrdiff_t{1} << draw(from, distances::any == apart ? 0 : 3, most_shift))
{
}

layouts::~layouts()
{
    for (MPI_Datatype &each : made_) {
        MPI_Type_free(&each);
    }
}

layout layouts::of(const std::vector<basic_run> &signature)
{
    std::vector<layout> parts;
    for (const basic_run &each : signature) {
        parts.push_back(of(each));
    }
    layout made = 1 == parts.size() ? parts.front() : structure(parts);
    return one_of(2, from_) ? resized(std::move(made)) : made;
}

layout layouts::of(const basic_run &run)
{
    const std::size_t inner = some_divisor(run.times, from_);
    layout made = repeated(basic(run.type), inner);
    return inner == run.times ? made : repeated(made, run.times / inner);
}

layout layouts::basic(MPI_Datatype type)
{
    const basic_type &of = known(type);
    layout made;
    made.type = type;
    made.pieces = of.pieces;
    made.extent = of.extent;
    made.end = of.pieces.back().offset + signed_of(of.pieces.back().len_bytes);
    return made;
}

// Enters the datatype, which has just been made, into its layout. Where an element would lie in the
// next one, it is resized.
layout layouts::finished(layout made)
{
    MPI_Aint low = 0;
    MPI_Aint extent = 0;
    MPI_Type_get_extent(made.type, &low, &extent);
    made.extent = extent;
    made_.push_back(made.type);
    return made.extent < made.span() ? resized(std::move(made), low, aligned(made.span())) : made;
}

layout layouts::resized(layout of, std::ptrdiff_t low, std::ptrdiff_t extent)
{
    MPI_Type_create_resized(of.type, low, extent, &of.type);
    made_.push_back(of.type);
    of.extent = extent;
    return of;
}

layout layouts::resized(layout of)
{
    const std::ptrdiff_t low = of.begin - gap();
    const std::ptrdiff_t extent = aligned(of.end - low) + gap();
    return resized(std::move(of), low, extent);
}

// `parts` behind each other in the message, and anywhere in memory.
layout layouts::structure(const std::vector<layout> &parts)
{
    std::vector<MPI_Aint> places(parts.size());
    std::ptrdiff_t next = shift();
    for (std::size_t i : some_order(parts.size())) {
        places[i] = aligned(next - parts[i].begin);
        next = places[i] + parts[i].end + gap();
    }
    layout made;
    const std::vector<int> lengths(parts.size(), 1);
    std::vector<MPI_Datatype> types;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        made.add(parts[i], places[i]);
        types.push_back(parts[i].type);
    }
    MPI_Type_create_struct(static_cast<int>(parts.size()), lengths.data(), places.data(),
                           types.data(), &made.type);
    return finished(std::move(made));
}

layout layouts::repeated(const layout &part, std::size_t times)
{
    const bool is_sparse = part.extent > most_sparse * signed_of(part.size_bytes());
    const std::size_t how = is_sparse ? 10 : draw(from_, 0, 11);
    layout made = how < 2   ? in_steps(part, times, 0 == how)
                  : how < 4 ? in_blocks(part, times, 2 == how)
                  : how < 6 ? in_even_blocks(part, times, 4 == how)
                  : how < 8 ? subarray(part, times)
                  : how < 9 ? in_columns(part, times)
                            : contiguous(part, times);
    return !is_sparse && one_of(3, from_) ? resized(std::move(made)) : made;
}

layout layouts::contiguous(const layout &part, std::size_t times)
{
    layout made;
    for (std::size_t i = 0; i < times; ++i) {
        made.add(part, part.extent * signed_of(i));
    }
    MPI_Type_contiguous(static_cast<int>(times), part.type, &made.type);
    return finished(std::move(made));
}

// MPI_Type_vector, or hvector with a stride in bytes.
layout layouts::in_steps(const layout &part, std::size_t times, bool by_bytes)
{
    const std::size_t blocks = some_divisor(times, from_);
    const std::size_t block = times / blocks;
    // Not one byte before another: Open MPI takes a stride of -1 for one of 1.
    const std::ptrdiff_t sign = one_of(3, from_) && 1 < part.extent ? -1 : 1;
    const std::ptrdiff_t elements = sign * signed_of(block + draw(from_, 0, 3));
    const std::ptrdiff_t stride = by_bytes
                                      ? sign * (aligned(part.extent * signed_of(block)) + gap())
                                      : part.extent * elements;
    layout made;
    for (std::size_t i = 0; i < times; ++i) {
        made.add(part, stride * signed_of(i / block) + part.extent * signed_of(i % block));
    }
    const int n = static_cast<int>(blocks);
    if (by_bytes) {
        MPI_Type_create_hvector(n, static_cast<int>(block), stride, part.type, &made.type);
    } else {
        MPI_Type_vector(n, static_cast<int>(block), static_cast<int>(elements), part.type,
                        &made.type);
    }
    return finished(std::move(made));
}

// MPI_Type_indexed, or hindexed with places in bytes: blocks of any length, empty ones too, in any
// order.
layout layouts::in_blocks(const layout &part, std::size_t times, bool by_bytes)
{
    std::vector<int> lengths;
    for (std::size_t left = times; left > 0; left -= static_cast<std::size_t>(lengths.back())) {
        if (one_of(8, from_)) {
            lengths.push_back(0);
        }
        lengths.push_back(static_cast<int>(draw(from_, 1, std::max<std::size_t>(left / 2, 1))));
    }
    std::vector<std::ptrdiff_t> places(lengths.size());
    std::ptrdiff_t next = by_bytes ? shift() : shift() / alignment_; // in bytes, or in elements
    for (std::size_t i : some_order(lengths.size())) {
        places[i] = next;
        next = by_bytes ? aligned(next + part.extent * lengths[i]) + gap()
                        : next + lengths[i] + signed_of(draw(from_, 0, 2));
    }
    layout made;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        for (int k = 0; k < lengths[i]; ++k) {
            made.add(part, places[i] * (by_bytes ? 1 : part.extent) + part.extent * k);
        }
    }
    const int n = static_cast<int>(lengths.size());
    if (by_bytes) {
        const std::vector<MPI_Aint> bytes(places.begin(), places.end());
        MPI_Type_create_hindexed(n, lengths.data(), bytes.data(), part.type, &made.type);
    } else {
        const std::vector<int> elements(places.begin(), places.end());
        MPI_Type_indexed(n, lengths.data(), elements.data(), part.type, &made.type);
    }
    return finished(std::move(made));
}

// Likewise blocks of one length.
layout layouts::in_even_blocks(const layout &part, std::size_t times, bool by_bytes)
{
    const std::size_t blocks = some_divisor(times, from_);
    const std::size_t block = times / blocks;
    std::vector<MPI_Aint> bytes(blocks);
    std::vector<int> elements(blocks);
    std::ptrdiff_t next = shift() / alignment_; // in elements
    std::ptrdiff_t next_byte = shift();
    for (std::size_t i : some_order(blocks)) {
        elements[i] = static_cast<int>(next);
        bytes[i] = by_bytes ? next_byte : part.extent * next;
        next += signed_of(block + draw(from_, 0, 2));
        next_byte += aligned(part.extent * signed_of(block)) + gap();
    }
    layout made;
    for (std::size_t i = 0; i < times; ++i) {
        made.add(part, bytes[i / block] + part.extent * signed_of(i % block));
    }
    const int n = static_cast<int>(blocks);
    if (by_bytes) {
        MPI_Type_create_hindexed_block(n, static_cast<int>(block), bytes.data(), part.type,
                                       &made.type);
    } else {
        MPI_Type_create_indexed_block(n, static_cast<int>(block), elements.data(), part.type,
                                      &made.type);
    }
    return finished(std::move(made));
}

layout layouts::subarray(const layout &part, std::size_t times)
{
    // The last dimension is the one whose cells are neighbours.
    std::vector<int> parts;
    std::size_t left = times;
    for (std::size_t dimensions = draw(from_, 1, 3); dimensions > 1; --dimensions) {
        parts.push_back(static_cast<int>(some_divisor(left, from_)));
        left /= static_cast<std::size_t>(parts.back());
    }
    parts.push_back(static_cast<int>(left));
    std::vector<int> sizes;
    std::vector<int> starts;
    for (int length : parts) {
        const std::size_t more = draw(from_, 0, std::min(3, length / 2 + 1));
        sizes.push_back(length + static_cast<int>(more));
        starts.push_back(static_cast<int>(draw(from_, 0, more)));
    }
    layout made;
    for (std::size_t i = 0; i < times; ++i) {
        std::ptrdiff_t cell = 0;
        std::ptrdiff_t step = 1;
        std::size_t rest = i;
        for (std::size_t k = parts.size(); k-- > 0;) {
            const auto length = static_cast<std::size_t>(parts[k]);
            cell += step * (starts[k] + signed_of(rest % length));
            rest /= length;
            step *= sizes[k];
        }
        made.add(part, part.extent * cell);
    }
    const bool is_fortran = one_of(2, from_);
    if (is_fortran) {
        std::reverse(parts.begin(), parts.end());
        std::reverse(sizes.begin(), sizes.end());
        std::reverse(starts.begin(), starts.end());
    }
    MPI_Type_create_subarray(static_cast<int>(parts.size()), sizes.data(), parts.data(),
                             starts.data(), is_fortran ? MPI_ORDER_FORTRAN : MPI_ORDER_C, part.type,
                             &made.type);
    return finished(std::move(made));
}

// A matrix by columns: the elements of a column are far from each other, and the next column begins
// beside the first.
layout layouts::in_columns(const layout &part, std::size_t times)
{
    const std::size_t rows = some_divisor(times, from_);
    const std::size_t columns = times / rows;
    const std::size_t row = columns + draw(from_, 0, 3);
    MPI_Datatype column = MPI_DATATYPE_NULL;
    MPI_Type_vector(static_cast<int>(rows), 1, static_cast<int>(row), part.type, &column);
    made_.push_back(column);
    MPI_Type_create_resized(column, 0, part.extent, &column);
    made_.push_back(column);
    layout made;
    for (std::size_t i = 0; i < times; ++i) {
        made.add(part, part.extent * signed_of(i % rows * row + i / rows));
    }
    MPI_Type_contiguous(static_cast<int>(columns), column, &made.type);
    return finished(std::move(made));
}

std::ptrdiff_t layouts::aligned(std::ptrdiff_t offset) const
{
    const std::ptrdiff_t over = offset % alignment_;
    return 0 == over ? offset : offset - over + (over > 0 ? alignment_ : 0);
}

std::ptrdiff_t layouts::gap()
{
    return one_of(2, from_) ? 0 : alignment_ * signed_of(draw(from_, 1, 4));
}

std::ptrdiff_t layouts::shift()
{
    return one_of(2, from_) ? 0 : alignment_ * (signed_of(draw(from_, 0, 40)) - 20);
}

// As they are, from the last to the first, or mixed.
std::vector<std::size_t> layouts::some_order(std::size_t of)
{
    std::vector<std::size_t> order(of);
    std::iota(order.begin(), order.end(), std::size_t{0});
    const std::size_t how = draw(from_, 0, 2);
    if (1 == how) {
        std::reverse(order.begin(), order.end());
    }
    for (std::size_t i = of; 2 == how && i > 1; --i) {
        std::swap(order[i - 1], order[draw(from_, 0, i - 1)]);
    }
    return order;
}

} // namespace gpusm::exchange
