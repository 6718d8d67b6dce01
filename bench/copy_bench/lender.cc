// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// lender.cc: the child process that lends device memory.
#include "bench/copy_bench/lender.h"

#include "bench/common/driver_api.h"
#include "opal/mca/btl/gpusm/gpu/device.h"
#include "opal/mca/btl/gpusm/gpu/driver.h"
#include "opal/mca/btl/gpusm/ipc/legacy.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

namespace gpusm::copy_bench {

namespace {

constexpr int patience_ms = 60000; // a first context on a machine with many devices takes seconds
constexpr std::chrono::seconds farewell{10};

// Returns when the other end is closed.
void wait_for_end(int talk)
{
    char nothing = 0;
    while (read(talk, &nothing, 1) < 0 && EINTR == errno) {
    }
}

// Sends `offer` and keeps the loan up until the other end is closed, or says why it cannot.
std::string lend(int talk, bool same_gpu, std::size_t len_bytes)
{
    std::string why;
    const auto gpu = bench::device::open(same_gpu ? 0 : 1, &why);
    if (nullptr == gpu) {
        return why;
    }
    const driver_api *driver = driver_load();
    if (nullptr == driver) {
        return "the CUDA driver lacks a function that gpusm needs";
    }
    device_table devices(*driver);
    device *on = nullptr;
    if (status::ok != devices.for_host(&on)) {
        return "gpusm cannot use the context of " + gpu->name();
    }
    CUdeviceptr memory = 0;
    const CUresult result = gpu->driver().mem_alloc(&memory, len_bytes);
    if (CUDA_SUCCESS != result) {
        return bench::driver_error(gpu->driver(), "cuMemAlloc", result);
    }
    exported_memory exported;
    const status answer = export_memory(*driver, *on, memory, &exported);
    if (status::ok != answer) {
        (void)gpu->driver().mem_free(memory);
        return std::string("memory cannot be exported: ") + to_string(answer);
    }
    loan offer{};
    offer.handle = exported.handle;
    offer.ordinal = gpu->ordinal();
    std::snprintf(offer.device, sizeof(offer.device), "device %d, %s, %s", gpu->ordinal(),
                  gpu->name().c_str(), gpu->uuid().c_str());
    if (sizeof(offer) == write(talk, &offer, sizeof(offer))) {
        wait_for_end(talk);
    }
    (void)gpu->driver().mem_free(memory);
    return {};
}

[[noreturn]] void run_child(int talk, bool same_gpu, std::size_t len_bytes)
{
    const std::string error = lend(talk, same_gpu, len_bytes);
    if (!error.empty()) {
        loan refusal{};
        std::strncpy(refusal.error, error.c_str(), sizeof(refusal.error) - 1);
        if (sizeof(refusal) == write(talk, &refusal, sizeof(refusal))) {
            wait_for_end(talk); // so that it is read before the socket breaks
        }
    }
    _exit(0);
}

} // namespace

std::unique_ptr<lender> lender::start(bool same_gpu, std::size_t len_bytes, std::string *why)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        *why = std::string("socketpair: ") + std::strerror(errno);
        return nullptr;
    }
    (void)std::fflush(stdout);
    const pid_t child = fork();
    if (0 == child) {
        (void)close(ends[0]);
        run_child(ends[1], same_gpu, len_bytes);
    }
    (void)close(ends[1]);
    if (child < 0) {
        *why = std::string("fork: ") + std::strerror(errno);
        (void)close(ends[0]);
        return nullptr;
    }
    std::unique_ptr<lender> started(new lender(child, ends[0]));
    pollfd answer{ends[0], POLLIN, 0};
    if (poll(&answer, 1, patience_ms) != 1 ||
        sizeof(loan) != read(ends[0], &started->offer_, sizeof(loan))) {
        *why = "the process that was to lend memory has not answered";
        return nullptr;
    }
    *why = started->offer_.error;
    return why->empty() ? std::move(started) : nullptr;
}

lender::~lender()
{
    (void)close(talk_);
    const auto until = std::chrono::steady_clock::now() + farewell;
    while (0 == waitpid(child_, nullptr, WNOHANG)) {
        if (std::chrono::steady_clock::now() > until) {
            (void)kill(child_, SIGKILL);
            (void)waitpid(child_, nullptr, 0);
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

} // namespace gpusm::copy_bench
