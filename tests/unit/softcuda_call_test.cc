// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// softcuda_call_test.cc: who may call when, forced failures, the log.
#include "softcuda_support.h"

#include <dirent.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

using namespace softcuda_test;

namespace {

ALONE(SoftcudaCall, NothingWorksBeforeInit)
{
    int n = 0;
    CUdeviceptr at = 0;
    EXPECT_EQ(CU(cuDeviceGetCount)(&n), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT_EQ(CU(cuMemAlloc)(&at, 16), CUDA_ERROR_NOT_INITIALIZED);
    OK(CU(cuDriverGetVersion)(&n));
    EXPECT_GE(n, 11080);
    OK(CU(cuInit)(0));
    OK(CU(cuDeviceGetCount)(&n));
}

// In a process that has made none, and in a thread beside one that has.
ALONE(SoftcudaCall, CallsWithoutAContextFailAndEachThreadHasItsOwn)
{
    const auto expect_none = [] {
        CUdeviceptr at = 0;
        CUstream s = nullptr;
        CUdevice d = 0;
        CUcontext ctx = reinterpret_cast<CUcontext>(1);
        OK(CU(cuCtxGetCurrent)(&ctx));
        EXPECT_EQ(ctx, nullptr);
        EXPECT_EQ(CU(cuMemAlloc)(&at, 16), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(CU(cuStreamCreate)(&s, 0), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(CU(cuCtxGetDevice)(&d), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(CU(cuCtxPopCurrent)(&ctx), CUDA_ERROR_INVALID_CONTEXT);
    };
    OK(CU(cuInit)(0));
    expect_none();
    std::thread([&, ctx = start()] {
        expect_none();
        OK(CU(cuCtxPushCurrent)(ctx));
        (void)allocate(16);
    }).join();
}

ALONE(SoftcudaCall, PushAndPopNest)
{
    CUcontext first = start();
    CUcontext second = make_context();
    CUcontext out = nullptr;
    EXPECT_NE(first, second);
    OK(CU(cuCtxGetCurrent)(&out));
    EXPECT_EQ(out, second);
    OK(CU(cuCtxPopCurrent)(&out));
    EXPECT_EQ(out, second);
    OK(CU(cuCtxGetCurrent)(&out));
    EXPECT_EQ(out, first);
    OK(CU(cuCtxDestroy)(second));
}

ALONE(SoftcudaCall, APrimaryContextLivesWhileItIsRetained)
{
    CU(cuInit)(0);
    unsigned flags = 0;
    int active = 7;
    OK(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
    EXPECT_EQ(active, 0);
    CUcontext a = start();
    CUcontext b = start();
    EXPECT_EQ(a, b);
    CUdeviceptr at = allocate(4096);
    OK(CU(cuDevicePrimaryCtxRelease)(0));
    EXPECT_NE(buffer_id(at), 0u);
    OK(CU(cuDevicePrimaryCtxRelease)(0));
    OK(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
    EXPECT_EQ(active, 0);
    CUdeviceptr more = 0;
    EXPECT_NE(CU(cuMemAlloc)(&more, 16), CUDA_SUCCESS);
}

SOFT_ALONE(SoftcudaCall, TheNthCallIsMadeToFail)
{
    setenv("GPUSM_SOFTCUDA_FAIL", "cuMemAlloc:2:2,cuMemAlloc:3:719,cuStreamQuery:0:999", 1);
    start();
    CUdeviceptr at = 0;
    OK(CU(cuMemAlloc)(&at, 16));
    EXPECT_EQ(CU(cuMemAlloc)(&at, 16), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(CU(cuMemAlloc)(&at, 16), CUDA_ERROR_LAUNCH_FAILED);
    OK(CU(cuMemAlloc)(&at, 16));
    EXPECT_EQ(CU(cuStreamQuery)(nullptr), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(CU(cuStreamQuery)(nullptr), CUDA_ERROR_UNKNOWN);
}

TEST(SoftcudaCall, TheLogHasOneLineForEachCallAndNamesTheCaller)
{
    NEEDS_SOFTCUDA();
    char dir[] = "/tmp/softcuda-log-XXXXXX";
    ASSERT_NE(mkdtemp(dir), nullptr);
    std::string where = dir;
    pid_t pid = child([&] {
        setenv("GPUSM_SOFTCUDA_LOG", where.c_str(), 1);
        start();
        CUdeviceptr at = 0;
        volatile CUresult last = CU(cuMemAlloc)(&at, 16);
        last = CU(cuMemAlloc)(&at, 0);
        (void)last;
    });
    EXPECT_EQ(status_of(pid), 0);
    std::string path = where + "/" + std::to_string(pid) + ".log";
    std::ifstream in(path);
    std::string function;
    std::string caller;
    int result = -1;
    std::vector<std::string> lines;
    while (in >> function >> result >> caller) {
        lines.push_back(function + " " + std::to_string(result));
        EXPECT_NE(caller, "libcuda.so.1");
        EXPECT_NE(caller, "?");
    }
    std::vector<std::string> expected = {"cuInit 0", "cuDevicePrimaryCtxRetain 0",
                                         "cuCtxSetCurrent 0", "cuMemAlloc 0", "cuMemAlloc 1"};
    EXPECT_EQ(lines, expected);
    unlink(path.c_str());
    rmdir(dir);
}

TEST(SoftcudaCall, AfterExitHasBegunTheDriverIsGone)
{
    NEEDS_SOFTCUDA();
    pid_t pid = child([] {
        std::atexit([] { // registered first, so it runs after the driver's own
            int n = 0;
            CUdeviceptr at = 0;
            _exit(CU(cuDeviceGetCount)(&n) == CUDA_ERROR_DEINITIALIZED &&
                          CU(cuMemAlloc)(&at, 16) == CUDA_ERROR_DEINITIALIZED
                      ? 5
                      : 6);
        });
        start();
        CUdeviceptr at = allocate(1 << 20);
        CU(cuMemsetD8)(at, 1, 1 << 20);
    });
    EXPECT_EQ(WEXITSTATUS(status_of(pid)), 5);
}

SOFT_ALONE(SoftcudaCall, ExitDoesNotWaitForWorkThatNeverEnds)
{
    start();
    const CUdeviceptr at = allocate(4);
    OK(CU(cuMemsetD8)(at, 0, 4));
    OK(CU(cuStreamWaitValue32)(nullptr, at, 1, CU_STREAM_WAIT_VALUE_EQ));
}

SOFT_ALONE(SoftcudaCall, AForkedChildHasNoDriver)
{
    start();
    pid_t inner = fork();
    if (inner == 0) {
        CUdeviceptr at = 0;
        _exit(CU(cuMemAlloc)(&at, 16) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    EXPECT_EQ(status_of(inner), 0);
    allocate(16);
}

SOFT_ALONE(SoftcudaCall, DevicesHaveStableUuidsAndVisibilityRenumbersThem)
{
    setenv("GPUSM_SOFTCUDA_DEVICES", "4", 1);
    setenv("CUDA_VISIBLE_DEVICES", "3,1", 1);
    start();
    int n = 0;
    OK(CU(cuDeviceGetCount)(&n));
    EXPECT_EQ(n, 2);
    CUuuid a{};
    CUuuid b{};
    char pci[32] = {};
    OK(CU(cuDeviceGetUuid)(&a, 0));
    OK(CU(cuDeviceGetUuid)(&b, 1));
    EXPECT_EQ(a.bytes[15], 3);
    EXPECT_EQ(b.bytes[15], 1);
    OK(CU(cuDeviceGetPCIBusId)(pci, sizeof(pci), 1));
    EXPECT_STREQ(pci, "0000:11:00.0");
    CUdevice d = 0;
    EXPECT_EQ(CU(cuDeviceGet)(&d, 2), CUDA_ERROR_INVALID_DEVICE);
}

SOFT_ALONE(SoftcudaCall, WithoutAVisibleDeviceThereIsNone)
{
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    EXPECT_EQ(CU(cuInit)(0), CUDA_ERROR_NO_DEVICE);
}

} // namespace
