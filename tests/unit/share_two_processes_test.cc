// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// share_two_processes_test.cc: memory of each kind that one process exports and another maps, on
// whatever driver there is.
#include "tests/unit/gpu_memory_support.h"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

using namespace gpusm_test;
using namespace softcuda_test;

namespace {

using namespace gpusm;

// One copy of up to 4 MiB in eight parts, which the gather kernel makes together.
void copy_by_kernel(device &on, CUdeviceptr to, CUdeviceptr from, std::size_t len_bytes)
{
    copy_engine engine(driver(), {});
    std::array<copy_request, 8> parts;
    engine.expect_more(true);
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::size_t begin = len_bytes * i / parts.size();
        const std::size_t end = len_bytes * (i + 1) / parts.size();
        parts[i] = {.destination = to + begin,
                    .source = from + begin,
                    .len_bytes = end - begin,
                    .kernel_reaches = true};
        engine.submit(on, &parts[i]);
    }
    engine.expect_more(false);
    EXPECT_EQ(collect_all(engine), 8);
    EXPECT_GE(engine.submissions()[static_cast<std::size_t>(copy_way::kernel)], 1U);
}

// --- every kind ----------------------------------------------------------------------------------

// Addresses and lengths of one kind of memory: of three allocations of one pool, or of runs of one
// and of three chunks.
std::vector<std::pair<CUdeviceptr, std::size_t>> make_memory(share_kind kind, int on = 0)
{
    std::vector<std::pair<CUdeviceptr, std::size_t>> made;
    if (share_kind::legacy == kind) {
        made.push_back({allocate(4 * mib), 4 * mib});
    } else if (share_kind::descriptors == kind) {
        made.push_back({allocate_chunks({2 * two}, on), 4 * mib});
        made.push_back({allocate_chunks({two, 3 * two, 2 * two}, on), 12 * mib});
    } else {
        const CUmemoryPool pool = make_pool(on);
        for (const std::size_t bytes : {std::size_t{5000}, 3 * mib, mib / 16}) {
            made.push_back({allocate_from(pool, bytes), bytes});
        }
    }
    return made;
}

class Share : public testing::TestWithParam<share_kind> {};
INSTANTIATE_TEST_SUITE_P(Legacy, Share, testing::Values(share_kind::legacy));
INSTANTIATE_TEST_SUITE_P(Pool, Share, testing::Values(share_kind::pool));
INSTANTIATE_TEST_SUITE_P(Descriptors, Share, testing::Values(share_kind::descriptors));

// Each is asked for by an address inside it, copied as a whole and around each border of chunks.
void read_and_write(share_kind kind, int owner_device, int reader_device)
{
    constexpr std::size_t inside = 1001;
    together(
        [=](line &l) {
            const expect_lines log(0);
            program p(mib, owner_device);
            const auto all = make_memory(kind, owner_device);
            l.put(all.size());
            for (const auto &[at, bytes] : all) {
                store(at, pattern(bytes, 3));
                parcel out = parcel::of(kind, p.device_of(at), at + inside, bytes - inside);
                EXPECT_EQ(out.memory.base, at);
                EXPECT_GE(out.memory.len_bytes, bytes);
                EXPECT_TRUE(share_kind::legacy != kind ||
                            attribute<bool>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at))
                    << "synchronous copies must be complete when they return";
                l.put(bytes);
                out.send(l);
            }
            l.wait();
            for (const auto &[at, bytes] : all) {
                EXPECT_EQ(load(at + bytes - 4, 4), "back") << "an importer may write, too";
            }
        },
        [=](line &l) {
            program p(12 * mib, reader_device);
            const expect_lines log(0);
            std::vector<std::pair<parcel, std::uint64_t>> all;
            for (auto left = l.get<std::size_t>(); left > 0; --left) {
                const auto bytes = l.get<std::size_t>();
                parcel in = parcel::receive(l);
                std::uint64_t base = 0;
                ASSERT_EQ(in.map(p.on, &base), status::ok);
                if (share_kind::descriptors != kind) { // of those each chunk has a length
                    EXPECT_EQ(check_mapped_length(driver(), p.on, base, bytes), status::ok);
                    EXPECT_EQ(check_mapped_length(driver(), p.on, base, UINT64_MAX),
                              status::bad_peer);
                    in.chunks.lengths = {bytes};
                }
                const std::string text = pattern(bytes, 3);
                EXPECT_EQ(copy_now(p.on, p.at, base, bytes), status::ok);
                EXPECT_TRUE(load(p.at, bytes) == text);
                std::size_t border = 0;
                for (const std::uint64_t each : in.chunks.lengths) {
                    border += each;
                    const std::size_t begin = border - std::min<std::size_t>(border, 70001);
                    const std::size_t piece = std::min<std::size_t>(150000, bytes - begin);
                    store(p.at, std::string(piece, 0));
                    copy_by_kernel(p.on, p.at, base + begin, piece);
                    EXPECT_TRUE(load(p.at, piece) == text.substr(begin, piece)) << border;
                }
                store(base + bytes - 4, "back");
                all.emplace_back(std::move(in), base);
            }
            for (const auto &[in, base] : all) {
                in.unmap(p.on, base);
            }
            for (const auto &[in, base] : all) {
                in.give_back_pool();
            }
            EXPECT_EQ(current_context(), p.context);
            l.step();
        });
}

