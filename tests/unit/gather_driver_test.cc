// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gather_driver_test.cc: the gather kernel on whatever driver there is, real or tests/softcuda. On
// a GPU this is the proof that the PTX copies what it should and nothing else. Each test runs in a
// process of its own.
#include "opal/mca/common/gpusm/gpu/gather_kernel.h"

#include "tests/unit/gpu_memory_support.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

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

// The kernel and a stream in a fresh context of that device; ends the child when the kernel cannot
// be loaded.
struct gatherer {
    explicit gatherer(unsigned blocks, int device = 0)
        : context(start(device)), kernel(driver(), blocks),
          stream(make_stream(CU_STREAM_NON_BLOCKING))
    {
        if (!kernel.load()) {
            ADD_FAILURE() << "the driver does not take the kernel";
            _exit(12);
        }
    }
    ~gatherer()
    {
        (void)CU(cuCtxSetCurrent)(context);
        kernel.unload();
    }
    gatherer(const gatherer &) = delete;
    gatherer &operator=(const gatherer &) = delete;

    void launch(CUstream on, const std::vector<gather_copy> &copies, std::uint32_t slot)
    {
        EXPECT_EQ(kernel.launch(on, slot, copies.data(), static_cast<std::uint32_t>(copies.size())),
                  CUDA_SUCCESS);
    }
    // The flag alone says so: nothing is synchronized.
    bool wait(std::uint32_t slot) const
    {
        const deadline end(30);
        while (!kernel.finished(slot) && !end.over()) {
        }
        return kernel.finished(slot);
    }
    void run(const std::vector<gather_copy> &copies, std::uint32_t slot = 0)
    {
        launch(stream, copies, slot);
        EXPECT_TRUE(wait(slot)) << "the flag is not set";
    }

    const CUcontext context;
    gather_kernel kernel;
    const CUstream stream;
};

// Device memory and what it must hold. Copies go to places of a wanted misalignment with untouched
// bytes between them, and are seen by comparing all of it.
class image {
  public:
    image(std::size_t len_bytes, unsigned seed)
        : text_(pattern(len_bytes, seed)), at_(allocate(len_bytes))
    {
        store(at_, text_);
    }
    CUdeviceptr at() const { return at_; }
    std::string &text() { return text_; }

    // Room for `len_bytes` that lies `misalignment` behind a multiple of 256; its offset.
    std::size_t place(std::size_t len_bytes, std::size_t misalignment)
    {
        const std::size_t offset = (next_ + 255) / 256 * 256 + misalignment;
        next_ = offset + len_bytes + 1;
        EXPECT_LE(next_, text_.size()) << "the test's buffer is too small";
        return offset;
    }
    void start_again() { next_ = 0; }

    void expect_held(const std::string &what) const
    {
        const std::string now = load(at_, text_.size());
        if (now != text_) {
            const auto differs =
                std::mismatch(now.begin(), now.end(), text_.begin()).first - now.begin();
            ADD_FAILURE() << what << ": wrong from byte " << differs << " on";
        }
    }

  private:
    std::string text_;
    CUdeviceptr at_;
    std::size_t next_ = 0;
};

// Copies from some memory to an image, which are to be made on the device, and are made here.
struct gathering {
    gathering(image &from, image &into) : gathering(from.at(), from.text(), into) {}
    gathering(CUdeviceptr from, const std::string &there, image &into)
        : source_at(from), text(there), to(into)
    {
        to.start_again();
    }
    void add(std::size_t source, std::size_t destination, std::size_t len_bytes)
    {
        copies.push_back(
            {to.at() + destination, source_at + source, static_cast<std::uint32_t>(len_bytes), 0});
        to.text().replace(destination, len_bytes, text, source, len_bytes);
    }
    void add_any(std::mt19937 &random, std::size_t len_bytes)
    {
        add(random() % (text.size() - len_bytes), to.place(len_bytes, random() % 256), len_bytes);
    }

    const CUdeviceptr source_at;
    const std::string &text; // what it holds
    image &to;
    std::vector<gather_copy> copies;
};

// Lengths where the kernel changes its way: bytes only, words and bytes, full and last batches.
std::vector<std::size_t> lengths(std::mt19937 &random)
{
    std::vector<std::size_t> all(34);
    std::iota(all.begin(), all.end(), std::size_t{1});
    for (const std::size_t around : {512U, 2048U, 3584U, 4096U, 8192U}) {
        for (const std::size_t less : {0U, 1U, 15U, 16U, 17U, 31U}) {
            all.push_back(around - less);
            all.push_back(around + less + 1);
        }
    }
    for (int i = 0; i < 12; ++i) {
        all.push_back(1 + random() % 70000);
    }
    return all;
}

