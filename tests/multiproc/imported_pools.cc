// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// imported_pools.cc: does the driver bear a process that imports pools while another thread of it
// makes and destroys some of its own? Without MPI or gpusm, so that
// it can be shown to others with driver_functions.h alone; by hand, on a GPU:
//
//   imported_pools [SECONDS [0|1|2|3]]     where the second thread is: 1 in the exporter,
//                                          2 in the importer, 3 in both
//
// One process makes a pool, exports it and an allocation of it, and destroys both when the other
// one has imported the two, copied the allocation and given it back; and so on. With 2 and 3
// driver 580.159 hangs or ends the importer after some seconds in most runs (docs/memory.md).
#include "tests/driver_functions.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include <sys/socket.h>
#include <sys/wait.h>

namespace {

constexpr std::size_t longest = std::size_t{32} << 20;
constexpr unsigned patience_s = 20; // beyond the seconds that it runs
constexpr CUmemAllocationHandleType by_descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

const char *process_name = "";
std::atomic<bool> over{false};

void need(CUresult result, const char *what)
{
    if (CUDA_SUCCESS != result) {
        std::fprintf(stderr, "imported_pools: %s: %s gives %d\n", process_name, what, result);
        _exit(1);
    }
}
void need_peer(bool good)
{
    if (!good) { // it has ended, and said why
        _exit(1);
    }
}

CUcontext start(const char *name, CUdevice *device)
{
    CUcontext context = nullptr;
    process_name = name;
    need(CU(cuInit)(0), "cuInit");
    need(CU(cuDeviceGet)(device, 0), "cuDeviceGet");
    need(CU(cuDevicePrimaryCtxRetain)(&context, *device), "cuDevicePrimaryCtxRetain");
    need(CU(cuCtxSetCurrent)(context), "cuCtxSetCurrent");
    return context;
}

struct pool_memory {
    CUmemoryPool pool = nullptr;
    CUdeviceptr address = 0;

    pool_memory(CUdevice device, std::size_t len_bytes)
    {
        CUmemPoolProps wanted{};
        wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.handleTypes = by_descriptor;
        wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
        need(CU(cuMemPoolCreate)(&pool, &wanted), "cuMemPoolCreate");
        need(CU(cuMemAllocFromPoolAsync)(&address, len_bytes, pool, nullptr),
             "cuMemAllocFromPoolAsync");
        need(CU(cuStreamSynchronize)(nullptr), "cuStreamSynchronize");
    }
    ~pool_memory()
    {
        need(CU(cuMemFreeAsync)(address, nullptr), "cuMemFreeAsync");
        need(CU(cuStreamSynchronize)(nullptr), "cuStreamSynchronize");
        need(CU(cuMemPoolDestroy)(pool), "cuMemPoolDestroy");
    }
    pool_memory(const pool_memory &) = delete;
    pool_memory &operator=(const pool_memory &) = delete;
};

// A thread that makes and destroys pools of its own, if it is wanted, until the object ends.
class own_pools {
  public:
    own_pools(CUcontext context, CUdevice device, bool wanted)
    {
        if (wanted) {
            thread_ = std::thread([context, device] {
                std::minstd_rand draw(static_cast<unsigned>(getpid()));
                need(CU(cuCtxSetCurrent)(context), "cuCtxSetCurrent");
                while (!over) {
                    if (0 == draw() % 2) {
                        const pool_memory some(device, 1 + draw() % (2 * longest));
                    } else {
                        need(CU(cuCtxSynchronize)(), "cuCtxSynchronize");
                    }
                    std::this_thread::sleep_for(std::chrono::microseconds(draw() % 500));
                }
            });
        }
    }
    ~own_pools()
    {
        over = true;
        if (thread_.joinable()) {
            thread_.join();
        }
    }
    own_pools(const own_pools &) = delete;
    own_pools &operator=(const own_pools &) = delete;

