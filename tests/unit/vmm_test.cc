// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// vmm_test.cc: runs of VMM memory, what is said about them, and that every call may fail
// without anything being left; on a scripted driver. The real thing between two processes is
// vmm_two_processes_test.cc.
#include "opal/mca/btl/gpusm/ipc/vmm.h"

#include "tests/unit/fake_sharing.h"

#include <fcntl.h>
#include <unistd.h>

#include <functional>

namespace {

using gpusm::memory_chunk;
using gpusm::status;
using gpusm_test::fake;
using gpusm_test::fake_granularity;
using gpusm_test::sharing;

constexpr std::uint64_t unit_bytes = fake_granularity;
constexpr std::uint64_t start = 0x400000000;

class VmmChunks : public gpusm_test::SharingTest {
  protected:
    // Three chunks side by side: of one, three and two units.
    VmmChunks()
    {
        sharing().add_chunk(start, unit_bytes);
        sharing().add_chunk(start + unit_bytes, 3 * unit_bytes);
        sharing().add_chunk(start + 4 * unit_bytes, 2 * unit_bytes);
    }
    gpusm_test::fake_allocation &behind(std::uint64_t at)
    {
        return sharing().allocations[sharing().mapped[at].handle];
    }
    status list(std::uint64_t at, std::uint64_t len_bytes, std::size_t most = gpusm::most_chunks)
    {
        return list_chunks(api_, on_, at, len_bytes, &chunks_, most);
    }

