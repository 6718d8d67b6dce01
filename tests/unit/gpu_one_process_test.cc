// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu_one_process_test.cc: pointers, contexts and copies of one process on whatever driver there
// is, real or tests/softcuda. Each test runs in a process of its own.
#include "tests/unit/gpu_memory_support.h"

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <thread>

using namespace softcuda_test;

namespace {

using gpusm::copy_engine;
using gpusm::copy_request;
using gpusm::device;
using gpusm::device_table;
using gpusm::inspect_pointer;
using gpusm::pointer_facts;
using gpusm::status;
using gpusm_test::driver;
using gpusm_test::mib;

pointer_facts facts_of(CUdeviceptr at)
{
    return inspect_pointer(driver(), at);
}
CUdeviceptr address_of(const void *memory)
{
    return reinterpret_cast<CUdeviceptr>(memory);
}
void expect_host(CUdeviceptr at)
{
    const pointer_facts facts = facts_of(at);
    EXPECT_FALSE(facts.on_device);
    EXPECT_FALSE(facts.legacy_ipc);
}

TEST(InspectPointer, WithoutAnInitializedDriverEverythingIsHostMemory)
{
    alone([] {
        const int on_the_stack = 0;
        expect_host(address_of(&on_the_stack));
        expect_host(0);
    });
}

TEST(InspectPointer, HostMemoryIsHostMemoryPinnedOrNot)
{
    alone([] {
        (void)start();
        std::vector<char> plain(mib);
        expect_host(address_of(plain.data()));
        expect_host(0);
        expect_host(0x1000);
        expect_host(~0ULL);
        EXPECT_EQ(CU(cuMemHostRegister)(plain.data(), plain.size(), 0), CUDA_SUCCESS);
        expect_host(address_of(plain.data()));
        EXPECT_EQ(CU(cuMemHostUnregister)(plain.data()), CUDA_SUCCESS);
        void *pinned = nullptr;
        EXPECT_EQ(CU(cuMemHostAlloc)(&pinned, 4096, 0), CUDA_SUCCESS);
        expect_host(address_of(pinned));
    });
}

TEST(IsPageLocked, OnlyWhatIsPageLockedFromItsFirstByteToItsLast)
{
    alone([] {
        (void)start();
        const auto locked = [](const void *at, std::size_t len_bytes) {
            return gpusm::is_page_locked(driver(), address_of(at), len_bytes);
        };
        void *pinned = nullptr;
        EXPECT_EQ(CU(cuMemHostAlloc)(&pinned, mib, 0), CUDA_SUCCESS);
        const char *first = static_cast<char *>(pinned);
        EXPECT_TRUE(locked(first, mib));
        EXPECT_TRUE(locked(first, 1));
        EXPECT_TRUE(locked(first + mib - 1, 1));
        EXPECT_FALSE(locked(first, 0));
        EXPECT_FALSE(locked(first, SIZE_MAX)) << "its end wraps around";
        EXPECT_EQ(CU(cuMemFreeHost)(pinned), CUDA_SUCCESS);
        EXPECT_FALSE(locked(first, mib)) << "freed";
        EXPECT_FALSE(locked(reinterpret_cast<void *>(allocate(mib)), mib)) << "of a device";

        void *pages = std::aligned_alloc(4096, 4 * mib);
        char *plain = static_cast<char *>(pages);
        EXPECT_FALSE(locked(plain, 4 * mib));
        EXPECT_EQ(CU(cuMemHostRegister)(plain + mib, mib, 0), CUDA_SUCCESS);
        EXPECT_TRUE(locked(plain + mib, mib));
        EXPECT_FALSE(locked(plain + mib - 1, mib)) << "begins outside";
        EXPECT_FALSE(locked(plain + mib, mib + 1)) << "ends outside";
        EXPECT_FALSE(locked(plain, 3 * mib)) << "both";
        EXPECT_EQ(CU(cuMemHostRegister)(plain + 2 * mib, mib, 0), CUDA_SUCCESS);
        EXPECT_FALSE(locked(plain + mib, 2 * mib)) << "in two pieces";
        EXPECT_EQ(CU(cuMemHostUnregister)(plain + mib), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemHostUnregister)(plain + 2 * mib), CUDA_SUCCESS);
        std::free(pages);
    });
}

TEST(InspectPointer, DeviceMemoryCanBeSharedAndKnowsItsContext)
{
    alone([] {
        const CUcontext context = start();
        const CUdeviceptr at = allocate(mib);
        for (const CUdeviceptr inside : {at, at + 1, at + mib - 1}) {
            const pointer_facts facts = facts_of(inside);
            EXPECT_TRUE(facts.on_device);
            EXPECT_TRUE(facts.legacy_ipc);
            EXPECT_EQ(facts.context, context);
            EXPECT_EQ(facts.ordinal, 0);
            EXPECT_EQ(facts.buffer_id, buffer_id(at));
        }
    });
}

