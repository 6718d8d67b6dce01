// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// accelerator_test.cc: the work of accelerator/gpusm on whatever driver there is, real or
// tests/softcuda. Each test runs in a process of its own.
#include "opal/mca/accelerator/gpusm/accelerator.h"

#include "tests/unit/gpu_memory_support.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <thread>

using namespace softcuda_test;

namespace {

using namespace gpusm;
using namespace gpusm_test;

void *pointer(CUdeviceptr at)
{
    return reinterpret_cast<void *>(at);
}

// From threads without a context, from and to all kinds and both devices; the threads still have
// none.
ALONE(Accelerator, CopiesBetweenAnyTwoPlacesInManyThreads)
{
    constexpr std::size_t len = 100001;
    std::vector<CUcontext> contexts;
    for (int ordinal = 0; ordinal < std::min(device_count(), 2); ++ordinal) {
        contexts.push_back(start(ordinal));
    }
    accelerator tested(driver());
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < 4000; seed += 1000) {
        std::vector<CUdeviceptr> places = {allocate_managed(len), allocate_chunks({-two})};
        for (CUcontext each : contexts) {
            OK(CU(cuCtxSetCurrent)(each));
            places.push_back(allocate(len));
            places.push_back(allocate_pool(len));
        }
        threads.emplace_back([&tested, places, seed]() mutable {
            std::vector<char> plain(len);
            places.push_back(reinterpret_cast<CUdeviceptr>(plain.data()));
            for (const CUdeviceptr to : places) {
                for (const CUdeviceptr from : places) {
                    const std::string sent = pattern(len, ++seed);
                    std::string got(len, '?');
                    EXPECT_EQ(tested.copy(pointer(from), sent.data(), len), status::ok);
                    EXPECT_EQ(to == from ? status::ok
                                         : tested.copy(pointer(to), pointer(from), len),
                              status::ok);
                    EXPECT_EQ(tested.copy(got.data(), pointer(to), len), status::ok);
                    EXPECT_TRUE(got == sent) << seed;
                }
            }
            EXPECT_EQ(current_context(), nullptr);
        });
    }
    for (std::thread &each : threads) {
        each.join();
    }
    EXPECT_EQ(current_context(), contexts.back());
}

ALONE(Accelerator, CopiesHostMemoryThatIsPageLockedInPart)
{
    (void)start();
    accelerator tested(driver());
    char *pages = static_cast<char *>(std::aligned_alloc(4096, 2 * mib));
    OK(CU(cuMemHostRegister)(pages, mib, 0));
    const CUdeviceptr there = allocate(2 * mib);
    const std::string sent = pattern(2 * mib, 1);
    store(there, sent);
    EXPECT_EQ(tested.copy(pages, pointer(there), 2 * mib), status::ok);
    EXPECT_TRUE(sent == std::string(pages, 2 * mib));
    OK(CU(cuMemsetD8)(there, 0, 2 * mib));
    EXPECT_EQ(tested.copy(pointer(there), pages, 2 * mib), status::ok);
    EXPECT_TRUE(sent == load(there, 2 * mib));
}

ALONE(Accelerator, MovesBetweenRangesThatOverlap)
{
    constexpr std::size_t len = 9 * mib + 11; // more than one piece
    (void)start();
    accelerator tested(driver());
    std::string host(len + 2 * mib, '?');
    const CUdeviceptr device = allocate(host.size());
    const auto reach = [&](bool on_device, std::size_t at) -> void * {
        return on_device ? pointer(device + at) : host.data() + at;
    };
    for (const bool on_device : {true, false}) {
        for (const auto &[to, from] :
             {std::pair<std::size_t, std::size_t>{0, 3}, {3, 0}, {mib, 0}, {0, mib}, {5, 5}}) {
            const std::string sent = pattern(len, static_cast<unsigned>(to + 1));
            std::string got(len, '?');
            EXPECT_EQ(tested.copy(reach(on_device, from), sent.data(), len), status::ok);
            EXPECT_EQ(tested.move(reach(on_device, to), reach(on_device, from), len), status::ok);
            EXPECT_EQ(tested.copy(got.data(), reach(on_device, to), len), status::ok);
            EXPECT_TRUE(got == sent) << to << " " << from << " " << on_device;
        }
    }
}

// Nothing waits for the program's other streams, where a kernel may wait for the message.
SOFT_ALONE(Accelerator, CopiesComeBehindTheLegacyStreamAndBehindNoOther)
{
    setenv("GPUSM_SOFTCUDA_DELAY_US", "50000", 1);
    (void)start();
    const CUdeviceptr ours = allocate(1024);
    accelerator tested(driver());
    char got = '?';
    OK(CU(cuMemsetD8)(ours, 'x', 1024)); // returns at once
    EXPECT_EQ(tested.copy(&got, pointer(ours), 1), status::ok);
    EXPECT_EQ(got, 'x');
    const CUstream stream = make_stream(CU_STREAM_DEFAULT);
    gate closed(stream);
    EXPECT_EQ(tested.copy(&got, pointer(ours), 1), status::ok);
    EXPECT_EQ(CU(cuStreamQuery)(stream), CUDA_ERROR_NOT_READY);
    closed.open();
}

