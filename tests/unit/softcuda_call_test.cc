// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// softcuda_call_test.cc: who may call when, forced failures, the log, functions by name.
#include "softcuda_support.h"

#include <dirent.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

using namespace softcuda_test;

namespace {

TEST(SoftcudaCall, NothingWorksBeforeInit)
{
    alone([] {
        int n = 0;
        CUdeviceptr at = 0;
        EXPECT_EQ(CU(cuDeviceGetCount)(&n), CUDA_ERROR_NOT_INITIALIZED);
        EXPECT_EQ(CU(cuMemAlloc)(&at, 16), CUDA_ERROR_NOT_INITIALIZED);
        EXPECT_EQ(CU(cuDriverGetVersion)(&n), CUDA_SUCCESS);
        EXPECT_GE(n, 11080);
        EXPECT_EQ(CU(cuInit)(0), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuDeviceGetCount)(&n), CUDA_SUCCESS);
    });
}

TEST(SoftcudaCall, CallsWithoutAContextFail)
{
    alone([] {
        EXPECT_EQ(CU(cuInit)(0), CUDA_SUCCESS);
        CUdeviceptr at = 0;
        CUstream s = nullptr;
        CUdevice d = 0;
        CUcontext ctx = reinterpret_cast<CUcontext>(1);
        EXPECT_EQ(CU(cuCtxGetCurrent)(&ctx), CUDA_SUCCESS);
        EXPECT_EQ(ctx, nullptr);
        EXPECT_EQ(CU(cuMemAlloc)(&at, 16), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(CU(cuStreamCreate)(&s, 0), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(CU(cuCtxGetDevice)(&d), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(CU(cuCtxPopCurrent)(&ctx), CUDA_ERROR_INVALID_CONTEXT);
    });
}

TEST(SoftcudaCall, EachThreadHasItsOwnCurrentContext)
{
    alone([] {
        CUcontext ctx = start();
        std::thread([&] {
            CUcontext here = ctx;
            EXPECT_EQ(CU(cuCtxGetCurrent)(&here), CUDA_SUCCESS);
            EXPECT_EQ(here, nullptr);
            CUdeviceptr at = 0;
            EXPECT_EQ(CU(cuMemAlloc)(&at, 16), CUDA_ERROR_INVALID_CONTEXT);
            EXPECT_EQ(CU(cuCtxPushCurrent)(ctx), CUDA_SUCCESS);
            EXPECT_EQ(CU(cuMemAlloc)(&at, 16), CUDA_SUCCESS);
        }).join();
    });
}

TEST(SoftcudaCall, PushAndPopNest)
{
    alone([] {
        CUcontext first = start();
        CUcontext second = nullptr;
        CUcontext out = nullptr;
#if CUDA_VERSION >= 13000
        EXPECT_EQ(CU(cuCtxCreate)(&second, nullptr, 0, 0), CUDA_SUCCESS);
#else
        EXPECT_EQ(CU(cuCtxCreate)(&second, 0, 0), CUDA_SUCCESS);
#endif
        EXPECT_NE(first, second);
        EXPECT_EQ(CU(cuCtxGetCurrent)(&out), CUDA_SUCCESS);
        EXPECT_EQ(out, second);
        EXPECT_EQ(CU(cuCtxPopCurrent)(&out), CUDA_SUCCESS);
        EXPECT_EQ(out, second);
        EXPECT_EQ(CU(cuCtxGetCurrent)(&out), CUDA_SUCCESS);
        EXPECT_EQ(out, first);
        EXPECT_EQ(CU(cuCtxDestroy)(second), CUDA_SUCCESS);
    });
}

TEST(SoftcudaCall, APrimaryContextLivesWhileItIsRetained)
{
    alone([] {
        CU(cuInit)(0);
        unsigned flags = 0;
        int active = 7;
        EXPECT_EQ(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active), CUDA_SUCCESS);
        EXPECT_EQ(active, 0);
        CUcontext a = start();
        CUcontext b = start();
        EXPECT_EQ(a, b);
        CUdeviceptr at = allocate(4096);
        EXPECT_EQ(CU(cuDevicePrimaryCtxRelease)(0), CUDA_SUCCESS);
        EXPECT_NE(buffer_id(at), 0u);
        EXPECT_EQ(CU(cuDevicePrimaryCtxRelease)(0), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active), CUDA_SUCCESS);
        EXPECT_EQ(active, 0);
        CUdeviceptr more = 0;
        EXPECT_NE(CU(cuMemAlloc)(&more, 16), CUDA_SUCCESS);
    });
}

TEST(SoftcudaCall, TheNthCallIsMadeToFail)
{
    NEEDS_SOFTCUDA();
    alone([] {
        setenv("GPUSM_SOFTCUDA_FAIL", "cuMemAlloc:2:2,cuMemAlloc:3:719,cuStreamQuery:0:999", 1);
        start();
        CUdeviceptr at = 0;
        EXPECT_EQ(CU(cuMemAlloc)(&at, 16), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemAlloc)(&at, 16), CUDA_ERROR_OUT_OF_MEMORY);
        EXPECT_EQ(CU(cuMemAlloc)(&at, 16), CUDA_ERROR_LAUNCH_FAILED);
        EXPECT_EQ(CU(cuMemAlloc)(&at, 16), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamQuery)(nullptr), CUDA_ERROR_UNKNOWN);
        EXPECT_EQ(CU(cuStreamQuery)(nullptr), CUDA_ERROR_UNKNOWN);
        EXPECT_EQ(symbol<decltype(cuStreamQuery)>("cuStreamQuery_ptsz")(nullptr),
                  CUDA_ERROR_UNKNOWN);
    });
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

