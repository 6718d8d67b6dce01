// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// memory_kind_test.cc: which way memory can be shared, pools, allocations of our own, and the
// functions that a driver may lack; on a scripted driver.
#include "opal/mca/btl/gpusm/ipc/memory_kind.h"

#include "tests/unit/fake_sharing.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace {

using gpusm::pointer_facts;
using gpusm::pool_pointer;
using gpusm::share_kind;
using gpusm::status;
using gpusm_test::fake;
using gpusm_test::fake_granularity;
using gpusm_test::sharing;

constexpr std::uint64_t chunk_at = 0x400000000;
constexpr std::uint64_t pooled_at = 0x500000000;
constexpr std::uint64_t pooled_bytes = 0x8000;

class Shareable : public gpusm_test::SharingTest {
  protected:
    static pointer_facts device_memory()
    {
        pointer_facts facts;
        facts.answered = facts.known = facts.on_device = true;
        return facts;
    }
    void add_pooled(unsigned handle_types)
    {
        sharing().pointers[pooled_at] = {pooled_bytes, sharing().add_pool(handle_types)};
    }
};

using WayOf = Shareable;

TEST_F(WayOf, MemoryOfCudaIpcIsLegacyWithoutAQuestion)
{
    pointer_facts facts = device_memory();
    facts.legacy_ipc = true;
    EXPECT_EQ(kind_of(api_, facts, 0x1234), share_kind::legacy);
    EXPECT_TRUE(fake().calls.empty());
}

TEST_F(WayOf, HostAndManagedMemoryHasNoneWithoutAQuestion)
{
    pointer_facts facts = device_memory();
    facts.managed = true;
    EXPECT_EQ(kind_of(api_, facts, 0x1234), share_kind::none);
    EXPECT_EQ(kind_of(api_, pointer_facts{}, 0x1234), share_kind::none);
    EXPECT_TRUE(fake().calls.empty());
}

TEST_F(WayOf, VmmMemoryIsDescriptorsIfItMayBeExported)
{
    auto &chunk = sharing().add_chunk(chunk_at, fake_granularity);
    EXPECT_EQ(kind_of(api_, device_memory(), chunk_at + 77), share_kind::descriptors);
    chunk.handle_types = 0;
    EXPECT_EQ(kind_of(api_, device_memory(), chunk_at + 77), share_kind::none);
}

TEST_F(WayOf, PoolMemoryIsPoolIfItsPoolMayBeExported)
{
    add_pooled(1);
    EXPECT_EQ(kind_of(api_, device_memory(), pooled_at + 77), share_kind::pool);
    add_pooled(8); // fabric only
    EXPECT_EQ(kind_of(api_, device_memory(), pooled_at + 77), share_kind::none);
    add_pooled(0); // as the default pool is
    EXPECT_EQ(kind_of(api_, device_memory(), pooled_at + 77), share_kind::none);
}

// A driver could let us at the allocations behind a pool; that would share other memory too.
TEST_F(WayOf, PoolMemoryIsNeverTakenForVmmMemory)
{
    sharing().add_chunk(pooled_at, fake_granularity);
    add_pooled(1);
    EXPECT_EQ(kind_of(api_, device_memory(), pooled_at), share_kind::pool);
    add_pooled(0);
    sharing().mapped.clear();
    sharing().add_chunk(pooled_at, fake_granularity).handle_types = 0;
    EXPECT_EQ(kind_of(api_, device_memory(), pooled_at), share_kind::none);
}

