// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/base/log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <utility>

namespace gpusm {

namespace {

constexpr int line_bytes = 1024;

void to_stderr(log_level, const char *line)
{
    std::fprintf(stderr, "gpusm: %s\n", line);
}

std::atomic<log_sink> current_sink{to_stderr};
std::atomic<int> current_threshold{static_cast<int>(log_level::warn)};
thread_local bool current_retry = false;

} // namespace

void log_install(log_sink sink, log_level threshold) noexcept
{
    current_sink.store(sink == nullptr ? to_stderr : sink, std::memory_order_relaxed);
    current_threshold.store(static_cast<int>(threshold), std::memory_order_relaxed);
}

log_as_retry::log_as_retry(bool on) noexcept
    : before_(std::exchange(current_retry, current_retry || on))
{
}

log_as_retry::~log_as_retry()
{
    current_retry = before_;
}

void log_line(log_level level, const char *format, ...) noexcept
{
    if (log_level::warn == level && current_retry) {
        level = log_level::info;
    }
    if (static_cast<int>(level) > current_threshold.load(std::memory_order_relaxed)) {
        return;
    }
    char line[line_bytes];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    current_sink.load(std::memory_order_relaxed)(level, line);
}

} // namespace gpusm
