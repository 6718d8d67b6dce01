// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// memory_kind_test.cc: memory of each kind on its way from an owner to an importer, and allocations
// of our own; on the software driver, whose calls are counted and made to fail. How its answers
// become ours, in which context it is called, and that nothing is written or left when it fails.
// (Between two processes: share_two_processes_test.cc.)
#include "opal/mca/common/gpusm/ipc/by_descriptor.h"
#include "opal/mca/common/gpusm/ipc/legacy.h"

#include "tests/unit/counted_driver.h"

#include <fcntl.h>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;
using namespace softcuda_test;
using enum share_kind;
using enum status;

constexpr std::uint64_t allocation_bytes = 0x8000;
constexpr std::uint64_t unit_bytes = 2 * mib; // as long as a chunk is at least
constexpr std::uint64_t chunks_bytes = 6 * unit_bytes;

CUresult address_range(CUdeviceptr at, std::size_t *len_bytes)
{
    CUdeviceptr base = 0;
    return CU(cuMemGetAddressRange)(&base, len_bytes, at);
}

// A device on_ with memory of each kind, while the program is elsewhere. Whatever happens, contexts
// and the capture mode come back, and no reference to an allocation and no descriptor stays.
class MemoryKind : public testing::Test {
  protected:
    void SetUp() override
    {
        NEEDS_SOFTCUDA()
        NEEDS_DEVICES(2)
        on_.context = start(1);
        on_.ordinal = 1;
        static const CUdeviceptr plain = allocate(allocation_bytes);
        static const CUdeviceptr chunks =
            allocate_chunks({unit_bytes, 3 * unit_bytes, 2 * unit_bytes}, 1);
        plain_at_ = plain;
        chunks_at_ = chunks;
        descriptors_before_ = open_descriptors();
        pool_ = make_pool(1);
        pooled_at_ = allocate_from(pool_, allocation_bytes);
        elsewhere_ = start(0);
        api_ = counted_driver();
    }
    void TearDown() override
    {
        if (nullptr == elsewhere_) {
            return;
        }
        auto mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
        OK(CU(cuThreadExchangeStreamCaptureMode)(&mode));
        EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
        EXPECT_EQ(current_context(), elsewhere_);
        EXPECT_EQ(fake().good["ctx_push_current"], fake().good["ctx_pop_current"]);
        it_.chunks = {};
        OK(CU(cuMemFree)(pooled_at_));
        OK(CU(cuMemPoolDestroy)(pool_));
        if (all_comes_back_) {
            EXPECT_EQ(open_descriptors(), descriptors_before_);
            EXPECT_TRUE(all_given_back());
        }
    }

    // Does something in the device's context, as the program may.
    template <typename Call> void inside(Call &&call)
    {
        OK(CU(cuCtxSetCurrent)(on_.context));
        call();
        OK(CU(cuCtxSetCurrent)(elsewhere_));
    }
    status list(std::uint64_t at, std::uint64_t len_bytes)
    {
        return list_run(
            api_, on_, at, len_bytes, [](std::uint64_t) { return true; }, &chunks_);
    }
    status export_pooled()
    {
        return export_pool_pointer(api_, on_, pool_, pooled_at_ + 1, &it_.memory);
    }
    status describe(share_kind kind)
    {
        const std::uint64_t at = legacy == kind ? plain_at_
                                 : pool == kind ? pooled_at_
                                                : chunks_at_;
        it_.kind = kind;
        const status s = it_.describe(on_, at + 1, descriptors == kind ? 4 * unit_bytes : 1);
        EXPECT_EQ(it_.memory.base, ok == s ? at : 0);
        EXPECT_EQ(it_.memory.len_bytes, ok != s               ? 0
                                        : descriptors == kind ? chunks_bytes
                                                              : allocation_bytes);
        return s;
    }
    // To an importer in the same process: this driver does not mind.
    status go_over(share_kind kind)
    {
        const status s = describe(kind);
        for (const file_descriptor &each : it_.chunks.fds) {
            EXPECT_TRUE(!each.valid() || FD_CLOEXEC == fcntl(each.get(), F_GETFD))
                << "another program inherits it";
        }
        return ok == s ? it_.map(on_, &base_) : s;
    }

