// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange.cc: START HERE. `exchange SUBTEST [options]` under mpirun sends messages between memory
// of every kind and checks every byte. The shell drivers run_*.sh say which subtests run how.
#include "tests/mpi/exchange.h"
#include "tests/mpi/exchange_subtests.h"

#include "bench/common/numbers.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <unistd.h>

namespace gpusm::exchange {

namespace {

constexpr int printed_failures = 5;
constexpr int default_deadline_s = 120;

char current_step[160] = "start";

// Called in a signal handler: only write(2) and _exit(2).
void on_deadline(int)
{
    static const char text[] = "exchange: DEADLINE exceeded at: ";
    (void)!write(STDERR_FILENO, text, sizeof(text) - 1);
    (void)!write(STDERR_FILENO, current_step, strnlen(current_step, sizeof(current_step)));
    (void)!write(STDERR_FILENO, "\n", 1);
    _exit(exit_deadline);
}

// `wanted_s`: what the test takes if all goes well.
void start_deadline(int wanted_s)
{
    const char *text = std::getenv("GPUSM_TEST_DEADLINE");
    const int seconds = nullptr == text ? 0 : std::atoi(text);
    (void)std::signal(SIGALRM, on_deadline);
    (void)alarm(static_cast<unsigned int>(wanted_s + (0 < seconds ? seconds : default_deadline_s)));
}

bool parse(int argc, char **argv, context &c)
{
    const std::vector<std::size_t> usual = {
        0, 1, 16, 255, 256, 4095, 4096, 4097, 65535, (1u << 20) + 1, 64u << 20};
    std::string kinds(bench::all_kinds);
    c.sizes = usual;
    for (int i = 2; i < argc; ++i) {
        const std::string argument = argv[i];
        if ("--allow-errors" == argument) {
            c.allow_errors = true;
            continue;
        }
        if ("--views" == argument) {
            c.views = true;
            continue;
        }
        if (++i == argc) {
            return false;
        }
        const char *const value = argv[i];
        std::size_t most = 0;
        if ("--kinds" == argument) {
            kinds = value;
        } else if ("--max-size" == argument && bench::parse_size(value, &most)) {
            std::erase_if(c.sizes, [&](std::size_t size) { return size > most; });
        } else if ("--rounds" == argument) {
            c.rounds = std::atoi(value);
        } else if ("--seconds" == argument) {
            c.seconds = std::atoi(value);
        } else if ("--killed-after" == argument) {
            c.killed_after_ms = std::atol(value);
        } else if ("--seed" == argument) {
            c.next_seed = std::strtoull(value, nullptr, 10);
        } else if ("--live" == argument) {
            c.live = std::atoi(value);
        } else if ("--fill" == argument) {
            c.fill = value;
        } else if ("--mebibytes" == argument) {
            c.mebibytes = std::strtoul(value, nullptr, 10);
        } else {
            return false;
        }
    }
    for (char letter : kinds) {
        const auto kind = bench::parse_kind(std::string_view(&letter, 1));
        if (!kind) {
            return false;
        }
        c.kinds.push_back(*kind);
    }
    return !c.kinds.empty();
}

// Without MPI: what the shell drivers want to know about the machine.
int print_gpu()
{
    std::string why;
    const auto gpu = device::open(0, &why);
    std::printf("%s\n", nullptr == gpu ? why.c_str() : gpu->name().c_str());
    return nullptr == gpu ? exit_skip : 0;
}

int report(context &c, const char *name)
{
    int mine[2] = {c.failures.load(), c.mpi_errors.load()};
    long messages = c.messages.load();
    int all[2] = {};
    long all_messages = 0;
    at_step("report");
    MPI_Allreduce(mine, all, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&messages, &all_messages, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (0 == c.rank) {
        std::printf("exchange %s: %s, %ld messages checked, %d failures, %d MPI errors\n", name,
                    0 == all[0] && (0 == all[1] || c.allow_errors) ? "passed" : "FAILED",
                    all_messages, all[0], all[1]);
    }
    if (0 != all[0]) {
        return exit_wrong;
    }
    int skip = c.skip_because.empty() ? 0 : 1;
    if (0 != skip) { // before any rank ends: mpirun then ends the others
        std::printf("exchange: skipped: %s\n", c.skip_because.c_str());
        std::fflush(stdout);
    }
    MPI_Allreduce(MPI_IN_PLACE, &skip, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (0 != skip) {
        return exit_skip;
    }
    return 0 != all[1] && !c.allow_errors ? exit_error : 0;
}

int usage()
{
    std::fprintf(stderr,
                 "usage: exchange SUBTEST [--kinds HDMVWACPR] [--max-size BYTES] "
                 "[--allow-errors] [--views] [--rounds N] [--seconds N] [--killed-after MS] "
                 "[--seed N] [--mebibytes N] [--live N] [--fill FOLDER]\n"
                 "subtests: print-gpu");
    for (const subtest &s : subtests) {
        std::fprintf(stderr, " %s", s.name);
    }
    std::fprintf(stderr, "\n");
    return exit_usage;
}

} // namespace

bool context::on_gpu() const
{
    return std::any_of(kinds.begin(), kinds.end(), bench::needs_gpu);
}

bool context::expect(const std::string &error, const std::string &what)
{
    if (error.empty()) {
        return true;
    }
    if (failures.fetch_add(1) < printed_failures) {
        std::fprintf(stderr, "exchange: rank %d: FAILED: %s: %s\n", rank, what.c_str(),
                     error.c_str());
    }
    return false;
}

bool context::expect_true(bool condition, const std::string &what)
{
    return expect(condition ? "" : "not so", what);
}

bool context::mpi(int code, const std::string &what)
{
    if (MPI_SUCCESS == code) {
        return true;
    }
    if (mpi_errors.fetch_add(1) < printed_failures) {
        char text[MPI_MAX_ERROR_STRING] = "";
        int length = 0;
        MPI_Error_string(code, text, &length);
        std::fprintf(stderr, "exchange: rank %d: MPI error: %s: %s\n", rank, what.c_str(), text);
    }
    return false;
}

std::unique_ptr<buffer> context::make(memory_kind kind, std::size_t len_bytes,
                                      std::size_t offset_bytes)
{
    return make_on(gpu.get(), kind, len_bytes, offset_bytes);
}

std::unique_ptr<buffer> context::make_on(const device *on, memory_kind kind, std::size_t len_bytes,
                                         std::size_t offset_bytes)
{
    std::string why;
    auto made = buffer::make(kind, len_bytes, on, &why, offset_bytes);
    if (nullptr == made) {
        std::fprintf(stderr, "exchange: rank %d: %s\n", rank, why.c_str());
        std::exit(exit_wrong);
    }
    return made;
}

void context::use_gpu()
{
    std::string why;
    if (nullptr == gpu) {
        gpu = device::open(bench::local_rank_from_environment(), &why);
    } else {
        why = gpu->make_current();
    }
    if (nullptr == gpu || !why.empty()) {
        std::fprintf(stderr, "exchange: rank %d: no GPU: %s\n", rank, why.c_str());
        std::exit(exit_wrong);
    }
}

void at_step(const std::string &text)
{
    std::strncpy(current_step, text.c_str(), sizeof(current_step) - 1);
}

std::string describe(memory_kind from, memory_kind to, std::size_t len_bytes, const char *how)
{
    return std::string(1, bench::letter_of(from)) + "->" + bench::letter_of(to) + " " +
           std::to_string(len_bytes) + " bytes, " + how;
}

bool context::send(const void *at, std::size_t len_bytes, int to, int tag)
{
    return mpi(MPI_Send(at, static_cast<int>(len_bytes), MPI_BYTE, to, tag, MPI_COMM_WORLD),
               "MPI_Send");
}

bool context::receive(void *at, std::size_t len_bytes, int from, int tag)
{
    return mpi(MPI_Recv(at, static_cast<int>(len_bytes), MPI_BYTE, from, tag, MPI_COMM_WORLD,
                        MPI_STATUS_IGNORE),
               "MPI_Recv");
}

bool context::send_receive(const void *out, std::size_t out_bytes, void *in, std::size_t in_bytes,
                           int peer, int tag)
{
    return mpi(MPI_Sendrecv(out, static_cast<int>(out_bytes), MPI_BYTE, peer, tag, in,
                            static_cast<int>(in_bytes), MPI_BYTE, peer, tag, MPI_COMM_WORLD,
                            MPI_STATUS_IGNORE),
               "MPI_Sendrecv");
}

namespace {

void take_part(const subtest &chosen, context &c)
{
    if (ranks::everyone == chosen.who ||
        (c.rank < 2 && (ranks::pair == chosen.who ||
                        c.expect_true(until_by_get(c), "messages go by get at last")))) {
        chosen.function(c);
    }
}

// mpirun.in preloads Open MPI 6's accelerator/cuda, so that MPI_Finalize ends well
// (docs/upstream/open-mpi-6.md). In a process without that, a spawned one for example, it stays in
// memory like this, where MPI_Init has loaded it.
void keep_accelerator_cuda()
{
#if OMPI_MAJOR_VERSION >= 6
    (void)dlopen("mca_accelerator_cuda.so", RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
#endif
}

int run(int argc, char **argv)
{
    if (2 == argc && 0 == std::strcmp(argv[1], "print-gpu")) {
        return print_gpu();
    }
    context c;
    const subtest *chosen = argc < 2 ? nullptr : find_subtest(argv[1]);
    if (nullptr == chosen || !parse(argc, argv, c)) {
        return usage();
    }
    c.argv = argv;
    start_deadline(c.seconds);
    if (chosen->context_first && c.on_gpu()) {
        c.use_gpu();
    }
    if (frame::own == chosen->around) {
        chosen->function(c);
        return 0 == c.failures && 0 == c.mpi_errors ? 0 : exit_wrong;
    }
    if (frame::finalize_at_exit == chosen->around) {
        // Handlers run in reverse order, and the driver registers its own when it is initialised.
        (void)std::atexit(finalize_at_exit);
    }
    at_step("MPI_Init");
    int provided = MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, chosen->threads, &provided);
    keep_accelerator_cuda();
    MPI_Comm_rank(MPI_COMM_WORLD, &c.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &c.ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int status = exit_usage;
    if (c.ranks < chosen->least_ranks()) {
        std::fprintf(stderr, "exchange: %s needs at least %d ranks\n", chosen->name,
                     chosen->least_ranks());
    } else if (provided < chosen->threads) {
        std::fprintf(stderr, "exchange: this Open MPI lacks the level of threads\n");
        status = exit_skip;
    } else {
        take_part(*chosen, c);
        MPI_Query_thread(&provided);
        c.expect_true(chosen->threads <= provided,
                      "reading the counters leaves MPI its level of threads");
        status = report(c, chosen->name);
    }
    if (frame::usual == chosen->around) {
        at_step("MPI_Finalize");
        MPI_Finalize();
    }
    return status;
}

} // namespace

} // namespace gpusm::exchange

int main(int argc, char **argv)
{
    return gpusm::exchange::run(argc, argv);
}