TEST_P(Share, APeerOnTheSameDeviceReadsAndWrites)
{
    read_and_write(GetParam(), 0, 0);
}

TEST_P(Share, APeerOnAnotherDeviceReadsAndWrites)
{
    NEEDS_DEVICES(2)
    read_and_write(GetParam(), 0, 1);
    read_and_write(GetParam(), 1, 0);
}

// An owner of one allocation, which it keeps until the other one has said so.
void own_memory(line &l, share_kind kind)
{
    program p;
    const auto [at, bytes] = make_memory(kind)[0];
    store(at, "once more");
    parcel::of(kind, p.device_of(at), at, bytes).send(l);
    l.wait();
}

TEST_P(Share, DevicesThatCannotReachEachOtherAreUnsupported)
{
    NEEDS_SOFTCUDA()
    NEEDS_DEVICES(2)
    together([](line &l) { own_memory(l, GetParam()); },
             [](line &l) {
                 setenv("GPUSM_SOFTCUDA_PEERS", "0", 1);
                 program p(mib, 1);
                 const expect_lines log(0);
                 std::uint64_t base = 42;
                 EXPECT_EQ(parcel::receive(l).map(p.on, &base), status::unsupported);
                 EXPECT_EQ(base, 42U);
                 l.step();
             });
}

TEST_P(Share, AMappingOutlivesItsOwnersEndWithoutACrash)
{
    together([](line &l) { own_memory(l, GetParam()); },
             [](line &l) {
                 const log_capture log;
                 program p;
                 parcel in = parcel::receive(l);
                 std::uint64_t base = 0;
                 EXPECT_EQ(in.map(p.on, &base), status::ok);
                 l.step();
                 (void)usleep(200000);
                 in.unmap(p.on, base);
                 in.give_back_pool();
             });
}

// A thread that has never made a context current, and gets none.
ALONE(ShareWay, NothingNeedsACurrentContextOrLeavesOne)
{
    program p;
    const CUdeviceptr at = allocate_chunks({two, two});
    const CUdeviceptr pooled = allocate_from(make_pool(), mib);
    store(at + 9, "anywhere");
    device &on = p.device_of(at);
    std::thread([&] {
        parcel out = parcel::of(share_kind::descriptors, on, at, 4 * mib);
        std::uint64_t base = 0;
        EXPECT_EQ(out.map(on, &base), status::ok);
        EXPECT_EQ(check_mapped_length(driver(), on, base, 2 * mib), status::ok);
        EXPECT_EQ(copy_now(on, pooled, base + 9, 8), status::ok);
        out.unmap(on, base);
        (void)parcel::of(share_kind::pool, on, pooled, mib);
        std::uint64_t own = 0;
        EXPECT_EQ(alloc_device(driver(), on, mib, &own), status::ok);
        (void)parcel::of(share_kind::legacy, on, own, mib);
        free_device(driver(), on, own);
        EXPECT_EQ(make_copies_synchronous(driver(), on), status::ok);
        EXPECT_EQ(current_context(), nullptr);
    }).join();
    EXPECT_EQ(load(pooled, 8), "anywhere");
}

// --- CUDA IPC and pools --------------------------------------------------------------------------

// The owner's device is still writing when the reader asks: the reader's copy waits for the
// owner's event.
TEST(ShareLegacy, ACopyThatWaitsForTheOwnersEventReadsWhatTheOwnerWroteBefore)
{
    constexpr std::size_t bytes = 64 * mib;
    together(
        [](line &l) {
            if (soft()) {
                setenv("GPUSM_SOFTCUDA_DELAY_US", "200000", 1);
            }
            program owner(bytes);
            CUstream slow = make_stream(CU_STREAM_NON_BLOCKING);
            OK(CU(cuMemsetD8Async)(owner.at, 'o', bytes, slow));
            OK(CU(cuStreamSynchronize)(slow));
            parcel::of(share_kind::legacy, owner.on, owner.at, bytes).send(l);
            CUevent event = owner.table.record_ipc_event(owner.on);
            CUipcEventHandle handle{};
            EXPECT_EQ(driver().ipc_get_event_handle(&handle, event), CUDA_SUCCESS);
            l.put(handle);
            l.wait(); // opened
            for (int i = 0; i < 4; ++i) {
                OK(CU(cuMemsetD8Async)(owner.at, 'a' + i, bytes, slow));
            }
            OK(CU(cuEventRecord)(event, slow));
            l.step();
            l.wait();
        },
        [](line &l) {
            program reader(bytes);
            parcel in = parcel::receive(l);
            std::uint64_t base = 0;
            EXPECT_EQ(in.map(reader.on, &base), status::ok);
            CUevent event = nullptr;
            EXPECT_EQ(driver().ipc_open_event_handle(&event, l.get<CUipcEventHandle>()),
                      CUDA_SUCCESS);
            l.step();
            l.wait(); // recorded
            EXPECT_EQ(copy_now(reader.on, reader.at, base, bytes, event), status::ok);
            EXPECT_TRUE(load(reader.at, bytes) == std::string(bytes, 'd'))
                << "the last memset's letter";
            in.unmap(reader.on, base);
            OK(CU(cuEventDestroy)(event));
            l.step();
        });
}