    const log_capture log_;
    driver_api api_;
    device on_;
    CUcontext elsewhere_ = nullptr;
    CUdeviceptr plain_at_ = 0;
    CUdeviceptr pooled_at_ = 0;
    CUdeviceptr chunks_at_ = 0;
    std::size_t descriptors_before_ = 0;
    bool all_comes_back_ = true;
    CUmemoryPool pool_ = nullptr;
    std::vector<memory_chunk> chunks_;
    parcel it_{api_};
    std::uint64_t base_ = 42;
};

// --- calls that fail -----------------------------------------------------------------------------

struct failure {
    share_kind kind;
    const char *function;
    int nth; // of its calls, on all of the way; 0: all
    CUresult result;
    status expected;
    std::size_t lines; // logged: an answer that tells the whole cause is the caller's to report
};
void PrintTo(const failure &about, std::ostream *out)
{
    *out << about.function << " " << about.nth << " " << about.result;
}

struct OnTheWay : MemoryKind, testing::WithParamInterface<failure> {};
const failure on_the_way[] = {
    // handles of CUDA IPC
    {legacy, "ctx_push_current", 0, CUDA_ERROR_CONTEXT_IS_DESTROYED, driver_failed, 0},
    {legacy, "mem_get_address_range", 0, CUDA_ERROR_NOT_FOUND, driver_failed, 1},
    {legacy, "mem_get_address_range", 0, CUDA_ERROR_DEINITIALIZED, driver_failed, 0},
    {legacy, "ipc_get_mem_handle", 0, CUDA_ERROR_INVALID_VALUE, unsupported, 0},
    {legacy, "ipc_get_mem_handle", 0, CUDA_ERROR_NOT_SUPPORTED, unsupported, 0},
    {legacy, "ipc_get_mem_handle", 0, CUDA_ERROR_OUT_OF_MEMORY, driver_failed, 1},
    {legacy, "pointer_set_attribute", 0, CUDA_ERROR_INVALID_VALUE, driver_failed, 1},
    {legacy, "ipc_open_mem_handle", 0, CUDA_ERROR_OUT_OF_MEMORY, no_memory, 0},
    {legacy, "ipc_open_mem_handle", 0, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, unsupported, 0},
    {legacy, "ipc_open_mem_handle", 0, CUDA_ERROR_INVALID_DEVICE, unsupported, 0},
    {legacy, "ipc_open_mem_handle", 0, CUDA_ERROR_NOT_SUPPORTED, unsupported, 0},
    {legacy, "ipc_open_mem_handle", 0, CUDA_ERROR_INVALID_HANDLE, driver_failed, 1},
    // pools
    {pool, "mem_get_address_range", 0, CUDA_ERROR_NOT_FOUND, driver_failed, 1},
    {pool, "mem_pool_export_pointer", 0, CUDA_ERROR_INVALID_VALUE, unsupported, 0},
    {pool, "mem_pool_export_pointer", 0, CUDA_ERROR_OUT_OF_MEMORY, no_memory, 0},
    {pool, "mem_pool_export_pointer", 0, CUDA_ERROR_UNKNOWN, driver_failed, 1},
    {pool, "mem_pool_export_to_shareable_handle", 0, CUDA_ERROR_INVALID_VALUE, unsupported, 0},
    {pool, "mem_pool_export_to_shareable_handle", 0, CUDA_ERROR_OUT_OF_MEMORY, no_memory, 0},
    {pool, "mem_pool_export_to_shareable_handle", 0, CUDA_ERROR_OPERATING_SYSTEM, driver_failed, 1},
    {pool, "mem_pool_import_from_shareable_handle", 0, CUDA_ERROR_INVALID_DEVICE, unsupported, 0},
    {pool, "mem_pool_import_from_shareable_handle", 0, CUDA_ERROR_INVALID_VALUE, driver_failed, 1},
    {pool, "mem_pool_set_access", 0, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, unsupported, 0},
    {pool, "mem_pool_set_access", 0, CUDA_ERROR_DEINITIALIZED, driver_failed, 0},
    {pool, "mem_pool_import_pointer", 0, CUDA_ERROR_ALREADY_MAPPED, not_found, 0},
    {pool, "mem_pool_import_pointer", 0, CUDA_ERROR_OUT_OF_MEMORY, no_memory, 0},
    {pool, "mem_pool_import_pointer", 0, CUDA_ERROR_INVALID_VALUE, driver_failed, 1},
    // chunks: listed, exported, mapped
    {descriptors, "ctx_push_current", 1, CUDA_ERROR_CONTEXT_IS_DESTROYED, driver_failed, 0},
    {descriptors, "exchange_capture_mode", 1, CUDA_ERROR_DEINITIALIZED, driver_failed, 0},
    {descriptors, "mem_get_address_range", 2, CUDA_ERROR_NOT_FOUND, unsupported, 0},
    {descriptors, "mem_get_address_range", 2, CUDA_ERROR_UNKNOWN, driver_failed, 1},
    {descriptors, "mem_retain_allocation_handle", 3, CUDA_ERROR_INVALID_VALUE, unsupported, 0},
    {descriptors, "mem_retain_allocation_handle", 4, CUDA_ERROR_INVALID_VALUE, unsupported, 0},
    {descriptors, "mem_get_allocation_properties", 2, CUDA_ERROR_NOT_SUPPORTED, unsupported, 0},
    {descriptors, "pointer_get_attribute", 2, CUDA_ERROR_UNKNOWN, driver_failed, 1},
    {descriptors, "pointer_get_attribute", 2, CUDA_ERROR_DEINITIALIZED, driver_failed, 0},
    {descriptors, "exchange_capture_mode", 3, CUDA_ERROR_DEINITIALIZED, driver_failed, 0},
    {descriptors, "mem_retain_allocation_handle", 9, CUDA_ERROR_INVALID_VALUE, not_found, 0},
    {descriptors, "mem_retain_allocation_handle", 9, CUDA_ERROR_DEINITIALIZED, driver_failed, 0},
    {descriptors, "mem_export_to_shareable_handle", 1, CUDA_ERROR_INVALID_VALUE, unsupported, 0},
    {descriptors, "mem_export_to_shareable_handle", 2, CUDA_ERROR_NOT_PERMITTED, unsupported, 0},
    {descriptors, "mem_export_to_shareable_handle", 3, CUDA_ERROR_OUT_OF_MEMORY, no_memory, 0},
    {descriptors, "mem_export_to_shareable_handle", 3, CUDA_ERROR_OPERATING_SYSTEM, driver_failed,
     1},
    {descriptors, "exchange_capture_mode", 5, CUDA_ERROR_DEINITIALIZED, driver_failed, 0},
    {descriptors, "mem_address_reserve", 1, CUDA_ERROR_OUT_OF_MEMORY, no_memory, 0},
    {descriptors, "mem_address_reserve", 1, CUDA_ERROR_INVALID_VALUE, bad_peer, 0},
    {descriptors, "mem_address_reserve", 1, CUDA_ERROR_UNKNOWN, driver_failed, 1},
    {descriptors, "mem_import_from_shareable_handle", 1, CUDA_ERROR_INVALID_DEVICE, unsupported, 0},
    {descriptors, "mem_import_from_shareable_handle", 2, CUDA_ERROR_NOT_SUPPORTED, unsupported, 0},
    {descriptors, "mem_import_from_shareable_handle", 3, CUDA_ERROR_OUT_OF_MEMORY, no_memory, 0},
    {descriptors, "mem_import_from_shareable_handle", 3, CUDA_ERROR_UNKNOWN, driver_failed, 1},
    {descriptors, "mem_map", 1, CUDA_ERROR_OUT_OF_MEMORY, no_memory, 0},
    {descriptors, "mem_map", 2, CUDA_ERROR_INVALID_VALUE, bad_peer, 0},
    {descriptors, "mem_map", 3, CUDA_ERROR_UNKNOWN, driver_failed, 1},
    {descriptors, "mem_set_access", 1, CUDA_ERROR_INVALID_DEVICE, unsupported, 0},
    {descriptors, "mem_set_access", 1, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, unsupported, 0},
    {descriptors, "mem_set_access", 1, CUDA_ERROR_INVALID_VALUE, driver_failed, 1},
    {descriptors, "mem_set_access", 1, CUDA_ERROR_DEINITIALIZED, driver_failed, 0},
};
INSTANTIATE_TEST_SUITE_P(Kinds, OnTheWay, testing::ValuesIn(on_the_way));

