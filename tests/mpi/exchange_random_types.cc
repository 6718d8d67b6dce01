// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_random_types.cc: messages of random datatypes. Both ranks draw one signature, and each a
// layout of its own for it: nested vectors, indexed and hindexed blocks, structs, resized types.
// Where the bytes lie is kept beside MPI's datatype, so what arrives is compared without asking
// MPI.
#include "tests/mpi/exchange.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

namespace gpusm::exchange {

namespace {

constexpr int tag = 61;
constexpr std::size_t guard_bytes = 64;
constexpr int seeds_without_rounds = 20;

using generator = std::mt19937_64;

// A draw of [least, most]; the same with every library.
std::size_t draw(generator &from, std::size_t least, std::size_t most)
{
    return least + from() % (most - least + 1);
}

// Of every order of magnitude as often.
std::size_t draw_length(generator &from, std::size_t least, std::size_t most)
{
    std::size_t top = least;
    while (top < most && 0 != draw(from, 0, 9)) {
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

struct basic {
    MPI_Datatype type;
    std::size_t bytes;
};

// So many of one basic type; several of them are the signature of an element.
struct run {
    basic of;
    std::size_t times;
};

// A datatype, and its bytes in the order in which they are sent. No byte is there twice.
struct layout {
    struct piece {
        std::ptrdiff_t offset;
        std::size_t len_bytes;
    };
    MPI_Datatype type = MPI_DATATYPE_NULL;
    std::vector<piece> pieces;
    std::ptrdiff_t extent = 0; // from one to the next, as MPI says
    std::ptrdiff_t end = 0;    // behind its last byte

    void add(const layout &part, std::ptrdiff_t at)
    {
        for (const piece &each : part.pieces) {
            const std::ptrdiff_t offset = at + each.offset;
            if (!pieces.empty() &&
                pieces.back().offset + static_cast<std::ptrdiff_t>(pieces.back().len_bytes) ==
                    offset) {
                pieces.back().len_bytes += each.len_bytes;
            } else {
                pieces.push_back({offset, each.len_bytes});
            }
        }
        end = std::max(end, at + part.end);
    }
};

constexpr std::ptrdiff_t alignment = 16; // of what is put at a random place

std::ptrdiff_t aligned(std::ptrdiff_t offset)
{
    return (offset + alignment - 1) / alignment * alignment;
}

std::ptrdiff_t gap(generator &from)
{
    return 0 == draw(from, 0, 1) ? 0 : alignment * static_cast<std::ptrdiff_t>(draw(from, 1, 4));
}

// The datatypes of layouts, freed together.
class type_store {
  public:
    type_store() = default;
    ~type_store()
    {
        for (MPI_Datatype &each : made_) {
            MPI_Type_free(&each);
        }
    }
    type_store(const type_store &) = delete;
    type_store &operator=(const type_store &) = delete;

    layout one(const basic &of) const
    {
        const auto bytes = static_cast<std::ptrdiff_t>(of.bytes);
        return {of.type, {{0, of.bytes}}, bytes, bytes};
    }

    // Enters the datatype, which has just been made, into its layout. Where a part was resized, the
    // upper bounds of the others do not count, and one would lie in the next: then it is resized.
    layout finished(layout made)
    {
        MPI_Aint low = 0;
        MPI_Aint extent = 0;
        MPI_Type_get_extent(made.type, &low, &extent);
        made.extent = extent;
        made_.push_back(made.type);
        if (made.extent < made.end) {
            MPI_Type_create_resized(made.type, low, aligned(made.end), &made.type);
            return finished(std::move(made));
        }
        return made;
    }

    layout resized(layout of, generator &from)
    {
        const std::ptrdiff_t low = -gap(from);
        const std::ptrdiff_t extent = aligned(of.end) - low + gap(from);
        MPI_Type_create_resized(of.type, low, extent, &of.type);
        return finished(std::move(of));
    }

    // `parts` behind each other in the message, and anywhere in memory.
    layout structure(const std::vector<layout> &parts, generator &from)
    {
        std::vector<std::size_t> order(parts.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        for (std::size_t i = order.size(); i > 1; --i) {
            std::swap(order[i - 1], order[draw(from, 0, i - 1)]);
        }
        std::vector<MPI_Aint> places(parts.size());
        std::ptrdiff_t next = 0;
        for (std::size_t i : order) {
            places[i] = next;
            next = aligned(next + parts[i].end) + gap(from);
        }
        layout made;
        std::vector<int> lengths(parts.size(), 1);
        std::vector<MPI_Datatype> types;
        for (std::size_t i = 0; i < parts.size(); ++i) {
            made.add(parts[i], places[i]);
            types.push_back(parts[i].type);
        }
        MPI_Type_create_struct(static_cast<int>(parts.size()), lengths.data(), places.data(),
                               types.data(), &made.type);
        return finished(std::move(made));
    }

    // The same `times` times.
    layout repeated(const layout &part, std::size_t times, generator &from)
    {
        const std::size_t how = draw(from, 0, 5);
        layout made = how < 2   ? in_steps(part, times, 0 == how, from)
                      : how < 4 ? in_blocks(part, times, 2 == how, from)
                                : layout{};
        if (how >= 4) {
            for (std::size_t i = 0; i < times; ++i) {
                made.add(part, part.extent * static_cast<std::ptrdiff_t>(i));
            }
            MPI_Type_contiguous(static_cast<int>(times), part.type, &made.type);
        }
        made = finished(std::move(made));
        return 0 == draw(from, 0, 2) ? resized(std::move(made), from) : made;
    }

  private:
    // MPI_Type_vector, or hvector with a stride in bytes.
    static layout in_steps(const layout &part, std::size_t times, bool by_bytes, generator &from)
    {
        const std::size_t blocks = some_divisor(times, from);
        const std::size_t block = times / blocks;
        const std::size_t elements = block + draw(from, 0, 3);
        const std::ptrdiff_t stride =
            by_bytes ? aligned(part.extent * static_cast<std::ptrdiff_t>(block)) + gap(from)
                     : part.extent * static_cast<std::ptrdiff_t>(elements);
        layout made;
        for (std::size_t i = 0; i < times; ++i) {
            made.add(part, stride * static_cast<std::ptrdiff_t>(i / block) +
                               part.extent * static_cast<std::ptrdiff_t>(i % block));
        }
        const int n = static_cast<int>(blocks);
        if (by_bytes) {
            MPI_Type_create_hvector(n, static_cast<int>(block), stride, part.type, &made.type);
        } else {
            MPI_Type_vector(n, static_cast<int>(block), static_cast<int>(elements), part.type,
                            &made.type);
        }
        return made;
    }

    // MPI_Type_indexed, or hindexed with places in bytes: blocks of any length, in any order.
    static layout in_blocks(const layout &part, std::size_t times, bool by_bytes, generator &from)
    {
        std::vector<int> lengths;
        for (std::size_t left = times; left > 0; left -= static_cast<std::size_t>(lengths.back())) {
            lengths.push_back(static_cast<int>(draw(from, 1, std::max<std::size_t>(left / 2, 1))));
        }
        std::vector<std::ptrdiff_t> places(lengths.size());
        std::ptrdiff_t next = 0; // in bytes, or in elements
        const bool backwards = 0 == draw(from, 0, 1);
        for (std::size_t k = 0; k < lengths.size(); ++k) {
            const std::size_t i = backwards ? lengths.size() - 1 - k : k;
            places[i] = next;
            next = by_bytes ? aligned(next + part.extent * lengths[i]) + gap(from)
                            : next + lengths[i] + static_cast<std::ptrdiff_t>(draw(from, 0, 2));
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
        return made;
    }

    std::vector<MPI_Datatype> made_;
};

std::vector<run> draw_signature(generator &from)
{
    const std::array<basic, 6> basics = {{{MPI_CHAR, 1},
                                          {MPI_SHORT, sizeof(short)},
                                          {MPI_INT, sizeof(int)},
                                          {MPI_FLOAT, sizeof(float)},
                                          {MPI_DOUBLE, sizeof(double)},
                                          {MPI_INT64_T, sizeof(std::int64_t)}}};
    std::vector<run> signature;
    const std::size_t runs = draw(from, 1, 4);
    for (std::size_t i = 0; i < runs; ++i) {
        signature.push_back({basics[draw(from, 0, basics.size() - 1)], draw_length(from, 1, 60)});
    }
    return signature;
}

layout lay_out(const run &of, type_store &types, generator &from)
{
    const std::size_t inner = some_divisor(of.times, from);
    layout made = types.repeated(types.one(of.of), inner, from);
    return inner == of.times ? made : types.repeated(made, of.times / inner, from);
}

layout lay_out(const std::vector<run> &signature, type_store &types, generator &from)
{
    std::vector<layout> parts;
    for (const run &each : signature) {
        parts.push_back(lay_out(each, types, from));
    }
    layout made = 1 == parts.size() ? parts.front() : types.structure(parts, from);
    return 0 == draw(from, 0, 1) ? types.resized(std::move(made), from) : made;
}

// What one rank hands to MPI: `count` of a type, at a place in a buffer.
struct side {
    layout of;
    std::size_t count = 0;
    std::size_t payload_bytes = 0;

    std::size_t room_bytes() const
    {
        const std::ptrdiff_t last = of.extent * static_cast<std::ptrdiff_t>(count - 1) + of.end;
        return 2 * guard_bytes + static_cast<std::size_t>(last);
    }
    // All of a buffer as it is when the message has been put there, or has come.
    std::vector<unsigned char> image(std::uint64_t seed) const
    {
        std::vector<unsigned char> message(payload_bytes);
        bench::write_pattern(message.data(), message.size(), seed, 0);
        std::vector<unsigned char> bytes(room_bytes(), bench::poison_byte);
        std::size_t sent = 0;
        for (std::size_t i = 0; i < count; ++i) {
            for (const layout::piece &each : of.pieces) {
                const std::ptrdiff_t at = of.extent * static_cast<std::ptrdiff_t>(i) + each.offset;
                std::copy_n(message.begin() + static_cast<std::ptrdiff_t>(sent), each.len_bytes,
                            bytes.begin() + static_cast<std::ptrdiff_t>(guard_bytes) + at);
                sent += each.len_bytes;
            }
        }
        return bytes;
    }
};

class exchange_of_types {
  public:
    exchange_of_types(context &c, std::uint64_t seed)
        : c_(c), seed_(seed), what_("random datatype " + std::to_string(seed)), common_(seed),
          own_(2 * seed + 1 + static_cast<std::uint64_t>(c.rank))
    {
        const std::vector<run> signature = draw_signature(common_);
        std::size_t element_bytes = 0;
        for (const run &each : signature) {
            element_bytes += each.of.bytes * each.times;
        }
        const std::size_t elements =
            std::max<std::size_t>(1, draw_length(common_, 16, most_bytes) / element_bytes);
        mine_.of = lay_out(signature, types_, own_);
        const std::size_t together = some_divisor(elements, own_);
        const bool grouped = 1 < together && together < 64;
        if (grouped) {
            mine_.of = types_.repeated(mine_.of, together, own_);
        }
        mine_.count = grouped ? elements / together : elements;
        mine_.payload_bytes = elements * element_bytes;
        MPI_Type_commit(&mine_.of.type);
        what_ += ", " + std::to_string(mine_.payload_bytes) + " bytes";
    }

    void send_and_receive()
    {
        const memory_kind kinds[2] = {c_.kind_at(draw(common_, 0, 99)),
                                      c_.kind_at(draw(common_, 0, 99))};
        what_ +=
            std::string(", ") + bench::letter_of(kinds[0]) + " and " + bench::letter_of(kinds[1]);
        at_step(what_);
        const memory_kind mine = kinds[c_.rank];
        for (int sender : {0, 1}) { // one after the other
            message one(*this, mine, 0);
            if (sender == c_.rank) {
                one.fill();
                c_.mpi(MPI_Send(one.at(), one.count(), mine_.of.type, 1 - c_.rank, tag,
                                MPI_COMM_WORLD),
                       what_);
            } else {
                one.poison();
                if (c_.mpi(MPI_Recv(one.at(), one.count(), mine_.of.type, 1 - c_.rank, tag,
                                    MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                           what_)) {
                    one.compare();
                }
            }
        }
        both_ways(mine);
    }

  private:
    static constexpr std::size_t most_bytes = 400000;
    static constexpr std::uint64_t at_once = 3;

    // Memory of one message.
    class message {
      public:
        message(exchange_of_types &of, memory_kind kind, std::uint64_t number)
            : of_(of), number_(number), memory_(of.c_.make(kind, of.mine_.room_bytes()))
        {
        }
        void *at() const { return memory_->at(guard_bytes); }
        int count() const { return static_cast<int>(of_.mine_.count); }
        void fill()
        {
            const auto bytes = of_.mine_.image(seed_of(of_.c_.rank));
            of_.c_.expect(memory_->write(0, bytes.data(), bytes.size()), "fill");
        }
        void poison() { of_.c_.expect(memory_->poison(), "poison"); }
        void compare() const
        {
            const auto expected = of_.mine_.image(seed_of(1 - of_.c_.rank));
            std::vector<unsigned char> found(expected.size());
            of_.c_.expect(memory_->read(0, found.data(), found.size()), "read");
            const auto wrong = std::mismatch(found.begin(), found.end(), expected.begin()).first;
            of_.c_.expect(wrong == found.end()
                              ? ""
                              : "byte " + std::to_string(wrong - found.begin()) + " of " +
                                    std::to_string(found.size()) + " is wrong",
                          of_.what_);
            ++of_.c_.messages;
        }

      private:
        std::uint64_t seed_of(int sender) const
        {
            return 1000 * of_.seed_ + 10 * number_ + static_cast<std::uint64_t>(sender);
        }

        exchange_of_types &of_;
        std::uint64_t number_;
        std::unique_ptr<buffer> memory_;
    };

    void both_ways(memory_kind kind)
    {
        std::vector<std::unique_ptr<message>> messages;
        std::vector<MPI_Request> all;
        for (std::uint64_t i = 0; i < at_once; ++i) {
            message &in = *messages.emplace_back(std::make_unique<message>(*this, kind, i + 1));
            in.poison();
            c_.mpi(MPI_Irecv(in.at(), in.count(), mine_.of.type, 1 - c_.rank, tag, MPI_COMM_WORLD,
                             &all.emplace_back()),
                   what_);
        }
        for (std::uint64_t i = 0; i < at_once; ++i) {
            message &out = *messages.emplace_back(std::make_unique<message>(*this, kind, i + 1));
            out.fill();
            c_.mpi(MPI_Isend(out.at(), out.count(), mine_.of.type, 1 - c_.rank, tag, MPI_COMM_WORLD,
                             &all.emplace_back()),
                   what_);
        }
        if (c_.mpi(MPI_Waitall(static_cast<int>(all.size()), all.data(), MPI_STATUSES_IGNORE),
                   what_)) {
            std::for_each(messages.begin(), messages.begin() + at_once,
                          [](const auto &each) { each->compare(); });
        }
    }

    context &c_;
    std::uint64_t seed_;
    std::string what_;
    generator common_; // drawn from alike by both ranks
    generator own_;
    type_store types_;
    side mine_;
};

} // namespace

void test_random_types(context &c)
{
    const int seeds = 0 < c.rounds ? c.rounds : seeds_without_rounds;
    for (int i = 0; i < seeds; ++i) {
        exchange_of_types(c, c.draw_seeds(1)).send_and_receive();
    }
}

} // namespace gpusm::exchange
