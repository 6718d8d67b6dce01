// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// main.cc: START HERE. gpusm_info prints a page about this machine and its Open MPI for a bug
// report. It is no MPI program, so that it works where MPI_Init does not. `gpusm_info --help` is
// the manual.
#include "tools/gpusm_info/facts.h"
#include "tools/gpusm_info/text.h"
#include "tools/gpusm_info/wire.h"

#include <cuda.h>
#include <getopt.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace gpusm::info {

namespace {

constexpr int exit_not_written = 1;
constexpr int exit_usage = 2;

constexpr const char *help_text =
    R"(usage: gpusm_info [options]

Prints a page for a bug report: this machine, its Open MPI, its devices, what two processes can
share, limits, and findings, which say what to do. Needs neither mpirun nor a device. In a job,

    mpirun -n 4 gpusm_info

it is asked with the job's settings and number of ranks; the first rank of each node prints.

  --json         JSON, as docs/gpusm_info.schema.json describes it
  --no-tries     start no processes that share memory; the devices are only listed
  --every-rank   in a job every rank prints a page
  --timeout S    wait for ompi_info, and for the driver, S seconds at most (default 60)
  --help         this text

What is tried: each kind of memory on each of the first 8 devices is opened by another process on
each of them, read and written; that takes about 1 GiB of a device for a few seconds.

status: 0 the page is written, whatever it says; 1 it could not be written; 2 bad usage
)";

// Empty, or what is wrong.
std::string parse_options(int argc, char **argv, options *out)
{
    static const option known[] = {
        {"json", 0, nullptr, 'j'},       {"no-tries", 0, nullptr, 'n'},
        {"every-rank", 0, nullptr, 'e'}, {"timeout", 1, nullptr, 't'},
        {"help", 0, nullptr, 'h'},       {nullptr, 0, nullptr, 0},
    };
    constexpr std::int64_t most_s = 3600;
    opterr = 0;
    for (int which; (which = getopt_long(argc, argv, ":h", known, nullptr)) != -1;) {
        const std::string word = argv[std::max(1, optind - 1)];
        if ('?' == which) {
            return "unknown option " + word;
        }
        if (':' == which) {
            return "option " + word + " needs a value";
        }
        if ('t' == which) {
            const number value = parse_number(optarg);
            if (!value || *value < 1 || *value > most_s) {
                return format("bad value '%s' for --timeout (expected seconds, 1 to 3600)", optarg);
            }
            out->timeout_s = static_cast<int>(*value);
        }
        out->json = out->json || 'j' == which;
        out->tries = out->tries && 'n' != which;
        out->every_rank = out->every_rank || 'e' == which;
        out->help = out->help || 'h' == which;
    }
    return optind < argc ? std::string("unexpected argument ") + argv[optind] : "";
}

void gather(const options &wanted, facts *out)
{
    out->host = look_at_host();
    out->namespaces = look_at_namespaces();
    out->environment = look_at_environment();
    out->job = look_at_job();
    out->openmpi = ask_openmpi(wanted.timeout_s);
    const setting *folder = out->openmpi.find_setting("btl_gpusm_backing_directory");
    out->limits = look_at_limits(nullptr == folder ? "" : folder->value);
    ask_devices(wanted, out);
    find_problems(out);
}

} // namespace

std::string cuda_text(std::int64_t version)
{
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string built_with_cuda()
{
    return cuda_text(CUDA_VERSION);
}

std::string pairs_text(const facts &all, const std::string &pairs)
{
    constexpr std::int64_t few = 4;
    const std::int64_t devices = all.tries.devices;
    const bool each =
        devices * devices > few && std::count(pairs.begin(), pairs.end(), ' ') == devices * devices;
    return each ? "all pairs of devices 0 to " + std::to_string(devices - 1) : "devices" + pairs;
}

const char *severity_name(severity level)
{
    switch (level) {
    case severity::note:
        return "note";
    case severity::warning:
        return "warning";
    case severity::error:
        return "error";
    }
    return "";
}

} // namespace gpusm::info

int main(int argc, char **argv)
{
    using namespace gpusm::info;
    if (argc > 2 && 0 == std::strcmp(argv[1], owner_role)) {
        return be_owner(0 == std::strcmp(argv[2], "1"));
    }
    if (argc > 1 && 0 == std::strcmp(argv[1], peer_role)) {
        return be_peer();
    }
    options wanted;
    const std::string wrong = parse_options(argc, argv, &wanted);
    const bool silent = !wanted.every_rank && look_at_job().local_rank.value_or(0) != 0;
    if (!wrong.empty()) {
        if (!silent) {
            std::fprintf(stderr, "gpusm_info: %s; see gpusm_info --help\n", wrong.c_str());
        }
        return exit_usage;
    }
    if (silent) {
        return 0;
    }
    if (wanted.help) {
        (void)std::fputs(help_text, stdout);
    } else {
        facts all;
        gather(wanted, &all);
        if (wanted.json) {
            print_json(all);
        } else {
            print_text(all);
        }
    }
    if (0 != std::fflush(stdout) || 0 != std::ferror(stdout)) {
        std::perror("gpusm_info: the page could not be written");
        return exit_not_written;
    }
    return 0;
}