TEST_P(OnTheWay, AFailureIsPassedOnAndWritesAndLeavesNothing)
{
    fake().fail(GetParam().function, GetParam().nth, GetParam().result);
    EXPECT_EQ(go_over(GetParam().kind), GetParam().expected);
    EXPECT_EQ(base_, 42U);
    EXPECT_EQ(log_.count(), GetParam().lines) << log_.text();
}

struct OnTheWayBack : MemoryKind, testing::WithParamInterface<failure> {};
const failure on_the_way_back[] = {
    {legacy, "nothing", 0, CUDA_SUCCESS, ok, 0},
    {pool, "nothing", 0, CUDA_SUCCESS, ok, 0},
    {descriptors, "nothing", 0, CUDA_SUCCESS, ok, 0},
    {legacy, "ipc_close_mem_handle", 0, CUDA_ERROR_INVALID_VALUE, ok, 1},
    {legacy, "ipc_close_mem_handle", 0, CUDA_ERROR_DEINITIALIZED, ok, 0},
    {pool, "mem_free", 0, CUDA_ERROR_INVALID_VALUE, ok, 2}, // nor does its pool go
    {pool, "mem_pool_destroy", 0, CUDA_ERROR_INVALID_VALUE, ok, 1},
    {descriptors, "mem_unmap", 0, CUDA_ERROR_INVALID_VALUE, ok, 1},
    {descriptors, "mem_unmap", 0, CUDA_ERROR_DEINITIALIZED, ok, 0},
    {descriptors, "exchange_capture_mode", 0, CUDA_ERROR_DEINITIALIZED, ok, 0},
};
INSTANTIATE_TEST_SUITE_P(Kinds, OnTheWayBack, testing::ValuesIn(on_the_way_back));

