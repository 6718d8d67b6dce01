// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "bench/coll_bench/operations.h"

#include <array>
#include <cstdint>

namespace gpusm::bench {

namespace {

constexpr int root = 0;
using source = operation::source;
constexpr source nothing{-1, 0};

// Messages between the ranks of one exchange, which no collective operation names.
class messages {
  public:
    explicit messages(const call &c) : call_(c) {}
    void send(int block, int to)
    {
        (void)MPI_Isend(call_.given_at(block), call_.count(), call_.type, to, 0, MPI_COMM_WORLD,
                        &requests_.emplace_back());
    }
    void receive(int block, int from)
    {
        (void)MPI_Irecv(call_.taken_at(block), call_.count(), call_.type, from, 0, MPI_COMM_WORLD,
                        &requests_.emplace_back());
    }
    void wait()
    {
        (void)MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(),
                          MPI_STATUSES_IGNORE);
    }

  private:
    const call &call_;
    std::vector<MPI_Request> requests_;
};

// The same by NCCL, one group. The first error counts.
class grouped {
  public:
    grouped(const call &c, const nccl &other) : call_(c), nccl_(other)
    {
        note(nccl_.group_start());
    }
    void send(int block, int to) { note(nccl_.send(call_.given_at(block), call_.block_bytes, to)); }
    void receive(int block, int from)
    {
        note(nccl_.receive(call_.taken_at(block), call_.block_bytes, from));
    }
    int end()
    {
        note(nccl_.group_end());
        return result_;
    }

  private:
    void note(int result) { result_ = 0 == result_ ? result : result_; }

