// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// call.cc: entry checks, forced failures (GPUSM_SOFTCUDA_FAIL), the call log
// (GPUSM_SOFTCUDA_LOG) and cuInit.
#include "call.h"
#include "driver.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

namespace softcuda {

struct forced_answers {
    std::atomic<unsigned long> calls{0};
    std::vector<std::pair<unsigned long, CUresult>> answers; // of which call, from 1 on; 0: of all
};

namespace {

// Never destroyed: calls may come during exit.
auto &forced = *new std::map<std::string, forced_answers>;
// Whose calls are forced, between commas; empty: everybody's.
auto &failing_callers = *new std::string;
std::atomic<int> log_fd{-1};

enum class life { before_init, running, exiting, forked };
std::atomic<life> stage{life::before_init};

void read_faults(const char *text)
{
    std::istringstream all(text);
    for (std::string one; std::getline(all, one, ',');) {
        char name[64];
        unsigned long which = 0;
        int code = 0;
        if (std::sscanf(one.c_str(), "%63[^:]:%lu:%d", name, &which, &code) != 3) {
            std::fprintf(stderr, "softcuda: GPUSM_SOFTCUDA_FAIL: '%s' is not name:n:code\n",
                         one.c_str());
            continue;
        }
        forced[name].answers.emplace_back(which, static_cast<CUresult>(code));
    }
}

void open_log(const std::string &folder)
{
    const std::string path = folder + "/" + std::to_string(getpid()) + ".log";
    log_fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log_fd < 0) {
        std::fprintf(stderr, "softcuda: cannot write the call log %s: %s\n", path.c_str(),
                     std::strerror(errno));
    }
}

void after_fork()
{
    if (stage.load() == life::running) {
        stage.store(life::forked); // the real driver does not survive fork() either
    }
}

// The file name of the shared object or program that has this address.
std::string file_of(const void *caller)
{
    Dl_info info{};
    if (dladdr(caller, &info) == 0 || info.dli_fname == nullptr) {
        return "?";
    }
    const std::string path = info.dli_fname;
    return path.substr(path.rfind('/') + 1);
}

bool is_forced_for(const void *caller)
{
    return failing_callers.empty() ||
           failing_callers.find("," + file_of(caller) + ",") != std::string::npos;
}

bool read_settings()
{
    if (const char *text = std::getenv("GPUSM_SOFTCUDA_FAIL_CALLER")) {
        failing_callers = std::string(",") + text + ",";
    }
    if (const char *text = std::getenv("GPUSM_SOFTCUDA_FAIL")) {
        read_faults(text);
    }
    if (const char *text = std::getenv("GPUSM_SOFTCUDA_LOG"); text != nullptr && *text != 0) {
        mkdir(text, 0755);
        open_log(text);
    }
    pthread_atfork(nullptr, nullptr, after_fork);
    return true;
}

} // namespace

call_site::call_site(const char *symbol)
{
    [[maybe_unused]] static const bool once = read_settings();
    std::snprintf(name, sizeof(name), "%s", symbol);
    const std::size_t len = std::strlen(name);
    if (name[len - 3] == '_' && name[len - 2] == 'v') {
        name[len - 3] = 0;
    }
    const auto found = softcuda::forced.find(name);
    forced = found == softcuda::forced.end() ? nullptr : &found->second;
}

bool enter(call_site &site, need what, CUresult *answer, const void *caller) noexcept
{
    const life now = stage.load(std::memory_order_acquire);
    if (now == life::exiting && what != need::nothing) {
        *answer = CUDA_ERROR_DEINITIALIZED;
        return false;
    }
    if (site.forced != nullptr && is_forced_for(caller)) {
        const unsigned long n = site.forced->calls.fetch_add(1) + 1;
        for (const auto &[which, code] : site.forced->answers) {
            if (which == 0 || which == n) {
                *answer = code;
                return false;
            }
        }
    }
    if (what == need::nothing) {
        return true;
    }
    if (now != life::running) {
        *answer = CUDA_ERROR_NOT_INITIALIZED;
        return false;
    }
    if (what == need::context || what == need::context_uncaptured) {
        *answer = current_context_state();
        if (*answer != CUDA_SUCCESS) {
            return false;
        }
    }
    if (what >= need::init_uncaptured && captures_running.load(std::memory_order_relaxed) != 0 &&
        capture_forbids()) {
        *answer = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        return false;
    }
    return true;
}

void leave(const call_site &site, CUresult answer, const void *caller) noexcept
{
    if (log_fd.load(std::memory_order_relaxed) < 0) {
        return;
    }
    const int kept = errno;
    char line[256];
    const int n = std::snprintf(line, sizeof(line), "%s %d %s\n", site.name,
                                static_cast<int>(answer), file_of(caller).c_str());
    if (write(log_fd, line, static_cast<std::size_t>(n)) < 0) { // one write: one whole line
        log_fd = -1;
    }
    errno = kept;
}

} // namespace softcuda

using namespace softcuda;

SOFTCUDA_API(nothing, cuInit, (unsigned int flags), (flags))
{
    static std::mutex once;
    const std::lock_guard<std::mutex> guard(once);
    REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    switch (stage.load()) {
    case life::running:
        return CUDA_SUCCESS;
    case life::exiting:
        return CUDA_ERROR_DEINITIALIZED;
    case life::forked:
        return CUDA_ERROR_NOT_INITIALIZED;
    case life::before_init:
        break;
    }
    TRY(driver_start());
    stage.store(life::running);
    std::atexit([] {
        if (stage.load() == life::running) {
            stage.store(life::exiting);
        }
    });
    return CUDA_SUCCESS;
}
