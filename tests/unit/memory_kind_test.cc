// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// memory_kind_test.cc: CUDA IPC handles, pools, allocations of our own, and the functions that a
// driver may lack; on a scripted driver. How its answers become ours, in which context it is
// called, and that nothing is written when it fails. (VMM memory: vmm_test.cc. The real thing
// between two processes: gpu_two_processes_test.cc and memory_kind_two_processes_test.cc.)
#include "opal/mca/btl/gpusm/ipc/by_descriptor.h"
#include "opal/mca/btl/gpusm/ipc/legacy.h"

#include "tests/unit/fake_sharing.h"

#include <algorithm>

namespace {

using namespace gpusm;
using namespace gpusm_test;

constexpr std::uint64_t plain_at = 0x50000000;
constexpr std::uint64_t plain_bytes = 0x8000;
constexpr std::uint64_t pooled_at = 0x500000000;
constexpr std::uint64_t pooled_bytes = 0x8000;

class Shareable : public SharingTest {
  protected:
    Shareable() { sharing().pointers[plain_at] = {plain_bytes, nullptr}; }
    void add_pooled(unsigned handle_types)
    {
        sharing().pointers[pooled_at] = {pooled_bytes, sharing().add_pool(handle_types)};
    }

    status export_pooled()
    {
        return export_pool_pointer(api_, on_, sharing().pointers[pooled_at].pool, pooled_at + 100,
                                   &memory_);
    }

