// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu_one_process_test.cc: pointers, contexts and copies of one process, and its VMM memory as an
// importer gets it, on whatever driver there is, real or tests/softcuda. Each test runs in a
// process of its own.
#include "tests/unit/gpu_memory_support.h"

#include <cstdint>
#include <thread>

using namespace softcuda_test;

namespace {

using namespace gpusm;
using namespace gpusm_test;

// The short question has the same answer.
pointer_facts facts_of(CUdeviceptr at)
{
    const pointer_facts facts = inspect_pointer(driver(), at);
    const memory_place place = place_of(driver(), reinterpret_cast<const void *>(at));
    EXPECT_TRUE(place.answered && facts.answered);
    EXPECT_EQ(place.on_device, facts.on_device);
    EXPECT_EQ(place.managed, facts.managed);
    EXPECT_TRUE(!place.on_device || place.ordinal == facts.ordinal);
    EXPECT_TRUE(!place.on_device || place.context == facts.context);
    return facts;
}
CUdeviceptr address_of(const void *memory)
{
    return reinterpret_cast<CUdeviceptr>(memory);
}
void expect_host(const void *memory)
{
    const pointer_facts facts = facts_of(address_of(memory));
    EXPECT_FALSE(facts.on_device) << memory;
    EXPECT_FALSE(facts.legacy_ipc) << memory;
}

ALONE(InspectPointer, HostMemoryIsHostMemoryPinnedOrNotAndEverythingIsWithoutAnInitializedDriver)
{
    std::vector<char> plain(mib);
    for (const bool initialized : {false, true}) {
        if (initialized) {
            (void)start();
        }
        expect_host(plain.data());
        for (const std::uint64_t nothing : {std::uint64_t{0}, std::uint64_t{0x1000}, ~0UL}) {
            expect_host(reinterpret_cast<void *>(nothing));
        }
    }
    OK(CU(cuMemHostRegister)(plain.data(), plain.size(), 0));
    expect_host(plain.data());
    OK(CU(cuMemHostUnregister)(plain.data()));
    expect_host(pinned(4096));
}

ALONE(IsPageLocked, OnlyWhatIsPageLockedFromItsFirstByteToItsLast)
{
    (void)start();
    const auto locked = [](const void *at, std::size_t len_bytes) {
        return is_page_locked(driver(), address_of(at), len_bytes);
    };
    char *first = pinned(mib);
    EXPECT_TRUE(locked(first, mib));
    EXPECT_TRUE(locked(first, 1));
    EXPECT_TRUE(locked(first + mib - 1, 1));
    EXPECT_FALSE(locked(first, 0));
    EXPECT_FALSE(locked(first, SIZE_MAX)) << "its end wraps around";
    OK(CU(cuMemFreeHost)(first));
    EXPECT_FALSE(locked(first, mib)) << "freed";
    EXPECT_FALSE(locked(reinterpret_cast<void *>(allocate(mib)), mib)) << "of a device";

    void *pages = std::aligned_alloc(4096, 4 * mib);
    char *plain = static_cast<char *>(pages);
    EXPECT_FALSE(locked(plain, 4 * mib));
    OK(CU(cuMemHostRegister)(plain + mib, mib, 0));
    EXPECT_TRUE(locked(plain + mib, mib));
    EXPECT_FALSE(locked(plain + mib - 1, mib)) << "begins outside";
    EXPECT_FALSE(locked(plain + mib, mib + 1)) << "ends outside";
    EXPECT_FALSE(locked(plain, 3 * mib)) << "both";
    OK(CU(cuMemHostRegister)(plain + 2 * mib, mib, 0));
    EXPECT_FALSE(locked(plain + mib, 2 * mib)) << "in two pieces";
    OK(CU(cuMemHostUnregister)(plain + mib));
    OK(CU(cuMemHostUnregister)(plain + 2 * mib));
    std::free(pages);
}

// Also in a thread without a context.
ALONE(InspectPointer, DeviceMemoryKnowsItsDeviceAndContextAndWhetherItCanBeShared)
{
    const int last = device_count() - 1; // asked before this process uses the driver
    const CUcontext context = start(last);
    const CUdeviceptr managed = allocate_managed(2 * mib);
    const struct {
        CUdeviceptr at;
        CUcontext context;
        bool can_be_shared;
    } table[] = {{allocate(2 * mib), context, true},
                 {managed, context, false},
                 {allocate_chunks({-two}, last), nullptr, false},
                 {allocate_pool(2 * mib), nullptr, false}};
    std::thread([&] {
        for (const auto &row : table) {
            for (const std::size_t inside : {std::size_t{0}, std::size_t{1}, 2 * mib - 1}) {
                const pointer_facts facts = facts_of(row.at + inside);
                EXPECT_TRUE(facts.on_device);
                EXPECT_EQ(facts.managed, row.at == managed);
                EXPECT_EQ(facts.legacy_ipc, row.can_be_shared);
                if (row.at != managed) { // of managed memory drivers say what they like
                    EXPECT_EQ(facts.ordinal, last);
                    EXPECT_EQ(facts.context, row.context);
                }
                EXPECT_EQ(facts.buffer_id, buffer_id(row.at));
            }
        }
    }).join();
}

// An importer could not tell new memory from old by anything else. (Of VMM memory:
// export_directory_test.cc.)
ALONE(InspectPointer, MemoryThatIsAllocatedAnewHasAnotherBufferId)
{
    (void)start();
    CUdeviceptr at = allocate(64 * mib);
    std::uint64_t before = facts_of(at).buffer_id;
    OK(CU(cuMemFree)(at));
    EXPECT_FALSE(facts_of(at).on_device) << "freed";
    EXPECT_NE(facts_of(allocate(64 * mib)).buffer_id, before);

    const CUmemoryPool pool = make_pool();
    at = allocate_from(pool, 5000);
    before = facts_of(at).buffer_id;
    OK(CU(cuMemFreeAsync)(at, nullptr));
    OK(CU(cuStreamSynchronize)(nullptr));
    EXPECT_NE(facts_of(allocate_from(pool, 5000)).buffer_id, before);
}

ALONE(DeviceTableOnDriver, ServesMemoryInAThreadWithoutAContext)
{
    program p(mib);
    const CUdeviceptr pool = allocate_pool(mib);
    std::thread([&] {
        device_table table(driver());
        device *found = nullptr;
        EXPECT_EQ(table.for_memory(facts_of(pool), &found), status::ok) << "active primary";
        EXPECT_EQ(found->context, p.context);
        device *again = nullptr;
        EXPECT_EQ(table.for_memory(facts_of(p.at), &again), status::ok);
        EXPECT_EQ(again, found);
        EXPECT_EQ(current_context(), nullptr) << "the thread is left as it was";
        EXPECT_EQ(table.all().size(), 1U);
    }).join();
}

// Copies between device memory, pinned and pageable host memory in pieces of every size.
void copy_pieces(copy_limits limits)
{
    constexpr std::size_t bytes = mib;
    program p(bytes);
    const std::string text = pattern(bytes, 1);
    const CUdeviceptr to = allocate(bytes);
    store(p.at, text);
    store(to, std::string(bytes, '.'));
    copy_engine engine(driver(), limits);
    std::mt19937 random(7);
    std::deque<copy_request> requests;
    for (std::size_t at = 0; at < bytes;) {
        const std::size_t longest = random() % 8 == 0 ? 90000 : 900;
        const std::size_t piece = std::min<std::size_t>(bytes - at, 1 + random() % longest);
        requests.push_back({to + at, p.at + at, piece});
        engine.submit(p.on, &requests.back());
        at += piece;
    }
    EXPECT_EQ(collect_all(engine), static_cast<int>(requests.size()));
    EXPECT_TRUE(load(to, bytes) == text) << "what arrived is not what was sent";

    std::vector<char> host(bytes);
    OK(CU(cuMemHostRegister)(host.data(), bytes, 0));
    EXPECT_EQ(copy_now(p.on, address_of(host.data()), to, bytes), status::ok);
    EXPECT_TRUE(text == std::string(host.begin(), host.end()));
    OK(CU(cuMemHostUnregister)(host.data()));
    store(to, std::string(bytes, '.'));
    EXPECT_EQ(copy_now(p.on, to, address_of(text.data()), bytes), status::ok);
    EXPECT_TRUE(load(to, bytes) == text);
}

TEST(CopyEngineOnDriver, EveryPieceArrivesWhateverTheBatches)
{
    for (const copy_limits limits :
         {copy_limits{4, 64, 16U << 20}, copy_limits{1, 1, 1}, copy_limits{2, 1000, 50000}}) {
        alone([limits] { copy_pieces(limits); });
    }
}

SOFT_ALONE(CopyEngineOnDriver, EveryPieceArrivesOnASlowDevice)
{
    setenv("GPUSM_SOFTCUDA_DELAY_US", "300", 1);
    copy_pieces({4, 256, 16U << 20});
}

// --- VMM memory ----------------------------------------------------------------------------------

status list_chunks(const device &on, CUdeviceptr at, std::size_t len_bytes,
                   std::vector<memory_chunk> *out)
{
    return list_run(
        driver(), on, at, len_bytes, [](std::uint64_t) { return false; }, out);
}

ALONE(ShareVmm, ARangeIsTheChunksThatItTouchesAndAsShareableAsTheWorst)
{
    const expect_lines log(0);
    program p;
    const CUdeviceptr at = allocate_chunks({two, 2 * two, -two, two, 0, two});
    const struct {
        std::int64_t begin, end;
        std::vector<std::int64_t> chunks; // none: unsupported
    } ranges[] = {
        {0, 0, {two}},
        {0, two, {two}},
        {two - 1, two + 1, {two, 2 * two}},
        {two, 3 * two, {2 * two}},
        {2 * two, 3 * two, {2 * two}},
        {0, 3 * two + 1, {}},
        {3 * two, 4 * two, {}},
        {4 * two - 1, 5 * two, {}},
        {4 * two, 5 * two, {two}},
        {4 * two, 5 * two + 1, {}}, // a gap
        {5 * two, 6 * two, {}},
        {6 * two, 7 * two, {two}},
    };
    for (const auto &each : ranges) {
        SCOPED_TRACE(testing::Message() << each.begin << " to " << each.end);
        const CUdeviceptr begin = at + static_cast<std::uint64_t>(each.begin);
        std::vector<memory_chunk> found;
        EXPECT_EQ(
            list_chunks(p.on, begin, static_cast<std::uint64_t>(each.end - each.begin), &found),
            each.chunks.empty() ? status::unsupported : status::ok);
        std::vector<std::int64_t> lengths;
        for (const memory_chunk &chunk : found) {
            lengths.push_back(static_cast<std::int64_t>(chunk.len_bytes));
            EXPECT_EQ(chunk.buffer_id, buffer_id(chunk.base));
        }
        EXPECT_TRUE(each.chunks.empty() || each.chunks == lengths);
        EXPECT_TRUE(each.chunks.empty() || begin - found[0].base < found[0].len_bytes);
    }
}

ALONE(ShareVmm, AsManyChunksAsAllowedGoOver)
{
    program p;
    constexpr std::size_t total = most_descriptors * 2 * mib;
    const CUdeviceptr at = allocate_chunks(std::vector<std::int64_t>(most_descriptors + 1, two));
    device &on = p.device_of(at);
    std::vector<memory_chunk> chunks;
    EXPECT_EQ(list_chunks(on, at, total + 1, &chunks), status::unsupported);
    store(at + total - 9, "the end");
    parcel out = parcel::of(share_kind::descriptors, on, at, total);
    std::uint64_t base = 0;
    ASSERT_EQ(out.map(on, &base), status::ok);
    EXPECT_EQ(load(base + total - 9, 7), "the end");
    out.unmap(on, base);
}

ALONE(ShareVmm, ALengthThatTheDescriptorDoesNotHaveIsRefusedAndLeavesNothing)
{
    constexpr std::size_t bytes = 512 * mib;
    program p;
    const CUdeviceptr at = allocate_chunks({std::int64_t(bytes), two});
    device &on = p.device_of(at);
    store(at + bytes - 5, "right");
    parcel out = parcel::of(share_kind::descriptors, on, at, bytes + 1);
    std::uint64_t base = 42;
    out.chunks.lengths[1] += std::uint64_t(two);
    EXPECT_NE(out.map(on, &base), status::ok);
    out.chunks.lengths[1] = 2 * mib + 4096;
    EXPECT_EQ(out.map(on, &base), status::bad_peer);
    EXPECT_EQ(base, 42U);
    out.chunks.lengths[1] = 2 * mib;
    ASSERT_EQ(out.map(on, &base), status::ok);
    EXPECT_EQ(load(base + bytes - 5, 5), "right");
    out.unmap(on, base);
    const std::size_t with_memory = free_bytes();
    OK(CU(cuMemUnmap)(at, bytes));
    EXPECT_GE(free_bytes(), with_memory + bytes - slack_bytes) << "a failed mapping is left";
}

} // namespace
