// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_windows_types.cc: operations on windows with derived datatypes: named ones in all pairs,
// random ones of the same signature, and less than the receiving side has room for. What lies in
// their gaps, or behind what is moved, has to stay. --rounds N: so many random ones, and all pairs
// for all kinds of memory.
#include "tests/mpi/windows_shapes.h"

#include <array>

namespace gpusm::exchange {

namespace {

using namespace windows;

constexpr std::size_t room_bytes = std::size_t{1} << 20;
constexpr std::size_t most_bytes = std::size_t{1} << 19; // that one access spans
constexpr std::size_t place_alignment = 16;

// --- one access ----------------------------------------------------------------------------------

// So many of one layout in memory, from the address that MPI is given on.
struct placed {
    const layout *of;
    std::size_t count;

    std::ptrdiff_t shift() const // of the last one
    {
        return static_cast<std::ptrdiff_t>(count - 1) * of->extent;
    }
    // That address, in bytes from the buffer's begin.
    std::size_t at() const
    {
        const std::ptrdiff_t low =
            std::min<std::ptrdiff_t>(0, std::min(of->begin, of->begin + shift()));
        const std::size_t below = guard_bytes + static_cast<std::size_t>(-low);
        return (below + place_alignment - 1) / place_alignment * place_alignment;
    }
    std::size_t used_bytes() const
    {
        const std::ptrdiff_t high =
            std::max<std::ptrdiff_t>(0, std::max(of->end, of->end + shift()));
        return at() + static_cast<std::size_t>(high) + guard_bytes;
    }
    template <typename Visit> void each_piece(Visit visit) const
    {
        std::size_t position = 0;
        for (std::size_t i = 0; i < count; ++i) {
            for (const layout::piece &piece : of->pieces) {
                visit(static_cast<std::size_t>(static_cast<std::ptrdiff_t>(at() + piece.offset) +
                                               static_cast<std::ptrdiff_t>(i) * of->extent),
                      position, piece.len_bytes);
                position += piece.len_bytes;
            }
        }
    }
    bytes gathered(const unsigned char *memory) const
    {
        bytes packed(packed_bytes());
        each_piece([&](std::size_t where, std::size_t position, std::size_t len) {
            std::memcpy(packed.data() + position, memory + where, len);
        });
        return packed;
    }
    // The first bytes, where there are fewer.
    void scatter(const bytes &packed, unsigned char *memory) const
    {
        each_piece([&](std::size_t where, std::size_t position, std::size_t len) {
            if (position < packed.size()) {
                std::memcpy(memory + where, packed.data() + position,
                            std::min(len, packed.size() - position));
            }
        });
    }
    std::size_t packed_bytes() const { return count * of->size_bytes(); }
};

enum class call { put, get, accumulate, get_accumulate };
constexpr const char *call_names[] = {"put", "get", "accumulate", "get_accumulate"};

struct plan {
    call what;
    const element *of; // nullptr: bytes of several types, which are moved only
    rule how;
    placed origin;
    placed target;
    placed result;
    std::string name;
    bool to_self = false;
    bool in_lock = false;
};

// Memory of one kind for each purpose, and the window.
struct setting {
    watched origin;
    watched result;
    watched owned;
    window_of window;

