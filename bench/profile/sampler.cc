// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// sampler.cc: libgpusm_profile.so, to be preloaded into the ranks of an MPI program (LD_PRELOAD).
// From each MPI_Barrier to the next MPI_Barrier, MPI_Reduce, MPI_Allreduce or MPI_Finalize, which
// is where benchmarks have their timing loop, a timer interrupts the thread that called MPI_Barrier
// some thousand times a second, and every time the stack is noted. MPI_Finalize writes all of it to
// a file; bench/where turns the files into tables. Needs neither hardware counters nor privileges,
// and is linked to neither MPI nor CUDA.
//
//   GPUSM_PROFILE_OUT        the file is this and ".<rank>"; without it nothing is done
//   GPUSM_PROFILE_HZ         samples per second, 2000 when not given
//   GPUSM_PROFILE_BUFFER_MB  room for stacks, 256 when not given; memory is used as it fills up
#include "bench/profile/stack_walk.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include <dlfcn.h>
#include <mpi.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpusm::profile {

namespace {

constexpr unsigned frames_at_most = 48;
constexpr long nanoseconds = 1000000000;

// All that the handler touches. It runs in the sampled thread only, so nothing here is shared.
struct sampler {
    std::string out;
    long hz = 0;
    std::uint64_t *words = nullptr; // for each sample: its number of frames, then the frames
    std::size_t room_words = 0;
    std::size_t used_words = 0;
    timer_t timer{};
    volatile std::sig_atomic_t running = 0;
    std::uint64_t random = 0x9e3779b97f4a7c15;
    std::uint64_t samples = 0;
    std::uint64_t without_room = 0;
    std::uint64_t cut_walks = 0;
    std::uint64_t lost_walks = 0;
    double wall_s = 0; // of all measured parts together
    double cpu_s = 0;  // likewise, of the sampled thread
    double started_wall_s = 0;
    double started_cpu_s = 0;
};
sampler *the_sampler = nullptr; // null: nothing is to be sampled

double seconds_of(clockid_t clock)
{
    timespec now = {};
    (void)clock_gettime(clock, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / nanoseconds;
}

long number_from(const char *name, long fallback)
{
    const char *text = std::getenv(name);
    const long value = nullptr != text ? std::strtol(text, nullptr, 10) : 0;
    return value > 0 ? value : fallback;
}

// One shot, between half and one and a half periods from now: a constant period could run in step
// with the program. Real time and not the thread's processor time, because the kernel looks at
// timers of the latter only at its tick, a few hundred times a second.
void arm(sampler &s)
{
    s.random ^= s.random << 13;
    s.random ^= s.random >> 7;
    s.random ^= s.random << 17;
    const long period_ns = nanoseconds / s.hz;
    itimerspec when = {};
    when.it_value.tv_nsec =
        period_ns / 2 + static_cast<long>(s.random % static_cast<std::uint64_t>(period_ns));
    (void)timer_settime(s.timer, 0, &when, nullptr);
}

void on_timer(int, siginfo_t *, void *context)
{
    sampler &s = *the_sampler;
    if (0 == s.running) {
        return; // was on its way when the measured part ended
    }
    const int saved_errno = errno;
    ++s.samples;
    if (s.room_words - s.used_words < 1 + frames_at_most) {
        ++s.without_room;
    } else {
        walk_end end = walk_end::lost;
        std::uint64_t *here = s.words + s.used_words;
        static_assert(sizeof(std::uintptr_t) == sizeof(std::uint64_t));
        *here = walk_stack(context, here + 1, frames_at_most, &end);
        s.used_words += 1 + *here;
        s.cut_walks += walk_end::cut == end ? 1 : 0;
        s.lost_walks += walk_end::lost == end ? 1 : 0;
    }
    arm(s);
    errno = saved_errno;
}

bool prepare(sampler &s)
{
    const char *out = std::getenv("GPUSM_PROFILE_OUT");
    if (nullptr == out || '\0' == *out) {
        return false;
    }
    s.out = out;
    s.hz = std::clamp(number_from("GPUSM_PROFILE_HZ", 2000), 2L, 100000L);
    const auto bytes =
        static_cast<std::size_t>(std::min(number_from("GPUSM_PROFILE_BUFFER_MB", 256), 1L << 16))
        << 20;
    void *room = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (MAP_FAILED == room) {
        std::fprintf(stderr, "libgpusm_profile: no memory for the samples: %s\n",
                     std::strerror(errno));
        return false;
    }
    s.words = static_cast<std::uint64_t *>(room);
    s.room_words = bytes / sizeof(std::uint64_t);
    return true;
}

void stop()
{
    if (nullptr == the_sampler || 0 == the_sampler->running) {
        return;
    }
    sampler &s = *the_sampler;
    s.running = 0;
    s.wall_s += seconds_of(CLOCK_MONOTONIC) - s.started_wall_s;
    s.cpu_s += seconds_of(CLOCK_THREAD_CPUTIME_ID) - s.started_cpu_s;
    (void)timer_delete(s.timer);
    end_walks();
}

void start()
{
    static const bool wanted = [] {
        static sampler made;
        the_sampler = prepare(made) ? &made : nullptr;
        return nullptr != the_sampler;
    }();
    if (!wanted) {
        return;
    }
    sampler &s = *the_sampler;
    struct sigaction action = {};
    action.sa_sigaction = on_timer;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGPROF;
    event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
    // The handler stays when sampling stops: a signal may still be on its way.
    if (0 != sigaction(SIGPROF, &action, nullptr) ||
        0 != timer_create(CLOCK_MONOTONIC, &event, &s.timer)) {
        std::fprintf(stderr, "libgpusm_profile: no timer: %s\n", std::strerror(errno));
        the_sampler = nullptr;
        return;
    }
    begin_walks(walk_goal::program);
    s.started_wall_s = seconds_of(CLOCK_MONOTONIC);
    s.started_cpu_s = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    s.running = 1;
    arm(s);
}

// Text, a line each: facts, the modules' places in memory as the kernel tells them, stacks. Written
// while all modules are loaded, for the addresses mean nothing afterwards.
void write_file(const sampler &s)
{
    const char *rank = std::getenv("OMPI_COMM_WORLD_RANK");
    rank = nullptr != rank ? rank : std::getenv("PMIX_RANK");
    const std::string path = s.out + "." + (nullptr != rank ? rank : std::to_string(getpid()));
    std::FILE *file = std::fopen(path.c_str(), "w");
    std::FILE *maps = std::fopen("/proc/self/maps", "r");
    bool written = nullptr != file && nullptr != maps;
    if (written) {
        std::fprintf(file, "hz %ld\nwall_s %.6f\ncpu_s %.6f\nsamples %" PRIu64, s.hz, s.wall_s,
                     s.cpu_s, s.samples);
        std::fprintf(file, "\nwithout_room %" PRIu64 "\ncut_walks %" PRIu64, s.without_room,
                     s.cut_walks);
        std::fprintf(file, "\nlost_walks %" PRIu64 "\n", s.lost_walks);
        char line[4600];
        while (nullptr != std::fgets(line, sizeof(line), maps)) {
            std::fprintf(file, "map %s", line);
        }
        for (std::size_t at = 0; at < s.used_words; at += 1 + s.words[at]) {
            std::fputs("stack", file);
            for (std::uint64_t i = 1; i <= s.words[at]; ++i) {
                std::fprintf(file, " %" PRIx64, s.words[at + i]);
            }
            std::fputc('\n', file);
        }
        written = 0 == std::ferror(file);
    }
    if (nullptr != maps) {
        (void)std::fclose(maps);
    }
    if (nullptr != file && 0 != std::fclose(file)) {
        written = false;
    }
    if (!written) {
        std::fprintf(stderr, "libgpusm_profile: cannot write %s: %s\n", path.c_str(),
                     std::strerror(errno));
    }
}

template <typename Function> Function *next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (nullptr == found) {
        std::fprintf(stderr, "libgpusm_profile: %s: no MPI library behind this one\n", name);
        std::abort();
    }
    return reinterpret_cast<Function *>(found);
}

} // namespace

} // namespace gpusm::profile

// The marks of the measured part.
extern "C" {

int MPI_Barrier(MPI_Comm comm)
{
    using namespace gpusm::profile;
    stop();
    const int result = next<decltype(MPI_Barrier)>("MPI_Barrier")(comm);
    start();
    return result;
}

int MPI_Reduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, int root,
               MPI_Comm comm)
{
    using namespace gpusm::profile;
    stop();
    return next<decltype(MPI_Reduce)>("MPI_Reduce")(from, to, count, type, op, root, comm);
}

int MPI_Allreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm)
{
    using namespace gpusm::profile;
    stop();
    return next<decltype(MPI_Allreduce)>("MPI_Allreduce")(from, to, count, type, op, comm);
}

int MPI_Finalize(void)
{
    using namespace gpusm::profile;
    stop();
    if (nullptr != the_sampler) {
        write_file(*the_sampler);
    }
    return next<decltype(MPI_Finalize)>("MPI_Finalize")();
}

} // extern "C"