ALONE(GatherOnDriver, EveryMisalignmentOfSourceAndDestinationAndEveryLengthArrives)
{
    gatherer g(16);
    image from(2 * mib, 1);
    image to(12 * mib, 2);
    gathering all(from, to);
    std::mt19937 random(3);
    for (std::size_t source = 0; source < 16; ++source) {
        for (std::size_t destination = 0; destination < 16; ++destination) {
            // By either kernel.
            const std::size_t at_once = 0 == random() % 2 ? gather_few_copies : gather_most_copies;
            std::vector<std::size_t> left = lengths(random);
            while (!left.empty()) {
                all.copies.clear();
                for (; !left.empty() && all.copies.size() < at_once; left.pop_back()) {
                    const std::size_t somewhere = random() % (mib / 16) * 16;
                    all.add(somewhere + source, to.place(left.back(), destination), left.back());
                }
                g.run(all.copies);
            }
        }
        to.expect_held("misalignment " + std::to_string(source) + " of the source");
        to.start_again();
    }
}

ALONE(GatherOnDriver, LargeCopiesArriveWhateverTheGrid)
{
    (void)start();
    image from(24 * mib, 4);
    image to(24 * mib, 5);
    std::mt19937 random(6);
    for (const unsigned blocks : {1U, 7U, 64U}) {
        gatherer g(blocks);
        for (const std::size_t count : {1U, 5U, 17U}) {
            gathering all(from, to);
            for (std::size_t i = 0; i < count; ++i) {
                all.add_any(random, 22 * mib / count - random() % 100000);
            }
            g.run(all.copies);
            to.expect_held(std::to_string(blocks) + " blocks");
        }
    }
}

// An allocation with nothing mapped around it: a load beyond either end is an error.
ALONE(GatherOnDriver, NothingBeyondTheFirstAndTheLastWordOfTheSourceIsRead)
{
    gatherer g(4);
    const std::size_t bytes = 2 * mib;
    const CUdeviceptr source = allocate_chunks({-two});
    const CUdeviceptr destination = allocate_chunks({-two});
    const std::string text = pattern(bytes, 7);
    store(source, text);
    std::mt19937 random(8);
    for (const std::size_t len_bytes : lengths(random)) {
        for (const std::size_t inside : {0U, 1U, 5U, 15U}) {
            const std::size_t last = bytes - len_bytes;
            const auto length = static_cast<std::uint32_t>(len_bytes);
            g.run({{destination + inside, source, length, 0},
                   {destination + last, source + last - inside, length, 0}});
            EXPECT_TRUE(load(destination + inside, len_bytes) == text.substr(0, len_bytes))
                << len_bytes;
            EXPECT_TRUE(load(destination + last, len_bytes) ==
                        text.substr(last - inside, len_bytes))
                << len_bytes;
        }
    }
    OK(CU(cuStreamSynchronize)(g.stream));
}

// All slots in flight, on two streams; the source is new in each round, at the same place.
ALONE(GatherOnDriver, EverySlotIsUsedAgainAndAgainAndReadsWhatIsThereNow)
{
    gatherer g(8);
    const CUstream streams[] = {g.stream, make_stream(CU_STREAM_NON_BLOCKING)};
    image from(mib, 9);
    image to(mib, 10);
    std::mt19937 random(11);
    for (unsigned round = 0; round < 12; ++round) {
        from.text() = pattern(mib, 100 + round);
        store(from.at(), from.text());
        gathering all(from, to);
        for (std::uint32_t slot = 0; slot < gather_slots; ++slot) {
            all.copies.clear();
            for (std::size_t i = 1 + random() % 24; i > 0; --i) {
                all.add_any(random, 1 + random() % 400);
            }
            g.launch(streams[slot % 2], all.copies, slot);
        }
        for (std::uint32_t slot = 0; slot < gather_slots; ++slot) {
            EXPECT_TRUE(g.wait(slot));
        }
        to.expect_held("round " + std::to_string(round));
    }
}

