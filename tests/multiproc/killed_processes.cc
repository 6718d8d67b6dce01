// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// killed_processes.cc: processes with segments of their own, killed by SIGKILL at random moments:
// the reader still gets everything that the others sent, a killed reader is noticed by those who
// send to it, and files of the dead are swept while those of the living stay.
// The only argument, if any, is the seed of the moments.
#include "opal/mca/btl/gpusm/shm/node.h"

#include "tests/unit/shm_support.h"

#include <cstdio>
#include <map>
#include <set>

#include <csignal>
#include <sys/stat.h>
#include <sys/wait.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

constexpr int deadline_s = 240;
constexpr std::uint32_t steady_messages = 20000;
constexpr std::uint32_t steady_processes = 2; // vpid 1 and 2; the mortal ones count on from 100
constexpr std::uint32_t first_mortal = 100;
constexpr std::uint32_t most_deaths = 150;

segment_options options(const std::string &folder, std::uint32_t vpid)
{
    segment_options made = small_options(folder, vpid);
    made.fifo_slots = 8;
    made.peer_slots = 512;
    return made;
}

std::string text_of(std::uint32_t vpid, std::uint32_t number)
{
    std::string text(8 + number % 200, static_cast<char>('a' + number % 26));
    std::memcpy(text.data(), &vpid, 4);
    std::memcpy(text.data() + 4, &number, 4);
    return text;
}

// A sender's life. With `count` messages it ends when all of them have come back.
void send_all(const std::string &folder, const segment_identity &target, std::uint32_t vpid,
              std::uint32_t count)
{
    node self(make_segment(options(folder, vpid)), false);
    peer &to = *self.add_peer(target, folder);
    std::vector<outgoing> pool(12);
    std::vector<outgoing *> free;
    for (outgoing &each : pool) {
        each = make_fragment(self.own(), std::string(256, 0));
        free.push_back(&each);
    }
    std::uint32_t number = 0;
    while (number < count || !to.idle()) {
        (void)to.flush();
        while (outgoing *back = to.reap()) {
            free.push_back(back);
        }
        if (free.empty() || number == count) {
            (void)usleep(50);
            continue;
        }
        outgoing *next = free.back();
        free.pop_back();
        const std::string text = text_of(vpid, number++);
        next->header->payload_bytes = static_cast<std::uint32_t>(text.size());
        std::memcpy(static_cast<void *>(next->header + 1), text.data(), text.size());
        const status s = to.post(next);
        if (status::ok != s && status::busy != s) {
            std::printf("sender %u cannot post: %s\n", vpid, to_string(s));
            _exit(1);
        }
    }
    // Alive until somebody says otherwise.
    for (;;) {
        (void)pause();
    }
}

class family { // of processes; none of them outlives it
  public:
    ~family()
    {
        while (!alive_.empty()) {
            kill_one(alive_.begin()->first);
        }
    }
    template <typename Body> pid_t start(std::uint32_t vpid, Body &&body)
    {
        const pid_t child = fork();
        if (0 == child) {
            (void)alarm(deadline_s);
            body();
            _exit(0);
        }
        alive_[child] = vpid;
        return child;
    }
    void kill_one(pid_t child)
    {
        (void)kill(child, SIGKILL);
        (void)waitpid(child, nullptr, 0);
        alive_.erase(child);
    }

  private:
    std::map<pid_t, std::uint32_t> alive_;
};

int failures = 0;

void expect(bool right, const char *what)
{
    if (!right) {
        std::printf("wrong: %s\n", what);
        ++failures;
    }
}

int verdict(const char *name)
{
    std::printf("%s: %s\n", 0 == failures ? "PASS" : "FAIL", name);
    return 0 == std::exchange(failures, 0) ? 0 : 1;
}