TEST(SoftcudaCall, ExitDoesNotWaitForWorkThatNeverEnds)
{
    NEEDS_SOFTCUDA();
    alone([] {
        start();
        CU(cuLaunchHostFunc)
        (
            nullptr, [](void *) { pause(); }, nullptr);
    });
}

TEST(SoftcudaCall, AForkedChildHasNoDriver)
{
    NEEDS_SOFTCUDA();
    alone([] {
        start();
        pid_t inner = fork();
        if (inner == 0) {
            CUdeviceptr at = 0;
            _exit(CU(cuMemAlloc)(&at, 16) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
        }
        EXPECT_EQ(status_of(inner), 0);
        allocate(16);
    });
}

TEST(SoftcudaCall, NoFileIsLeftBehind)
{
    NEEDS_SOFTCUDA();
    char dir[] = "/tmp/softcuda-left-XXXXXX";
    ASSERT_NE(mkdtemp(dir), nullptr);
    pid_t victim = child([&] {
        setenv("GPUSM_SOFTCUDA_DIR", dir, 1);
        start();
        allocate(1 << 20);
        raise(SIGKILL);
    });
    EXPECT_EQ(WTERMSIG(status_of(victim)), SIGKILL);
    alone([&] { // the next process clears up
        setenv("GPUSM_SOFTCUDA_DIR", dir, 1);
        start();
        allocate(1 << 20);
    });
    EXPECT_EQ(rmdir(dir), 0) << "not empty";
}

TEST(SoftcudaCall, DevicesHaveStableUuidsAndVisibilityRenumbersThem)
{
    NEEDS_SOFTCUDA();
    alone([] {
        setenv("GPUSM_SOFTCUDA_DEVICES", "4", 1);
        setenv("CUDA_VISIBLE_DEVICES", "3,1", 1);
        start();
        int n = 0;
        EXPECT_EQ(CU(cuDeviceGetCount)(&n), CUDA_SUCCESS);
        EXPECT_EQ(n, 2);
        CUuuid a{};
        CUuuid b{};
        char pci[32] = {};
        EXPECT_EQ(CU(cuDeviceGetUuid)(&a, 0), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuDeviceGetUuid)(&b, 1), CUDA_SUCCESS);
        EXPECT_EQ(a.bytes[15], 3);
        EXPECT_EQ(b.bytes[15], 1);
        EXPECT_EQ(CU(cuDeviceGetPCIBusId)(pci, sizeof(pci), 1), CUDA_SUCCESS);
        EXPECT_STREQ(pci, "0000:11:00.0");
        CUdevice d = 0;
        EXPECT_EQ(CU(cuDeviceGet)(&d, 2), CUDA_ERROR_INVALID_DEVICE);
    });
    alone([] {
        setenv("CUDA_VISIBLE_DEVICES", "", 1);
        EXPECT_EQ(CU(cuInit)(0), CUDA_ERROR_NO_DEVICE);
    });
}

