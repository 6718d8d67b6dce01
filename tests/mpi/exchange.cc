// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange.cc: START HERE. `exchange SUBTEST [options]` under mpirun sends messages between memory
// of every kind and checks every byte. The shell drivers run_*.sh say which subtests run how.
#include "tests/mpi/exchange.h"

#include "bench/common/numbers.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

void start_deadline()
{
    const char *text = std::getenv("GPUSM_TEST_DEADLINE");
    const int seconds = nullptr == text ? 0 : std::atoi(text);
    (void)std::signal(SIGALRM, on_deadline);
    (void)alarm(static_cast<unsigned int>(0 < seconds ? seconds : default_deadline_s));
}

struct subtest {
    const char *name;
    void (*function)(context &);
    int least_ranks;
    bool context_first; // make the CUDA context before MPI_Init, as stock btl/smcuda needs it
    int threads = MPI_THREAD_SINGLE; // the level that it needs
    bool finalize_at_exit = false;   // MPI_Finalize comes when the CUDA driver has ended
};

constexpr subtest subtests[] = {
    {"pairs", test_pairs, 2, true},
    {"gather", test_gather, 2, true},
    {"gather-from-host", test_gather_from_host, 2, true},
    {"behind-end", test_behind_end, 2, true},
    {"alltoall", test_alltoall, 1, true},
    {"any-source", test_any_source, 2, true},
    {"unexpected", test_unexpected, 2, true},
    {"many", test_many, 2, true},
    {"truncation", test_truncation, 2, true},
    {"self", test_self, 1, true},
    {"datatypes", test_datatypes, 2, true},
    {"counters", test_counters, 2, true},
    {"ways", test_ways, 2, true},
    {"late", test_late, 2, false},
    {"late-pairs", test_pairs, 2, false},
    {"reallocate", test_reallocate, 2, true},
    {"persistent", test_persistent, 2, true},
    {"context-ends", test_context_ends, 2, true},
    {"context-lost", test_context_lost, 2, true},
    {"life", test_life, 2, true},
    {"many-small", test_many_small, 2, true},
    {"idle-mapping", test_idle_mapping, 2, true},
    {"reuse", test_reuse, 2, true},
    {"cooperative-late", test_cooperative_late, 2, false},
    {"locked", test_locked, 2, true},
    {"locked-one-way", test_locked_one_way, 2, true},
    {"locked-in-part", test_locked_in_part, 2, true},
    {"locked-later", test_locked_later, 2, true},
    {"locked-life", test_locked_life, 2, true},
    {"threads-without-context", test_threads_without_context, 2, true, MPI_THREAD_MULTIPLE},
    {"context-switched", test_context_switched, 2, true},
    {"host-context-destroyed", test_host_context_destroyed, 2, true},
    {"device-switched", test_device_switched, 2, true},
    {"two-devices", test_two_devices, 2, true},
    {"never", test_never, 2, false},
    {"elsewhere", test_elsewhere, 2, true},
    {"capture", test_capture, 2, true, MPI_THREAD_FUNNELED},
    {"foreign", test_foreign, 2, true},
    {"context-destroyed", test_context_destroyed, 2, true},
    {"primary-reset", test_primary_reset, 2, true},
    {"primary-released", test_primary_released, 2, true},
    {"primary-renewed", test_primary_renewed, 2, true},
    {"primary-again", test_primary_again, 2, true},
    {"finalize-at-exit", test_finalize_at_exit, 2, false, MPI_THREAD_SINGLE, true},
    {"threads", test_threads, 2, true, MPI_THREAD_MULTIPLE},
    {"spawn", test_spawn, 1, true},
    {"spawned-child", spawned_child, 1, true},
    {"killed", test_killed, 2, true},
};

const subtest *find_subtest(const char *name)
{
    for (const subtest &candidate : subtests) {
        if (0 == std::strcmp(candidate.name, name)) {
            return &candidate;
        }
    }
    return nullptr;
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
        } else if ("--kinds" == argument && i + 1 < argc) {
            kinds = argv[++i];
        } else if ("--max-size" == argument && i + 1 < argc) {
            std::size_t most = 0;
            if (!bench::parse_size(argv[++i], &most)) {
                return false;
            }
            std::erase_if(c.sizes, [&](std::size_t size) { return size > most; });
        } else if ("--rounds" == argument && i + 1 < argc) {
            c.rounds = std::atoi(argv[++i]);
        } else if ("--live" == argument && i + 1 < argc) {
            c.live = std::atoi(argv[++i]);
        } else if ("--mebibytes" == argument && i + 1 < argc) {
            c.mebibytes = std::strtoul(argv[++i], nullptr, 10);
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
    (void)MPI_Allreduce(mine, all, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    (void)MPI_Allreduce(&messages, &all_messages, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (0 == c.rank) {
        std::printf("exchange %s: %s, %ld messages checked, %d failures, %d MPI errors\n", name,
                    0 == all[0] && (0 == all[1] || c.allow_errors) ? "passed" : "FAILED",
                    all_messages, all[0], all[1]);
    }
    if (0 != all[0]) {
        return exit_wrong;
    }
    int skip = c.skip_because.empty() ? 0 : 1;
    (void)MPI_Allreduce(MPI_IN_PLACE, &skip, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (0 != skip) {
        if (!c.skip_because.empty()) {
            std::printf("exchange: skipped: %s\n", c.skip_because.c_str());
        }
        return exit_skip;
    }
    return 0 != all[1] && !c.allow_errors ? exit_error : 0;
}

int usage()
{
    std::fprintf(stderr,
                 "usage: exchange SUBTEST [--kinds HDMVWACPR] [--max-size BYTES] "
                 "[--allow-errors] [--rounds N] [--mebibytes N] [--live N]\nsubtests: print-gpu");
    for (const subtest &s : subtests) {
        std::fprintf(stderr, " %s", s.name);
    }
    std::fprintf(stderr, "\n");
    return exit_usage;
}

} // namespace

bool context::on_gpu() const
{
    for (memory_kind kind : kinds) {
        if (bench::needs_gpu(kind)) {
            return true;
        }
    }
    return false;
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
        (void)MPI_Error_string(code, text, &length);
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

namespace {

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
    start_deadline();
    if (chosen->context_first && c.on_gpu()) {
        c.use_gpu();
    }
    if (chosen->finalize_at_exit) {
        // Handlers run in reverse order, and the driver registers its own when it is initialised.
        (void)std::atexit(finalize_at_exit);
    }
    at_step("MPI_Init");
    int provided = MPI_THREAD_SINGLE;
    (void)MPI_Init_thread(&argc, &argv, chosen->threads, &provided);
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &c.rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &c.ranks);
    (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int status = exit_usage;
    if (c.ranks < chosen->least_ranks) {
        std::fprintf(stderr, "exchange: %s needs at least %d ranks\n", chosen->name,
                     chosen->least_ranks);
    } else if (provided < chosen->threads) {
        std::fprintf(stderr, "exchange: this Open MPI lacks the level of threads\n");
        status = exit_skip;
    } else {
        chosen->function(c);
        (void)MPI_Query_thread(&provided);
        (void)c.expect_true(chosen->threads <= provided,
                            "reading the counters leaves MPI its level of threads");
        status = report(c, chosen->name);
    }
    if (!chosen->finalize_at_exit) {
        at_step("MPI_Finalize");
        (void)MPI_Finalize();
    }
    return status;
}

} // namespace

} // namespace gpusm::exchange

int main(int argc, char **argv)
{
    return gpusm::exchange::run(argc, argv);
}
