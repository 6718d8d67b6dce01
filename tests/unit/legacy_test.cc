// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// legacy_test.cc: how the driver's answers about handles become ours, in which context the
// calls are made, and that nothing is written when they fail; on a scripted driver. The real thing
// between two processes is tests/multiproc/ipc_two_processes.cc.
#include "opal/mca/btl/gpusm/ipc/legacy.h"

#include "tests/unit/fake_driver.h"
#include "tests/unit/shm_support.h"

#include <gtest/gtest.h>

namespace {

using gpusm::device;
using gpusm::exported_memory;
using gpusm::status;
using gpusm_test::fake;
using gpusm_test::handle_of;
using gpusm_test::log_capture;

class IpcHandle : public testing::Test {
  protected:
    IpcHandle()
    {
        on_.context = handle_of<CUcontext>(0xc1);
        on_.ordinal = 1;
        fake().stack = {handle_of<CUcontext>(0xc0)}; // the program is elsewhere
    }
    ~IpcHandle() override
    {
        EXPECT_EQ(fake().stack, std::vector<CUcontext>{handle_of<CUcontext>(0xc0)});
        EXPECT_EQ(fake().capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    }

    const log_capture log_;
    gpusm::driver_api api_ = gpusm_test::reset_fake();
    device on_;
};

TEST_F(IpcHandle, AnExportDescribesTheWholeAllocationAndMarksIt)
{
    exported_memory out;
    ASSERT_EQ(export_memory(api_, on_, 0x50001234, &out), status::ok);
    EXPECT_EQ(out.base, 0x50000000U);
    EXPECT_EQ(out.len_bytes, 0x8000U);
    std::uint64_t inside = 0;
    std::memcpy(&inside, out.handle.reserved, sizeof(inside));
    EXPECT_EQ(inside, out.base) << "the handle is that of the allocation's start";
    EXPECT_EQ(fake().calls["pointer_set_attribute"], 1);
    EXPECT_EQ(fake().calls["ctx_push_current"], 1);
}

struct answer {
    const char *name;
    const char *function;
    CUresult result;
    status expected;
    std::size_t lines;
};
void PrintTo(const answer &about, std::ostream *out)
{
    *out << about.name;
}

class Export : public IpcHandle, public testing::WithParamInterface<answer> {};

INSTANTIATE_TEST_SUITE_P(Answers, Export,
                         testing::Values(answer{"NoSuchMemory", "mem_get_address_range",
                                                CUDA_ERROR_NOT_FOUND, status::driver_failed, 1},
                                         answer{"VmmMemory", "ipc_get_mem_handle",
                                                CUDA_ERROR_INVALID_VALUE, status::unsupported, 0},
                                         answer{"NoIpcOnThisSystem", "ipc_get_mem_handle",
                                                CUDA_ERROR_NOT_SUPPORTED, status::unsupported, 0},
                                         answer{"OutOfResources", "ipc_get_mem_handle",
                                                CUDA_ERROR_OUT_OF_MEMORY, status::driver_failed, 1},
                                         answer{"CannotBeMarked", "pointer_set_attribute",
                                                CUDA_ERROR_INVALID_VALUE, status::driver_failed, 1},
                                         answer{"DriverGone", "mem_get_address_range",
                                                CUDA_ERROR_DEINITIALIZED, status::driver_failed, 0},
                                         answer{"NoContext", "ctx_push_current",
                                                CUDA_ERROR_CONTEXT_IS_DESTROYED,
                                                status::driver_failed, 0}),
                         [](const auto &about) { return about.param.name; });

TEST_P(Export, ThatFailsSaysWhyAndWritesNothing)
{
    fake().fail(GetParam().function, 0, GetParam().result);
    exported_memory out;
    out.base = 42;
    EXPECT_EQ(export_memory(api_, on_, 0x50001234, &out), GetParam().expected);
    EXPECT_EQ(out.base, 42U);
    EXPECT_EQ(log_.count(), GetParam().lines) << log_.text();
}

class Open : public IpcHandle, public testing::WithParamInterface<answer> {};

INSTANTIATE_TEST_SUITE_P(
    Answers, Open,
    testing::Values(answer{"OutOfMemory", "ipc_open_mem_handle", CUDA_ERROR_OUT_OF_MEMORY,
                           status::no_memory, 0},
                    answer{"NoPeerAccess", "ipc_open_mem_handle",
                           CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, status::unsupported, 0},
                    answer{"DeviceNotVisible", "ipc_open_mem_handle", CUDA_ERROR_INVALID_DEVICE,
                           status::unsupported, 0},
                    answer{"NotSupported", "ipc_open_mem_handle", CUDA_ERROR_NOT_SUPPORTED,
                           status::unsupported, 0},
                    answer{"StaleHandle", "ipc_open_mem_handle", CUDA_ERROR_INVALID_HANDLE,
                           status::driver_failed, 1},
                    answer{"NoContext", "ctx_push_current", CUDA_ERROR_CONTEXT_IS_DESTROYED,
                           status::driver_failed, 0}),
    [](const auto &about) { return about.param.name; });

// An answer that tells the whole cause is the caller's to report; of `driver_failed` the cause is
// known only here.
TEST_P(Open, ThatFailsSaysWhyAndWritesNothing)
{
    fake().fail(GetParam().function, 0, GetParam().result);
    std::uint64_t base = 42;
    EXPECT_EQ(open_memory(api_, on_, CUipcMemHandle{}, &base), GetParam().expected);
    EXPECT_EQ(base, 42U);
    EXPECT_EQ(log_.count(), GetParam().lines) << log_.text();
}

TEST_F(IpcHandle, WhatIsOpenedCanBeClosed)
{
    exported_memory out;
    ASSERT_EQ(export_memory(api_, on_, 0x50001234, &out), status::ok);
    std::uint64_t base = 0;
    ASSERT_EQ(open_memory(api_, on_, out.handle, &base), status::ok);
    EXPECT_EQ(base, 0x150000000U);
    close_memory(api_, on_, base);
    EXPECT_EQ(fake().calls["ipc_close_mem_handle"], 1);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

TEST_F(IpcHandle, ACloseThatFailsIsReportedUnlessTheDriverIsGone)
{
    fake().fail("ipc_close_mem_handle", 1, CUDA_ERROR_INVALID_VALUE);
    close_memory(api_, on_, 0x1000);
    EXPECT_EQ(log_.count(), 1U) << log_.text();
    fake().fail("ipc_close_mem_handle", 1, CUDA_ERROR_DEINITIALIZED);
    close_memory(api_, on_, 0x1000);
    EXPECT_EQ(log_.count(), 1U) << log_.text();
}

TEST_F(IpcHandle, EventsGoOverAndComeOut)
{
    {
        gpusm::device_table table(api_);
        device *found = nullptr;
        gpusm::pointer_facts facts;
        facts.context = on_.context;
        ASSERT_EQ(table.for_memory(facts, &found), status::ok);
        CUipcEventHandle handle{};
        ASSERT_EQ(export_event(api_, table, *found, &handle), status::ok);
        CUevent opened = nullptr;
        ASSERT_EQ(open_event(api_, on_, handle, &opened), status::ok);
        EXPECT_EQ(opened, found->ipc_event);
    }
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

// Whatever is current in the thread belongs to the program: nothing may be done in it instead.
TEST_F(IpcHandle, NothingIsCalledWhenTheContextCannotBeEntered)
{
    gpusm::device_table table(api_);
    device *found = nullptr;
    gpusm::pointer_facts facts;
    facts.context = on_.context;
    ASSERT_EQ(table.for_memory(facts, &found), status::ok);
    CUevent event = nullptr;
    ASSERT_EQ(table.ipc_event(*found, &event), status::ok);
    fake().fail("ctx_push_current", 0, CUDA_ERROR_INVALID_CONTEXT);
    CUipcEventHandle handle{};
    EXPECT_EQ(export_event(api_, table, *found, &handle), status::driver_failed);
    EXPECT_EQ(open_event(api_, on_, handle, &event), status::driver_failed);
    close_memory(api_, on_, 0x1000);
    EXPECT_EQ(fake().calls["ipc_get_event_handle"], 0);
    EXPECT_EQ(fake().calls["ipc_open_event_handle"], 0);
    EXPECT_EQ(fake().calls["ipc_close_mem_handle"], 0);
    fake().heal();
}

} // namespace