    exported_memory memory_;
    file_descriptor fd_;
    CUmemoryPool imported_ = nullptr;
    std::uint64_t base_ = 42;
};

using CudaIpc = Shareable;

TEST_F(CudaIpc, AnExportDescribesTheWholeAllocationAndMarksIt)
{
    ASSERT_EQ(export_memory(api_, on_, plain_at + 0x1234, &memory_), status::ok);
    EXPECT_EQ(memory_.base, plain_at);
    EXPECT_EQ(memory_.len_bytes, plain_bytes);
    std::uint64_t inside = 0;
    std::memcpy(&inside, memory_.handle.data(), sizeof(inside));
    EXPECT_EQ(inside, plain_at) << "the handle is that of the allocation's start";
    EXPECT_EQ(fake().calls["pointer_set_attribute"], 1);
    EXPECT_EQ(fake().calls["ctx_push_current"], 1);
    ASSERT_EQ(open_memory(api_, on_, memory_.handle, &base_), status::ok);
    EXPECT_EQ(base_, 0x150000000U);
    close_memory(api_, on_, base_);
    EXPECT_EQ(fake().calls["ipc_close_mem_handle"], 1);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

TEST_F(CudaIpc, ACloseThatFailsIsReportedUnlessTheDriverIsGone)
{
    fake().fail("ipc_close_mem_handle", 1, CUDA_ERROR_INVALID_VALUE);
    close_memory(api_, on_, 0x1000);
    EXPECT_EQ(log_.count(), 1U) << log_.text();
    fake().fail("ipc_close_mem_handle", 1, CUDA_ERROR_DEINITIALIZED);
    close_memory(api_, on_, 0x1000);
    EXPECT_EQ(log_.count(), 1U) << log_.text();
}

using PoolMemory = Shareable;

TEST_F(PoolMemory, IsToldFromOtherMemoryAndWhetherItMayBeExported)
{
    bool exportable = false;
    EXPECT_EQ(pool_of(api_, plain_at, &exportable), nullptr);
    for (const unsigned handle_types : {1, 0, 8}) { // 0: as the default pool, 8: fabric only
        add_pooled(handle_types);
        EXPECT_EQ(pool_of(api_, pooled_at + 77, &exportable), sharing().pointers[pooled_at].pool);
        EXPECT_EQ(exportable, 1 == handle_types);
    }
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

// Driver 580 asks for an export of the pool first. The program's first message from it must not
// depend on the order.
TEST_F(PoolMemory, AnAllocationIsDescribedFromItsBaseOnAndItsPoolExportedOnce)
{
    add_pooled(1);
    for (int i = 0; i < 2; ++i) {
        ASSERT_EQ(export_pooled(), status::ok);
    }
    EXPECT_EQ(memory_.base, pooled_at);
    EXPECT_EQ(memory_.len_bytes, pooled_bytes);
    std::uint64_t inside = 0;
    std::memcpy(&inside, memory_.handle.data(), sizeof(inside));
    EXPECT_EQ(inside, pooled_at) << "not the address inside";
    EXPECT_EQ(fake().calls["mem_pool_export_to_shareable_handle"], 1);
    EXPECT_EQ(open_descriptors(), descriptors_before_);
}

TEST_F(PoolMemory, GoesOverAndComesBack)
{
    add_pooled(1);
    ASSERT_EQ(export_pooled(), status::ok);
    ASSERT_EQ(export_pool(api_, sharing().pointers[pooled_at].pool, &fd_), status::ok);
    EXPECT_EQ(fcntl(fd_.get(), F_GETFD), FD_CLOEXEC);
    ASSERT_EQ(import_pool(api_, fd_, &imported_), status::ok);
    EXPECT_EQ(fcntl(fd_.get(), F_GETFD), FD_CLOEXEC) << "the descriptor stays the caller's";
    EXPECT_TRUE(sharing().pools[imported_].imported);
    ASSERT_EQ(allow_pool(api_, imported_, on_), status::ok);
    EXPECT_EQ(sharing().pools[imported_].devices, std::set<int>{1});
    ASSERT_EQ(import_pool_pointer(api_, on_, imported_, memory_.handle, &base_), status::ok);
    EXPECT_EQ(sharing().pointers[base_].pool, imported_);
    EXPECT_EQ(check_mapped_length(api_, on_, base_, memory_.len_bytes), status::ok);
    free_device(api_, on_, base_);
    close_pool(api_, imported_);
    EXPECT_EQ(sharing().pointers.count(base_), 0U);
    EXPECT_EQ(sharing().pools.size(), 1U);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
    close_pool(api_, imported_);
    EXPECT_EQ(log_.count(), 1U) << "closed twice: " << log_.text();
}

// One step of those two ways that fails, every time.
enum way { legacy, pool };
struct answer {
    way kind;
    const char *function;
    CUresult result;
    status expected;
    std::size_t lines; // logged: an answer that tells the whole cause is the caller's to report
};
void PrintTo(const answer &about, std::ostream *out)
{
    *out << about.function << " " << about.result;
}

class WayFailure : public Shareable, public testing::WithParamInterface<answer> {
  protected:
    status go_by_handle()
    {
        const status s = export_memory(api_, on_, plain_at, &memory_);
        EXPECT_EQ(status::ok == s, 0 != memory_.base);
        return status::ok == s ? open_memory(api_, on_, memory_.handle, &base_) : s;
    }
    status go_by_pool()
    {
        add_pooled(1);
        status s = export_pooled();
        EXPECT_EQ(status::ok == s, 0 != memory_.base);
        if (status::ok == s) {
            s = export_pool(api_, sharing().pointers[pooled_at].pool, &fd_);
            EXPECT_EQ(status::ok == s, fd_.valid());
        }
        if (status::ok == s) {
            s = import_pool(api_, fd_, &imported_);
            EXPECT_EQ(status::ok == s, imported_ != nullptr);
        }
        if (status::ok == s) {
            s = allow_pool(api_, imported_, on_);
        }
        return status::ok == s ? import_pool_pointer(api_, on_, imported_, memory_.handle, &base_)
                               : s;
    }
};

const answer by_handle[] = {
    {legacy, "ctx_push_current", CUDA_ERROR_CONTEXT_IS_DESTROYED, status::driver_failed, 0},
    {legacy, "mem_get_address_range", CUDA_ERROR_NOT_FOUND, status::driver_failed, 1},
    {legacy, "mem_get_address_range", CUDA_ERROR_DEINITIALIZED, status::driver_failed, 0},
    {legacy, "ipc_get_mem_handle", CUDA_ERROR_INVALID_VALUE, status::unsupported, 0},
    {legacy, "ipc_get_mem_handle", CUDA_ERROR_NOT_SUPPORTED, status::unsupported, 0},
    {legacy, "ipc_get_mem_handle", CUDA_ERROR_OUT_OF_MEMORY, status::driver_failed, 1},
    {legacy, "pointer_set_attribute", CUDA_ERROR_INVALID_VALUE, status::driver_failed, 1},
    {legacy, "ipc_open_mem_handle", CUDA_ERROR_OUT_OF_MEMORY, status::no_memory, 0},
    {legacy, "ipc_open_mem_handle", CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, status::unsupported, 0},
    {legacy, "ipc_open_mem_handle", CUDA_ERROR_INVALID_DEVICE, status::unsupported, 0},
    {legacy, "ipc_open_mem_handle", CUDA_ERROR_NOT_SUPPORTED, status::unsupported, 0},
    {legacy, "ipc_open_mem_handle", CUDA_ERROR_INVALID_HANDLE, status::driver_failed, 1},
};
INSTANTIATE_TEST_SUITE_P(CudaIpc, WayFailure, testing::ValuesIn(by_handle));
const answer by_pool[] = {
    {pool, "mem_get_address_range", CUDA_ERROR_NOT_FOUND, status::driver_failed, 1},
    {pool, "mem_pool_export_pointer", CUDA_ERROR_INVALID_VALUE, status::unsupported, 0},
    {pool, "mem_pool_export_pointer", CUDA_ERROR_OUT_OF_MEMORY, status::no_memory, 0},
    {pool, "mem_pool_export_pointer", CUDA_ERROR_UNKNOWN, status::driver_failed, 1},
    {pool, "mem_pool_export_to_shareable_handle", CUDA_ERROR_INVALID_VALUE, status::unsupported, 0},
    {pool, "mem_pool_export_to_shareable_handle", CUDA_ERROR_OUT_OF_MEMORY, status::no_memory, 0},
    {pool, "mem_pool_export_to_shareable_handle", CUDA_ERROR_OPERATING_SYSTEM,
     status::driver_failed, 1},
    {pool, "mem_pool_import_from_shareable_handle", CUDA_ERROR_INVALID_DEVICE, status::unsupported,
     0},
    {pool, "mem_pool_import_from_shareable_handle", CUDA_ERROR_INVALID_VALUE, status::driver_failed,
     1},
    {pool, "mem_pool_set_access", CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, status::unsupported, 0},
    {pool, "mem_pool_set_access", CUDA_ERROR_DEINITIALIZED, status::driver_failed, 0},
    {pool, "mem_pool_import_pointer", CUDA_ERROR_ALREADY_MAPPED, status::unsupported, 0},
    {pool, "mem_pool_import_pointer", CUDA_ERROR_OUT_OF_MEMORY, status::no_memory, 0},
    {pool, "mem_pool_import_pointer", CUDA_ERROR_INVALID_VALUE, status::driver_failed, 1},
};
INSTANTIATE_TEST_SUITE_P(Pool, WayFailure, testing::ValuesIn(by_pool));

TEST_P(WayFailure, IsPassedOnAndWritesNothing)
{
    fake().fail(GetParam().function, 0, GetParam().result);
    EXPECT_EQ(legacy == GetParam().kind ? go_by_handle() : go_by_pool(), GetParam().expected);
    EXPECT_EQ(base_, 42U);
    EXPECT_EQ(log_.count(), GetParam().lines) << log_.text();
    fake().heal();
}

TEST_F(Shareable, AnAllocationOfOurOwnIsMadeAndGivenBackInItsContext)
{
    ASSERT_EQ(alloc_device(api_, on_, 12345, &base_), status::ok);
    EXPECT_EQ(sharing().pointers[base_].len_bytes, 12345U);
    free_device(api_, on_, base_);
    EXPECT_EQ(sharing().pointers.count(base_), 0U);
    EXPECT_EQ(fake().calls["ctx_push_current"], 2);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
    free_device(api_, on_, base_);
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
    EXPECT_EQ(sharing().context_flags, 0x0c | fake_sync_memops);
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
    EXPECT_EQ(alloc_device(api_, on_, 1, &base_), status::driver_failed);
    EXPECT_EQ(make_copies_synchronous(api_, on_), status::driver_failed);
    EXPECT_EQ(check_mapped_length(api_, on_, pooled_at, 1), status::driver_failed);
    EXPECT_EQ(export_pooled(), status::driver_failed);
    EXPECT_EQ(import_pool_pointer(api_, on_, nullptr, memory_.handle, &base_),
              status::driver_failed);
    free_device(api_, on_, pooled_at);
    close_memory(api_, on_, 0x1000);
    for (const char *function :
         {"mem_alloc", "ctx_get_flags", "mem_get_address_range", "mem_pool_export_pointer",
          "mem_pool_import_pointer", "mem_free", "ipc_close_mem_handle"}) {
        EXPECT_EQ(fake().calls[function], 0) << function;
    }
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

// --- functions that a driver may lack ------------------------------------------------------------

std::vector<std::string> lacking;

void *find_what_is_there(void *, const char *symbol)
{
    static int something = 0;
    return lacking.end() == std::find(lacking.begin(), lacking.end(), symbol) ? &something
                                                                              : nullptr;
}

TEST(DriverFill, AnOptionalFunctionIsNullWhereTheDriverLacksItAndNothingElseMayBeMissing)
{
    lacking = {"cuCtxSetFlags"};
    driver_api api;
    EXPECT_EQ(driver_fill(&api, nullptr, find_what_is_there), nullptr);
    EXPECT_EQ(api.ctx_set_flags, nullptr);
    EXPECT_NE(api.mem_free, nullptr);
    lacking = {"cuMemcpyAsync"};
    EXPECT_STREQ(driver_fill(&api, nullptr, find_what_is_there), "cuMemcpyAsync");
}

} // namespace