    setting(context &c, memory_kind from, memory_kind result_in, memory_kind into)
        : origin(c, from, room_bytes), result(c, result_in, room_bytes), owned(c, into, room_bytes),
          window(c)
    {
    }
    std::string describe() const
    {
        return std::string(1, bench::letter_of(origin.kind())) + "->" +
               bench::letter_of(owned.kind()) + ", result in " + bench::letter_of(result.kind());
    }
};

// What is there before: elements, or any bytes.
bytes content(const plan &of, std::size_t len_bytes, std::uint64_t seed)
{
    bytes made(len_bytes);
    if (nullptr == of.of) {
        bench::write_pattern(made.data(), len_bytes, seed, 0);
        return made;
    }
    for (std::size_t i = 0; i < len_bytes / of.of->extent; ++i) {
        of.of->put(made.data() + i * of.of->extent, seed + i);
    }
    return made;
}

int start(const plan &of, setting &on, int target)
{
    const void *from = on.origin.at(of.origin.at());
    void *into = on.result.at(of.result.at());
    const auto at = static_cast<MPI_Aint>(of.target.at());
    const auto from_count = static_cast<int>(of.origin.count);
    const auto count = static_cast<int>(of.target.count);
    const auto into_count = static_cast<int>(of.result.count);
    const MPI_Datatype type = of.target.of->type;
    switch (of.what) {
    case call::put:
        return MPI_Put(from, from_count, of.origin.of->type, target, at, count, type, *on.window);
    case call::get:
        return MPI_Get(into, into_count, of.result.of->type, target, at, count, type, *on.window);
    case call::accumulate:
        return MPI_Accumulate(from, from_count, of.origin.of->type, target, at, count, type,
                              op_of(of.how), *on.window);
    case call::get_accumulate:
        return MPI_Get_accumulate(from, from_count, of.origin.of->type, into, into_count,
                                  of.result.of->type, target, at, count, type, op_of(of.how),
                                  *on.window);
    }
    return MPI_ERR_INTERN;
}

void run(context &c, const plan &of, setting &on)
{
    const std::string what = std::string(call_names[static_cast<int>(of.what)]) + " (" +
                             (nullptr == of.of ? "bytes" : of.of->name) + ", " + name_of(of.how) +
                             "), " + of.name + ", " + on.describe() +
                             (of.in_lock ? ", shared lock" : ", fence") +
                             (of.to_self ? ", to itself" : "");
    at_step(what);
    const std::uint64_t seed = c.draw_seeds(4 * of.target.packed_bytes());
    const auto packed = [&](int rank, int role) {
        return content(of, (0 == role ? of.target : of.origin).packed_bytes(),
                       seed + mixed(static_cast<std::uint64_t>(rank * 4 + role)));
    };
    const int target = of.to_self ? c.rank : (c.rank + 1) % c.ranks;
    const int source = of.to_self ? c.rank : (c.rank + c.ranks - 1) % c.ranks;
    const auto prepare = [](watched &memory, const placed &place, const bytes *with) {
        memory.clear(place.used_bytes());
        if (nullptr != with) {
            place.scatter(*with, memory.wanted());
        }
        memory.write(place.used_bytes());
    };
    const bytes before = packed(c.rank, 0);
    const bytes sent = packed(c.rank, 1);
    const auto begin = [&] { prepare(on.owned, of.target, &before); };
    prepare(on.origin, of.origin, &sent);
    prepare(on.result, of.result, nullptr);
    if (of.in_lock) {
        in_own_epoch(c, *on.window, c.rank, begin);
        MPI_Barrier(MPI_COMM_WORLD);
        c.mpi(MPI_Win_lock(MPI_LOCK_SHARED, target, 0, *on.window), what);
        c.mpi(start(of, on, target), what);
        c.mpi(MPI_Win_unlock(target, *on.window), what);
        MPI_Barrier(MPI_COMM_WORLD);
    } else {
        begin();
        c.mpi(MPI_Win_fence(0, *on.window), what);
        c.mpi(start(of, on, target), what);
        c.mpi(MPI_Win_fence(MPI_MODE_NOSUCCEED, *on.window), what);
    }
    if (call::get != of.what) {
        const bytes from = packed(source, 1);
        bytes into = of.target.gathered(on.owned.wanted());
        if (nullptr == of.of) {
            std::copy(from.begin(), from.end(), into.begin());
        }
        for (std::size_t i = 0; nullptr != of.of && i < from.size(); i += of.of->extent) {
            of.of->combine(of.how, from.data() + i, into.data() + i);
        }
        of.target.scatter(into, on.owned.wanted());
    }
    if (call::get == of.what || call::get_accumulate == of.what) {
        of.result.scatter(packed(target, 0), on.result.wanted());
    }
    const auto end = [&] { on.owned.check(of.target.used_bytes(), what + ": the window"); };
    if (of.in_lock) {
        in_own_epoch(c, *on.window, c.rank, end);
    } else {
        end();
    }
    on.origin.check(of.origin.used_bytes(), what + ": the origin's buffer");
    on.result.check(of.result.used_bytes(), what + ": the result");
}

// --- all of them ---------------------------------------------------------------------------------

struct moved {
    call what;
    rule how;
};
constexpr moved moves[] = {
    {call::put, rule::replace},
    {call::get, rule::no_op},
    {call::accumulate, rule::sum},
    {call::accumulate, rule::replace},
    {call::get_accumulate, rule::sum},
    {call::get_accumulate, rule::no_op},
    {call::get_accumulate, rule::replace},
    {call::accumulate, rule::min},
};

// One in so many of the pairs.
void test_named(context &c, setting &on, generator &from, std::size_t one_in)
{
    const element short_element = number_element<short>("short", MPI_SHORT);
    const std::array<const element *, 4> elements = {&int_element(), &double_element(),
                                                     &long_element(), &short_element};
    std::size_t turn = draw(from, 0, elements.size() - 1);
    for (const moved &move : moves) {
        const element &of = *elements[turn++ % elements.size()];
        const shapes named(of);
        for (const shape &origin : named.all()) {
            for (const shape &target : named.all()) {
                if (!one_of(one_in, from)) {
                    continue;
                }
                const shape &result = named.all()[draw(from, 0, named.all().size() - 1)];
                constexpr std::size_t counts[] = {1, 2, 301};
                const std::size_t count = counts[draw(from, 0, one_of(4, from) ? 2 : 1)];
                run(c,
                    {move.what,
                     &of,
                     move.how,
                     {&origin.made, count},
                     {&target.made, count},
                     {&result.made, count},
                     std::to_string(count) + " of " + origin.name + " -> " + target.name + " -> " +
                         result.name,
                     one_of(4, from),
                     one_of(2, from)},
                    on);
            }
        }
    }
}

void test_random_ones(context &c, setting &on, generator &from, int rounds)
{
    const element short_element = number_element<short>("short", MPI_SHORT);
    const std::array<const element *, 4> elements = {&int_element(), &double_element(),
                                                     &long_element(), &short_element};
    for (int i = 0; i < rounds; ++i) {
        const moved &move = moves[draw(from, 0, std::size(moves) - 1)];
        const bool of_several = call::put == move.what || call::get == move.what;
        const element *of = of_several ? nullptr : elements[draw(from, 0, elements.size() - 1)];
        const std::vector<basic_run> signature =
            of_several ? draw_signature(from)
                       : std::vector<basic_run>{{of->type, draw_length(from, 1, 400)}};
        layouts made(from, distances::multiples);
        layout origin = made.of(signature);
        layout target = made.of(signature);
        layout result = made.of(signature);
        for (layout *each : {&origin, &target, &result}) {
            MPI_Type_commit(&each->type);
        }
        const std::size_t count = draw_length(from, 1, 50);
        const plan one{move.what,
                       of,
                       move.how,
                       {&origin, count},
                       {&target, count},
                       {&result, count},
                       "random " + std::to_string(i) + ", " + std::to_string(count) + " of them",
                       one_of(4, from),
                       one_of(2, from)};
        if (std::max({one.origin.used_bytes(), one.target.used_bytes(), one.result.used_bytes()}) <=
            most_bytes) {
            run(c, one, on);
        }
    }
}

// What the sending side has that is less than there is room for: whole elements of the receiving
// side, and what ends within one.
class senders {
  public:
    explicit senders(const element &of) : of_(of)
    {
        MPI_Datatype type = MPI_DATATYPE_NULL;
        MPI_Type_contiguous(1, of.type, &type);
        add(type, 1);
        MPI_Type_vector(7, 1, 2, of.type, &type);
        add(type, 7);
    }
    ~senders()
    {
        for (layout &each : all_) {
            MPI_Type_free(&each.type);
        }
    }
    senders(const senders &) = delete;
    senders &operator=(const senders &) = delete;
    const layout &alone() const { return all_[0]; }
    const layout &apart() const { return all_[1]; } // seven of them, with gaps

