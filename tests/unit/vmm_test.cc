// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// vmm_test.cc: runs of VMM memory, what is said about them, and that every call may fail
// without anything being left; on a scripted driver. The real thing between two processes is
// vmm_two_processes_test.cc.
#include "opal/mca/btl/gpusm/ipc/by_descriptor.h"

#include "tests/unit/fake_sharing.h"

#include <functional>

namespace {

using namespace gpusm;
using namespace gpusm_test;

constexpr std::uint64_t unit_bytes = fake_granularity;
constexpr std::uint64_t start = 0x400000000;

class VmmChunks : public SharingTest {
  protected:
    // Three chunks side by side: of one, three and two units.
    VmmChunks()
    {
        sharing().add_chunk(start, unit_bytes);
        sharing().add_chunk(start + unit_bytes, 3 * unit_bytes);
        sharing().add_chunk(start + 4 * unit_bytes, 2 * unit_bytes);
    }
    fake_allocation &behind(std::uint64_t at)
    {
        return sharing().allocations[sharing().mapped[at].handle];
    }
    status list(std::uint64_t at, std::uint64_t len_bytes)
    {
        return list_run(
            api_, on_, at, len_bytes, [](std::uint64_t) { return true; }, &chunks_);
    }
    status list_and_export()
    {
        const status s = list(start, 6 * unit_bytes);
        return status::ok == s ? export_chunks(api_, chunks_, &pieces_) : s;
    }
    // The importer, in the same process: the fake does not mind.
    status map() { return map_chunks(api_, on_, pieces_, total_, &base_); }
    void expect_nothing_left()
    {
        EXPECT_TRUE(sharing().reserved.empty());
        EXPECT_EQ(sharing().mapped.size(), 3U);
        EXPECT_EQ(sharing().references(), 0);
    }

