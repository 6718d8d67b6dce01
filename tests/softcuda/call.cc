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

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

namespace softcuda {

std::atomic<bool> log_on{false};

struct fault {
    std::string name;    // public name of the function
    unsigned long which; // 1-based; 0 = every call
    CUresult code;
    fault *next = nullptr; // more faults of the same function
    std::atomic<unsigned long> seen{0};
};

namespace {

std::once_flag settings_read;
std::vector<fault *> faults; // filled once, never freed: calls may come during exit
std::mutex site_lock;
std::string log_dir;
int log_fd = -1;

enum class life { before_init, running, exiting, forked };
std::atomic<life> stage{life::before_init};

void read_faults(const char *text)
{
    std::string all = text;
    std::size_t from = 0;
    while (from < all.size()) {
        std::size_t to = all.find(',', from);
        std::string one = all.substr(from, to == std::string::npos ? to : to - from);
        std::size_t a = one.find(':');
        std::size_t b = a == std::string::npos ? a : one.find(':', a + 1);
        if (b == std::string::npos) {
            std::fprintf(stderr, "softcuda: GPUSM_SOFTCUDA_FAIL: '%s' is not name:n:code\n",
                         one.c_str());
        } else {
            char plain[96];
            base_name(one.substr(0, a).c_str(), plain, sizeof(plain));
            auto *f = new fault;
            f->name = plain;
            f->which = std::strtoul(one.c_str() + a + 1, nullptr, 10);
            f->code = static_cast<CUresult>(std::strtol(one.c_str() + b + 1, nullptr, 10));
            faults.push_back(f);
        }
        if (to == std::string::npos) {
            break;
        }
        from = to + 1;
    }
}

void open_log()
{
    std::string path = log_dir + "/" + std::to_string(getpid()) + ".log";
    log_fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log_fd < 0) {
        std::fprintf(stderr, "softcuda: cannot write the call log %s: %s\n", path.c_str(),
                     std::strerror(errno));
    }
    log_on.store(log_fd >= 0);
}

void after_fork()
{
    if (stage.load() == life::running) {
        stage.store(life::forked); // the real driver does not survive fork() either
    }
    if (log_fd >= 0) {
        close(log_fd);
        open_log();
    }
}

void read_settings()
{
    if (const char *text = std::getenv("GPUSM_SOFTCUDA_FAIL")) {
        read_faults(text);
    }
    if (const char *text = std::getenv("GPUSM_SOFTCUDA_LOG"); text != nullptr && *text != 0) {
        log_dir = text;
        mkdir(text, 0755);
        open_log();
    }
    pthread_atfork(nullptr, nullptr, after_fork);
}

// The faults of one function hang together as a list, so that one call counts for all.
void look_up(call_site &site)
{
    std::lock_guard<std::mutex> hold(site_lock);
    if (site.looked_up.load(std::memory_order_relaxed)) {
        return;
    }
    char plain[96];
    base_name(site.symbol, plain, sizeof(plain));
    fault *first = nullptr;
    for (fault *f : faults) {
        if (f->name == plain) {
            if (first == nullptr) {
                first = f;
            } else if (f != first) {
                fault *last = first;
                while (last->next != nullptr && last != f) {
                    last = last->next;
                }
                if (last != f) {
                    last->next = f;
                }
            }
        }
    }
    site.forced = first;
    site.capture_unsafe = capture_unsafe(plain);
    site.looked_up.store(true, std::memory_order_release);
}

void at_exit()
{
    if (stage.load() == life::running) {
        stage.store(life::exiting);
        driver_exit();
    }
}

} // namespace

void base_name(const char *symbol, char *out, unsigned long out_bytes) noexcept
{
    std::snprintf(out, out_bytes, "%s", symbol);
    std::size_t len = std::strlen(out);
    for (const char *suffix : {"_ptsz", "_ptds"}) {
        if (len > 5 && std::strcmp(out + len - 5, suffix) == 0) {
            out[len -= 5] = 0;
        }
    }
    if (len > 3 && out[len - 3] == '_' && out[len - 2] == 'v' && out[len - 1] >= '0' &&
        out[len - 1] <= '9') {
        out[len - 3] = 0;
    }
}

bool enter(call_site &site, need what, CUresult *answer) noexcept
{
    std::call_once(settings_read, read_settings);
    life now = stage.load(std::memory_order_acquire);
    if (now == life::exiting && what != need::nothing) {
        *answer = CUDA_ERROR_DEINITIALIZED;
        return false;
    }
    if (!site.looked_up.load(std::memory_order_acquire)) {
        look_up(site);
    }
    if (site.forced != nullptr) {
        unsigned long n = site.forced->seen.fetch_add(1) + 1;
        for (const fault *f = site.forced; f != nullptr; f = f->next) {
            if (f->which == 0 || f->which == n) {
                *answer = f->code;
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
    if (what == need::context) {
        *answer = current_context_state();
        if (*answer != CUDA_SUCCESS) {
            return false;
        }
    }
    if (captures_running.load(std::memory_order_relaxed) != 0 && site.capture_unsafe &&
        capture_forbids()) {
        *answer = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        return false;
    }
    return true;
}

void leave(const call_site &site, CUresult answer, const void *caller) noexcept
{
    Dl_info info{};
    const char *file = "?";
    if (dladdr(caller, &info) != 0 && info.dli_fname != nullptr) {
        const char *slash = std::strrchr(info.dli_fname, '/');
        file = slash != nullptr ? slash + 1 : info.dli_fname;
    }
    char plain[96];
    char line[256];
    base_name(site.symbol, plain, sizeof(plain));
    int n = std::snprintf(line, sizeof(line), "%s %d %s\n", plain, static_cast<int>(answer), file);
    int kept = errno;
    if (write(log_fd, line, static_cast<std::size_t>(n)) < 0) { // one write: one whole line
        log_on.store(false);
    }
    errno = kept;
}

} // namespace softcuda

using namespace softcuda;

SOFTCUDA_API(nothing, cuInit, (unsigned int flags), (flags))
{
    static std::mutex once;
    std::lock_guard<std::mutex> hold(once);
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
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
    CUresult answer = driver_start();
    if (answer == CUDA_SUCCESS) {
        stage.store(life::running);
        std::atexit(at_exit);
    }
    return answer;
}
