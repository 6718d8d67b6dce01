// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// options.cc: parsing of gpusm_perf's command line.
#include "bench/gpusm_perf/options.h"

#include "bench/common/option_argument.h"
#include "bench/common/sizes.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace gpusm::bench {

namespace {

constexpr std::size_t small_bytes = std::size_t{8} << 10;
constexpr std::size_t huge_bytes = std::size_t{8} << 20;
constexpr std::size_t max_offset_bytes = std::size_t{1} << 20;
const std::string mode_list = "latency, bw, bibw, mbw_mr, alltoall or allreduce";

bool parse_count(const std::string &text, int minimum, int maximum, int *value)
{
    if (text.empty() || text.size() > 9) {
        return false;
    }
    for (char c : text) {
        if (0 == std::isdigit(static_cast<unsigned char>(c))) {
            return false;
        }
    }
    *value = std::atoi(text.c_str());
    return *value >= minimum && *value <= maximum;
}

std::string parse_range(const std::string &text, std::size_t colon, std::vector<std::size_t> *sizes)
{
    std::size_t first = 0;
    std::size_t last = 0;
    if (!parse_size(text.substr(0, colon), &first) || !parse_size(text.substr(colon + 1), &last)) {
        return "bad size range '" + text + "' (expected MIN:MAX, for example 8:4M)";
    }
    if (first > last) {
        return "bad size range '" + text + "': the first size is larger than the last";
    }
    for (std::size_t size = first; size <= last; size = 0 == size ? 1 : size * 2) {
        sizes->push_back(size);
    }
    return {};
}

std::string parse_list(const std::string &text, std::vector<std::size_t> *sizes)
{
    std::size_t begin = 0;
    while (begin <= text.size()) {
        std::size_t end = text.find(',', begin);
        if (std::string::npos == end) {
            end = text.size();
        }
        std::size_t size = 0;
        const std::string item = text.substr(begin, end - begin);
        if (!parse_size(item, &size)) {
            return "bad size '" + item + "' (expected a number of bytes up to 2G - 1, with an " +
                   "optional suffix K, M or G)";
        }
        sizes->push_back(size);
        begin = end + 1;
    }
    return {};
}

std::string parse_sizes(const std::string &text, std::vector<std::size_t> *sizes)
{
    sizes->clear();
    const std::size_t colon = text.find(':');
    return std::string::npos == colon ? parse_list(text, sizes) : parse_range(text, colon, sizes);
}

std::string parse_offsets(const std::string &text, options *result)
{
    const std::size_t comma = text.find(',');
    std::size_t source = 0;
    std::size_t destination = 0;
    if (std::string::npos == comma || !parse_size(text.substr(0, comma), &source) ||
        !parse_size(text.substr(comma + 1), &destination) ||
        std::max(source, destination) > max_offset_bytes) {
        return "bad offsets '" + text + "' (expected S,D, two numbers of bytes up to 1M)";
    }
    result->source_offset = source;
    result->destination_offset = destination;
    return {};
}

std::string parse_scale(const std::string &text, double *scale)
{
    char *end = nullptr;
    *scale = std::strtod(text.c_str(), &end);
    return !text.empty() && '\0' == *end && *scale > 0 && *scale <= 1e6
               ? std::string()
               : "bad value '" + text + "' for --link-scale (expected a factor above 0)";
}

bool parse_mode(const std::string &text, perf_mode *mode)
{
    for (perf_mode candidate : {perf_mode::latency, perf_mode::bw, perf_mode::bibw,
                                perf_mode::mbw_mr, perf_mode::alltoall, perf_mode::allreduce}) {
        if (text == name_of(candidate)) {
            *mode = candidate;
            return true;
        }
    }
    return false;
}

std::string set_kind(const std::string &option, const std::string &value, memory_kind *kind)
{
    const auto parsed = parse_kind(value);
    if (!parsed) {
        return "unknown memory kind '" + value + "' for " + option +
               " (expected D, H, M, V, W, A, C or P)";
    }
    *kind = *parsed;
    return {};
}

std::string set_count(const std::string &option, const std::string &value, int minimum, int maximum,
                      int *count)
{
    if (!parse_count(value, minimum, maximum, count)) {
        return "bad value '" + value + "' for " + option + " (expected a number from " +
               std::to_string(minimum) + " to " + std::to_string(maximum) + ")";
    }
    return {};
}

// True when `argument` is a flag without a value, which is then set.
bool set_flag(const std::string &argument, options *result)
{
    struct flag {
        const char *name;
        bool options::*member;
        bool value;
    };
    static constexpr flag flags[] = {
        {"-c", &options::check, true},
        {"--check", &options::check, true},
        {"--no-limit", &options::limit, false},
        {"--late-cuda", &options::late_cuda, true},
    };
    for (const flag &f : flags) {
        if (argument == f.name) {
            result->*(f.member) = f.value;
            return true;
        }
    }
    return false;
}

std::string set_value(const std::string &option, const std::string &value, options *result)
{
    if ("--src" == option) {
        return set_kind(option, value, &result->source);
    }
    if ("--dst" == option) {
        return set_kind(option, value, &result->destination);
    }
    if ("--sizes" == option) {
        return parse_sizes(value, &result->sizes);
    }
    if ("--offset" == option) {
        return parse_offsets(value, result);
    }
    if ("--link-scale" == option) {
        return parse_scale(value, &result->link_scale);
    }
    if ("--window" == option) {
        return set_count(option, value, 1, 65536, &result->window);
    }
    if ("--places" == option) {
        return set_count(option, value, 1, 65536, &result->places);
    }
    if ("--blocks" == option) {
        return set_count(option, value, 1, 1 << 20, &result->block_bytes);
    }
    if ("--iterations" == option) {
        return set_count(option, value, 1, 100000000, &result->iterations);
    }
    if ("--warmup" == option) {
        return set_count(option, value, 0, 100000000, &result->warmup);
    }
    if ("--repeat" == option) {
        return set_count(option, value, 1, 1000, &result->repeat);
    }
    if ("--nccl" == option) {
        result->nccl = value;
        return value.empty() ? "--nccl needs a library, such as libnccl.so.2" : std::string();
    }
    if ("--json" == option) {
        result->json_path = value;
        return value.empty() ? "--json needs a file name" : std::string();
    }
    return "unknown option '" + option + "'";
}

bool takes_value(const std::string &option)
{
    for (const char *name :
         {"--src", "--dst", "--sizes", "--window", "--places", "--blocks", "--iterations",
          "--warmup", "--repeat", "--json", "--nccl", "--offset", "--link-scale"}) {
        if (option == name) {
            return true;
        }
    }
    return false;
}

// What holds in allreduce only: it adds floats, and there is no bare copy to compare it with.
std::string settle_allreduce(options *result)
{
    result->limit = false;
    for (std::size_t len_bytes : result->sizes) {
        if (0 != len_bytes % sizeof(float)) {
            return "allreduce adds floats: its sizes are multiples of 4, and " +
                   std::to_string(len_bytes) + " is not";
        }
    }
    if (0 != result->source_offset % alignof(float) ||
        0 != result->destination_offset % alignof(float)) {
        return "allreduce adds floats: its offsets are multiples of 4";
    }
    return {};
}

} // namespace