TEST(SoftcudaCall, PeersCanBeEnabledOnce)
{
    NEEDS_DEVICES(2);
    alone([] {
        CUcontext there = start(1);
        start(0);
        int can = 0;
        EXPECT_EQ(CU(cuDeviceCanAccessPeer)(&can, 0, 1), CUDA_SUCCESS);
        EXPECT_EQ(can, 1);
        EXPECT_EQ(CU(cuDeviceCanAccessPeer)(&can, 0, 0), CUDA_SUCCESS);
        EXPECT_EQ(can, 0);
        EXPECT_EQ(CU(cuCtxEnablePeerAccess)(there, 0), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuCtxEnablePeerAccess)(there, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        EXPECT_EQ(CU(cuCtxDisablePeerAccess)(there), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuCtxDisablePeerAccess)(there), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    });
}

#if CUDA_VERSION >= 12000
TEST(SoftcudaCall, AContextInPlaceOfAnotherHasANumberOfItsOwn)
{
    alone([] {
        unsigned long long before = 0;
        unsigned long long after = 0;
        CUcontext ctx = start();
        EXPECT_EQ(CU(cuCtxGetId)(ctx, &before), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuCtxGetId)(ctx, &after), CUDA_SUCCESS);
        EXPECT_EQ(before, after);
        EXPECT_EQ(CU(cuDevicePrimaryCtxReset)(0), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuDevicePrimaryCtxRetain)(&ctx, 0), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuCtxGetId)(ctx, &after), CUDA_SUCCESS);
        EXPECT_NE(before, after);
    });
}
#endif

TEST(SoftcudaCall, FunctionsAreFoundByNameAndVersion)
{
    alone([] {
        void *f = nullptr;
        // The first version has the same arguments in every cuda.h.
        auto *look_up =
            symbol<CUresult(const char *, void **, int, unsigned long long)>("cuGetProcAddress");
        auto find = [&](const char *name, int version) {
            f = nullptr;
            EXPECT_EQ(look_up(name, &f, version, 0), CUDA_SUCCESS) << name;
            return f;
        };
        EXPECT_EQ(find("cuMemAlloc", 12000), symbol<void>("cuMemAlloc_v2"));
        EXPECT_EQ(find("cuMemcpyBatchAsync", 12080), symbol<void>("cuMemcpyBatchAsync"));
        EXPECT_EQ(find("cuMemcpyBatchAsync", 13000), symbol<void>("cuMemcpyBatchAsync_v2"));
        EXPECT_EQ(find("cuEventRecord", 12000), symbol<void>("cuEventRecord"));
        const char *name = nullptr;
        EXPECT_EQ(CU(cuGetErrorName)(CUDA_ERROR_NOT_READY, &name), CUDA_SUCCESS);
        EXPECT_STREQ(name, "CUDA_ERROR_NOT_READY");
        EXPECT_NE(CU(cuGetErrorName)(static_cast<CUresult>(12345), &name), CUDA_SUCCESS);
    });
}

} // namespace
