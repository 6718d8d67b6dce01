// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// strided_driver_test.cc: the strided kernel on whatever driver there is, real or tests/softcuda.
// On a GPU this is the proof that the PTX copies what it should and nothing else. Each test runs in
// a process of its own.
#include "opal/mca/common/gpusm/gpu/strided_kernel.h"

#include "tests/unit/gpu_memory_support.h"
#include "tests/unit/strided_support.h"

#include <algorithm>
#include <cstdint>
#include <deque>

using namespace softcuda_test;

// ThreadSanitizer asks for this. It sees the copies of the software driver, which is not built with
// it, but not what orders them.
extern "C" const char *__tsan_default_suppressions()
{
    return "called_from_lib:libcuda.so.1";
}

namespace {

using namespace gpusm;
using namespace gpusm_test;

// The kernel and a stream in a fresh context; ends the child when the kernel cannot be loaded.
struct strider {
    explicit strider(unsigned blocks, int device = 0)
        : context(start(device)), kernel(driver(), blocks),
          stream(make_stream(CU_STREAM_NON_BLOCKING))
    {
        if (!kernel.load()) {
            ADD_FAILURE() << "the driver does not take the kernel";
            _exit(12);
        }
    }
    ~strider()
    {
        (void)CU(cuCtxSetCurrent)(context);
        kernel.unload();
    }
    strider(const strider &) = delete;
    strider &operator=(const strider &) = delete;

    // The flag alone says when it has ended: nothing is synchronized.
    bool run(const std::vector<strided_copy> &copies, std::uint32_t slot)
    {
        std::vector<const strided_copy *> list;
        for (const strided_copy &each : copies) {
            list.push_back(&each);
        }
        OK(CU(cuCtxSynchronize)()); // until lists of blocks have arrived
        EXPECT_EQ(kernel.launch(stream, slot, list.data(), static_cast<std::uint32_t>(list.size())),
                  CUDA_SUCCESS);
        const deadline end(30);
        while (!kernel.finished(slot) && !end.over()) {
        }
        return kernel.finished(slot);
    }

    const CUcontext context;
    strided_kernel kernel;
    const CUstream stream;
};

// Device memory, what it must hold, and where the next side finds its place there.
struct image {
    explicit image(std::size_t len_bytes, unsigned seed)
        : text(pattern(len_bytes, seed)), at(allocate(len_bytes))
    {
        store(at, text);
    }
    void expect_held(int round) const
    {
        const std::string now = load(at, text.size());
        if (now != text) {
            const auto differs =
                std::mismatch(now.begin(), now.end(), text.begin()).first - now.begin();
            ADD_FAILURE() << "round " << round << ": wrong from byte " << differs << " on";
        }
    }

    std::string text;
    const CUdeviceptr at;
    std::size_t next = 0;
};

// Copies between two images, which are to be made on the device, and are made here.
class copies_of_a_launch {
  public:
    // `lists`: device memory for the lists of blocks, of list_room bytes.
    static constexpr std::size_t list_room = mib;
    copies_of_a_launch(image *from, image *to, CUdeviceptr lists)
        : from_(*from), to_(*to), next_list_(lists), lists_end_(lists + list_room)
    {
        from_.next = to_.next = 0;
    }

    // With the longest words that there are.
    void add(const any_layout &source, std::uint64_t source_begin, const any_layout &destination,
             std::uint64_t destination_begin, std::uint64_t len_bytes, std::uint64_t unit)
    {
        const placed from = place(&from_, source, source_begin, len_bytes, unit);
        const placed to = place(&to_, destination, destination_begin, len_bytes, unit);
        const std::uint32_t word_bytes =
            strided_word_bytes(from.side, source.bits(), to.side, destination.bits(), len_bytes);
        copies.push_back({from.side, to.side, len_bytes, word_bytes, 0});
        for (std::size_t i = 0; i < len_bytes; ++i) {
            to_.text[to.offsets[i]] = from_.text[from.offsets[i]];
        }
    }

    std::vector<strided_copy> copies;

  private:
    struct placed {
        strided_side side;
        std::vector<std::size_t> offsets; // of packed bytes, in the image
    };

    // Behind what has a place there, from a multiple of `unit` on.
    placed place(image *in, const any_layout &layout, std::uint64_t begin, std::uint64_t len_bytes,
                 std::uint64_t unit)
    {
        const std::vector<std::int64_t> places = layout.places(begin, len_bytes);
        const auto [low, high] = std::minmax_element(places.begin(), places.end());
        const auto first = static_cast<std::size_t>(*low);
        std::size_t address = in->next - first; // modulo 2^64
        address += (unit - address % unit) % unit;
        in->next = address + static_cast<std::size_t>(*high) + 2;
        EXPECT_LE(in->next, in->text.size()) << "the test's buffer is too small";
        placed made{{in->at + address, begin, layout.layout}, {}};
        if (!layout.list.empty()) {
            const std::size_t bytes = layout.list.size() * sizeof(strided_block);
            EXPECT_LE(next_list_ + bytes, lists_end_);
            OK(CU(cuMemcpyHtoD)(next_list_, layout.list.data(), bytes));
            made.side.layout.blocks = std::exchange(next_list_, next_list_ + bytes);
        }
        for (const std::int64_t each : places) {
            made.offsets.push_back(address + static_cast<std::size_t>(each));
        }
        return made;
    }

