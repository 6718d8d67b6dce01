// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// driver_test.cc: loading the driver, of which a function may be missing, its errors in words, the
// scope that makes a context current, and the wait for copies of the program.
#include "opal/mca/common/gpusm/gpu/driver.h"

#include "opal/mca/common/gpusm/ipc/legacy.h"

#include "tests/unit/fake_driver.h"
#include "tests/unit/shm_support.h"

#include <cstring>

#include <dlfcn.h>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

class DriverScope : public testing::Test {
  protected:
    driver_api api_ = reset_fake();
    const CUcontext mine_ = handle_of<CUcontext>(0xbeef);
    const CUcontext other_ = handle_of<CUcontext>(0xc0);
};

// Of a thread without a context, with another one, with the one that is wanted, and with one that
// the driver does not tell.
TEST_F(DriverScope, MakesTheContextCurrentAndBringsTheCallersBack)
{
    const std::pair<std::vector<CUcontext>, CUresult> table[] = {{{}, CUDA_SUCCESS},
                                                                 {{mine_}, CUDA_SUCCESS},
                                                                 {{other_}, CUDA_SUCCESS},
                                                                 {{mine_}, CUDA_ERROR_UNKNOWN}};
    for (const auto &[before, answer] : table) {
        fake().stack = before;
        fake().fail("ctx_get_current", 1, answer);
        fake().capture_mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        {
            const driver_scope scope(api_, other_);
            EXPECT_TRUE(scope.entered());
            EXPECT_EQ(fake().current(), other_);
            EXPECT_EQ(fake().capture_mode, CU_STREAM_CAPTURE_MODE_RELAXED);
            {
                const driver_scope inner(api_, mine_);
                EXPECT_EQ(fake().current(), mine_);
            }
            EXPECT_EQ(fake().current(), other_);
            EXPECT_EQ(fake().capture_mode, CU_STREAM_CAPTURE_MODE_RELAXED) << "of the outer one";
        }
        EXPECT_EQ(fake().stack, before);
        EXPECT_EQ(fake().capture_mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    }
    EXPECT_EQ(fake().calls["ctx_push_current"], 3 + 4) << "what is current already is not pushed";
    EXPECT_EQ(fake().calls["ctx_pop_current"], 3 + 4);
}

// And null is what a context that has been destroyed is replaced by (device_table::is_alive).
TEST_F(DriverScope, ThatFailsOrIsOfNoContextIsNotEnteredAndLeavesEverythingAsItWas)
{
    const std::pair<const char *, CUcontext> table[] = {
        {"ctx_push_current", other_}, {"exchange_capture_mode", other_}, {"nothing", nullptr}};
    const std::vector<CUcontext> stacks[] = {{}, {mine_}};
    for (const auto &[function, context] : table) {
        for (const std::vector<CUcontext> &before : stacks) {
            fake().stack = before;
            fake().fail(function, 1, CUDA_ERROR_CONTEXT_IS_DESTROYED);
            {
                const driver_scope scope(api_, context);
                EXPECT_FALSE(scope.entered()) << function;
            }
            EXPECT_EQ(fake().stack, before) << function;
            EXPECT_EQ(fake().capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL) << function;
        }
    }
}

using DriverReport = DriverScope;

TEST_F(DriverReport, NamesTheCallAndTheErrorUnlessTheDriverIsShuttingDown)
{
    const log_capture log;
    EXPECT_EQ(api_.report("cuThisOrThat", CUDA_SUCCESS), status::ok);
    for (const CUresult down :
         {CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_CONTEXT_IS_DESTROYED}) {
        EXPECT_TRUE(driver_is_down(down));
        EXPECT_EQ(api_.report("cuThisOrThat", down), status::driver_failed);
    }
    EXPECT_EQ(log.count(), 0U) << log.text();
    EXPECT_FALSE(driver_is_down(CUDA_ERROR_INVALID_CONTEXT));
    EXPECT_EQ(api_.report("cuThisOrThat", CUDA_ERROR_INVALID_VALUE), status::driver_failed);
    EXPECT_EQ(log.text(), "cuThisOrThat failed: CUDA_ERROR_INVALID_VALUE\n");
    fake().fail("get_error_name", 0, CUDA_ERROR_INVALID_VALUE);
    EXPECT_STREQ(api_.error_name(static_cast<CUresult>(123456)), "an unknown error");
}

// The capture forbids to wait only for as long as it lasts.
TEST_F(DriverScope, CopiesThatACaptureForbidsToWaitForAreWaitedForLater)
{
    device on;
    on.context = mine_;
    on.marks.last = on.marks.of_context = 1;
    fake().fail("stream_is_capturing", 1, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    for (const int waits : {0, 1, 1}) {
        EXPECT_EQ(wait_for_earlier_copies(api_, on, 1), status::ok);
        EXPECT_EQ(fake().calls["stream_synchronize"], waits);
        EXPECT_EQ(on.marks.waited_for, static_cast<std::uint64_t>(waits));
    }
}

TEST_F(DriverScope, AContextThatCannotBeMarkedSomeTimesInARowIsLeftAloneForAWhile)
{
    device on;
    on.context = mine_;
    api_.ctx_get_flags = [](unsigned *flags) {
        *flags = 0;
        return fake().enter("ctx_get_flags");
    };
    api_.ctx_set_flags = [](unsigned) {
        (void)fake().enter("ctx_set_flags");
        return CUDA_ERROR_UNKNOWN;
    };
    const log_capture log;
    for (const int tries : {1, 2, 3, 4, 4, 4}) {
        EXPECT_EQ(make_copies_synchronous(api_, on), status::driver_failed);
        EXPECT_EQ(fake().calls["ctx_set_flags"], tries);
    }
    EXPECT_EQ(log.count(), 4U) << log.text();
}

TEST(DriverLoad, GivesTheSameCompleteTableEveryTimeOrNothing)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const driver_api *api = driver_load();
    EXPECT_EQ(driver_load(), api);
    if (nullptr == library) {
        EXPECT_EQ(api, nullptr);
        GTEST_SKIP() << "no libcuda.so.1 here: only its absence was tested";
    }
    ASSERT_NE(api, nullptr);
#define GPUSM_EXPECT_LOADED(member, function) EXPECT_NE(api->member, nullptr) << #function;
    GPUSM_DRIVER_FUNCTIONS(GPUSM_EXPECT_LOADED)
#undef GPUSM_EXPECT_LOADED
    EXPECT_NE(api->ctx_set_flags, nullptr) << "which a driver may lack, but none of today";
    // Loading is not using: the driver is as uninitialized as before.
    EXPECT_EQ(CUDA_ERROR_NOT_INITIALIZED, [api] {
        CUcontext context = nullptr;
        return api->ctx_get_current(&context);
    }());
}

const char *lacking = "";

void *find_what_is_there(void *, const char *symbol)
{
    return 0 == std::strcmp(symbol, lacking) ? nullptr : &lacking;
}

TEST(DriverFill, AnOptionalFunctionIsNullWhereTheDriverLacksItAndNothingElseMayBeMissing)
{
    lacking = "cuCtxSetFlags";
    driver_api api;
    EXPECT_EQ(driver_fill(&api, nullptr, find_what_is_there), nullptr);
    EXPECT_EQ(api.ctx_set_flags, nullptr);
    EXPECT_NE(api.mem_free, nullptr);
    // Symbols that have a version of their own, whatever cuda.h calls them.
    static char versions[3];
    const auto by_version = [](void *, const char *symbol) -> void * {
        const bool has_versions = nullptr != std::strstr(symbol, "cuDeviceGetUuid");
        return &versions[!has_versions ? 0 : nullptr == std::strstr(symbol, "_v2") ? 1 : 2];
    };
    EXPECT_EQ(driver_fill(&api, nullptr, by_version), nullptr);
    EXPECT_EQ(reinterpret_cast<void *>(api.device_get_uuid), &versions[2])
        << "the one that tells instances of a GPU apart";
    lacking = "cuMemcpyAsync";
    EXPECT_STREQ(driver_fill(&api, nullptr, find_what_is_there), "cuMemcpyAsync");
}

} // namespace
