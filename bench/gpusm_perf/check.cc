// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// check.cc: gpusm_perf check: all kinds of memory on either side, in every direction, at lengths of
// every protocol.
#include "bench/gpusm_perf/gpusm_perf.h"

#include <cstdio>

namespace gpusm::bench {

namespace {

constexpr int usual_iterations = 2;
constexpr int check_window = 8;

// Those of the kinds that every rank can allocate; why the others cannot be, in *missing.
std::string available_kinds(const run &r, const std::string &wanted, const std::string &no_device,
                            std::string *missing)
{
    std::string found;
    for (const char letter : wanted) {
        const memory_kind kind = *parse_kind(std::string_view(&letter, 1));
        std::string why = needs_gpu(kind) ? no_device : "";
        if (why.empty()) {
            (void)buffer::make(kind, 1, r.gpu, &why);
        }
        why = agree_on_error(why);
        if (why.empty()) {
            found += letter;
        } else if (std::string::npos == missing->find(letter)) {
            *missing += (missing->empty() ? "" : "; ") + std::string(1, letter) + ": " + why;
        }
    }
    return found;
}

// One combination of kinds and one mode, all sizes. Empty, or what was wrong first.
std::string check_combination(run &r, double *messages)
{
    std::string error = make_buffers(r);
    const int iterations = 0 == r.opt.iterations ? usual_iterations : r.opt.iterations;
    for (const std::size_t len_bytes : r.opt.sizes) {
        std::string mine = error.empty() ? check_bytes(r, len_bytes, iterations) : "";
        if (!mine.empty()) {
            mine = std::string(name_of(r.opt.mode)) + ", " + letter_of(r.opt.source) + " -> " +
                   letter_of(r.opt.destination) + ", " + std::to_string(len_bytes) +
                   " bytes, rank " + std::to_string(r.rank) + ", " + mine;
        }
        error = error.empty() ? agree_on_error(mine) : error;
        *messages += iterations * r.messages() * r.pairs();
    }
    return error;
}

} // namespace

int check_everything(run &r, const std::string &no_device)
{
    std::string missing;
    const std::string sources = available_kinds(r, r.opt.sources, no_device, &missing);
    const std::string destinations = available_kinds(r, r.opt.destinations, no_device, &missing);
    std::string error;
    int combinations = 0;
    double messages = 0;
    r.counters = std::make_unique<path_counters>();
    r.after_warmup = r.counters->read();
    r.opt.window = check_window;
    for (const char source : sources) {
        for (const char destination : destinations) {
            for (const perf_mode mode : {perf_mode::latency, perf_mode::bw, perf_mode::bibw}) {
                r.opt.source = *parse_kind(std::string_view(&source, 1));
                r.opt.destination = *parse_kind(std::string_view(&destination, 1));
                r.opt.mode = mode;
                if (error.empty()) {
                    error = check_combination(r, &messages);
                    ++combinations;
                }
            }
        }
    }
    report about;
    about.paths = gather_paths(r);
    if (0 == r.rank) {
        print_ranks(about);
        if (!missing.empty()) {
            std::printf("not here: %s\n", missing.c_str());
        }
        const bool good = error.empty() && combinations > 0;
        std::printf(
            "check: %s, %d combinations of kinds and directions (%s -> %s), %zu sizes, %.0f "
            "messages, %s\n",
            good ? "OK" : "FAILED", combinations, sources.c_str(), destinations.c_str(),
            r.opt.sizes.size(), messages, good ? "every byte right" : error.c_str());
    }
    return error.empty() && combinations > 0 ? 0 : 1;
}

} // namespace gpusm::bench
