// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_types.cc: derived datatypes, on either side, in every kind of memory.
#include "tests/mpi/exchange.h"

namespace gpusm::exchange {

namespace {

constexpr int tag = 41;

// A vector of `blocks` blocks of `block` bytes, one every `stride` bytes.
struct layout {
    int blocks;
    std::size_t block;
    std::size_t stride;

    std::size_t payload() const { return block * static_cast<std::size_t>(blocks); }
    std::size_t extent() const { return stride * static_cast<std::size_t>(blocks); }
};

class vector_type {
  public:
    explicit vector_type(const layout &l)
    {
        MPI_Type_vector(l.blocks, static_cast<int>(l.block), static_cast<int>(l.stride), MPI_BYTE,
                        &type_);
        MPI_Type_commit(&type_);
    }
    ~vector_type() { MPI_Type_free(&type_); }
    vector_type(const vector_type &) = delete;
    vector_type &operator=(const vector_type &) = delete;
    MPI_Datatype get() const { return type_; }

  private:
    MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

// The message is made from `seed`; the buffer holds it spread over the blocks.
std::string scatter_fill(buffer &memory, const layout &l, std::uint64_t seed)
{
    std::vector<unsigned char> content(l.payload());
    bench::write_pattern(content.data(), content.size(), seed, 0);
    std::string error = memory.poison();
    for (int i = 0; i < l.blocks && error.empty(); ++i) {
        const auto n = static_cast<std::size_t>(i);
        error = memory.write(n * l.stride, content.data() + n * l.block, l.block);
    }
    return error;
}

std::string compare_blocks(const buffer &memory, const layout &l, std::uint64_t seed)
{
    std::string error;
    for (int i = 0; i < l.blocks && error.empty(); ++i) {
        const auto n = static_cast<std::size_t>(i);
        error = memory.compare(n * l.stride, l.block, seed, n * l.block);
        if (error.empty()) {
            error = memory.compare_poison(n * l.stride + l.block, l.stride - l.block);
        }
    }
    return error;
}

void exchange_typed(context &c, const layout &l, memory_kind from, memory_kind to, bool typed_out,
                    bool typed_in)
{
    const vector_type type(l);
    const std::uint64_t seed = c.next_seed++;
    const int payload = static_cast<int>(l.payload());
    const std::string what = describe(from, to, l.payload(), typed_out ? "vector" : "bytes") +
                             " into " + (typed_in ? "vector" : "bytes");
    at_step(what);
    if (0 == c.rank) {
        auto out = c.make(from, l.extent());
        c.expect(typed_out ? scatter_fill(*out, l, seed) : out->fill(0, l.payload(), seed), "fill");
        c.mpi(typed_out ? MPI_Send(out->data(), 1, type.get(), 1, tag, MPI_COMM_WORLD)
                        : MPI_Send(out->data(), payload, MPI_BYTE, 1, tag, MPI_COMM_WORLD),
              "MPI_Send");
        return;
    }
    auto in = c.make(to, l.extent());
    c.expect(in->poison(), "poison");
    if (c.mpi(typed_in
                  ? MPI_Recv(in->data(), 1, type.get(), 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE)
                  : MPI_Recv(in->data(), payload, MPI_BYTE, 0, tag, MPI_COMM_WORLD,
                             MPI_STATUS_IGNORE),
              "MPI_Recv")) {
        c.expect(typed_in ? compare_blocks(*in, l, seed) : in->compare(0, l.payload(), seed), what);
        ++c.messages;
    }
}

} // namespace

void test_datatypes(context &c)
{
    constexpr layout layouts[] = {{16, 64, 128}, {3, 1, 7}, {200, 1000, 1024}};
    for (const layout &l : layouts) {
        for (memory_kind from : c.kinds) {
            for (memory_kind to : c.kinds) {
                exchange_typed(c, l, from, to, true, true);
                exchange_typed(c, l, from, to, true, false);
                exchange_typed(c, l, from, to, false, true);
            }
        }
    }
}

} // namespace gpusm::exchange