int the_reader_gets_everything_the_others_sent(unsigned seed)
{
    const scratch_folder folder;
    node self(make_segment(options(folder.path(), 0)), false);
    const segment_identity target = self.own().identity();
    std::mt19937 random(seed);
    std::map<std::uint32_t, std::uint32_t> due; // per sender: the next message
    std::uint32_t steady_received = 0;
    std::uint32_t mortal_received = 0;
    const auto take = [&](peer &from, const frag_header &header, const unsigned char *payload) {
        const std::uint32_t vpid = from.identity().vpid;
        const std::uint32_t number = due[vpid]++;
        expect(payload_of(header, payload) == text_of(vpid, number),
               "a message is lost, doubled, out of order or damaged");
        ++(vpid < first_mortal ? steady_received : mortal_received);
    };

    family children;
    for (std::uint32_t vpid = 1; vpid <= steady_processes; ++vpid) {
        children.start(vpid, [&] { send_all(folder.path(), target, vpid, steady_messages); });
    }
    const deadline end(120);
    std::uint32_t deaths = 0;
    while ((steady_received < steady_processes * steady_messages || deaths < 30) && 0 == failures &&
           !end.over()) {
        if (deaths >= most_deaths) {
            (void)self.poll(64, take);
            continue;
        }
        const std::uint32_t vpid = first_mortal + deaths++;
        const pid_t child =
            children.start(vpid, [&] { send_all(folder.path(), target, vpid, UINT32_MAX); });
        const auto moment =
            std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 4000);
        while (std::chrono::steady_clock::now() < moment) {
            (void)self.poll(3, take);
        }
        children.kill_one(child);
    }
    while (self.poll(64, take) > 0) {
    }
    std::printf("%u deaths, %u messages of the steady, %u of the dead\n", deaths, steady_received,
                mortal_received);
    expect(steady_received == steady_processes * steady_messages,
           "messages of the steady senders are missing");
    expect(mortal_received > 0, "the test kills too early to mean anything");

    std::set<std::string> of_the_living{self.own().path()};
    for (const auto &each : self.peers()) {
        const bool steady = each->identity().vpid < first_mortal;
        expect(each->shared().owner_alive() == steady, "owner_alive is wrong about a sender");
        if (steady) {
            of_the_living.insert(segment_path(folder.path(), each->identity()));
        }
    }
    expect(of_the_living.size() == 1 + steady_processes, "a steady sender is missing");
    const std::size_t before = folder.files();
    const int swept = segment_sweep(folder.path());
    std::printf("%zu files, %d swept\n", before, swept);
    std::size_t living_files = 0;
    for (const std::string &name : files_in(folder.path())) {
        const std::string path = folder.path() + "/" + name;
        living_files += of_the_living.count(path);
        // Killed before the file had a length: the sweep cannot tell it from a newborn one.
        struct stat about {};
        expect(of_the_living.count(path) == 1 ||
                   (0 == stat(path.c_str(), &about) && 0 == about.st_size),
               "a file of the dead is left");
    }
    expect(living_files == of_the_living.size(), "the file of a living process was swept");
    expect(swept > 0, "nothing was swept");
    return verdict("TheReaderGetsEverythingThatLivingProcessesSent");
}

int a_killed_reader_is_noticed(unsigned seed)
{
    const scratch_folder folder;
    node self(make_segment(options(folder.path(), 0)), false);
    std::mt19937 random(seed);
    for (int round = 0; round < 5; ++round) {
        int ends[2] = {-1, -1};
        if (0 != pipe(ends)) {
            std::perror("pipe");
            return 1;
        }
        family children;
        const pid_t reader = children.start(50, [&] {
            node its(make_segment(options(folder.path(), 50)), false);
            (void)!write(ends[1], &its.own().identity(), sizeof(segment_identity));
            for (int taken = 0; taken < round * 3;) {
                taken += its.poll(1, [](peer &, const frag_header &, const unsigned char *) {});
            }
            for (;;) {
                (void)pause();
            }
        });
        segment_identity target{};
        expect(sizeof(target) == read(ends[0], &target, sizeof(target)), "no reader");
        (void)close(ends[0]);
        (void)close(ends[1]);

        peer &to = *self.add_peer(target, folder.path());
        std::deque<outgoing> sent;
        for (int i = 0; i < 40; ++i) {
            sent.push_back(make_fragment(self.own(), "to the dead"));
            const status s = to.post(&sent.back());
            expect(status::ok == s || status::busy == s, "a post to a living reader failed");
        }
        const auto moment =
            std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 20000);
        while (std::chrono::steady_clock::now() < moment) {
            (void)to.flush();
        }
        expect(to.attach() == status::ok && to.shared().owner_alive() && !to.closed(),
               "a living reader was given up");
        children.kill_one(reader);
        expect(!to.shared().owner_alive(), "the reader is dead, but owner_alive says otherwise");
        const deadline end(30);
        while (!to.closed() && !end.over()) {
            (void)to.flush();
        }
        expect(to.closed(), "flush does not notice that the reader is dead");
        for (outgoing &each : sent) {
            expect(to.reap() == &each, "a fragment does not come back from a dead reader");
        }
        expect(to.idle(), "the dead reader still has fragments");
        expect(segment_sweep(folder.path()) == 1, "the dead reader's file is not swept");
    }
    return verdict("AKilledReaderIsNoticedAndGivesEverythingBack");
}

} // namespace

int main(int argc, char **argv)
{
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    (void)alarm(deadline_s);
    log_install([](log_level, const char *) {}, log_level::error);
    const unsigned seed =
        argc > 1 ? static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10)) : 20260101U;
    std::printf("seed %u\n", seed);
    int failed = the_reader_gets_everything_the_others_sent(seed);
    failed += a_killed_reader_is_noticed(seed);
    return 0 == failed ? 0 : 1;
}
