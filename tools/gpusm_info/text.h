// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// text.h: strings, small files of the kernel and lists, as all parts of gpusm_info need them.
#ifndef GPUSM_INFO_TEXT_H
#define GPUSM_INFO_TEXT_H

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpusm::info {

[[gnu::format(printf, 1, 2)]] std::string format(const char *pattern, ...);

std::vector<std::string> split(std::string_view text, char at);
std::string join(const std::vector<std::string> &parts, const char *between);
bool starts_with(std::string_view text, std::string_view with);
std::string trim(std::string_view text);
// Without a pair of quotation marks around it.
std::string unquote(std::string_view text);

// The whole text is one number.
std::optional<std::int64_t> parse_number(const std::string &text);

// The content of a file; no value where it cannot be read. At most a MiB.
std::optional<std::string> read_file(const std::string &path);
// Its first line, without blanks at the ends; empty where it cannot be read.
std::string first_line(const std::string &path);
std::optional<std::int64_t> number_in(const std::string &path);
// What stands behind `key` and a colon in a file of such lines.
std::string line_of(const std::string &content, std::string_view key);

std::string environment_value(const char *name); // empty: not set
std::string bytes_text(std::int64_t bytes);      // "64 MiB"

} // namespace gpusm::info

#endif
