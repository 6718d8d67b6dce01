// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// options.cc: parsing of copy_bench's command line.
#include "bench/copy_bench/options.h"

#include "bench/common/option_argument.h"
#include "bench/common/sizes.h"
#include "opal/mca/btl/gpusm/gpu/gather_arguments.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace gpusm::copy_bench {

namespace {

constexpr std::uint32_t most_blocks = 1024;
constexpr double most_seconds = 10;
constexpr const char *default_sizes = "8,64,512,4K,16K,64K,256K,1M,2M,4M,16M";

bool parse_number(const std::string &text, std::uint32_t least, std::uint32_t most,
                  std::uint32_t *value)
{
    if (text.empty() || text.size() > 9) {
        return false;
    }
    for (char c : text) {
        if (0 == std::isdigit(static_cast<unsigned char>(c))) {
            return false;
        }
    }
    *value = static_cast<std::uint32_t>(std::strtoul(text.c_str(), nullptr, 10));
    return *value >= least && *value <= most;
}

// A number in plain decimal notation, more than 0.
bool parse_seconds(const std::string &text, double *value)
{
    if (text.empty() || text.find_first_not_of("0123456789.") != std::string::npos) {
        return false;
    }
    char *end = nullptr;
    *value = std::strtod(text.c_str(), &end);
    return '\0' == *end && *value > 0 && *value <= most_seconds;
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

std::string bad_value(const std::string &option, const std::string &value,
                      const std::string &expected)
{
    return "bad value '" + value + "' for " + option + " (expected " + expected + ")";
}

std::string set_counts(const std::string &option, const std::string &value,
                       std::vector<std::uint32_t> *counts)
{
    counts->clear();
    for (const std::string &item : split(value)) {
        std::uint32_t count = 0;
        if (!parse_number(item, 1, gather_most_copies, &count)) {
            return bad_value(option, item,
                             "numbers from 1 to " + std::to_string(gather_most_copies) +
                                 ", which is what one launch of the kernel takes, and commas");
        }
        counts->push_back(count);
    }
    return {};
}

std::string set_sizes(const std::string &option, const std::string &value,
                      std::vector<std::size_t> *sizes)
{
    sizes->clear();
    for (const std::string &item : split(value)) {
        std::size_t bytes = 0;
        if (!bench::parse_size(item, &bytes) || 0 == bytes || bytes > most_cell_bytes) {
            return bad_value(option, item,
                             "numbers of bytes from 1 to 1G, with an optional suffix K, M or G, "
                             "and commas");
        }
        sizes->push_back(bytes);
    }
    return {};
}

// True when `argument` is an option without a value, which is then set.
bool set_flag(const std::string &argument, options *result)
{
    struct flag {
        const char *name;
        bool options::*member;
    };
    static constexpr flag flags[] = {
        {"-h", &options::help},
        {"--help", &options::help},
        {"--same-gpu", &options::same_gpu},
        {"--markdown", &options::markdown},
        {"--table", &options::cells},
        {"--signals", &options::signals},
        {"--grid", &options::grid},
        {"--host", &options::host},
        {"--busy", &options::busy},
    };
    for (const flag &f : flags) {
        if (argument == f.name) {
            result->*(f.member) = true;
            return true;
        }
    }
    return false;
}

bool takes_value(const std::string &option)
{
    for (const char *name : {"--counts", "--sizes", "--seconds", "--blocks"}) {
        if (option == name) {
            return true;
        }
    }
    return false;
}

std::string set_value(const std::string &option, const std::string &value, options *result)
{
    if ("--counts" == option) {
        return set_counts(option, value, &result->counts);
    }
    if ("--sizes" == option) {
        return set_sizes(option, value, &result->sizes);
    }
    if ("--seconds" == option) {
        return parse_seconds(value, &result->seconds)
                   ? std::string()
                   : bad_value(option, value, "a number above 0, up to 10");
    }
    return parse_number(value, 0, most_blocks, &result->blocks)
               ? std::string()
               : bad_value(option, value, "a number from 0 to " + std::to_string(most_blocks));
}

} // namespace

std::string parse_options(int argc, char *const *argv, options *result)
{
    (void)set_sizes("--sizes", default_sizes, &result->sizes);
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        if (set_flag(argument, result)) {
            continue;
        }
        bench::option_argument given(argument);
        if (!takes_value(given.name)) {
            const bool dashed = !argument.empty() && '-' == argument[0];
            return (dashed ? "unknown option '" : "unexpected argument '") + argument + "'";
        }
        std::string error = given.complete(argc, argv, &i);
        if (error.empty()) {
            error = set_value(given.name, given.value, result);
        }
        if (!error.empty()) {
            return error;
        }
    }
    if (!result->cells && !result->signals && !result->grid && !result->host && !result->busy) {
        result->cells = true;
        result->signals = true;
    }
    if (result->cells && *std::min_element(result->counts.begin(), result->counts.end()) *
                                 *std::min_element(result->sizes.begin(), result->sizes.end()) >
                             most_cell_bytes) {
        return "every combination of --counts and --sizes is more than 1 GiB";
    }
    return {};
}

} // namespace gpusm::copy_bench