SOFT_ALONE(Accelerator, StreamsAndEventsAreMadeWhereTheyAreUsedAndEndWithThatContext)
{
    setenv("GPUSM_SOFTCUDA_DELAY_US", "50000", 1);
    accelerator tested(driver());
    lazy_stream stream;
    lazy_event event;
    EXPECT_EQ(tested.record(&event, &stream), status::ok);
    EXPECT_EQ(tested.query(&event), status::ok) << "no driver, no context, nothing to do";
    const std::string sent = pattern(1000, 1);
    std::string got(1000, '?');
    EXPECT_EQ(tested.copy_async(got.data(), sent.data(), 1000, &stream), status::ok);
    EXPECT_TRUE(got == sent);
    for (const bool destroyed : {true, false}) {
        OK(CU(cuInit)(0));
        const CUcontext context = make_context();
        const CUdeviceptr there = allocate(1000);
        const CUdeviceptr also = allocate(1000);
        store(there, sent);
        EXPECT_EQ(tested.copy_async(pointer(also), pointer(there), 1000, &stream), status::ok);
        EXPECT_EQ(tested.record(&event, &stream), status::ok);
        EXPECT_EQ(tested.query(&event), status::busy);
        EXPECT_EQ(tested.synchronize(&stream), status::ok);
        EXPECT_EQ(tested.query(&event), status::ok);
        EXPECT_EQ(load(also, 1000), sent);
        if (destroyed) {
            EXPECT_EQ(tested.copy(got.data(), pointer(there), 1000), status::ok);
            OK(CU(cuCtxDestroy)(context));
            EXPECT_EQ(tested.query(&event), status::driver_failed);
            EXPECT_EQ(tested.synchronize(&stream), status::ok);
            EXPECT_EQ(tested.copy(got.data(), pointer(there), 1000), status::system_failed)
                << "it has gone with the context, and nobody crashes";
        }
    }
    tested.destroy(&event);
    tested.destroy(&stream);
    EXPECT_TRUE(nullptr == event.on && nullptr == stream.on);
}

ALONE(Accelerator, AStreamWaitsForAnEventOfAnotherOne)
{
    (void)start();
    accelerator tested(driver());
    lazy_stream first;
    lazy_stream second;
    lazy_event event;
    EXPECT_EQ(tested.wait_event(&second, &event), status::ok) << "it was not recorded";
    const CUdeviceptr there = allocate(1000);
    const CUdeviceptr also = allocate(1000);
    EXPECT_EQ(tested.copy_async(pointer(also), pointer(there), 1000, &first), status::ok);
    EXPECT_EQ(tested.copy_async(pointer(also), pointer(there), 1000, &second), status::ok);
    EXPECT_EQ(tested.synchronize(&first), status::ok);
    EXPECT_EQ(tested.synchronize(&second), status::ok);
    gate closed(first.handle);
    EXPECT_EQ(tested.record(&event, &first), status::ok);
    EXPECT_EQ(tested.wait_event(&second, &event), status::ok);
    EXPECT_EQ(tested.copy_async(pointer(also), pointer(there), 1000, &second), status::ok);
    EXPECT_EQ(CU(cuStreamQuery)(second.handle), CUDA_ERROR_NOT_READY);
    closed.open();
    EXPECT_EQ(tested.synchronize(&second), status::ok);
    EXPECT_EQ(tested.query(&event), status::ok) << "it was before";
    tested.destroy(&event);
    tested.destroy(&first);
    tested.destroy(&second);
}

ALONE(Accelerator, AllocatesRegistersAndTellsAboutMemoryAndDevices)
{
    accelerator tested(driver());
    void *made = nullptr;
    int ordinal = -1;
    EXPECT_EQ(tested.current_device(&ordinal), status::not_ready);
    EXPECT_EQ(tested.allocate(-1, 4096, &made), status::not_ready);
    EXPECT_EQ(tested.lock_host(-1, &ordinal, 1), status::not_ready);
    (void)start();
    EXPECT_EQ(tested.current_device(&ordinal), status::ok);
    EXPECT_EQ(ordinal, 0);
    for (const int on : {-1, 0}) {
        ASSERT_EQ(tested.allocate(on, 4096, &made), status::ok);
        void *base = nullptr;
        std::size_t len_bytes = 0;
        EXPECT_EQ(tested.range_of(static_cast<char *>(made) + 50, &base, &len_bytes), status::ok);
        EXPECT_TRUE(base == made && 4096 == len_bytes);
        unsigned long long id = 0;
        EXPECT_EQ(tested.buffer_id(made, &id), status::ok);
        EXPECT_EQ(id, buffer_id(reinterpret_cast<CUdeviceptr>(made)));
        EXPECT_TRUE(
            attribute<bool>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, reinterpret_cast<CUdeviceptr>(made)));
        EXPECT_EQ(tested.release(made), status::ok);
        EXPECT_FALSE(place_of(driver(), made).on_device);
        EXPECT_EQ(tested.buffer_id(made, &id), status::not_found);
        EXPECT_EQ(tested.range_of(&ordinal, &base, &len_bytes), status::not_found);
    }
    void *pages = std::aligned_alloc(4096, mib);
    EXPECT_EQ(tested.unlock_host(-1, pages), status::not_found);
    EXPECT_EQ(tested.lock_host(-1, pages, mib), status::ok);
    EXPECT_TRUE(is_page_locked(driver(), reinterpret_cast<std::uint64_t>(pages), mib));
    EXPECT_EQ(tested.unlock_host(-1, pages), status::ok);
    std::free(pages);
    accelerator::pci_place place{};
    EXPECT_EQ(tested.pci_of(0, &place), status::ok);
    EXPECT_NE(tested.pci_of(1000, &place), status::ok);
    bool reaches = true;
    EXPECT_EQ(tested.can_access_peer(0, 0, &reaches), status::ok);
    EXPECT_FALSE(reaches) << "itself, says the driver";
}

} // namespace