TEST_F(WayOf, DeviceMemoryOfNoKnownKindHasNone)
{
    EXPECT_EQ(kind_of(api_, device_memory(), 0x1234), share_kind::none);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

using PoolMemory = Shareable;

TEST_F(PoolMemory, AnAllocationIsDescribedFromItsBaseOn)
{
    add_pooled(1);
    pool_pointer out;
    ASSERT_EQ(export_pool_pointer(api_, on_, pooled_at + 100, &out), status::ok);
    EXPECT_EQ(out.base, pooled_at);
    EXPECT_EQ(out.len_bytes, pooled_bytes);
    EXPECT_EQ(out.pool, sharing().pointers[pooled_at].pool);
    std::uint64_t exported = 0;
    std::memcpy(&exported, &out.data, sizeof(exported));
    EXPECT_EQ(exported, pooled_at) << "not the address inside";
}

// Driver 580 asks for it. The program's first message from a pool must not depend on the order.
TEST_F(PoolMemory, OfAPoolThatWasNeverExportedIsDescribedAllTheSame)
{
    add_pooled(1);
    pool_pointer out;
    ASSERT_EQ(export_pool_pointer(api_, on_, pooled_at, &out), status::ok);
    EXPECT_TRUE(sharing().pools[out.pool].exported);
    ASSERT_EQ(export_pool_pointer(api_, on_, pooled_at, &out), status::ok);
    EXPECT_EQ(fake().calls["mem_pool_export_to_shareable_handle"], 1) << "once per pool";
    EXPECT_EQ(gpusm_test::open_descriptors(), descriptors_before_);
}

TEST_F(PoolMemory, OtherMemoryAndClosedPoolsAreUnsupportedWithoutAWord)
{
    pool_pointer out;
    EXPECT_EQ(export_pool_pointer(api_, on_, pooled_at, &out), status::unsupported);
    add_pooled(0);
    EXPECT_EQ(export_pool_pointer(api_, on_, pooled_at, &out), status::unsupported);
    EXPECT_EQ(out.pool, nullptr);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

TEST_F(PoolMemory, GoesOverAndComesBack)
{
    add_pooled(1);
    pool_pointer out;
    int fd = -1;
    ASSERT_EQ(export_pool_pointer(api_, on_, pooled_at, &out), status::ok);
    ASSERT_EQ(export_pool(api_, out.pool, &fd), status::ok);
    EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    CUmemoryPool imported = nullptr;
    ASSERT_EQ(import_pool(api_, fd, &imported), status::ok);
    EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC) << "the descriptor stays the caller's";
    close(fd);
    EXPECT_TRUE(sharing().pools[imported].imported);
    ASSERT_EQ(allow_pool(api_, imported, on_), status::ok);
    EXPECT_EQ(sharing().pools[imported].devices, std::set<int>{1});
    std::uint64_t base = 0;
    ASSERT_EQ(import_pool_pointer(api_, on_, imported, out.data, &base), status::ok);
    EXPECT_EQ(sharing().pointers[base].pool, imported);
    EXPECT_EQ(check_mapped_length(api_, on_, base, out.len_bytes), status::ok);
    free_pool_pointer(api_, on_, base);
    close_pool(api_, imported);
    EXPECT_EQ(sharing().pointers.size(), 1U);
    EXPECT_EQ(sharing().pools.size(), 1U);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
    free_pool_pointer(api_, on_, base);
    EXPECT_EQ(log_.count(), 1U) << "freed twice: " << log_.text();
    close_pool(api_, imported);
    EXPECT_EQ(log_.count(), 2U) << "closed twice: " << log_.text();
}

// One step of the way above that fails, every time.
struct answer {
    const char *function;
    CUresult result;
    status expected;
    std::size_t lines;
};
void PrintTo(const answer &about, std::ostream *out)
{
    *out << about.function << " " << about.result;
}

class PoolFailure : public Shareable, public testing::WithParamInterface<answer> {};
INSTANTIATE_TEST_SUITE_P(
    Every, PoolFailure,
    testing::Values(
        answer{"mem_get_address_range", CUDA_ERROR_NOT_FOUND, status::driver_failed, 1},
        answer{"mem_pool_export_pointer", CUDA_ERROR_INVALID_VALUE, status::unsupported, 0},
        answer{"mem_pool_export_pointer", CUDA_ERROR_OUT_OF_MEMORY, status::no_memory, 0},
        answer{"mem_pool_export_pointer", CUDA_ERROR_UNKNOWN, status::driver_failed, 1},
        answer{"mem_pool_export_to_shareable_handle", CUDA_ERROR_INVALID_VALUE, status::unsupported,
               0},
        answer{"mem_pool_export_to_shareable_handle", CUDA_ERROR_OUT_OF_MEMORY, status::no_memory,
               0},
        answer{"mem_pool_export_to_shareable_handle", CUDA_ERROR_OPERATING_SYSTEM,
               status::driver_failed, 1},
        answer{"mem_pool_import_from_shareable_handle", CUDA_ERROR_INVALID_DEVICE,
               status::unsupported, 0},
        answer{"mem_pool_import_from_shareable_handle", CUDA_ERROR_INVALID_VALUE,
               status::driver_failed, 1},
        answer{"mem_pool_set_access", CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, status::unsupported, 0},
        answer{"mem_pool_set_access", CUDA_ERROR_DEINITIALIZED, status::driver_failed, 0},
        answer{"mem_pool_import_pointer", CUDA_ERROR_ALREADY_MAPPED, status::unsupported, 0},
        answer{"mem_pool_import_pointer", CUDA_ERROR_OUT_OF_MEMORY, status::no_memory, 0},
        answer{"mem_pool_import_pointer", CUDA_ERROR_INVALID_VALUE, status::driver_failed, 1}));

TEST_P(PoolFailure, IsPassedOnAndWritesNothing)
{
    add_pooled(1);
    fake().fail(GetParam().function, 0, GetParam().result);
    pool_pointer out;
    int fd = -1;
    CUmemoryPool imported = nullptr;
    std::uint64_t base = 42;
    status s = export_pool_pointer(api_, on_, pooled_at, &out);
    if (status::ok != s) {
        EXPECT_EQ(out.pool, nullptr);
    }
    if (status::ok == s) {
        s = export_pool(api_, out.pool, &fd);
        EXPECT_EQ(status::ok == s, fd >= 0);
    }
    if (status::ok == s) {
        s = import_pool(api_, fd, &imported);
        close(fd);
        EXPECT_EQ(status::ok == s, imported != nullptr);
    }
    if (status::ok == s) {
        s = allow_pool(api_, imported, on_);
    }
    if (status::ok == s) {
        s = import_pool_pointer(api_, on_, imported, out.data, &base);
    }
    EXPECT_EQ(s, GetParam().expected);
    EXPECT_EQ(base, 42U);
    EXPECT_EQ(log_.count(), GetParam().lines) << log_.text();
    fake().heal();
}

TEST_F(Shareable, AnAllocationOfOurOwnIsMadeAndGivenBackInItsContext)
{
    std::uint64_t at = 0;
    ASSERT_EQ(alloc_device(api_, on_, 12345, &at), status::ok);
    EXPECT_EQ(sharing().pointers[at].len_bytes, 12345U);
    free_device(api_, on_, at);
    EXPECT_TRUE(sharing().pointers.empty());
    EXPECT_EQ(fake().calls["ctx_push_current"], 2);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
    free_device(api_, on_, at);
    EXPECT_EQ(log_.count(), 1U) << "freed twice: " << log_.text();
}

TEST_F(Shareable, AFullDeviceIsNoMemoryWithoutAWord)
{
    std::uint64_t at = 42;
    fake().fail("mem_alloc", 1, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(alloc_device(api_, on_, 1, &at), status::no_memory);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
    fake().fail("mem_alloc", 1, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(alloc_device(api_, on_, 1, &at), status::driver_failed);
    EXPECT_EQ(log_.count(), 1U) << log_.text();
    EXPECT_EQ(at, 42U);
}

TEST_F(Shareable, AMappingShorterThanThePeerSaysIsThePeersFault)
{
    sharing().pointers[0x1000] = {0x500, nullptr};
    EXPECT_EQ(check_mapped_length(api_, on_, 0x1000, 0x500), status::ok);
    EXPECT_EQ(check_mapped_length(api_, on_, 0x1100, 0x400), status::ok);
    EXPECT_EQ(check_mapped_length(api_, on_, 0x1000, 0x501), status::bad_peer);
    EXPECT_EQ(check_mapped_length(api_, on_, 0x1100, 0x401), status::bad_peer);
    EXPECT_EQ(check_mapped_length(api_, on_, 0x1100, UINT64_MAX), status::bad_peer);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
    EXPECT_EQ(check_mapped_length(api_, on_, 0x9000, 1), status::driver_failed);
    EXPECT_EQ(log_.count(), 1U) << log_.text();
}

TEST_F(Shareable, CopiesOfAContextAreMadeSynchronousOnceAndKeepItsOtherFlags)
{
    sharing().context_flags = 0x0c;
    EXPECT_EQ(make_copies_synchronous(api_, on_), status::ok);
    EXPECT_EQ(sharing().context_flags, 0x0c | gpusm_test::fake_sync_memops);
    EXPECT_EQ(fake().calls["stream_synchronize"], 1) << "for those that have returned before";
    EXPECT_EQ(make_copies_synchronous(api_, on_), status::ok);
    EXPECT_EQ(fake().calls["ctx_set_flags"], 1);
    EXPECT_EQ(fake().calls["ctx_push_current"], 2);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

TEST_F(Shareable, AContextThatCannotBeMarkedIsUnsupportedOrReported)
{
    fake().fail("ctx_set_flags", 1, CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(make_copies_synchronous(api_, on_), status::unsupported);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
    std::size_t lines = 0;
    for (const char *function : {"ctx_get_flags", "ctx_set_flags", "stream_synchronize"}) {
        sharing().context_flags = 0;
        fake().fail(function, 1, CUDA_ERROR_UNKNOWN);
        EXPECT_EQ(make_copies_synchronous(api_, on_), status::driver_failed) << function;
        EXPECT_EQ(log_.count(), ++lines) << log_.text();
    }
    api_.ctx_set_flags = nullptr;
    EXPECT_EQ(make_copies_synchronous(api_, on_), status::unsupported);
}

// Whatever is current in the thread belongs to the program: nothing may be done in it instead.
TEST_F(Shareable, NothingIsCalledWhenTheContextCannotBeEntered)
{
    add_pooled(1);
    fake().fail("ctx_push_current", 0, CUDA_ERROR_INVALID_CONTEXT);
    std::uint64_t at = 0;
    pool_pointer out;
    EXPECT_EQ(alloc_device(api_, on_, 1, &at), status::driver_failed);
    EXPECT_EQ(make_copies_synchronous(api_, on_), status::driver_failed);
    EXPECT_EQ(check_mapped_length(api_, on_, pooled_at, 1), status::driver_failed);
    EXPECT_EQ(export_pool_pointer(api_, on_, pooled_at, &out), status::driver_failed);
    EXPECT_EQ(import_pool_pointer(api_, on_, nullptr, out.data, &at), status::driver_failed);
    free_device(api_, on_, pooled_at);
    free_pool_pointer(api_, on_, pooled_at);
    for (const char *function :
         {"mem_alloc", "ctx_get_flags", "mem_get_address_range", "mem_pool_export_pointer",
          "mem_pool_import_pointer", "mem_free"}) {
        EXPECT_EQ(fake().calls[function], 0) << function;
    }
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

// --- functions that a driver may lack
// -------------------------------------------------------------

std::vector<std::string> lacking;

void *find_what_is_there(void *, const char *symbol)
{
    static int something = 0;
    return lacking.end() == std::find(lacking.begin(), lacking.end(), symbol) ? &something
                                                                              : nullptr;
}

TEST(DriverFill, OptionalFunctionsAreNullWhereTheDriverLacksThemAndNothingElseIsMissing)
{
    lacking = {"cuCtxSetFlags", "cuMemFree_v2"};
    gpusm::driver_api api;
    EXPECT_EQ(driver_fill(&api, nullptr, find_what_is_there), nullptr);
    EXPECT_EQ(api.ctx_set_flags, nullptr);
    EXPECT_EQ(api.mem_free, nullptr);
    EXPECT_NE(api.mem_map, nullptr);
    EXPECT_NE(api.memcpy_async, nullptr);
    lacking = {"cuMemcpyAsync"};
    EXPECT_STREQ(driver_fill(&api, nullptr, find_what_is_there), "cuMemcpyAsync");
}

TEST(DriverFill, ADriverOfTodayHasTheOptionalFunctions)
{
    const gpusm::driver_api *api = gpusm::driver_load();
    if (nullptr == api) {
        GTEST_SKIP() << "no libcuda.so.1 here";
    }
#define GPUSM_EXPECT_LOADED(member, function) EXPECT_NE(api->member, nullptr) << #function;
    GPUSM_OPTIONAL_DRIVER_FUNCTIONS(GPUSM_EXPECT_LOADED)
#undef GPUSM_EXPECT_LOADED
    EXPECT_NE(api->ctx_set_flags, nullptr);
}

} // namespace
