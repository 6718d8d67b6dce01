// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu_one_process_test.cc: pointers, contexts and copies of one process on whatever driver there
// is, real or tests/softcuda. Each test runs in a process of its own.
#include "tests/unit/gpu_memory_support.h"

#include <cstdint>
#include <thread>

using namespace softcuda_test;

namespace {

using namespace gpusm;
using namespace gpusm_test;

pointer_facts facts_of(CUdeviceptr at)
{
    return inspect_pointer(driver(), at);
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
    void *pinned = nullptr;
    OK(CU(cuMemHostAlloc)(&pinned, 4096, 0));
    expect_host(pinned);
}

ALONE(IsPageLocked, OnlyWhatIsPageLockedFromItsFirstByteToItsLast)
{
    (void)start();
    const auto locked = [](const void *at, std::size_t len_bytes) {
        return is_page_locked(driver(), address_of(at), len_bytes);
    };
    void *pinned = nullptr;
    OK(CU(cuMemHostAlloc)(&pinned, mib, 0));
    const char *first = static_cast<char *>(pinned);
    EXPECT_TRUE(locked(first, mib));
    EXPECT_TRUE(locked(first, 1));
    EXPECT_TRUE(locked(first + mib - 1, 1));
    EXPECT_FALSE(locked(first, 0));
    EXPECT_FALSE(locked(first, SIZE_MAX)) << "its end wraps around";
    OK(CU(cuMemFreeHost)(pinned));
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

ALONE(InspectPointer, DeviceMemoryKnowsItsContextAndWhetherItCanBeShared)
{
    const CUcontext context = start();
    struct {
        CUdeviceptr at;
        CUcontext context;
        bool can_be_shared;
    } const table[] = {{allocate(2 * mib), context, true},
                       {allocate_managed(2 * mib), context, false},
                       {allocate_vmm(2 * mib), nullptr, false},
                       {allocate_pool(2 * mib), nullptr, false}};
    for (const auto &row : table) {
        for (const std::size_t inside : {std::size_t{0}, std::size_t{1}, 2 * mib - 1}) {
            const pointer_facts facts = facts_of(row.at + inside);
            EXPECT_TRUE(facts.on_device);
            EXPECT_EQ(facts.legacy_ipc, row.can_be_shared);
            EXPECT_EQ(facts.ordinal, 0);
            if (&row != &table[1]) { // of managed memory drivers say what they like
                EXPECT_EQ(facts.context, row.context);
            }
            EXPECT_EQ(facts.buffer_id, buffer_id(row.at));
        }
    }
}

ALONE(InspectPointer, AnAddressThatIsAllocatedAnewHasAnotherBufferId)
{
    (void)start();
    const CUdeviceptr at = allocate(64 * mib);
    const std::uint64_t before = facts_of(at).buffer_id;
    OK(CU(cuMemFree)(at));
    EXPECT_FALSE(facts_of(at).on_device) << "freed";
    const CUdeviceptr again = allocate(64 * mib);
    EXPECT_NE(facts_of(again).buffer_id, before);
    EXPECT_NE(facts_of(again).buffer_id, 0U);
}

ALONE_IF(InspectPointer, KnowsTheDeviceAlsoInAThreadWithoutAContext, NEEDS_DEVICES(2))
{
    (void)start(0);
    const CUcontext second = start(1);
    const CUdeviceptr at = allocate(mib);
    pointer_facts facts;
    std::thread([&facts, at] { facts = facts_of(at); }).join();
    EXPECT_TRUE(facts.on_device);
    EXPECT_EQ(facts.ordinal, 1);
    EXPECT_EQ(facts.context, second);
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

ALONE(DeviceTableOnDriver, TwoContextsOfOneDeviceAreTwoEntriesWithOneUuid)
{
    program p(mib);
    const CUcontext own = make_context();
    const CUdeviceptr in_own = allocate(mib);
    ASSERT_EQ(CU(cuCtxSetCurrent)(p.context), CUDA_SUCCESS);
    const device &other = p.device_of(in_own);
    EXPECT_EQ(p.on.context, p.context);
    EXPECT_EQ(other.context, own);
    EXPECT_EQ(p.on.uuid, other.uuid);
    EXPECT_NE(p.on.stream, other.stream);
    EXPECT_EQ(current_context(), p.context);
}

ALONE(DeviceTableOnDriver, DoesNotStartADeviceThatTheProgramDoesNotUse)
{
    OK(CU(cuInit)(0));
    device_table table(driver());
    device *found = nullptr;
    EXPECT_EQ(table.for_host(&found), status::not_ready);
    EXPECT_EQ(table.for_memory(nullptr, 0, &found), status::not_ready);
    unsigned flags = 0;
    int active = 1;
    OK(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
    EXPECT_EQ(active, 0);
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
        copy_request &made = requests.emplace_back();
        made.destination = to + at;
        made.source = p.at + at;
        made.len_bytes = piece;
        at += piece;
        engine.submit(p.on, &made);
    }
    EXPECT_EQ(collect_all(engine), static_cast<int>(requests.size()));
    EXPECT_TRUE(load(to, bytes) == text) << "what arrived is not what was sent";

    std::vector<char> host(bytes);
    OK(CU(cuMemHostRegister)(host.data(), bytes, 0));
    EXPECT_EQ(copy_now(engine, p.on, address_of(host.data()), to, bytes), status::ok);
    EXPECT_TRUE(text == std::string(host.begin(), host.end()));
    OK(CU(cuMemHostUnregister)(host.data()));
    store(to, std::string(bytes, '.'));
    EXPECT_EQ(copy_now(engine, p.on, to, address_of(text.data()), bytes), status::ok);
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

ALONE_IF(CopyEngineOnDriver, CopiesBetweenTwoDevices, NEEDS_DEVICES(2))
{
    const std::string text = pattern(300000, 3);
    (void)start(1);
    const CUdeviceptr from = allocate(mib);
    store(from, text);
    program p(mib);
    EXPECT_EQ(copy_now(p.on, p.at, from, text.size()), status::ok);
    EXPECT_TRUE(load(p.at, text.size()) == text);
}

} // namespace