TEST(SharePool, AnImportedPoolGoesAsOftenAsItCameNotBeforeItsPointersAndIsNotExported)
{
    together([](line &l) { own_memory(l, share_kind::pool); },
             [](line &l) {
                 program p;
                 const expect_lines log(0);
                 parcel in = parcel::receive(l);
                 CUmemoryPool first = nullptr;
                 ASSERT_EQ(import_pool(driver(), in.chunks.fds[0], &first), status::ok);
                 std::uint64_t base = 0;
                 std::uint64_t again = 0;
                 ASSERT_EQ(in.map(p.on, &base), status::ok);
                 EXPECT_EQ(first, in.imported);
                 exported_memory out;
                 EXPECT_EQ(export_pool_pointer(driver(), p.on, in.imported, base, &out),
                           status::unsupported);
                 // Drivers may differ: both answers will do, an error will not.
                 const status second =
                     import_pool_pointer(driver(), p.on, in.imported, in.memory.handle, &again);
                 EXPECT_TRUE(status::ok == second || status::unsupported == second)
                     << to_string(second);
                 EXPECT_EQ(load(base, 9), "once more");
                 if (status::ok == second) {
                     EXPECT_EQ(load(again, 9), "once more");
                     if (again != base) { // else one free is for both: seen with driver 580
                         free_device(driver(), p.on, again);
                     }
                 }
                 EXPECT_EQ(driver().mem_pool_destroy(first), CUDA_ERROR_INVALID_VALUE);
                 in.unmap(p.on, base);
                 in.give_back_pool();
                 close_pool(driver(), first);
                 l.step();
             });
}

// --- VMM memory ----------------------------------------------------------------------------------

TEST(ShareVmm, WhatTheOwnerGivesUpIsFreedWithTheImportersMapping)
{
    constexpr std::size_t bytes = 512 * mib;
    together(
        [=](line &l) {
            program p;
            const CUdeviceptr at = allocate_chunks({std::int64_t(bytes)});
            store(at + 7, "alive");
            parcel::of(share_kind::descriptors, p.device_of(at), at, 1).send(l);
            l.wait(); // mapped
            OK(CU(cuMemUnmap)(at, bytes));
            const std::size_t with_importer = free_bytes();
            l.step();
            l.wait(); // unmapped
            EXPECT_GE(free_bytes(), with_importer + bytes - slack_bytes);
        },
        [=](line &l) {
            program p;
            parcel in = parcel::receive(l);
            std::uint64_t base = 0;
            ASSERT_EQ(in.map(p.on, &base), status::ok);
            l.step();
            l.wait(); // given up
            EXPECT_EQ(load(base + 7, 5), "alive");
            in.unmap(p.on, base);
            l.step();
        });
}

// A fill that returns before it is done, into memory that cannot be marked by itself.
TEST(ShareVmm, APeerReadsWhatASynchronousFillHasLeft)
{
    constexpr std::size_t bytes = 16 * mib;
    together(
        [=](line &l) {
            if (soft()) {
                setenv("GPUSM_SOFTCUDA_DELAY_US", "200000", 1);
            }
            program p;
            const CUdeviceptr at = allocate_chunks({std::int64_t(bytes)});
            device &on = p.device_of(at);
            OK(CU(cuMemsetD8)(at, 'a', bytes));
            EXPECT_EQ(make_copies_synchronous(driver(), on), status::ok);
            EXPECT_EQ(wait_for_earlier_copies(driver(), on, on.marks.of_context), status::ok);
            parcel::of(share_kind::descriptors, on, at, bytes).send(l);
            l.wait(); // read once
            OK(CU(cuMemsetD8)(at, 'b', bytes));
            l.step();
            l.wait();
        },
        [=](line &l) {
            program p;
            parcel in = parcel::receive(l);
            std::uint64_t base = 0;
            ASSERT_EQ(in.map(p.on, &base), status::ok);
            EXPECT_TRUE(load(base, bytes) == std::string(bytes, 'a')) << "begun before the mark";
            l.step();
            l.wait(); // filled anew
            EXPECT_TRUE(load(base, bytes) == std::string(bytes, 'b'));
            in.unmap(p.on, base);
            l.step();
        });
}

} // namespace
