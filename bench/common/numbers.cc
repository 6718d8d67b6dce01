// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// numbers.cc: parsing of numbers, and their median.
#include "bench/common/numbers.h"

#include <getopt.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace gpusm::bench {

bool parse_size(const std::string &text, std::size_t *bytes)
{
    const std::string suffixes = "KMG";
    const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    if (0 == digits || digits > 12 || text.size() > digits + 1) {
        return false;
    }
    *bytes = std::strtoull(text.c_str(), nullptr, 10);
    if (text.size() > digits) {
        const auto unit = suffixes.find(
            static_cast<char>(std::toupper(static_cast<unsigned char>(text[digits]))));
        if (std::string::npos == unit) {
            return false;
        }
        *bytes <<= 10 * (unit + 1);
    }
    return *bytes <= max_size_bytes;
}

std::string size_text(std::size_t bytes)
{
    constexpr std::size_t kilo = 1024;
    for (const char *suffix : {"", "K", "M"}) {
        if (0 == bytes || bytes % kilo != 0) {
            return std::to_string(bytes) + suffix;
        }
        bytes /= kilo;
    }
    return std::to_string(bytes) + "G";
}

bool parse_count(const std::string &text, int least, int most, int *value)
{
    if (text.empty() || text.size() > 9 ||
        text.find_first_not_of("0123456789") != std::string::npos) {
        return false;
    }
    *value = std::atoi(text.c_str());
    return *value >= least && *value <= most;
}

bool parse_positive(const std::string &text, double most, double *value)
{
    char *end = nullptr;
    if (text.empty() || text.find_first_not_of("0123456789.") != std::string::npos) {
        return false;
    }
    *value = std::strtod(text.c_str(), &end);
    return '\0' == *end && *value > 0 && *value <= most;
}

std::vector<std::string> split(const std::string &text)
{
    std::vector<std::string> items;
    std::size_t begin = 0;
    for (std::size_t comma = text.find(','); comma != std::string::npos;
         comma = text.find(',', begin)) {
        items.push_back(text.substr(begin, comma - begin));
        begin = comma + 1;
    }
    items.push_back(text.substr(begin));
    return items;
}

std::string refusal(int answer, char *const *argv)
{
    const std::string last = argv[optind - 1];
    return ':' == answer ? last + " needs a value" : "unknown option '" + last + "'";
}

double median_of(std::vector<double> values)
{
    if (values.empty()) {
        return 0;
    }
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

} // namespace gpusm::bench