    std::vector<memory_chunk> chunks_;
};

TEST_F(VmmChunks, ARangeIsTheChunksThatItTouches)
{
    struct {
        std::uint64_t offset, len_bytes;
        std::size_t first, count;
    } const table[] = {
        {0, 1, 0, 1},
        {0, unit_bytes, 0, 1},
        {unit_bytes - 1, 2, 0, 2},
        {unit_bytes, 3 * unit_bytes, 1, 1},
        {2 * unit_bytes, 2 * unit_bytes + 1, 1, 2},
        {0, 6 * unit_bytes, 0, 3},
    };
    const memory_chunk all[] = {{start, unit_bytes, 0},
                                {start + unit_bytes, 3 * unit_bytes, 0},
                                {start + 4 * unit_bytes, 2 * unit_bytes, 0}};
    for (const auto &each : table) {
        ASSERT_EQ(list(start + each.offset, each.len_bytes), status::ok) << each.offset;
        ASSERT_EQ(chunks_.size(), each.count) << each.offset;
        for (std::size_t i = 0; i < each.count; ++i) {
            EXPECT_EQ(chunks_[i].base, all[each.first + i].base);
            EXPECT_EQ(chunks_[i].len_bytes, all[each.first + i].len_bytes);
            EXPECT_EQ(chunks_[i].buffer_id, sharing().mapped[chunks_[i].base].buffer_id);
        }
    }
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

TEST_F(VmmChunks, ARangeWithAGapOrAnEndInItIsUnsupported)
{
    sharing().add_chunk(start + 7 * unit_bytes, unit_bytes);
    EXPECT_EQ(list(start, 8 * unit_bytes), status::unsupported);
    EXPECT_EQ(list(start + 7 * unit_bytes, unit_bytes + 1), status::unsupported);
    EXPECT_EQ(list(start - 1, 2), status::unsupported);
    EXPECT_TRUE(chunks_.empty());
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

TEST_F(VmmChunks, OneChunkThatCannotBeExportedSpoilsTheRange)
{
    const std::function<void(gpusm_test::fake_allocation &)> spoilers[] = {
        [](auto &chunk) { chunk.handle_types = 0; },
        [](auto &chunk) { chunk.handle_types = 8; }, // fabric only
        [](auto &chunk) { chunk.device = 1; },
        [](auto &chunk) { chunk.where = CU_MEM_LOCATION_TYPE_HOST_NUMA; },
    };
    for (const auto &spoil : spoilers) {
        const auto before = behind(start + unit_bytes);
        spoil(behind(start + unit_bytes));
        EXPECT_EQ(list(start, 6 * unit_bytes), status::unsupported);
        EXPECT_EQ(list(start, unit_bytes), status::ok) << "beside it";
        behind(start + unit_bytes) = before;
    }
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

TEST_F(VmmChunks, TwoAllocationsThatTheDriverDescribesAsOneRangeAreNotOneChunk)
{
    sharing().one_range = true;
    EXPECT_EQ(list(start, unit_bytes), status::unsupported);
    EXPECT_EQ(list(start + 4 * unit_bytes, 1), status::ok) << "the last one has no neighbour";
}

TEST_F(VmmChunks, MoreChunksThanAllowedAreUnsupported)
{
    EXPECT_EQ(list(start, 6 * unit_bytes, 3), status::ok);
    EXPECT_EQ(list(start, 6 * unit_bytes, 2), status::unsupported);
    for (std::uint64_t i = 0; i <= gpusm::most_chunks; ++i) {
        sharing().add_chunk(2 * start + i * unit_bytes, unit_bytes);
    }
    EXPECT_EQ(list(2 * start, gpusm::most_chunks * unit_bytes), status::ok);
    EXPECT_EQ(list(2 * start, gpusm::most_chunks * unit_bytes + 1), status::unsupported);
}

TEST_F(VmmChunks, ARangeThatCannotBeIsABadArgument)
{
    EXPECT_EQ(list(start, 0), status::bad_argument);
    EXPECT_EQ(list(start, UINT64_MAX - start + 1), status::bad_argument);
}

TEST_F(VmmChunks, OnlyVmmMemoryOfADeviceCanBeExported)
{
    EXPECT_TRUE(can_export_chunk(api_, start + 5));
    EXPECT_FALSE(can_export_chunk(api_, start - 1));
    behind(start).handle_types = 0;
    EXPECT_FALSE(can_export_chunk(api_, start));
    EXPECT_TRUE(can_export_chunk(api_, start + unit_bytes));
    fake().fail("mem_get_allocation_properties", 1, CUDA_ERROR_INVALID_VALUE);
    EXPECT_FALSE(can_export_chunk(api_, start + unit_bytes));
}

TEST_F(VmmChunks, AreTheSameUntilOneIsMappedAnewOrUnmapped)
{
    ASSERT_EQ(list(start, 6 * unit_bytes), status::ok);
    EXPECT_TRUE(same_chunks(api_, chunks_));
    sharing().mapped[start + unit_bytes].buffer_id += 1000;
    EXPECT_FALSE(same_chunks(api_, chunks_));
    ASSERT_EQ(list(start, 6 * unit_bytes), status::ok);
    EXPECT_TRUE(same_chunks(api_, chunks_));
    sharing().mapped.erase(start + 4 * unit_bytes);
    EXPECT_FALSE(same_chunks(api_, chunks_));
}

TEST_F(VmmChunks, EachHasADescriptorThatAnotherProgramDoesNotInherit)
{
    ASSERT_EQ(list(start, 6 * unit_bytes), status::ok);
    int fds[3] = {-1, -1, -1};
    ASSERT_EQ(export_chunks(api_, chunks_, fds), status::ok);
    for (std::size_t i = 0; i < 3; ++i) {
        void *const descriptor = reinterpret_cast<void *>(static_cast<std::intptr_t>(fds[i]));
        EXPECT_EQ(gpusm_test::fake_described(descriptor), sharing().mapped[chunks_[i].base].handle);
        EXPECT_EQ(fcntl(fds[i], F_GETFD), FD_CLOEXEC);
        close(fds[i]);
    }
}

// What fails, at which call of it, what is said, and how many lines are logged.
struct failure {
    const char *function;
    int nth;
    CUresult result;
    status expected;
    std::size_t lines;
};
void PrintTo(const failure &about, std::ostream *out)
{
    *out << about.function << " " << about.nth << " " << about.result;
}

class ListFailure : public VmmChunks, public testing::WithParamInterface<failure> {};
INSTANTIATE_TEST_SUITE_P(
    Every, ListFailure,
    testing::Values(
        failure{"ctx_push_current", 1, CUDA_ERROR_CONTEXT_IS_DESTROYED, status::driver_failed, 0},
        failure{"exchange_capture_mode", 1, CUDA_ERROR_DEINITIALIZED, status::driver_failed, 0},
        failure{"mem_get_address_range", 2, CUDA_ERROR_NOT_FOUND, status::unsupported, 0},
        failure{"mem_get_address_range", 2, CUDA_ERROR_UNKNOWN, status::driver_failed, 1},
        failure{"mem_retain_allocation_handle", 3, CUDA_ERROR_INVALID_VALUE, status::unsupported,
                0},
        failure{"mem_retain_allocation_handle", 4, CUDA_ERROR_INVALID_VALUE, status::unsupported,
                0},
        failure{"mem_get_allocation_properties", 2, CUDA_ERROR_NOT_SUPPORTED, status::unsupported,
                0},
        failure{"pointer_get_attribute", 2, CUDA_ERROR_UNKNOWN, status::driver_failed, 1},
        failure{"pointer_get_attribute", 2, CUDA_ERROR_DEINITIALIZED, status::driver_failed, 0}));

TEST_P(ListFailure, LeavesNothing)
{
    const failure &about = GetParam();
    fake().fail(about.function, about.nth, about.result);
    EXPECT_EQ(list(start, 6 * unit_bytes), about.expected);
    EXPECT_TRUE(chunks_.empty());
    EXPECT_EQ(log_.count(), about.lines) << log_.text();
}

class ExportFailure : public VmmChunks, public testing::WithParamInterface<failure> {};
INSTANTIATE_TEST_SUITE_P(
    Every, ExportFailure,
    testing::Values(
        failure{"exchange_capture_mode", 1, CUDA_ERROR_DEINITIALIZED, status::driver_failed, 0},
        failure{"mem_retain_allocation_handle", 3, CUDA_ERROR_INVALID_VALUE, status::not_found, 0},
        failure{"mem_retain_allocation_handle", 3, CUDA_ERROR_DEINITIALIZED, status::driver_failed,
                0},
        failure{"mem_export_to_shareable_handle", 1, CUDA_ERROR_INVALID_VALUE, status::unsupported,
                0},
        failure{"mem_export_to_shareable_handle", 2, CUDA_ERROR_NOT_PERMITTED, status::unsupported,
                0},
        failure{"mem_export_to_shareable_handle", 3, CUDA_ERROR_OUT_OF_MEMORY, status::no_memory,
                0},
        failure{"mem_export_to_shareable_handle", 3, CUDA_ERROR_OPERATING_SYSTEM,
                status::driver_failed, 1}));

TEST_P(ExportFailure, LeavesNoDescriptorOpen)
{
    const failure &about = GetParam();
    ASSERT_EQ(list(start, 6 * unit_bytes), status::ok);
    fake().calls.clear();
    fake().fail(about.function, about.nth, about.result);
    int fds[3] = {-1, -1, -1};
    EXPECT_EQ(export_chunks(api_, chunks_, fds), about.expected);
    EXPECT_EQ(gpusm_test::open_descriptors(), descriptors_before_);
    EXPECT_EQ(log_.count(), about.lines) << log_.text();
}

// The importer, in the same process: the fake does not mind.
class VmmMapping : public VmmChunks {
  protected:
    VmmMapping()
    {
        EXPECT_EQ(list(start, 6 * unit_bytes), status::ok);
        EXPECT_EQ(export_chunks(api_, chunks_, fds_), status::ok);
        for (std::size_t i = 0; i < 3; ++i) {
            lengths_[i] = chunks_[i].len_bytes;
        }
        fake().calls.clear();
    }
    ~VmmMapping() override
    {
        for (const int each : fds_) {
            close(each);
        }
    }
    status map(std::size_t count = 3)
    {
        return map_chunks(api_, on_, lengths_, fds_, count, &base_);
    }
    void expect_nothing_left()
    {
        EXPECT_TRUE(sharing().reserved.empty());
        EXPECT_EQ(sharing().mapped.size(), 3U);
        EXPECT_EQ(sharing().references(), 0);
    }

    int fds_[3] = {-1, -1, -1};
    std::uint64_t lengths_[3] = {};
    std::uint64_t base_ = 42;
};

TEST_F(VmmMapping, LaysTheChunksSideBySideAndKeepsNoReference)
{
    ASSERT_EQ(map(), status::ok);
    std::uint64_t at = base_;
    for (std::size_t i = 0; i < 3; ++i) {
        ASSERT_EQ(sharing().mapped.count(at), 1U);
        EXPECT_EQ(sharing().mapped[at].handle, sharing().mapped[chunks_[i].base].handle);
        EXPECT_EQ(sharing().mapped[at].len_bytes, lengths_[i]);
        EXPECT_TRUE(sharing().mapped[at].writable);
        at += lengths_[i];
    }
    EXPECT_EQ(sharing().references(), 0);
    EXPECT_EQ(sharing().reserved[base_], 6 * unit_bytes);
    unmap_chunks(api_, base_, lengths_, 3);
    expect_nothing_left();
    EXPECT_EQ(fake().calls["ctx_push_current"], 0) << "needs no context";
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

TEST_F(VmmMapping, LengthsThatCannotBeAreAPeersFault)
{
    const std::uint64_t wrong[] = {0, 1, unit_bytes - 1, unit_bytes + 512,
                                   UINT64_MAX - unit_bytes + 1};
    for (const std::uint64_t each : wrong) {
        lengths_[1] = each;
        EXPECT_EQ(map(), status::bad_peer) << each;
    }
    EXPECT_EQ(map(0), status::bad_argument);
    EXPECT_EQ(base_, 42U);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
    expect_nothing_left();
}

TEST_F(VmmMapping, ADescriptorWithLessThanItsLengthIsAPeersFault)
{
    lengths_[2] += unit_bytes;
    EXPECT_EQ(map(), status::bad_peer);
    EXPECT_EQ(base_, 42U);
    EXPECT_EQ(fake().calls["mem_unmap"], 2);
    expect_nothing_left();
}

TEST_F(VmmMapping, ADescriptorOfSomethingElseIsRefused)
{
    EXPECT_EQ(dup2(STDERR_FILENO, fds_[1]), fds_[1]);
    EXPECT_EQ(map(), status::driver_failed);
    EXPECT_EQ(log_.count(), 1U) << log_.text();
    expect_nothing_left();
}

class MapFailure : public VmmMapping, public testing::WithParamInterface<failure> {};
INSTANTIATE_TEST_SUITE_P(
    Every, MapFailure,
    testing::Values(
        failure{"exchange_capture_mode", 1, CUDA_ERROR_DEINITIALIZED, status::driver_failed, 0},
        failure{"mem_address_reserve", 1, CUDA_ERROR_OUT_OF_MEMORY, status::no_memory, 0},
        failure{"mem_address_reserve", 1, CUDA_ERROR_INVALID_VALUE, status::bad_peer, 0},
        failure{"mem_address_reserve", 1, CUDA_ERROR_UNKNOWN, status::driver_failed, 1},
        failure{"mem_import_from_shareable_handle", 1, CUDA_ERROR_INVALID_DEVICE,
                status::unsupported, 0},
        failure{"mem_import_from_shareable_handle", 2, CUDA_ERROR_NOT_SUPPORTED,
                status::unsupported, 0},
        failure{"mem_import_from_shareable_handle", 3, CUDA_ERROR_OUT_OF_MEMORY, status::no_memory,
                0},
        failure{"mem_import_from_shareable_handle", 3, CUDA_ERROR_UNKNOWN, status::driver_failed,
                1},
        failure{"mem_map", 1, CUDA_ERROR_OUT_OF_MEMORY, status::no_memory, 0},
        failure{"mem_map", 2, CUDA_ERROR_INVALID_VALUE, status::bad_peer, 0},
        failure{"mem_map", 3, CUDA_ERROR_UNKNOWN, status::driver_failed, 1},
        failure{"mem_set_access", 1, CUDA_ERROR_INVALID_DEVICE, status::unsupported, 0},
        failure{"mem_set_access", 1, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, status::unsupported, 0},
        failure{"mem_set_access", 1, CUDA_ERROR_INVALID_VALUE, status::driver_failed, 1},
        failure{"mem_set_access", 1, CUDA_ERROR_DEINITIALIZED, status::driver_failed, 0}));

TEST_P(MapFailure, LeavesNothing)
{
    const failure &about = GetParam();
    fake().fail(about.function, about.nth, about.result);
    EXPECT_EQ(map(), about.expected);
    EXPECT_EQ(base_, 42U);
    expect_nothing_left();
    EXPECT_EQ(log_.count(), about.lines) << log_.text();
}

TEST_F(VmmMapping, AReferenceThatCannotBeGivenBackIsReported)
{
    fake().fail("mem_release", 2, CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(map(), status::ok);
    EXPECT_EQ(log_.count(), 1U) << log_.text();
    sharing().allocations[sharing().mapped[chunks_[1].base].handle].references = 0;
}

TEST_F(VmmMapping, WhatCannotBeUnmappedIsReportedOnceAndTheRestIsGivenBack)
{
    ASSERT_EQ(map(), status::ok);
    fake().fail("mem_unmap", 2, CUDA_ERROR_INVALID_VALUE);
    unmap_chunks(api_, base_, lengths_, 3);
    EXPECT_EQ(sharing().mapped.size(), 4U) << "the one that failed";
    EXPECT_EQ(fake().calls["mem_address_free"], 0) << "it has a mapping in it";
    EXPECT_EQ(log_.count(), 1U) << log_.text();
}

TEST_F(VmmMapping, UnmappingAfterTheDriversEndSaysNothing)
{
    ASSERT_EQ(map(), status::ok);
    fake().fail("mem_unmap", 0, CUDA_ERROR_DEINITIALIZED);
    unmap_chunks(api_, base_, lengths_, 3);
    fake().fail("exchange_capture_mode", 0, CUDA_ERROR_DEINITIALIZED);
    unmap_chunks(api_, base_, lengths_, 3);
    EXPECT_EQ(fake().calls["mem_unmap"], 3);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
    fake().heal();
}

} // namespace