TEST(InspectPointer, AnAddressThatIsAllocatedAnewHasAnotherBufferId)
{
    alone([] {
        (void)start();
        const CUdeviceptr at = allocate(64 * mib);
        const std::uint64_t before = facts_of(at).buffer_id;
        EXPECT_EQ(CU(cuMemFree)(at), CUDA_SUCCESS);
        EXPECT_FALSE(facts_of(at).on_device) << "freed";
        const CUdeviceptr again = allocate(64 * mib);
        EXPECT_NE(facts_of(again).buffer_id, before);
        EXPECT_NE(facts_of(again).buffer_id, 0U);
    });
}

TEST(InspectPointer, ManagedMemoryIsDeviceMemoryThatCannotBeShared)
{
    alone([] {
        (void)start();
        const pointer_facts facts = facts_of(gpusm_test::allocate_managed(mib));
        EXPECT_TRUE(facts.on_device);
        EXPECT_FALSE(facts.legacy_ipc);
    });
}

TEST(InspectPointer, VmmAndPoolMemoryIsDeviceMemoryWithoutAContextThatCannotBeShared)
{
    alone([] {
        (void)start();
        for (const CUdeviceptr at :
             {gpusm_test::allocate_vmm(2 * mib), gpusm_test::allocate_pool(2 * mib)}) {
            const pointer_facts facts = facts_of(at + 100);
            EXPECT_TRUE(facts.on_device);
            EXPECT_FALSE(facts.legacy_ipc);
            EXPECT_EQ(facts.context, nullptr);
            EXPECT_EQ(facts.ordinal, 0);
        }
    });
}

TEST(InspectPointer, KnowsTheDeviceAlsoInAThreadWithoutAContext)
{
    NEEDS_DEVICES(2)
    alone([] {
        (void)start(0);
        const CUcontext second = start(1);
        const CUdeviceptr at = allocate(mib);
        pointer_facts facts;
        std::thread([&facts, at] { facts = facts_of(at); }).join();
        EXPECT_TRUE(facts.on_device);
        EXPECT_EQ(facts.ordinal, 1);
        EXPECT_EQ(facts.context, second);
    });
}

TEST(DeviceTableOnDriver, ServesMemoryInAThreadWithoutAContext)
{
    alone([] {
        const CUcontext context = start();
        const CUdeviceptr plain = allocate(mib);
        const CUdeviceptr pool = gpusm_test::allocate_pool(mib);
        device_table table(driver());
        std::thread([&] {
            device *found = nullptr;
            EXPECT_EQ(table.for_memory(facts_of(pool), &found), status::ok) << "active primary";
            EXPECT_EQ(found->context, context);
            device *again = nullptr;
            EXPECT_EQ(table.for_memory(facts_of(plain), &again), status::ok);
            EXPECT_EQ(again, found);
            CUcontext current = nullptr;
            EXPECT_EQ(CU(cuCtxGetCurrent)(&current), CUDA_SUCCESS);
            EXPECT_EQ(current, nullptr) << "the thread is left as it was";
        }).join();
        EXPECT_EQ(table.all().size(), 1U);
    });
}

TEST(DeviceTableOnDriver, TwoContextsOfOneDeviceAreTwoEntriesWithOneUuid)
{
    alone([] {
        const CUcontext primary = start();
        CUcontext own = nullptr;
#if CUDA_VERSION >= 13000
        ASSERT_EQ(CU(cuCtxCreate)(&own, nullptr, 0, 0), CUDA_SUCCESS);
#else
        ASSERT_EQ(CU(cuCtxCreate)(&own, 0, 0), CUDA_SUCCESS);
#endif
        const CUdeviceptr in_own = allocate(mib);
        ASSERT_EQ(CU(cuCtxSetCurrent)(primary), CUDA_SUCCESS);
        const CUdeviceptr in_primary = allocate(mib);
        device_table table(driver());
        device *a = nullptr;
        device *b = nullptr;
        ASSERT_EQ(table.for_memory(facts_of(in_primary), &a), status::ok);
        ASSERT_EQ(table.for_memory(facts_of(in_own), &b), status::ok);
        EXPECT_NE(a, b);
        EXPECT_EQ(a->context, primary);
        EXPECT_EQ(b->context, own);
        EXPECT_EQ(a->uuid, b->uuid);
        EXPECT_NE(a->stream, b->stream);
        CUcontext current = nullptr;
        EXPECT_EQ(CU(cuCtxGetCurrent)(&current), CUDA_SUCCESS);
        EXPECT_EQ(current, primary);
    });
}