  private:
    // So many of them, one place between two.
    void add(MPI_Datatype type, int elements)
    {
        const auto unit = static_cast<MPI_Aint>(of_.extent);
        layout one;
        one.pieces = {{0, of_.extent}};
        one.end = unit;
        layout &made = all_.emplace_back();
        for (int i = 0; i < elements; ++i) {
            made.add(one, 2 * i * unit);
        }
        MPI_Type_commit(&type);
        MPI_Aint low = 0;
        MPI_Type_get_extent(type, &low, &made.extent);
        made.type = type;
    }

    const element &of_;
    std::vector<layout> all_;
};

void test_fewer(context &c, setting &on, generator &from, std::size_t one_in)
{
    const element &of = double_element();
    const shapes named(of);
    const senders some(of);
    const auto try_both = [&](const placed &sender, const placed &receiver,
                              const std::string &name) {
        for (const call what : {call::put, call::get}) {
            if (!one_of(one_in, from)) {
                continue;
            }
            const placed &origin = call::put == what ? sender : receiver;
            const placed &target = call::put == what ? receiver : sender;
            run(c,
                {what, &of, rule::replace, origin, target, origin, name, one_of(4, from),
                 one_of(2, from)},
                on);
        }
    };
    try_both({&some.alone(), 3}, {&some.alone(), 10}, "3 numbers to room for 10");
    try_both({&some.apart(), 30}, {&some.alone(), 5000}, "30 vectors to room for 5000 numbers");
    for (const shape &each : named.all()) {
        try_both({&each.made, 3}, {&each.made, 5}, std::string("3 to room for 5, ") + each.name);
        try_both({&some.alone(), 24}, {&each.made, 5},
                 std::string("24 numbers to room for 5, ") + each.name);
        try_both({&some.alone(), 8}, {&each.made, 1},
                 std::string("8 numbers to room for a part, ") + each.name);
        try_both({&some.apart(), 5}, {&each.made, 4},
                 std::string("5 vectors to room for 4, ") + each.name);
        try_both({&each.made, 2}, {&some.apart(), 6},
                 std::string("2 to room for 6 vectors, ") + each.name);
    }
}

} // namespace

void test_windows_types(context &c)
{
    generator from(c.draw_seeds(1));
    // Every kind is the window's, the origin's and the result's memory at least once.
    const std::size_t kinds = c.kinds.size();
    const std::size_t origins = 1 == kinds || (kinds > 3 && 0 == c.rounds) ? 1 : 2; // of a window
    for (std::size_t i = 0; i < kinds; ++i) {
        for (std::size_t step = 0; step < origins; ++step) {
            setting on(c, c.kind_at(i + step + 1), c.kind_at(i + 2 * step), c.kind_at(i));
            if (!on.window.create(MPI_COMM_WORLD, on.owned.at(), room_bytes, 1,
                                  std::string("a window of ") +
                                      bench::letter_of(on.owned.kind()))) {
                continue;
            }
            test_named(c, on, from, 0 == i + step || 0 < c.rounds ? 1 : 8);
            test_random_ones(c, on, from, 0 < c.rounds ? c.rounds : 40);
            if (!is_stock(on.owned.kind())) {
                test_fewer(c, on, from, 0 == i + step || 0 < c.rounds ? 1 : 8);
            }
        }
    }
}

} // namespace gpusm::exchange