TEST_P(OnTheWayBack, AFailureIsReportedUnlessTheDriverIsGone)
{
    ASSERT_EQ(go_over(GetParam().kind), ok);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
    fake().fail(GetParam().function, 0, GetParam().result);
    it_.unmap(on_, base_);
    it_.give_back_pool();
    EXPECT_EQ(log_.count(), GetParam().lines) << log_.text();
    all_comes_back_ = CUDA_SUCCESS == GetParam().result;
    if (!all_comes_back_) {
        EXPECT_EQ(fake().calls["mem_address_free"], 0) << "there are mappings in it";
    }
}

// --- what can be exported ------------------------------------------------------------------------

TEST_F(MemoryKind, PoolsAreToldFromOtherMemoryAndWhetherTheyMayBeExported)
{
    bool exportable = false;
    EXPECT_EQ(pool_of(api_, plain_at_, &exportable), nullptr);
    for (const unsigned handle_types : {0, 8, 1}) { // 0: as the default pool, 8: fabric only
        const CUmemoryPool other =
            make_pool(0, static_cast<CUmemAllocationHandleType>(handle_types));
        const CUdeviceptr at = allocate_from(other, 100);
        EXPECT_EQ(pool_of(api_, at + 77, &exportable), other);
        EXPECT_EQ(exportable, 1 == handle_types);
        OK(CU(cuMemFree)(at));
        OK(CU(cuMemPoolDestroy)(other));
    }
    // Driver 580 asks for an export of the pool first. The program's first message from it must not
    // depend on the order.
    EXPECT_EQ(export_pooled(), ok);
    EXPECT_EQ(export_pooled(), ok);
    EXPECT_EQ(fake().calls["mem_pool_export_to_shareable_handle"], 1);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

TEST_F(MemoryKind, OneChunkThatCannotBeExportedSpoilsTheRange)
{
    static CUmemGenericAllocationHandle second;
    static void (*spoil)(CUmemAllocationProp *);
    void (*const spoilers[])(CUmemAllocationProp *) = {
        [](auto *of) { of->requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE; },
        [](auto *of) { of->requestedHandleTypes = static_cast<CUmemAllocationHandleType>(8); },
        [](auto *of) { of->location.id = 0; },
        [](auto *of) { of->location.type = CU_MEM_LOCATION_TYPE_INVALID; }, // not of a device
    };
    OK(CU(cuMemRetainAllocationHandle)(&second, reinterpret_cast<void *>(chunks_at_ + unit_bytes)));
    api_.mem_get_allocation_properties = [](CUmemAllocationProp *out,
                                            CUmemGenericAllocationHandle of) {
        const CUresult result = driver().mem_get_allocation_properties(out, of);
        second == of ? spoil(out) : void();
        return result;
    };
    for (const auto &each : spoilers) {
        spoil = each;
        EXPECT_EQ(list(chunks_at_, chunks_bytes), unsupported);
        EXPECT_EQ(list(chunks_at_, unit_bytes), ok) << "beside it";
    }
    OK(CU(cuMemRelease)(second));
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

TEST_F(MemoryKind, TwoAllocationsThatTheDriverDescribesAsOneRangeAreNotOneChunk)
{
    static std::uint64_t end;
    end = chunks_at_ + chunks_bytes;
    api_.mem_get_address_range = [](CUdeviceptr *base, size_t *len_bytes, CUdeviceptr at) {
        const CUresult result = driver().mem_get_address_range(base, len_bytes, at);
        *len_bytes = end - *base;
        return result;
    };
    EXPECT_EQ(list(chunks_at_, unit_bytes), unsupported);
    EXPECT_EQ(list(chunks_at_ + 4 * unit_bytes, 1), ok) << "the last one has no neighbour";
}

TEST_F(MemoryKind, LengthsThatCannotBeAreAPeersFault)
{
    ASSERT_EQ(describe(descriptors), ok);
    std::vector<std::uint64_t> &lengths = it_.chunks.lengths;
    const auto expect_refused = [&](std::uint64_t total) {
        EXPECT_EQ(map_chunks(api_, on_, it_.chunks, total, &base_), bad_peer) << lengths[1];
    };
    for (const std::uint64_t each : {std::uint64_t{0}, std::uint64_t{1}, unit_bytes - 1,
                                     unit_bytes + 512, UINT64_MAX - unit_bytes + 1}) {
        lengths[1] = each;
        expect_refused(chunks_bytes);
        expect_refused(3 * unit_bytes + each); // may wrap around
    }
    lengths[1] = 3 * unit_bytes;
    expect_refused(5 * unit_bytes);
    expect_refused(7 * unit_bytes);
    lengths[2] += unit_bytes; // more than the descriptor has
    expect_refused(7 * unit_bytes);
    EXPECT_EQ(base_, 42U);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

TEST_F(MemoryKind, AReferenceThatCannotBeGivenBackIsReported)
{
    ASSERT_EQ(describe(descriptors), ok);
    fake().fail("mem_release", 2, CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(it_.map(on_, &base_), ok);
    EXPECT_EQ(log_.count(), 1U) << log_.text();
    it_.unmap(on_, base_);
    all_comes_back_ = false;
}

// --- memory of every kind ------------------------------------------------------------------------

TEST_F(MemoryKind, AnAllocationOfOurOwnIsMadeInItsContextAndAFullDeviceIsNoMemoryWithoutAWord)
{
    fake().fail("mem_alloc", 1, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(alloc_device(api_, on_, 12345, &base_), no_memory);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
    fake().fail("mem_alloc", 1, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(alloc_device(api_, on_, 12345, &base_), driver_failed);
    EXPECT_EQ(log_.count(), 1U) << log_.text();
    EXPECT_EQ(base_, 42U);
    ASSERT_EQ(alloc_device(api_, on_, 12345, &base_), ok);
    std::size_t len_bytes = 0;
    OK(address_range(base_, &len_bytes));
    EXPECT_EQ(len_bytes, 12345U);
    EXPECT_EQ(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, base_), on_.context);
    free_device(api_, on_, base_);
    EXPECT_NE(address_range(base_, &len_bytes), CUDA_SUCCESS);
    EXPECT_EQ(log_.count(), 1U) << log_.text();
}

TEST_F(MemoryKind, AMappingShorterThanThePeerSaysIsThePeersFault)
{
    const auto mapped = [&](std::uint64_t inside, std::uint64_t len_bytes) {
        return check_mapped_length(api_, on_, plain_at_ + inside, len_bytes);
    };
    EXPECT_EQ(mapped(0, allocation_bytes), ok);
    EXPECT_EQ(mapped(0x100, allocation_bytes - 0x100), ok);
    EXPECT_EQ(mapped(0, allocation_bytes + 1), bad_peer);
    EXPECT_EQ(mapped(0x100, allocation_bytes - 0xff), bad_peer);
    EXPECT_EQ(mapped(0x100, UINT64_MAX), bad_peer);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
    EXPECT_EQ(check_mapped_length(api_, on_, 0x9000, 1), driver_failed);
    EXPECT_EQ(log_.count(), 1U) << log_.text();
}

TEST_F(MemoryKind, CopiesOfAContextAreMadeSynchronousOnceAndKeepItsOtherFlags)
{
    unsigned flags = 0;
    inside([] { OK(driver().ctx_set_flags(0x0c)); });
    EXPECT_EQ(make_copies_synchronous(api_, on_), ok);
    inside([&] { OK(CU(cuCtxGetFlags)(&flags)); });
    EXPECT_EQ(flags, 0x8cU);
    EXPECT_EQ(fake().calls["stream_synchronize"], 0);
    EXPECT_EQ(wait_for_earlier_copies(api_, on_, on_.marks.of_context), ok);
    EXPECT_EQ(fake().calls["stream_synchronize"], 1) << "for those that have returned before";
    EXPECT_EQ(wait_for_earlier_copies(api_, on_, on_.marks.of_context), ok);
    EXPECT_EQ(fake().calls["stream_synchronize"], 1);
    EXPECT_EQ(make_copies_synchronous(api_, on_), ok);
    EXPECT_EQ(fake().calls["ctx_set_flags"], 1);
    EXPECT_EQ(fake().calls["ctx_push_current"], 3);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

TEST_F(MemoryKind, AContextThatCannotBeMarkedIsUnsupportedOrReported)
{
    inside([] { OK(driver().ctx_set_flags(0)); });
    fake().fail("ctx_set_flags", 1, CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(make_copies_synchronous(api_, on_), unsupported);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
    std::size_t lines = 0;
    for (const char *function : {"ctx_get_flags", "ctx_set_flags"}) {
        inside([] { OK(driver().ctx_set_flags(0)); });
        fake().fail(function, 1, CUDA_ERROR_UNKNOWN);
        EXPECT_EQ(make_copies_synchronous(api_, on_), driver_failed) << function;
        EXPECT_EQ(log_.count(), ++lines) << log_.text();
    }
    EXPECT_EQ(make_copies_synchronous(api_, on_), ok);
    fake().fail("stream_synchronize", 1, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(wait_for_earlier_copies(api_, on_, on_.marks.of_context), driver_failed);
    EXPECT_EQ(wait_for_earlier_copies(api_, on_, on_.marks.of_context), ok) << "tried again";
    api_.ctx_set_flags = nullptr;
    EXPECT_EQ(make_copies_synchronous(api_, on_), unsupported);
}

// A try ends the captures of the program in that context, so there are few.
TEST_F(MemoryKind, AContextInWhichAStreamIsCapturedIsLeftAloneForAWhile)
{
    inside([] { OK(driver().ctx_set_flags(0)); });
    const int before = fake().calls["ctx_set_flags"];
    fake().fail("ctx_set_flags", 1, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(make_copies_synchronous(api_, on_), driver_failed);
        EXPECT_EQ(fake().calls["ctx_set_flags"], before + 1);
        EXPECT_EQ(log_.count(), 1U) << log_.text();
    }
    EXPECT_NE(log_.text().find("a stream capture of this program"), std::string::npos);
}

// Whatever is current in the thread belongs to the program: nothing may be done in it instead.
TEST_F(MemoryKind, NothingIsCalledWhenTheContextCannotBeEntered)
{
    fake().fail("ctx_push_current", 0, CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(alloc_device(api_, on_, 1, &base_), driver_failed);
    EXPECT_EQ(make_copies_synchronous(api_, on_), driver_failed);
    EXPECT_EQ(check_mapped_length(api_, on_, pooled_at_, 1), driver_failed);
    EXPECT_EQ(export_pooled(), driver_failed);
    EXPECT_EQ(import_pool_pointer(api_, on_, nullptr, it_.memory.handle, &base_), driver_failed);
    free_device(api_, on_, pooled_at_);
    close_memory(api_, on_, plain_at_);
    for (const char *function :
         {"mem_alloc", "ctx_get_flags", "mem_get_address_range", "mem_pool_export_pointer",
          "mem_pool_import_pointer", "mem_free", "ipc_close_mem_handle"}) {
        EXPECT_EQ(fake().calls[function], 0) << function;
    }
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

} // namespace
