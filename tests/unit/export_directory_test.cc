// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// export_directory_test.cc: what ipc/export_directory.h promises, of memory of every kind on
// whatever driver there is.
#include "opal/mca/btl/gpusm/ipc/export_directory.h"
#include "opal/mca/btl/gpusm/ipc/import_table.h"

#include "tests/unit/share_support.h"

#include <cstdint>
#include <vector>

using namespace gpusm_test;
using namespace softcuda_test;

namespace {

using gpusm::export_slot;
using gpusm::exported;
using gpusm::remote_handle;
using gpusm::share_kind;
using gpusm::status;

constexpr auto two = std::int64_t(2 * mib);
int questions = 0; // that counted() has passed on

// The driver, with every question about a pointer counted.
const gpusm::driver_api &counted()
{
    static gpusm::driver_api api = driver();
    api.pointer_get_attribute = [](void *out, CUpointer_attribute what, CUdeviceptr at) {
        ++questions;
        return driver().pointer_get_attribute(out, what, at);
    };
    api.pointer_get_attributes = [](unsigned count, CUpointer_attribute *what, void **out,
                                    CUdeviceptr at) {
        ++questions;
        return driver().pointer_get_attributes(count, what, out, at);
    };
    return api;
}

// A process with a segment of its own.
struct owner {
    scratch_folder folder;
    gpusm::segment own = make_segment(options(folder.path()));
    gpusm::device_table devices{counted()};
    gpusm::export_directory exports{counted(), devices, own, false};

    static gpusm::segment_options options(const std::string &path)
    {
        static std::string kept;
        kept = path;
        gpusm::segment_options made = small_options(kept, 1);
        made.export_slots = 64;
        return made;
    }
    status offer(CUdeviceptr at, std::size_t len_bytes, remote_handle *handle,
                 std::uint64_t without = 0)
    {
        exported *entry = nullptr;
        const status s = exports.export_range(at, len_bytes, 0, without, &entry, handle);
        if (status::ok == s) {
            exports.release(entry);
        }
        return s;
    }
    remote_handle offer(CUdeviceptr at, std::size_t len_bytes)
    {
        remote_handle handle{};
        EXPECT_EQ(offer(at, len_bytes, &handle), status::ok);
        return handle;
    }
    std::uint64_t generation_in(std::uint32_t slot) const
    {
        return own.view().exports[slot].generation.load();
    }
};

bool same_export(const remote_handle &left, const remote_handle &right)
{
    return left.slot == right.slot && left.generation == right.generation;
}

TEST(ExportDirectory, DescribesAnAllocationWholeAndOnce)
{
    alone([] {
        (void)start();
        owner me;
        const CUdeviceptr at = allocate(mib);
        const remote_handle first = me.offer(at + 5, 100);
        EXPECT_EQ(first.kind, share_kind::legacy);
        EXPECT_EQ(first.base, at);
        EXPECT_GE(first.len_bytes, mib);
        EXPECT_TRUE(same_export(first, me.offer(at, mib)));
        EXPECT_EQ(me.exports.live(), 1U);
        EXPECT_EQ(me.generation_in(first.slot), first.generation);
        EXPECT_NE(me.exports.device_of(first), 0U);
    });
}

TEST(ExportDirectory, FreedMemoryEndsItsExport)
{
    alone([] {
        (void)start();
        owner me;
        const CUdeviceptr at = allocate(mib);
        const remote_handle first = me.offer(at, mib);
        EXPECT_EQ(CU(cuMemFree)(at), CUDA_SUCCESS);
        me.exports.sweep();
        EXPECT_EQ(me.generation_in(first.slot), 0U);
        EXPECT_EQ(me.exports.live_export(first), nullptr);
        EXPECT_EQ(me.exports.device_of(first), 0U);
        EXPECT_EQ(me.own.view().header->retire_epoch.load(), 1U);
    });
}

TEST(ExportDirectory, FreedMemoryIsNoticedBeforeAnotherExportIsMadeHoweverManyThereAre)
{
    alone([] {
        (void)start();
        owner me;
        std::vector<CUdeviceptr> all;
        for (int i = 0; i < 40; ++i) {
            all.push_back(allocate(4096));
            (void)me.offer(all.back(), 4096);
        }
        EXPECT_EQ(CU(cuMemFree)(all[17]), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemFree)(all[3]), CUDA_SUCCESS);
        (void)me.offer(allocate(2 * mib), 4096);
        EXPECT_EQ(me.exports.live(), 39U);
    });
}

