// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// options.cc: gpusm_perf's command line and its manual.
#include "bench/gpusm_perf/gpusm_perf.h"

#include <getopt.h>

#include <algorithm>
#include <iterator>

namespace gpusm::bench {

namespace {

constexpr std::size_t small_bytes = std::size_t{8} << 10;
constexpr std::size_t large_bytes = std::size_t{8} << 20;
constexpr std::size_t max_gapped_bytes = std::size_t{1} << 30;
constexpr std::size_t max_offset_bytes = std::size_t{1} << 20;
// In check: a message of each protocol, and lengths that are multiples of nothing.
constexpr const char *check_sizes = "0,1,1000,6001,20K,65537,3000001";
// What peer-to-peer benchmarks of GPU libraries print.
constexpr const char *preset_sizes = "256,1K,4K,16K,64K,256K,1M,10M,16M,100M";

std::string parse_sizes(const std::string &text, std::vector<std::size_t> *sizes)
{
    sizes->clear();
    const std::size_t colon = text.find(':');
    std::size_t size = 0;
    std::size_t last = 0;
    if (std::string::npos == colon) {
        for (const std::string &item : split(text)) {
            if (!parse_size(item, &size)) {
                return "bad size '" + item + "' (expected a number of bytes up to 2G - 1, with " +
                       "an optional suffix K, M or G)";
            }
            sizes->push_back(size);
        }
        return {};
    }
    if (!parse_size(text.substr(0, colon), &size) || !parse_size(text.substr(colon + 1), &last) ||
        size > last) {
        return "bad size range '" + text + "' (expected MIN:MAX, for example 8:4M)";
    }
    for (; size <= last; size = 0 == size ? 1 : size * 2) {
        sizes->push_back(size);
    }
    return {};
}

std::string parse_offsets(const std::string &text, options *result)
{
    const std::vector<std::string> items = split(text);
    const bool good =
        2 == items.size() && parse_size(items[0], &result->source_offset) &&
        parse_size(items[1], &result->destination_offset) &&
        std::max(result->source_offset, result->destination_offset) <= max_offset_bytes;
    return good ? std::string()
                : "bad offsets '" + text + "' (expected S,D, two numbers of bytes up to 1M)";
}

std::string parse_gaps(const std::string &text, options *result)
{
    const std::vector<std::string> items = split(text);
    const bool good = 2 == items.size() && parse_size(items[0], &result->source_block) &&
                      parse_size(items[1], &result->destination_block);
    return good ? std::string()
                : "bad gaps '" + text + "' (expected S,D, two numbers of bytes, 0 for none)";
}

// With gaps every size is of whole blocks.
std::string refuse_parts_of_blocks(const options &opt)
{
    for (const std::size_t size : opt.sizes) {
        for (const std::size_t block : {opt.source_block, opt.destination_block}) {
            if (0 != block && 0 != size % block) {
                return "size " + std::to_string(size) + " is not a multiple of the block length " +
                       std::to_string(block);
            }
            if (0 != block && size > max_gapped_bytes) {
                return "with gaps a size may be 1G at most";
            }
        }
    }
    return {};
}

// Letters of kinds: one, or in check any number of them.
std::string settle_kinds(bool many, std::string *letters, memory_kind *kind)
{
    if (letters->empty()) {
        *letters = many ? std::string(all_kinds) : "H";
    }
    for (const char letter : *letters) {
        const auto parsed = parse_kind(std::string_view(&letter, 1));
        if (!parsed || (!many && letters->size() > 1)) {
            return "unknown kind of memory '" + *letters + "' (expected one of " +
                   std::string(all_kinds) + ")";
        }
        *kind = *parsed;
    }
    return {};
}

std::string set_option(int which, const std::string &value, options *result)
{
    struct number {
        int which;
        int options::*member;
        int least;
        int most;
    };
    static constexpr number numbers[] = {{'w', &options::window, 1, 65536},
                                         {'k', &options::kernel_us, 1, 1000000},
                                         {'p', &options::places, 1, 65536},
                                         {'i', &options::iterations, 1, 100000000},
                                         {'x', &options::warmup, 0, 100000000}};
    for (const number &n : numbers) {
        if (n.which == which && !parse_count(value, n.least, n.most, &(result->*n.member))) {
            return "bad value '" + value + "' (expected a number from " + std::to_string(n.least) +
                   " to " + std::to_string(n.most) + ")";
        }
    }
    if ('l' == which && !parse_positive(value, 1e9, &result->link_gb_per_s)) {
        return "bad value '" + value + "' for --link (expected GB/s, above 0)";
    }
    if ('z' == which || 'P' == which) {
        return parse_sizes('P' == which ? preset_sizes : value, &result->sizes);
    }
    if ('g' == which) {
        return parse_gaps(value, result);
    }
    if ('o' == which) {
        return parse_offsets(value, result);
    }
    result->sources = 's' == which ? value : result->sources;
    result->destinations = 'd' == which ? value : result->destinations;
    result->json_path = 'j' == which ? value : result->json_path;
    result->check = result->check || 'c' == which;
    result->limit = result->limit && 'n' != which;
    result->help = 'h' == which;
    return {};
}

} // namespace

int options::iterations_for(std::size_t len_bytes) const
{
    const int large = perf_mode::latency == mode ? 20 : 5;
    return 0 != iterations            ? iterations
           : len_bytes <= small_bytes ? 1000
           : len_bytes < large_bytes  ? 200
                                      : large;
}

int options::warmup_for(std::size_t len_bytes) const
{
    // At the start of a run processors, device and link have been idle for long.
    const int small = sizes.front() == len_bytes ? 1000 : 100;
    return 0 <= warmup                ? warmup
           : len_bytes <= small_bytes ? small
           : len_bytes < large_bytes  ? 20
                                      : 2;
}

std::string parse_options(int argc, char **argv, options *result)
{
    static const option known[] = {
        {"src", 1, nullptr, 's'},        {"dst", 1, nullptr, 'd'},      {"sizes", 1, nullptr, 'z'},
        {"preset", 0, nullptr, 'P'},     {"offset", 1, nullptr, 'o'},   {"gaps", 1, nullptr, 'g'},
        {"window", 1, nullptr, 'w'},     {"places", 1, nullptr, 'p'},   {"check", 0, nullptr, 'c'},
        {"iterations", 1, nullptr, 'i'}, {"warmup", 1, nullptr, 'x'},   {"link", 1, nullptr, 'l'},
        {"kernel", 1, nullptr, 'k'},     {"no-limit", 0, nullptr, 'n'}, {"json", 1, nullptr, 'j'},
        {"help", 0, nullptr, 'h'},       {nullptr, 0, nullptr, 0},
    };
    opterr = 0;
    for (int which; (which = getopt_long(argc, argv, ":ch", known, nullptr)) != -1;) {
        const std::string error = '?' == which || ':' == which
                                      ? refusal(which, argv)
                                      : set_option(which, nullptr == optarg ? "" : optarg, result);
        if (!error.empty() || result->help) {
            return error;
        }
    }
    const std::string mode = optind < argc ? argv[optind] : "";
    const auto *found = std::find(std::begin(mode_names), std::end(mode_names), mode);
    if (optind + 1 != argc || std::end(mode_names) == found) {
        return "expected one mode (latency, bw, bibw, kernels or check), not '" + mode + "'";
    }
    result->mode = static_cast<perf_mode>(found - std::begin(mode_names));
    const bool checks = perf_mode::check == result->mode;
    result->window = perf_mode::kernels == result->mode ? 1 : result->window;
    std::string error = settle_kinds(checks, &result->sources, &result->source);
    if (error.empty()) {
        error = settle_kinds(checks, &result->destinations, &result->destination);
    }
    if (error.empty() && result->sizes.empty()) {
        const std::size_t block = std::max(result->source_block, result->destination_block);
        error = parse_sizes(checks ? check_sizes
                                   : std::to_string(std::max<std::size_t>(block, 1)) + ":4M",
                            &result->sizes);
    }
    if (error.empty()) {
        error = refuse_parts_of_blocks(*result);
    }
    return error;
}

const char *const help_text =
    R"(usage: mpirun -n N gpusm_perf {latency|bw|bibw|kernels|check} [options]

Messages between pairs of ranks, rank i and rank i + N/2, of any kind of memory on either side, and
the bare copies beside them. For collectives, and all that OSU's benchmarks have: bench/compare.