TEST(DeviceTableOnDriver, DoesNotStartADeviceThatTheProgramDoesNotUse)
{
    alone([] {
        EXPECT_EQ(CU(cuInit)(0), CUDA_SUCCESS);
        device_table table(driver());
        device *found = nullptr;
        EXPECT_EQ(table.for_host(&found), status::not_ready);
        pointer_facts facts;
        facts.on_device = true;
        facts.ordinal = 0;
        EXPECT_EQ(table.for_memory(facts, &found), status::not_ready);
        unsigned flags = 0;
        int active = 1;
        EXPECT_EQ(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active), CUDA_SUCCESS);
        EXPECT_EQ(active, 0);
    });
}

// Copies between device memory, pinned and pageable host memory in pieces of every size.
void copy_pieces(gpusm::copy_limits limits)
{
    (void)start();
    constexpr std::size_t bytes = mib;
    const std::string text = gpusm_test::pattern(bytes, 1);
    const CUdeviceptr from = allocate(bytes);
    const CUdeviceptr to = allocate(bytes);
    store(from, text);
    store(to, std::string(bytes, '.'));
    device_table table(driver());
    device *on = nullptr;
    ASSERT_EQ(table.for_memory(facts_of(from), &on), status::ok);
    {
        copy_engine engine(driver(), limits);
        std::mt19937 random(7);
        std::deque<copy_request> requests;
        for (std::size_t at = 0; at < bytes;) {
            const std::size_t longest = random() % 8 == 0 ? 90000 : 900;
            const std::size_t piece = std::min<std::size_t>(bytes - at, 1 + random() % longest);
            copy_request &made = requests.emplace_back();
            made.destination = to + at;
            made.source = from + at;
            made.len_bytes = piece;
            at += piece;
            engine.submit(*on, &made);
        }
        EXPECT_EQ(gpusm_test::collect_all(engine), static_cast<int>(requests.size()));
        EXPECT_TRUE(load(to, bytes) == text) << "what arrived is not what was sent";

        std::vector<char> host(bytes);
        EXPECT_EQ(CU(cuMemHostRegister)(host.data(), bytes, 0), CUDA_SUCCESS);
        EXPECT_EQ(gpusm_test::copy_now(engine, *on, address_of(host.data()), to, bytes),
                  status::ok);
        EXPECT_TRUE(text == std::string(host.begin(), host.end()));
        EXPECT_EQ(CU(cuMemHostUnregister)(host.data()), CUDA_SUCCESS);
        store(to, std::string(bytes, '.'));
        EXPECT_EQ(gpusm_test::copy_now(engine, *on, to, address_of(text.data()), bytes),
                  status::ok);
        EXPECT_TRUE(load(to, bytes) == text);
    }
}

TEST(CopyEngineOnDriver, EveryPieceArrivesWhateverTheBatches)
{
    for (const gpusm::copy_limits limits :
         {gpusm::copy_limits{4, 64, 16U << 20}, gpusm::copy_limits{1, 1, 1},
          gpusm::copy_limits{2, 1000, 50000}}) {
        alone([limits] { copy_pieces(limits); });
    }
}

TEST(CopyEngineOnDriver, EveryPieceArrivesOnASlowDevice)
{
    NEEDS_SOFTCUDA()
    alone([] {
        setenv("GPUSM_SOFTCUDA_DELAY_US", "300", 1);
        copy_pieces({4, 256, 16U << 20});
    });
}

TEST(CopyEngineOnDriver, CopiesBetweenTwoDevices)
{
    NEEDS_DEVICES(2)
    alone([] {
        const std::string text = gpusm_test::pattern(300000, 3);
        (void)start(1);
        const CUdeviceptr from = allocate(mib);
        store(from, text);
        (void)start(0);
        const CUdeviceptr to = allocate(mib);
        device_table table(driver());
        device *on = nullptr;
        ASSERT_EQ(table.for_memory(facts_of(to), &on), status::ok);
        copy_engine engine(driver(), {});
        EXPECT_EQ(gpusm_test::copy_now(engine, *on, to, from, text.size()), status::ok);
        EXPECT_TRUE(load(to, text.size()) == text);
    });
}

TEST(CopyEngineOnDriver, ACopyThatTheDriverRefusesComesBackFailedAndTheNextWorks)
{
    NEEDS_SOFTCUDA()
    alone([] {
        const gpusm_test::log_capture log;
        setenv("GPUSM_SOFTCUDA_FAIL", "cuMemcpyAsync:1:1", 1);
        (void)start();
        const CUdeviceptr from = allocate(4096);
        const CUdeviceptr to = allocate(4096);
        store(from, "arrives");
        device_table table(driver());
        device *on = nullptr;
        ASSERT_EQ(table.for_memory(facts_of(to), &on), status::ok);
        copy_engine engine(driver(), {});
        EXPECT_EQ(gpusm_test::copy_now(engine, *on, to, from, 7), status::driver_failed);
        EXPECT_EQ(gpusm_test::copy_now(engine, *on, to, from, 7), status::ok);
        EXPECT_EQ(load(to, 7), "arrives");
    });
}

} // namespace
