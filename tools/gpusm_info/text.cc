// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "tools/gpusm_info/text.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace gpusm::info {

std::string format(const char *pattern, ...)
{
    std::va_list list;
    va_start(list, pattern);
    char *made = nullptr;
    const int length = vasprintf(&made, pattern, list);
    va_end(list);
    std::string result = length < 0 ? std::string() : std::string(made, std::size_t(length));
    std::free(length < 0 ? nullptr : made);
    return result;
}

std::vector<std::string> split(std::string_view text, char at)
{
    std::vector<std::string> parts;
    for (;;) {
        const std::size_t end = text.find(at);
        parts.emplace_back(text.substr(0, end));
        if (std::string_view::npos == end) {
            return parts;
        }
        text.remove_prefix(end + 1);
    }
}

std::string join(const std::vector<std::string> &parts, const char *between)
{
    std::string all;
    for (const std::string &each : parts) {
        all += all.empty() ? each : between + each;
    }
    return all;
}

bool starts_with(std::string_view text, std::string_view with)
{
    return text.substr(0, with.size()) == with;
}

std::string trim(std::string_view text)
{
    constexpr const char *blanks = " \t\r\n";
    const std::size_t first = text.find_first_not_of(blanks);
    if (std::string_view::npos == first) {
        return {};
    }
    return std::string(text.substr(first, text.find_last_not_of(blanks) - first + 1));
}

std::string unquote(std::string_view text)
{
    const bool quoted = text.size() >= 2 && '"' == text.front() && '"' == text.back();
    return std::string(quoted ? text.substr(1, text.size() - 2) : text);
}

std::optional<std::int64_t> parse_number(const std::string &text)
{
    std::int64_t value = 0;
    const char *end = text.data() + text.size();
    const auto [stop, problem] = std::from_chars(text.data(), end, value);
    return std::errc() == problem && stop == end && !text.empty()
               ? std::optional<std::int64_t>(value)
               : std::nullopt;
}

std::optional<std::string> read_file(const std::string &path)
{
    constexpr std::size_t most_bytes = std::size_t{1} << 20;
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return std::nullopt;
    }
    std::string content;
    char some[4096];
    ssize_t got = 0;
    while (content.size() < most_bytes &&
           ((got = read(fd, some, sizeof(some))) > 0 || (got < 0 && EINTR == errno))) {
        content.append(some, got > 0 ? static_cast<std::size_t>(got) : 0);
    }
    (void)close(fd);
    return got < 0 ? std::nullopt : std::optional<std::string>(content);
}

std::string first_line(const std::string &path)
{
    const std::string content = read_file(path).value_or("");
    return trim(content.substr(0, content.find('\n')));
}

std::optional<std::int64_t> number_in(const std::string &path)
{
    return parse_number(first_line(path));
}

std::string line_of(const std::string &content, std::string_view key)
{
    for (const std::string &line : split(content, '\n')) {
        const std::size_t colon = line.find(':');
        if (std::string::npos != colon && trim(line.substr(0, colon)) == key) {
            return trim(line.substr(colon + 1));
        }
    }
    return {};
}

std::string environment_value(const char *name)
{
    const char *value = std::getenv(name);
    return nullptr == value ? std::string() : std::string(value);
}

std::string bytes_text(std::int64_t bytes)
{
    constexpr const char *units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    auto value = static_cast<double>(bytes);
    int unit = 0;
    while (value >= 1024 && unit < 4) {
        value /= 1024;
        ++unit;
    }
    return format(value < 10 && unit > 0 ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

} // namespace gpusm::info