    const call &call_;
    const nccl &nccl_;
    int result_ = 0;
};

// Who sends what to whom, for MPI and NCCL alike.
template <typename exchange> void ring(const call &c, exchange &moves)
{
    moves.send(0, c.right());
    moves.receive(c.left(), c.left());
}

template <typename exchange> void both_neighbours(const call &c, exchange &moves)
{
    moves.send(c.left(), c.left());
    moves.receive(c.left(), c.left());
    if (c.left() != c.right()) {
        moves.send(c.right(), c.right());
        moves.receive(c.right(), c.right());
    }
}

// `itself`: also from the root to the root, as MPI_Scatter and MPI_Gather do.
template <typename exchange, bool itself = false> void one_to_all(const call &c, exchange &moves)
{
    for (int other = 0; root == c.rank && other < c.ranks; other++) {
        if (itself || root != other) {
            moves.send(other, other);
        }
    }
    if (itself || root != c.rank) {
        moves.receive(0, root);
    }
}

template <typename exchange, bool itself = false> void all_to_one(const call &c, exchange &moves)
{
    for (int other = 0; root == c.rank && other < c.ranks; other++) {
        if (itself || root != other) {
            moves.receive(other, other);
        }
    }
    if (itself || root != c.rank) {
        moves.send(0, root);
    }
}

template <typename exchange> void everyone(const call &c, exchange &moves)
{
    for (int other = 0; other < c.ranks; other++) {
        moves.send(other, other);
        moves.receive(other, other);
    }
}

template <void (*pattern)(const call &, messages &)> void exchange_by_mpi(const call &c)
{
    messages moves(c);
    pattern(c, moves);
    moves.wait();
}

template <void (*pattern)(const call &, grouped &)>
int exchange_by_nccl(const call &c, const nccl &other)
{
    grouped moves(c, other);
    pattern(c, moves);
    return moves.end();
}

double others(int ranks)
{
    return ranks - 1;
}

double one_block(int /*ranks*/)
{
    return 1;
}

// clang-format off
const operation operations[] = {
    {"allreduce", true, [](int ranks) { return 2.0 * (ranks - 1) / ranks; },
     [](const call &c) {
         (void)MPI_Allreduce(c.given_at(0), c.taken_at(0), static_cast<int>(c.floats()), MPI_FLOAT,
                             MPI_SUM, MPI_COMM_WORLD);
     },
     [](const call &c, const nccl &other) {
         return other.all_reduce(c.given_at(0), c.taken_at(0), c.floats());
     },
     [](const call &, int block) { return 0 == block ? source{0, 0} : nothing; }},
    {"reduce", true, one_block,
     [](const call &c) {
         (void)MPI_Reduce(c.given_at(0), c.taken_at(0), static_cast<int>(c.floats()), MPI_FLOAT,
                          MPI_SUM, root, MPI_COMM_WORLD);
     },
     [](const call &c, const nccl &other) {
         return other.reduce(c.given_at(0), c.taken_at(0), c.floats(), root);
     },
     [](const call &c, int block) {
         return root == c.rank && 0 == block ? source{0, 0} : nothing;
     }},
    {"reduce_scatter", true, others,
     [](const call &c) {
         (void)MPI_Reduce_scatter_block(c.given_at(0), c.taken_at(0), static_cast<int>(c.floats()),
                                        MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
     },
     [](const call &c, const nccl &other) {
         return other.reduce_scatter(c.given_at(0), c.taken_at(0), c.floats());
     },
     [](const call &c, int block) { return 0 == block ? source{0, c.rank} : nothing; }},
    {"allgather", false, others,
     [](const call &c) {
         (void)MPI_Allgather(c.given_at(0), c.count(), c.type, c.taken_at(0), c.count(), c.type,
                             MPI_COMM_WORLD);
     },
     [](const call &c, const nccl &other) {
         return other.all_gather(c.given_at(0), c.taken_at(0), c.block_bytes);
     },
     [](const call &, int block) { return source{block, 0}; }},
    {"alltoall", false, others,
     [](const call &c) {
         (void)MPI_Alltoall(c.given_at(0), c.count(), c.type, c.taken_at(0), c.count(), c.type,
                            MPI_COMM_WORLD);
     },
     exchange_by_nccl<everyone<grouped>>,
     [](const call &c, int block) { return source{block, c.rank}; }},
    {"bcast", false, one_block,
     [](const call &c) {
         (void)MPI_Bcast(root == c.rank ? c.given_at(0) : c.taken_at(0), c.count(), c.type, root,
                         MPI_COMM_WORLD);
     },
     [](const call &c, const nccl &other) {
         void *mine = root == c.rank ? c.given_at(0) : c.taken_at(0);
         return other.broadcast(mine, mine, c.block_bytes, root);
     },
     [](const call &c, int block) {
         return root != c.rank && 0 == block ? source{root, 0} : nothing;
     }},
    {"gather", false, others,
     [](const call &c) {
         (void)MPI_Gather(c.given_at(0), c.count(), c.type, c.taken_at(0), c.count(), c.type,
                          root, MPI_COMM_WORLD);
     },
     exchange_by_nccl<all_to_one<grouped, true>>,
     [](const call &c, int block) { return root == c.rank ? source{block, 0} : nothing; }},
    {"scatter", false, others,
     [](const call &c) {
         (void)MPI_Scatter(c.given_at(0), c.count(), c.type, c.taken_at(0), c.count(), c.type,
                           root, MPI_COMM_WORLD);
     },
     exchange_by_nccl<one_to_all<grouped, true>>,
     [](const call &c, int block) { return 0 == block ? source{root, c.rank} : nothing; }},
    {"ring", false, one_block, exchange_by_mpi<ring<messages>>, exchange_by_nccl<ring<grouped>>,
     [](const call &c, int block) { return block == c.left() ? source{block, 0} : nothing; }},
    {"neighbours", false, [](int ranks) { return ranks > 2 ? 2.0 : 1.0; },
     exchange_by_mpi<both_neighbours<messages>>, exchange_by_nccl<both_neighbours<grouped>>,
     [](const call &c, int block) {
         return block == c.left() || block == c.right() ? source{block, c.rank} : nothing;
     }},
    {"one_to_all", false, others, exchange_by_mpi<one_to_all<messages>>,
     exchange_by_nccl<one_to_all<grouped>>,
     [](const call &c, int block) {
         return root != c.rank && 0 == block ? source{root, c.rank} : nothing;
     }},
    {"all_to_one", false, others, exchange_by_mpi<all_to_one<messages>>,
     exchange_by_nccl<all_to_one<grouped>>,
     [](const call &c, int block) {
         return root == c.rank && root != block ? source{block, 0} : nothing;
     }},
};
// clang-format on

// Sums of a few hundred ranks are exact, whatever their order.
float element(int rank, int block, std::size_t index)
{
    return static_cast<float>(
        (static_cast<std::size_t>(rank) * 7 + static_cast<std::size_t>(block) * 3 + index) % 61);
}

std::uint64_t seed(source from)
{
    return static_cast<std::uint64_t>(from.rank) * 65536 + static_cast<std::uint64_t>(from.block);
}

std::string check_sums(const call &c, int block, int summed_block)
{
    std::vector<float> got(c.floats());
    const std::string error = c.taken->read(c.offset(block), got.data(), c.block_bytes);
    for (std::size_t i = 0; error.empty() && i < got.size(); i++) {
        float sum = 0;
        for (int rank = 0; rank < c.ranks; rank++) {
            sum += element(rank, summed_block, i);
        }
        if (sum != got[i]) {
            return "element " + std::to_string(i) + " is " + std::to_string(got[i]) + ", not " +
                   std::to_string(sum);
        }
    }
    return error;
}

// Blocks with gaps: the elements, and this in between.
constexpr float in_gaps = -1;

std::vector<float> with_gaps(const call &c, source of)
{
    std::vector<float> image(2 * c.floats(), in_gaps);
    for (std::size_t i = 0; of.rank >= 0 && i < c.floats(); i++) {
        image[2 * i] = element(of.rank, of.block, i);
    }
    return image;
}

std::string check_gaps(const call &c, int block, source from)
{
    const std::vector<float> wanted = with_gaps(c, from);
    std::vector<float> got(wanted.size());
    const std::string error = c.taken->read(c.offset(block), got.data(), c.span());
    return error.empty() && got != wanted ? "other elements, or written gaps" : error;
}

} // namespace

std::span<const operation> all_operations()
{
    return operations;
}

const operation *find_operation(const std::string &name)
{
    for (const operation &one : operations) {
        if (name == one.name) {
            return &one;
        }
    }
    return nullptr;
}

std::string fill(const operation &what, const call &c)
{
    std::string error = clear(c);
    for (int block = 0; c.has_gaps && error.empty() && block < c.ranks; block++) {
        error = c.given->write(c.offset(block), with_gaps(c, {c.rank, block}).data(), c.span());
    }
    if (c.has_gaps) {
        return error;
    }
    std::vector<float> numbers(what.reduces ? c.floats() : 0);
    for (int block = 0; error.empty() && block < c.ranks; block++) {
        for (std::size_t i = 0; i < numbers.size(); i++) {
            numbers[i] = element(c.rank, block, i);
        }
        error = what.reduces ? c.given->write(c.offset(block), numbers.data(), c.block_bytes)
                             : c.given->fill(c.offset(block), c.block_bytes, seed({c.rank, block}));
    }
    return error;
}

std::string clear(const call &c)
{
    std::string error = c.has_gaps ? "" : c.taken->poison();
    for (int block = 0; c.has_gaps && error.empty() && block < c.ranks; block++) {
        error = c.taken->write(c.offset(block), with_gaps(c, nothing).data(), c.span());
    }
    return error;
}

std::string check(const operation &what, const call &c)
{
    for (int block = 0; block < c.ranks; block++) {
        const source from = what.expected(c, block);
        std::string error;
        if (c.has_gaps) {
            error = check_gaps(c, block, from);
        } else if (from.rank < 0) {
            error = c.taken->compare_poison(c.offset(block), c.block_bytes);
        } else if (what.reduces) {
            error = check_sums(c, block, from.block);
        } else {
            error = c.taken->compare(c.offset(block), c.block_bytes, seed(from));
        }
        if (!error.empty()) {
            return "block " + std::to_string(block) + ": " + error;
        }
    }
    return "";
}

} // namespace gpusm::bench
