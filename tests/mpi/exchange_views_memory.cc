// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "tests/mpi/exchange_views.h"

#include <algorithm>

namespace gpusm::exchange {

namespace {

constexpr std::ptrdiff_t guard_bytes = 64;

sample_type finished(const char *name, MPI_Datatype type, std::vector<sample_type::piece> pieces)
{
    MPI_Type_commit(&type);
    MPI_Aint low = 0;
    MPI_Aint extent = 0;
    MPI_Type_get_extent(type, &low, &extent);
    return {name, type, std::move(pieces), extent};
}

sample_type vector_of_rows()
{
    constexpr int rows = 64;
    constexpr int row = 16;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Type_vector(rows, row, 2 * row, MPI_INT, &type);
    std::vector<sample_type::piece> pieces;
    for (int i = 0; i < rows; ++i) {
        pieces.push_back(
            {static_cast<std::ptrdiff_t>(2 * row * sizeof(int)) * i, row * sizeof(int)});
    }
    return finished("vector", type, pieces);
}

sample_type indexed()
{
    const int lengths[] = {2, 5, 1};
    const int places[] = {9, 1, 20};
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Type_indexed(3, lengths, places, MPI_SHORT, &type);
    return finished("indexed", type, {{18, 4}, {2, 10}, {40, 2}});
}

sample_type subarray()
{
    const int sizes[] = {9, 8, 7};
    const int parts[] = {4, 5, 3};
    const int starts[] = {2, 1, 3};
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Type_create_subarray(3, sizes, parts, starts, MPI_ORDER_C, MPI_DOUBLE, &type);
    std::vector<sample_type::piece> pieces;
    for (int i = 0; i < parts[0]; ++i) {
        for (int j = 0; j < parts[1]; ++j) {
            const int cell = ((starts[0] + i) * sizes[1] + starts[1] + j) * sizes[2] + starts[2];
            pieces.push_back({static_cast<std::ptrdiff_t>(sizeof(double)) * cell,
                              sizeof(double) * static_cast<std::size_t>(parts[2])});
        }
    }
    return finished("subarray", type, pieces);
}

sample_type backwards()
{
    constexpr int blocks = 20;
    constexpr std::ptrdiff_t stride = -40;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Type_create_hvector(blocks, 3, stride, MPI_INT, &type);
    std::vector<sample_type::piece> pieces;
    for (int i = 0; i < blocks; ++i) {
        pieces.push_back({stride * i, 3 * sizeof(int)});
    }
    return finished("backwards", type, pieces);
}

sample_type double_int()
{
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Type_dup(MPI_DOUBLE_INT, &type);
    return finished("double_int", type, {{0, sizeof(double) + sizeof(int)}});
}

} // namespace

std::size_t sample_type::size_bytes() const
{
    std::size_t bytes = 0;
    for (const piece &each : pieces) {
        bytes += each.len_bytes;
    }
    return bytes;
}

std::ptrdiff_t sample_type::lowest() const
{
    return std::min_element(pieces.begin(), pieces.end(),
                            [](const piece &a, const piece &b) { return a.offset < b.offset; })
        ->offset;
}

std::ptrdiff_t sample_type::highest() const
{
    std::ptrdiff_t highest = lowest();
    for (const piece &each : pieces) {
        highest = std::max(highest, each.offset + static_cast<std::ptrdiff_t>(each.len_bytes));
    }
    return highest;
}

sample_types::sample_types()
    : all_{vector_of_rows(), indexed(), subarray(), backwards(), double_int()}
{
}

sample_types::~sample_types()
{
    for (sample_type &each : all_) {
        MPI_Type_free(&each.type);
    }
}

sample_type plain_bytes()
{
    return {"bytes", MPI_BYTE, {{0, 1}}, 1};
}

strided_memory::strided_memory(context &c, memory_kind kind, const sample_type &of, int count,
                               bool is_tight)
    : c_(c), of_(of), count_(count)
{
    const std::ptrdiff_t lowest = is_tight ? of.lowest() : std::min<std::ptrdiff_t>(0, of.lowest());
    const std::ptrdiff_t highest = of.highest() + of.extent * std::max(0, count - 1);
    origin_ = guard_bytes - lowest;
    image_.assign(static_cast<std::size_t>(highest - lowest + 2 * guard_bytes), bench::poison_byte);
    memory_ = c.make(kind, image_.size());
}

void strided_memory::fill(std::uint64_t seed)
{
    std::fill(image_.begin(), image_.end(), bench::poison_byte);
    fill(0, count_, seed);
}

void strided_memory::fill(int first, int elements, std::uint64_t seed)
{
    expect_message(first, elements, seed, of_.size_bytes() * static_cast<std::size_t>(elements));
    c_.expect(memory_->write(0, image_.data(), image_.size()), "fill");
}

void strided_memory::poison()
{
    std::fill(image_.begin(), image_.end(), bench::poison_byte);
    c_.expect(memory_->poison(), "poison");
}

void strided_memory::expect_message(int first, int elements, std::uint64_t seed, std::size_t bytes)
{
    std::vector<unsigned char> message(of_.size_bytes() * static_cast<std::size_t>(elements));
    bench::write_pattern(message.data(), message.size(), seed, 0);
    std::size_t done = 0;
    for (int i = first; i < first + elements; ++i) {
        for (const sample_type::piece &each : of_.pieces) {
            const std::size_t len = std::min(each.len_bytes, bytes - std::min(done, bytes));
            std::copy_n(message.begin() + static_cast<std::ptrdiff_t>(done), len,
                        image_.begin() + origin_ + of_.extent * i + each.offset);
            done += each.len_bytes;
        }
    }
}

void strided_memory::check(std::uint64_t seed, std::size_t bytes, const std::string &what)
{
    expect_message(0, count_, seed, bytes);
    check_all(what);
}

void strided_memory::check_all(const std::string &what)
{
    std::vector<unsigned char> found(image_.size());
    c_.expect(memory_->read(0, found.data(), found.size()), "read");
    const auto wrong = std::mismatch(found.begin(), found.end(), image_.begin()).first;
    c_.expect(wrong == found.end() ? ""
                                   : "byte " + std::to_string(wrong - found.begin() - origin_) +
                                         " of " + std::to_string(count_) + " elements is wrong",
              what);
    ++c_.messages;
}

view_pair::view_pair(context &c, memory_kind from, memory_kind to)
    : c_(c), from_(from), to_(to), peer_(c.rank ^ 1), has_peer_(peer_ < c.ranks),
      sends_(0 == c.rank % 2)
{
    if (c.rounds > 0) {
        counts_.push_back(c.rounds);
    }
}

std::uint64_t view_pair::next_seed()
{
    constexpr std::uint64_t each = 10000; // numbers that a message may add to its seed
    return c_.draw_seeds(each * static_cast<std::uint64_t>(c_.ranks)) +
           each * static_cast<std::uint64_t>(c_.rank / 2);
}

std::string view_pair::describe(const char *how, const sample_type &of, int count) const
{
    return std::string(1, bench::letter_of(from_)) + "->" + bench::letter_of(to_) + " " + of.name +
           " x " + std::to_string(count) + ", " + how;
}

void view_pair::expect_status(const MPI_Status &status, MPI_Datatype type, int count,
                              const std::string &what)
{
    int found = -1;
    MPI_Get_count(&status, type, &found);
    c_.expect_true(found == count, what + ": the count in the status");
    c_.expect_true(status.MPI_SOURCE == peer_ && status.MPI_TAG == tag,
                   what + ": source and tag in the status");
}

void view_pair::meet()
{
    MPI_Sendrecv(nullptr, 0, MPI_INT, peer_, tag + 1, nullptr, 0, MPI_INT, peer_, tag + 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

int view_pair::send(const strided_memory &out)
{
    return MPI_Send(out.at(), out.count(), out.type(), peer_, tag, MPI_COMM_WORLD);
}

} // namespace gpusm::exchange
