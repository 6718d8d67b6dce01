// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// plans.cc: `plans [TYPES [FIRST_SEED]]`: what packs by the plans of random datatypes is what
// MPI_Pack packs, and plans live as long as their datatypes. One process, host memory.
#include "ompi/mca/coll/gpusm/coll_gpusm_plans.cc"

#include "tests/mpi/random_type.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace gpusm;
using tests::random_type;

int failures = 0;

bool expect(bool condition, const std::string &what)
{
    if (!condition && ++failures <= 20) {
        std::fprintf(stderr, "plans: FAILED: %s\n", what.c_str());
    }
    return condition;
}

using bytes = std::vector<unsigned char>;

// What `count` elements at `at` pack to by their plan.
bytes packed(const datatype_plan &plan, const unsigned char *at, std::size_t count)
{
    const strided_layout &layout = plan.layout;
    const std::int64_t word_bytes = 1 << std::countr_zero(plan.word_bits | strided_most_word);
    bytes out;
    const auto take = [&](const unsigned char *element, std::int64_t offset, std::uint64_t length) {
        expect(plan.lowest <= offset &&
                   offset + static_cast<std::int64_t>(length) <= plan.highest &&
                   0 == offset % word_bytes && 0 == static_cast<std::int64_t>(length) % word_bytes,
               "a block within the bounds, a multiple of words");
        out.insert(out.end(), element + offset, element + offset + length);
    };
    for (std::size_t n = 0; n < count; ++n) {
        const unsigned char *element = at + static_cast<std::int64_t>(n) * layout.extent;
        if (0 != layout.block_count) {
            for (std::size_t i = 0; i < layout.block_count; ++i) {
                const std::uint64_t end =
                    i + 1 < layout.block_count ? plan.blocks[i + 1].before : layout.element_bytes;
                take(element, plan.blocks[i].offset, end - plan.blocks[i].before);
            }
            continue;
        }
        const std::uint64_t blocks = layout.element_bytes / layout.block_bytes;
        for (std::uint64_t i = 0; i < blocks; ++i) {
            std::int64_t offset = layout.first;
            std::uint64_t rest = i;
            for (std::uint32_t k = 0; k < layout.levels; ++k) {
                offset += static_cast<std::int64_t>(rest % layout.level[k].count) *
                          layout.level[k].stride;
                rest /= layout.level[k].count;
            }
            take(element, offset, layout.block_bytes);
        }
    }
    return out;
}

struct tally {
    int regular = 0;
    int lists = 0;
    int empty = 0;
    int long_lists = 0; // of more blocks than the walk is told of at once
    int negative = 0;   // with bytes below the address of the element
};

void compare(type_plans &plans, std::uint64_t seed, tally &seen)
{
    const random_type type(seed, 100000);
    const std::string what = "seed " + std::to_string(seed) + ", " + type.name();
    const type_plans::pointer plan = plans.of(type.get());
    expect(plan == plans.of(type.get()), what + ": the same plan again");
    if (0 == type.size_bytes()) {
        expect(nullptr == plan, what + ": no bytes, no plan");
        ++seen.empty;
        return;
    }
    if (!expect(nullptr != plan, what + ": a plan")) {
        return;
    }
    const strided_layout &layout = plan->layout;
    expect(layout.element_bytes == type.size_bytes() && layout.extent == type.extent() &&
               (0 == layout.block_count) == plan->blocks.empty(),
           what + ": size and extent");
    expect(plan->lowest == type.lowest(1) && plan->highest == type.highest(1), what + ": bounds");
    ++(0 == layout.block_count ? seen.regular : seen.lists);
    seen.long_lists += layout.block_count > 256 ? 1 : 0;
    seen.negative += plan->lowest < 0 ? 1 : 0;
    for (int count : {1, 3}) {
        const MPI_Aint low = type.lowest(count);
        bytes memory(static_cast<std::size_t>(type.highest(count) - low));
        std::uint64_t word = seed;
        for (unsigned char &each : memory) {
            word = word * 6364136223846793005u + 1442695040888963407u;
            each = static_cast<unsigned char>(word >> 56);
        }
        const unsigned char *at = memory.data() - low;
        bytes right(type.size_bytes() * static_cast<std::size_t>(count));
        int position = 0;
        MPI_Pack(at, count, type.get(), right.data(), static_cast<int>(right.size()), &position,
                 MPI_COMM_SELF);
        const bytes ours = packed(*plan, at, static_cast<std::size_t>(count));
        const auto wrong = std::mismatch(ours.begin(), ours.end(), right.begin(), right.end());
        expect(static_cast<std::size_t>(position) == right.size() && ours == right,
               what + ": " + std::to_string(count) + " elements, at byte " +
                   std::to_string(wrong.first - ours.begin()) + " of " +
                   std::to_string(right.size()));
    }
}

