// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/log.h: how a layer says something. It does not know who listens: the glue installs a sink
// that speaks opal_output, a test installs one that counts.
#ifndef GPUSM_BASE_LOG_H
#define GPUSM_BASE_LOG_H

namespace gpusm {

enum class log_level : int { error = 0, warn = 1, info = 20, debug = 80 };

// Receives one line without a newline. Called from any thread; must not throw.
using log_sink = void (*)(log_level level, const char *line);

// Messages above `threshold` are dropped before they are formatted. A null sink restores
// the default one, which writes errors and warnings to stderr.
void log_install(log_sink sink, log_level threshold) noexcept;

[[gnu::format(printf, 2, 3)]] void log_line(log_level level, const char *format, ...) noexcept;

// While one lives, what this thread would warn of is said at `info`, if it is `on`: something that
// has been said before is tried again.
class log_as_retry {
  public:
    explicit log_as_retry(bool on) noexcept;
    ~log_as_retry();
    log_as_retry(const log_as_retry &) = delete;
    log_as_retry &operator=(const log_as_retry &) = delete;

  private:
    const bool before_;
};

} // namespace gpusm

#endif