const char *name_of(perf_mode mode)
{
    switch (mode) {
    case perf_mode::latency:
        return "latency";
    case perf_mode::bw:
        return "bw";
    case perf_mode::bibw:
        return "bibw";
    case perf_mode::mbw_mr:
        return "mbw_mr";
    case perf_mode::alltoall:
        return "alltoall";
    case perf_mode::allreduce:
        return "allreduce";
    }
    return "?";
}

std::size_t options::extent_of(std::size_t len_bytes) const
{
    const auto block = static_cast<std::size_t>(block_bytes);
    return 0 == block || 0 == len_bytes ? len_bytes : len_bytes + (len_bytes - 1) / block * block;
}

int options::iterations_for(std::size_t len_bytes) const
{
    if (0 != iterations) {
        return iterations;
    }
    // A hundred windows of small messages are over in a few milliseconds, in which processors and
    // caches are still warming up. Making and comparing content takes longer than sending it.
    if (len_bytes <= small_bytes) {
        return is_bandwidth() && check ? 100 : 1000;
    }
    if (len_bytes < huge_bytes) {
        return is_bandwidth() && check ? 20 : 200;
    }
    return is_bandwidth() ? 5 : 20;
}

int options::warmup_for(std::size_t len_bytes) const
{
    if (0 <= warmup) {
        return warmup;
    }
    if (len_bytes <= small_bytes) {
        // At the start of a run processors, device and link have been idle for long.
        constexpr int at_first = 10;
        const bool first = !sizes.empty() && sizes.front() == len_bytes;
        return (is_bandwidth() && check ? 10 : 100) * (first ? at_first : 1);
    }
    if (len_bytes < huge_bytes) {
        return is_bandwidth() && check ? 3 : 20;
    }
    return is_bandwidth() ? 1 : 3;
}

std::string parse_options(int argc, char *const *argv, options *result)
{
    bool have_mode = false;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        if ("-h" == argument || "--help" == argument) {
            result->help = true;
            return {};
        }
        if (set_flag(argument, result)) {
            continue;
        }
        if ('-' != argument[0]) {
            if (have_mode) {
                return "unexpected argument '" + argument + "'";
            }
            if (!parse_mode(argument, &result->mode)) {
                return "unknown mode '" + argument + "' (expected " + mode_list + ")";
            }
            have_mode = true;
            continue;
        }
        option_argument given(argument);
        if (!takes_value(given.name)) {
            return "unknown option '" + given.name + "'";
        }
        std::string error = given.complete(argc, argv, &i);
        if (error.empty()) {
            error = set_value(given.name, given.value, result);
        }
        if (!error.empty()) {
            return error;
        }
    }
    if (!have_mode) {
        return "no mode given (expected " + mode_list + ")";
    }
    if (!result->nccl.empty() && !(is_gpu(result->source) && is_gpu(result->destination))) {
        return "--nccl sends device memory only: choose --src and --dst so";
    }
    if (result->block_bytes > 0 && (!result->is_pairwise() || !result->nccl.empty())) {
        return "--blocks is for MPI between pairs of ranks: not for alltoall, allreduce, --nccl";
    }
    const bool adds = perf_mode::allreduce == result->mode;
    if (result->sizes.empty()) {
        (void)parse_sizes(adds ? "4:4M" : "1:4M", &result->sizes);
    }
    return adds ? settle_allreduce(result) : std::string();
}

} // namespace gpusm::bench