  latency   ping-pong; the time is half of a round trip
  bw        one way: windows of messages, each answered by 4 bytes
  bibw      windows both ways at once
  kernels   a barrier, a kernel of each rank on its device, which the rank waits for, and a message
            each way; the time is of all this, the limit is that without the messages
  check     compares every byte of messages of each protocol, one way, to and fro, and both ways at
            once, for all combinations of kinds, and prints one verdict as its last line

  --src KIND, --dst KIND   memory of the first and of the second rank of a pair (default H; in check
                 any number of letters, default all):
                 H host, pageable              R host, page-locked (cuMemHostAlloc)
                 D device, cuMemAlloc          M managed
                 V VMM, exportable as a file descriptor        W VMM, not exportable
                 A pool, exportable as a file descriptor       P default pool, not exportable
                 C V, in several chunks
  --sizes MIN:MAX or A,B,C   in bytes, suffixes K M G (powers of 1024); a range doubles from MIN
                 (default 1:4M)
  --preset       sizes from 256 to 100M, as peer-to-peer benchmarks of GPU libraries have them
  --offset S,D   add S bytes to the address of all that is sent, D to that of all received
  --gaps S,D     the first rank's messages are of blocks of S bytes, the second rank's of D bytes,
                 each followed by a gap as long (MPI_Type_vector); 0: no gaps. Sizes are without
                 gaps, whole blocks (default then from the longer block on)
  --kernel US    how long the kernels of kernels run (default 50)
  --window N     messages under way at once in bw and bibw (default 64)
  --places N     give a window's messages so many places in each buffer, not one each; 1 is what
                 osu_bw has, where all are sent from one buffer that stays in the caches
  --iterations N, --warmup N   ping-pongs or windows per size (default: by size)
  -c, --check    compare every byte and the guard bytes around each message, after the timed loop
                 and in as many more iterations, not timed, each with contents of its own (up to
                 100, but with --iterations N in N)
  --no-limit     measure neither the limit nor the link
  --link GB/S    what the link carries, not measured; every row is held against it
  --json FILE    also write all of it to FILE

Times are per message, as the slowest rank's clock says: the median, and the mean over the whole
loop, which is what osu_latency, osu_bw and osu_bibw report. GB/s and Gbit/s are of the mean, all
pairs and both ways together. Below is each rank's own view: its mean times, and which way messages
went from and to it (performance variables of btl/gpusm, of all after the first warm-up).

The limit is the bare copy of the same bytes by cuMemcpyAsync or memcpy, as the header says; ratio
is mean / limit. It is no bound, as transports may submit many copies in a cheaper way. The link is
one: the rate of large bare copies. A row more than 5 % above it is a measuring error, or data that
never moved: a line on stderr, and status 1. (Not on a software driver and for managed memory unless
--link is given; within one device only rows that do not fit into its cache.)

status: 0 fine; 1 wrong bytes, or a row above the link; 2 bad usage or missing requirement
)";

} // namespace gpusm::bench