// All predefined datatypes with gaps.
void predefined(type_plans &plans)
{
    const std::size_t before = plans.count();
    for (MPI_Datatype type : {MPI_DOUBLE_INT, MPI_SHORT_INT, MPI_LONG_INT, MPI_LONG_DOUBLE_INT,
                              MPI_FLOAT_INT, MPI_2INT}) {
        char name[MPI_MAX_OBJECT_NAME] = "";
        int length = 0;
        int size = 0;
        MPI_Type_get_name(type, name, &length);
        MPI_Type_size(type, &size);
        const type_plans::pointer plan = plans.of(type);
        if (!expect(nullptr != plan, std::string(name) + ": a plan")) {
            continue;
        }
        unsigned char memory[64];
        for (std::size_t i = 0; i < sizeof(memory); ++i) {
            memory[i] = static_cast<unsigned char>(i + 1);
        }
        bytes right(static_cast<std::size_t>(size));
        int position = 0;
        MPI_Pack(memory, 1, type, right.data(), size, &position, MPI_COMM_SELF);
        expect(packed(*plan, memory, 1) == right, name);
    }
    expect(before + 6 == plans.count(), "plans of predefined datatypes are kept");
    expect(nullptr == plans.of(MPI_DATATYPE_NULL), "MPI_DATATYPE_NULL has no plan");
}

// A plan goes with its datatype, unless somebody still uses it.
void life(type_plans &plans)
{
    const std::size_t before = plans.count();
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Type_vector(10, 2, 5, MPI_DOUBLE, &type);
    expect(nullptr == plans.of(type), "no plan before MPI_Type_commit");
    MPI_Type_commit(&type);
    type_plans::pointer used = plans.of(type);
    const std::weak_ptr<const datatype_plan> watched = used;
    MPI_Datatype dup = MPI_DATATYPE_NULL;
    MPI_Type_dup(type, &dup);
    expect(before + 1 == plans.count(), "MPI_Type_dup copies no plan");
    expect(0 == dup->pml_data && nullptr != plans.of(dup) && used != plans.of(dup),
           "a plan of the copy's own");
    MPI_Type_free(&type); // Open MPI keeps it as long as there is one that is made of it
    expect(before + 2 == plans.count() && nullptr != plans.of(dup), "the copy's plan is there");
    MPI_Type_free(&dup);
    expect(before == plans.count(), "plans go with their datatypes");
    expect(nullptr != used && 160 == used->layout.element_bytes, "a plan in use stays");
    used.reset();
    expect(watched.expired(), "until it is not used any more");
}

// Threads that ask for the same new datatypes at once get the same plans.
void threads()
{
    constexpr int count = 4;
    constexpr std::size_t types = 50;
    const auto plans = type_plans::install();
    std::vector<std::unique_ptr<random_type>> made;
    for (std::size_t i = 0; i < types; ++i) {
        made.push_back(std::make_unique<random_type>(900000 + i, 20000));
    }
    std::vector<std::vector<type_plans::pointer>> found(count);
    std::vector<std::thread> running;
    for (auto &mine : found) {
        running.emplace_back([&] {
            for (const auto &each : made) {
                mine.push_back(plans->of(each->get()));
            }
        });
    }
    for (std::thread &each : running) {
        each.join();
    }
    for (const auto &mine : found) {
        expect(mine == found[0], "all threads get the same plans");
    }
    made.clear();
    expect(0 == plans->count(), "plans have gone with their datatypes");
}

// Removed while datatypes are there, and installed again.
void removed()
{
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Type_vector(10, 2, 5, MPI_DOUBLE, &type);
    MPI_Type_commit(&type);
    auto plans = type_plans::install();
    (void)plans->of(type);
    (void)plans->of(MPI_DOUBLE_INT);
    expect(0 != type->pml_data && 0 != MPI_DOUBLE_INT->pml_data, "plans are kept");
    plans.reset();
    expect(0 == type->pml_data && 0 == MPI_DOUBLE_INT->pml_data, "nothing is left of them");
    plans = type_plans::install();
    expect(nullptr != plans->of(type) && 1 == plans->count(), "plans can be made again");
    plans.reset();
    MPI_Type_free(&type);
}

// Many blocks are walked in parts.
void many_blocks(type_plans &plans)
{
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Type_vector(1000000, 1, 3, MPI_SHORT, &type);
    MPI_Type_commit(&type);
    const auto plan = plans.of(type);
    expect(nullptr != plan && 1 == plan->layout.levels && 1000000 == plan->layout.level[0].count &&
               6 == plan->layout.level[0].stride,
           "a million blocks are one loop");
    MPI_Type_free(&type);
}

} // namespace

int main(int argc, char **argv)
{
    const int types = argc > 1 ? std::atoi(argv[1]) : 1000;
    const std::uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
    int provided = MPI_THREAD_SINGLE;
    (void)alarm(600); // nothing here waits for another process
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    tally seen;
    {
        const auto plans = type_plans::install();
        for (int i = 0; i < types; ++i) {
            compare(*plans, first + static_cast<std::uint64_t>(i), seen);
        }
        expect(0 == plans->count(), "no plan is left without its datatype");
        predefined(*plans);
        life(*plans);
        many_blocks(*plans);
    }
    threads();
    removed();
    expect(types < 500 || (seen.regular > 50 && seen.lists > 50 && seen.long_lists > 5 &&
                           seen.negative > 50 && seen.empty > 0),
           "datatypes of all sorts");
    std::printf("plans: %s, %d datatypes: %d regular, %d lists (%d long), %d negative, %d empty, "
                "%d failures\n",
                0 == failures ? "passed" : "FAILED", types, seen.regular, seen.lists,
                seen.long_lists, seen.negative, seen.empty, failures);
    MPI_Finalize();
    return 0 == failures ? 0 : 1;
}