  private:
    std::thread thread_;
};

// With it goes the pool's descriptor, if there is one.
struct message {
    CUmemPoolPtrExportData memory;
    std::size_t len_bytes; // 0: that was all
};

void send(int to, const message &what, int descriptor)
{
    message copy = what;
    iovec bytes{&copy, sizeof(copy)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    if (descriptor >= 0) {
        header.msg_control = control;
        header.msg_controllen = sizeof(control);
        cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(rights), &descriptor, sizeof(descriptor));
    }
    need_peer(sendmsg(to, &header, MSG_NOSIGNAL) > 0);
}

int receive(int from, message *what)
{
    iovec bytes{what, sizeof(*what)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    need_peer(recvmsg(from, &header, 0) > 0);
    int descriptor = -1;
    if (const cmsghdr *rights = CMSG_FIRSTHDR(&header); rights != nullptr) {
        std::memcpy(&descriptor, CMSG_DATA(rights), sizeof(descriptor));
    }
    return descriptor;
}

int run_exporter(int socket, long seconds, bool beside)
{
    CUdevice device = 0;
    CUcontext context = start("exporter", &device);
    const own_pools other(context, device, beside);
    std::minstd_rand draw(1);
    long rounds = 0;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    for (; std::chrono::steady_clock::now() < end; ++rounds) {
        message told{};
        told.len_bytes = 1 + draw() % longest;
        const pool_memory mine(device, told.len_bytes);
        int descriptor = -1;
        need(CU(cuMemPoolExportToShareableHandle)(&descriptor, mine.pool, by_descriptor, 0),
             "cuMemPoolExportToShareableHandle");
        need(CU(cuMemPoolExportPointer)(&told.memory, mine.address), "cuMemPoolExportPointer");
        send(socket, told, descriptor);
        (void)close(descriptor);
        char done = 0;
        need_peer(1 == read(socket, &done, 1));
    }
    send(socket, {}, -1);
    std::printf("imported_pools: %ld pools\n", rounds);
    (void)std::fflush(stdout);
    return 0;
}

int run_importer(int socket, bool beside)
{
    CUdevice device = 0;
    CUcontext context = start("importer", &device);
    const own_pools other(context, device, beside);
    CUdeviceptr own = 0;
    CUstream stream = nullptr;
    need(CU(cuMemAlloc)(&own, longest), "cuMemAlloc");
    need(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    for (;;) {
        message told{};
        const int descriptor = receive(socket, &told);
        if (0 == told.len_bytes) {
            return 0;
        }
        CUmemoryPool pool = nullptr;
        CUdeviceptr address = 0;
        need(CU(cuMemPoolImportFromShareableHandle)(
                 &pool, reinterpret_cast<void *>(static_cast<std::intptr_t>(descriptor)),
                 by_descriptor, 0),
             "cuMemPoolImportFromShareableHandle");
        (void)close(descriptor);
        need(CU(cuMemPoolImportPointer)(&address, pool, &told.memory), "cuMemPoolImportPointer");
        need(CU(cuMemcpyAsync)(own, address, told.len_bytes, stream), "cuMemcpyAsync");
        need(CU(cuStreamSynchronize)(stream), "cuStreamSynchronize");
        need(CU(cuMemFree)(address), "cuMemFree");
        need(CU(cuMemPoolDestroy)(pool), "cuMemPoolDestroy");
        const char done = 1;
        need_peer(1 == write(socket, &done, 1));
    }
}

// How that process has ended; true: well.
bool judge(const char *name, pid_t process)
{
    int status = 0;
    (void)waitpid(process, &status, 0);
    if (WIFSIGNALED(status)) {
        const bool hung = SIGALRM == WTERMSIG(status);
        std::printf("imported_pools: the %s %s %d\n", name,
                    hung ? "has not ended in time: signal" : "has died of signal",
                    WTERMSIG(status));
    }
    return 0 == status;
}

} // namespace

int main(int argc, char **argv)
{
    const long seconds = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 2;
    const long beside = argc > 2 ? std::strtol(argv[2], nullptr, 10) : 2;
    int ends[2];
    if (0 != socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends)) {
        std::perror("socketpair");
        return 1;
    }
    const auto in_child = [&](int end, auto body) {
        const pid_t process = fork();
        if (0 == process) {
            (void)close(ends[1 - end]);
            (void)alarm(static_cast<unsigned>(seconds) + patience_s);
            _exit(body(ends[end]));
        }
        return process;
    };
    const pid_t exporter =
        in_child(0, [&](int socket) { return run_exporter(socket, seconds, 0 != (beside & 1)); });
    const pid_t importer =
        in_child(1, [&](int socket) { return run_importer(socket, 0 != (beside & 2)); });
    (void)close(ends[0]);
    (void)close(ends[1]);
    const bool exported = judge("exporter", exporter);
    const bool imported = judge("importer", importer);
    return exported && imported ? 0 : 1;
}