TEST(ExportDirectory, MemoryThatCannotBeExportedIsAskedAboutOnce)
{
    alone([] {
        (void)start();
        owner me;
        for (int i = 0; i < 40; ++i) {
            (void)me.offer(allocate(4096), 4096);
        }
        remote_handle handle{};
        for (const CUdeviceptr at : {allocate_managed(mib), allocate_pool(mib)}) {
            EXPECT_EQ(me.offer(at, mib, &handle), status::unsupported);
            questions = 0;
            EXPECT_EQ(me.offer(at, mib, &handle), status::unsupported);
            EXPECT_LE(questions, 1);
        }
        EXPECT_EQ(me.exports.live(), 40U);
    });
}

TEST(ExportDirectory, MemoryOfADeviceThatIsLeftOutIsNotExported)
{
    alone([] {
        (void)start();
        owner me;
        const CUdeviceptr at = allocate(mib);
        remote_handle handle{};
        EXPECT_EQ(me.offer(at, mib, &handle, 1), status::unsupported);
        EXPECT_EQ(me.exports.live(), 0U);
        EXPECT_EQ(me.offer(at, mib, &handle, 2), status::ok);
        EXPECT_EQ(me.exports.device_of(handle), 1U);
        EXPECT_EQ(me.offer(at, mib, &handle, 1), status::unsupported) << "also if it is already";
    });
}

// A buffer in the old part, one across the border, and so on in turns: one export serves them all.
TEST(ExportDirectory, BuffersOfARunThatHasGrownDoNotEndEachOthersExport)
{
    alone([] {
        (void)start();
        owner me;
        const CUdeviceptr at = allocate_chunks({two, two, 0, 0});
        const remote_handle before = me.offer(at, 4 * mib);
        EXPECT_EQ(before.len_bytes, 4 * mib);
        map_chunk(at + 4 * mib, 2 * mib, true, 0); // the segment grows
        map_chunk(at + 6 * mib, 2 * mib, true, 0);
        (void)me.offer(at + 6 * mib, mib); // by itself
        const remote_handle across = me.offer(at + 3 * mib, 2 * mib);
        const std::uint64_t epoch = me.own.view().header->retire_epoch.load();
        for (int i = 0; i < 5; ++i) {
            EXPECT_TRUE(same_export(me.offer(at, 4 * mib), across));
            EXPECT_TRUE(same_export(me.offer(at + 3 * mib, 2 * mib), across));
            EXPECT_TRUE(same_export(me.offer(at + 6 * mib, mib), across));
        }
        EXPECT_EQ(across.len_bytes, 8 * mib);
        EXPECT_EQ(me.own.view().header->retire_epoch.load(), epoch);
    });
}

TEST(ExportDirectory, GivesDescriptorsForWhatNeedsThem)
{
    alone([] {
        (void)start();
        owner me;
        std::vector<gpusm::file_descriptor> fds;
        std::vector<std::uint64_t> lengths;
        EXPECT_EQ(me.exports.descriptors_of(me.offer(allocate_chunks({two, two}), 4 * mib), &fds,
                                            &lengths),
                  status::ok);
        EXPECT_EQ(fds.size(), 2U);
        EXPECT_EQ(lengths, (std::vector<std::uint64_t>{2 * mib, 2 * mib}));
        fds.clear();
        EXPECT_EQ(me.exports.descriptors_of(me.offer(allocate_from(make_pool(), mib), mib), &fds,
                                            &lengths),
                  status::ok);
        EXPECT_EQ(fds.size(), 1U);
        fds.clear();
        const CUdeviceptr legacy = allocate(mib);
        remote_handle handle = me.offer(legacy, mib);
        EXPECT_EQ(me.exports.descriptors_of(handle, &fds, &lengths), status::not_found);
        ++handle.generation;
        EXPECT_EQ(me.exports.descriptors_of(handle, &fds, &lengths), status::not_found);
        EXPECT_TRUE(fds.empty());
    });
}

} // namespace