    image &from_;
    image &to_;
    CUdeviceptr next_list_;
    const CUdeviceptr lists_end_;
};

any_layout contiguous(std::uint64_t len_bytes)
{
    return {strided_contiguous(0, len_bytes).layout, {}};
}

ALONE(StridedOnDriver, AnyLayoutsArriveInOneAnotherAndNothingElseIsWritten)
{
    (void)start();
    const CUdeviceptr lists = allocate(copies_of_a_launch::list_room);
    image from(2 * mib, 1);
    image to(2 * mib, 2);
    std::mt19937 random(3);
    std::set<std::uint32_t> words;
    for (const unsigned blocks : {1U, 3U, 128U}) {
        strider s(blocks);
        for (int round = 0; round < 100; ++round) {
            copies_of_a_launch all(&from, &to, lists);
            for (std::size_t i = 1 + random() % strided_most_copies; i > 0; --i) {
                const std::uint64_t unit = 1U << random() % 5;
                const any_layout layouts[] = {random_layout(random, unit),
                                              random_layout(random, unit)};
                const auto some_units = [&] {
                    return static_cast<std::uint64_t>(some(random, unit, 1, 600));
                };
                const std::uint64_t len_bytes = some_units();
                switch (random() % 4) {
                case 0: // packed
                    all.add(layouts[0], some_units(), contiguous(len_bytes), 0, len_bytes, unit);
                    break;
                case 1: // unpacked
                    all.add(contiguous(len_bytes), 0, layouts[1], some_units(), len_bytes, unit);
                    break;
                default:
                    all.add(layouts[0], some_units(), layouts[1], some_units(), len_bytes, unit);
                    break;
                }
                words.insert(all.copies.back().word_bytes);
            }
            ASSERT_TRUE(s.run(all.copies, static_cast<std::uint32_t>(round) % strided_slots));
            to.expect_held(round);
        }
    }
    EXPECT_EQ(words, (std::set<std::uint32_t>{1, 2, 4, 8, 16}));
}

// Several chunks of each copy, by one block and by many; the last one is not full.
ALONE(StridedOnDriver, LongCopiesArriveWhateverTheirWordsAndTheGrid)
{
    (void)start();
    const CUdeviceptr lists = allocate(copies_of_a_launch::list_room);
    image from(24 * mib, 4);
    image to(24 * mib, 5);
    std::mt19937 random(6);
    for (const unsigned blocks : {1U, 5U, 64U}) {
        strider s(blocks);
        for (std::uint64_t rows : {strided_short_rows, strided_long_rows}) {
            for (std::uint64_t unit = 1; unit <= 16; unit *= 2) {
                copies_of_a_launch all(&from, &to, lists);
                const std::uint64_t len_bytes = unit * (3 * rows * strided_threads + 77);
                for (std::uint32_t levels = 0; levels < 3; ++levels) {
                    const any_layout regular = regular_layout(random, unit, levels);
                    const any_layout irregular = irregular_layout(random, unit, 1000);
                    all.add(regular, 5 * unit, irregular, 7 * unit, len_bytes, unit);
                    all.add(irregular, 0, regular, 9 * unit, len_bytes, unit);
                }
                ASSERT_TRUE(s.run(all.copies, 0));
                to.expect_held(static_cast<int>(unit));
            }
        }
    }
}

// Sides of more than 2 GiB, of which a few words are copied.
ALONE(StridedOnDriver, IndicesOfMoreThan32BitsArrive)
{
    strider s(4);
    image from(mib, 7);
    image to(mib, 8);
    constexpr std::uint64_t gib = 1ULL << 30;
    strided_copy copy{{from.at, 3 * gib, {}}, strided_contiguous(to.at + 64, 100000), 100000, 4, 0};
    // 4 bytes in every 8, with 2^20 blocks in the same place for all but the last level.
    copy.source.layout = {.element_bytes = 5 * gib,
                          .extent = 0,
                          .levels = 2,
                          .block_bytes = 4,
                          .level = {{1 << 20, 0}, {1280, 64}}};
    for (std::size_t i = 0; i < 100000; ++i) {
        to.text[64 + i] = from.text[64 * ((3 * gib + i) / (4U << 20)) + i % 4];
    }
    ASSERT_TRUE(s.run({copy}, 1));
    to.expect_held(0);
}

ALONE(StridedOnDriver, ABadAddressFailsTheStreamAndSetsNoFlag)
{
    strider s(4);
    image to(mib, 9);
    const strided_copy bad{strided_contiguous(4096, 64), strided_contiguous(to.at, 64), 64, 16, 0};
    const strided_copy *list = &bad;
    OK(s.kernel.launch(s.stream, 2, &list, 1));
    const deadline end(30);
    CUresult answer = CUDA_ERROR_NOT_READY;
    while (CUDA_ERROR_NOT_READY == answer && !end.over()) {
        answer = driver().stream_query(s.stream);
    }
    EXPECT_EQ(answer, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_FALSE(s.kernel.finished(2));
}

} // namespace