    std::vector<memory_chunk> chunks_;
    descriptor_message pieces_;
    std::vector<std::uint64_t> &lengths_ = pieces_.lengths;
    std::vector<file_descriptor> &fds_ = pieces_.fds;
    std::uint64_t total_ = 6 * unit_bytes; // that they are said to have
    std::uint64_t base_ = 42;
};

TEST_F(VmmChunks, ARangeIsTheChunksThatItTouches)
{
    struct {
        std::uint64_t offset, len_bytes;
        std::size_t first, count;
    } const table[] = {
        {0, 0, 0, 1},
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

TEST_F(VmmChunks, OneChunkThatCannotBeExportedSpoilsTheRange)
{
    const std::function<void(fake_allocation &)> spoilers[] = {
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

TEST_F(VmmChunks, EachHasADescriptorThatAnotherProgramDoesNotInherit)
{
    ASSERT_EQ(list_and_export(), status::ok);
    ASSERT_EQ(fds_.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
        void *const fd = reinterpret_cast<void *>(static_cast<std::intptr_t>(fds_[i].get()));
        EXPECT_EQ(fake_described(fd), sharing().mapped[chunks_[i].base].handle);
        EXPECT_EQ(fcntl(fds_[i].get(), F_GETFD), FD_CLOEXEC);
    }
}

TEST_F(VmmChunks, AreMappedSideBySideWithoutAReference)
{
    ASSERT_EQ(list_and_export(), status::ok);
    fake().calls.clear();
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
    unmap_chunks(api_, base_, total_);
    expect_nothing_left();
    EXPECT_EQ(fake().calls["ctx_push_current"], 0) << "needs no context";
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

TEST_F(VmmChunks, LengthsThatCannotBeAreAPeersFault)
{
    ASSERT_EQ(list_and_export(), status::ok);
    for (const std::uint64_t each : {std::uint64_t{0}, std::uint64_t{1}, unit_bytes - 1,
                                     unit_bytes + 512, UINT64_MAX - unit_bytes + 1}) {
        lengths_[1] = each;
        EXPECT_EQ(map(), status::bad_peer) << each;
        total_ = 3 * unit_bytes + each; // may wrap around
        EXPECT_EQ(map(), status::bad_peer) << each;
    }
    lengths_[1] = 3 * unit_bytes;
    total_ = 5 * unit_bytes;
    EXPECT_EQ(map(), status::bad_peer);
    lengths_[2] += unit_bytes; // more than the descriptor has
    total_ = 7 * unit_bytes;
    EXPECT_EQ(map(), status::bad_peer);
    EXPECT_EQ(base_, 42U);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
    expect_nothing_left();
}

TEST_F(VmmChunks, ADescriptorOfSomethingElseIsRefused)
{
    ASSERT_EQ(list_and_export(), status::ok);
    fds_[1] = file_descriptor(dup(STDERR_FILENO));
    EXPECT_EQ(map(), status::driver_failed);
    EXPECT_EQ(log_.count(), 1U) << log_.text();
    expect_nothing_left();
}

// A call on the way from listing the chunks to having them mapped, that fails.
struct failure {
    const char *function;
    int nth; // of its calls, on all of the way
    CUresult result;
    status expected;
    std::size_t lines; // that are logged
};
void PrintTo(const failure &about, std::ostream *out)
{
    *out << about.function << " " << about.nth << " " << about.result;
}

class VmmFailure : public VmmChunks, public testing::WithParamInterface<failure> {};
const failure when_listing[] = {
    {"ctx_push_current", 1, CUDA_ERROR_CONTEXT_IS_DESTROYED, status::driver_failed, 0},
    {"exchange_capture_mode", 1, CUDA_ERROR_DEINITIALIZED, status::driver_failed, 0},
    {"mem_get_address_range", 2, CUDA_ERROR_NOT_FOUND, status::unsupported, 0},
    {"mem_get_address_range", 2, CUDA_ERROR_UNKNOWN, status::driver_failed, 1},
    {"mem_retain_allocation_handle", 3, CUDA_ERROR_INVALID_VALUE, status::unsupported, 0},
    {"mem_retain_allocation_handle", 4, CUDA_ERROR_INVALID_VALUE, status::unsupported, 0},
    {"mem_get_allocation_properties", 2, CUDA_ERROR_NOT_SUPPORTED, status::unsupported, 0},
    {"pointer_get_attribute", 2, CUDA_ERROR_UNKNOWN, status::driver_failed, 1},
    {"pointer_get_attribute", 2, CUDA_ERROR_DEINITIALIZED, status::driver_failed, 0},
};
INSTANTIATE_TEST_SUITE_P(List, VmmFailure, testing::ValuesIn(when_listing));
const failure when_exporting[] = {
    {"exchange_capture_mode", 3, CUDA_ERROR_DEINITIALIZED, status::driver_failed, 0},
    {"mem_retain_allocation_handle", 9, CUDA_ERROR_INVALID_VALUE, status::not_found, 0},
    {"mem_retain_allocation_handle", 9, CUDA_ERROR_DEINITIALIZED, status::driver_failed, 0},
    {"mem_export_to_shareable_handle", 1, CUDA_ERROR_INVALID_VALUE, status::unsupported, 0},
    {"mem_export_to_shareable_handle", 2, CUDA_ERROR_NOT_PERMITTED, status::unsupported, 0},
    {"mem_export_to_shareable_handle", 3, CUDA_ERROR_OUT_OF_MEMORY, status::no_memory, 0},
    {"mem_export_to_shareable_handle", 3, CUDA_ERROR_OPERATING_SYSTEM, status::driver_failed, 1},
};
INSTANTIATE_TEST_SUITE_P(Export, VmmFailure, testing::ValuesIn(when_exporting));
const failure when_mapping[] = {
    {"exchange_capture_mode", 5, CUDA_ERROR_DEINITIALIZED, status::driver_failed, 0},
    {"mem_address_reserve", 1, CUDA_ERROR_OUT_OF_MEMORY, status::no_memory, 0},
    {"mem_address_reserve", 1, CUDA_ERROR_INVALID_VALUE, status::bad_peer, 0},
    {"mem_address_reserve", 1, CUDA_ERROR_UNKNOWN, status::driver_failed, 1},
    {"mem_import_from_shareable_handle", 1, CUDA_ERROR_INVALID_DEVICE, status::unsupported, 0},
    {"mem_import_from_shareable_handle", 2, CUDA_ERROR_NOT_SUPPORTED, status::unsupported, 0},
    {"mem_import_from_shareable_handle", 3, CUDA_ERROR_OUT_OF_MEMORY, status::no_memory, 0},
    {"mem_import_from_shareable_handle", 3, CUDA_ERROR_UNKNOWN, status::driver_failed, 1},
    {"mem_map", 1, CUDA_ERROR_OUT_OF_MEMORY, status::no_memory, 0},
    {"mem_map", 2, CUDA_ERROR_INVALID_VALUE, status::bad_peer, 0},
    {"mem_map", 3, CUDA_ERROR_UNKNOWN, status::driver_failed, 1},
    {"mem_set_access", 1, CUDA_ERROR_INVALID_DEVICE, status::unsupported, 0},
    {"mem_set_access", 1, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, status::unsupported, 0},
    {"mem_set_access", 1, CUDA_ERROR_INVALID_VALUE, status::driver_failed, 1},
    {"mem_set_access", 1, CUDA_ERROR_DEINITIALIZED, status::driver_failed, 0},
};
INSTANTIATE_TEST_SUITE_P(Map, VmmFailure, testing::ValuesIn(when_mapping));

TEST_P(VmmFailure, IsPassedOnAndLeavesNothing)
{
    fake().fail(GetParam().function, GetParam().nth, GetParam().result);
    status s = list_and_export();
    if (status::ok == s) {
        s = map();
    }
    EXPECT_EQ(s, GetParam().expected);
    EXPECT_EQ(base_, 42U);
    EXPECT_EQ(log_.count(), GetParam().lines) << log_.text();
    expect_nothing_left();
}

TEST_F(VmmChunks, AReferenceThatCannotBeGivenBackIsReported)
{
    ASSERT_EQ(list_and_export(), status::ok);
    fake().fail("mem_release", 2, CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(map(), status::ok);
    EXPECT_EQ(log_.count(), 1U) << log_.text();
    behind(start + unit_bytes).references = 0;
}

TEST_F(VmmChunks, WhatCannotBeUnmappedIsReportedAndKeepsItsAddresses)
{
    ASSERT_EQ(list_and_export(), status::ok);
    ASSERT_EQ(map(), status::ok);
    fake().fail("mem_unmap", 1, CUDA_ERROR_INVALID_VALUE);
    unmap_chunks(api_, base_, total_);
    EXPECT_EQ(fake().calls["mem_address_free"], 0) << "it has mappings in it";
    EXPECT_EQ(log_.count(), 1U) << log_.text();
}

TEST_F(VmmChunks, UnmappingAfterTheDriversEndSaysNothing)
{
    ASSERT_EQ(list_and_export(), status::ok);
    ASSERT_EQ(map(), status::ok);
    fake().fail("mem_unmap", 0, CUDA_ERROR_DEINITIALIZED);
    unmap_chunks(api_, base_, total_);
    fake().fail("exchange_capture_mode", 0, CUDA_ERROR_DEINITIALIZED);
    unmap_chunks(api_, base_, total_);
    EXPECT_EQ(fake().calls["mem_unmap"], 1);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
    fake().heal();
}

} // namespace