// The host reads what arrived as soon as it sees the flag.
ALONE(GatherOnDriver, CopiesToAndFromPinnedHostMemoryAreThereWhenTheFlagIs)
{
    gatherer g(16);
    image device(mib, 12);
    CUdeviceptr seen = 0;
    char *host = pinned(mib);
    OK(CU(cuMemHostGetDevicePointer)(&seen, host, 0));
    for (const std::uint32_t len_bytes : {1U, 100U, 4099U, 300001U, 1000000U}) {
        for (std::uint32_t round = 0; round < 40; ++round) {
            const std::size_t from = round * 37 % 1000;
            std::memset(host, '.', mib);
            g.run({{seen + round, device.at() + from, len_bytes, 0}});
            EXPECT_EQ(std::memcmp(host + round, device.text().data() + from, len_bytes), 0)
                << len_bytes;
            EXPECT_EQ(host[round + len_bytes], '.');
        }
    }
    const std::string text = pattern(70000, 13);
    std::memcpy(host + 3, text.data(), text.size());
    g.run({{device.at() + 8, seen + 3, 70000, 0}});
    device.text().replace(8, text.size(), text);
    device.expect_held("from the host");
}

ALONE(GatherOnDriver, TheFlagWaitsForTheStream)
{
    gatherer g(4);
    image from(4096, 14);
    image to(4096, 15);
    gate closed(g.stream);
    g.launch(g.stream, {{to.at(), from.at(), 4096, 0}}, 9);
    for (int i = 0; i < 1000; ++i) {
        EXPECT_FALSE(g.kernel.finished(9));
    }
    EXPECT_EQ(driver().stream_query(g.stream), CUDA_ERROR_NOT_READY);
    closed.open();
    EXPECT_TRUE(g.wait(9));
    EXPECT_TRUE(load(to.at(), 4096) == from.text());
}

ALONE(GatherOnDriver, ABadAddressFailsTheStreamAndSetsNoFlag)
{
    gatherer g(4);
    const CUdeviceptr to = allocate(mib);
    g.launch(g.stream, {{to, to + 4096, 100, 0}, {to + 8192, 4096, 100, 0}}, 2);
    const deadline end(30);
    CUresult answer = CUDA_ERROR_NOT_READY;
    while (CUDA_ERROR_NOT_READY == answer && !end.over()) {
        answer = driver().stream_query(g.stream);
    }
    EXPECT_EQ(answer, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_FALSE(g.kernel.finished(2));
}

ALONE_IF(GatherOnDriver, TwoContextsHaveAKernelEach, NEEDS_DEVICES(2))
{
    gatherer both[] = {gatherer(4, 0), gatherer(4, 1)};
    for (gatherer &each : both) {
        ASSERT_EQ(CU(cuCtxSetCurrent)(each.context), CUDA_SUCCESS);
        image from(mib, 16);
        image to(mib, 17);
        gathering all(from, to);
        all.add(5, 100, 50000);
        each.run(all.copies);
        to.expect_held("one of two devices");
    }
}

// What a get does: another process's memory, opened here.
void gather_over_ipc(int owner_device, int reader_device)
{
    constexpr std::size_t bytes = 4 * mib;
    together(
        [=](line &l) {
            (void)start(owner_device);
            const CUdeviceptr at = allocate(bytes);
            l.put(softcuda_test::export_memory(at));
            for (unsigned round = 0; round < 4; ++round) {
                store(at, pattern(bytes, round));
                l.step();
                l.wait();
            }
        },
        [=](line &l) {
            gatherer g(16, reader_device);
            image to(bytes, 18);
            const CUdeviceptr from = import_memory(l.get<CUipcMemHandle>());
            std::mt19937 random(19);
            for (unsigned round = 0; round < 4; ++round) {
                l.wait();
                const std::string text = pattern(bytes, round);
                gathering all(from, text, to);
                for (std::size_t i = 0; i < gather_most_copies; ++i) {
                    all.add_any(random, 1 + random() % (i % 8 == 0 ? 70000 : 3000));
                }
                g.run(all.copies, round);
                to.expect_held("round " + std::to_string(round));
                l.step();
            }
            OK(CU(cuIpcCloseMemHandle)(from));
        });
}

TEST(GatherOnDriver, ReadsAnotherProcesssMemoryOfTheSameDevice)
{
    gather_over_ipc(0, 0);
}

TEST(GatherOnDriver, ReadsAnotherProcesssMemoryOfAnotherDevice)
{
    NEEDS_DEVICES(2)
    gather_over_ipc(1, 0);
}

} // namespace
