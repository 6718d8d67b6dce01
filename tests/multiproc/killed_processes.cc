// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// killed_processes.cc: processes with segments of their own, killed by SIGKILL at random moments:
// the reader still gets everything that the others sent, a killed reader is noticed by those who
// send to it, and files of the dead are swept while those of the living stay.
#include "opal/mca/common/gpusm/shm/node.h"

#include "tests/unit/shm_support.h"

#include <cstdio>
#include <map>
#include <set>

#include <csignal>
#include <sys/stat.h>
#include <sys/wait.h>

#include <gtest/gtest.h>

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
    node self(make_segment(options(folder, vpid)));
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
            kill_one(*alive_.begin());
        }
    }
    template <typename Body> pid_t start(Body &&body)
    {
        const pid_t child = fork();
        if (0 == child) {
            (void)alarm(deadline_s);
            body();
            _exit(0);
        }
        alive_.insert(child);
        return child;
    }
    void kill_one(pid_t child)
    {
        (void)kill(child, SIGKILL);
        (void)waitpid(child, nullptr, 0);
        alive_.erase(child);
    }

  private:
    std::set<pid_t> alive_;
};

// Calls so long as it takes until a moment within the next `most` microseconds.
template <typename Call> void until_some_moment(std::uint64_t some, unsigned most, Call &&call)
{
    const auto moment = std::chrono::steady_clock::now() + std::chrono::microseconds(some % most);
    while (std::chrono::steady_clock::now() < moment) {
        call();
    }
}

TEST(KilledProcesses, TheReaderGetsEverythingThatLivingProcessesSent)
{
    (void)alarm(deadline_s);
    const log_capture log;
    const scratch_folder folder;
    node self(make_segment(options(folder.path(), 0)));
    const segment_identity target = self.own().identity();
    std::mt19937_64 random(any_seed());
    std::map<std::uint32_t, std::uint32_t> due; // per sender: the next message
    std::uint32_t steady_received = 0;
    std::uint32_t mortal_received = 0;
    const auto take = [&](peer &from, const frag_header &header, const unsigned char *payload) {
        const std::uint32_t vpid = from.identity().vpid;
        const std::uint32_t number = due[vpid]++;
        EXPECT_EQ(payload_of(header, payload), text_of(vpid, number)) << "lost, doubled or damaged";
        ++(vpid < first_mortal ? steady_received : mortal_received);
    };

    family children;
    for (std::uint32_t vpid = 1; vpid <= steady_processes; ++vpid) {
        children.start([&] { send_all(folder.path(), target, vpid, steady_messages); });
    }
    const deadline end(120);
    std::uint32_t deaths = 0;
    while ((steady_received < steady_processes * steady_messages || deaths < 30) && !HasFailure() &&
           !end.over()) {
        if (deaths >= most_deaths) {
            (void)self.poll(64, take);
            continue;
        }
        const std::uint32_t vpid = first_mortal + deaths++;
        const pid_t child =
            children.start([&] { send_all(folder.path(), target, vpid, UINT32_MAX); });
        until_some_moment(random(), 4000, [&] { (void)self.poll(3, take); });
        children.kill_one(child);
    }
    while (self.poll(64, take) > 0) {
    }
    std::printf("%u deaths, %u messages of the steady, %u of the dead\n", deaths, steady_received,
                mortal_received);
    EXPECT_EQ(steady_received, steady_processes * steady_messages);
    EXPECT_GT(mortal_received, 0U) << "the test kills too early to mean anything";

    std::set<std::string> of_the_living{self.own().path()};
    for (std::size_t i = 0; peer *each = self.peer_at(i); ++i) {
        const bool steady = each->identity().vpid < first_mortal;
        EXPECT_EQ(each->shared().owner_alive(), steady);
        if (steady) {
            of_the_living.insert(segment_path(folder.path(), each->identity()));
        }
    }
    EXPECT_EQ(of_the_living.size(), 1 + steady_processes) << "a steady sender is missing";
    EXPECT_GT(segment_sweep(folder.path()), 0);
    std::size_t living_files = 0;
    for (const std::string &name : files_in(folder.path())) {
        const std::string path = folder.path() + "/" + name;
        living_files += of_the_living.count(path);
        // Killed before the file had a length: the sweep cannot tell it from a newborn one.
        struct stat about {};
        EXPECT_TRUE(of_the_living.count(path) == 1 ||
                    (0 == stat(path.c_str(), &about) && 0 == about.st_size))
            << "a file of the dead is left";
    }
    EXPECT_EQ(living_files, of_the_living.size()) << "the file of a living process was swept";
}

// A child that the owner has forked holds nothing that makes the owner live on.
TEST(KilledProcesses, OneWhoseForkedChildLivesIsDeadAndItsFileIsSwept)
{
    (void)alarm(deadline_s);
    const log_capture log;
    const scratch_folder folder;
    struct {
        segment_identity identity;
        pid_t grandchild;
    } about{};
    int ends[2] = {-1, -1};
    ASSERT_EQ(0, pipe(ends));
    family children;
    const pid_t owner = children.start([&] {
        const segment own = make_segment(options(folder.path(), 50));
        about.identity = own.identity();
        // The child says so when it has let go of what it has inherited.
        if (0 == fork()) {
            about.grandchild = getpid();
            (void)!write(ends[1], &about, sizeof(about));
        }
        for (;;) {
            (void)pause();
        }
    });
    ASSERT_EQ(read(ends[0], &about, sizeof(about)), ssize_t{sizeof(about)});
    ASSERT_GT(about.grandchild, 0);
    (void)close(ends[0]);
    (void)close(ends[1]);
    peer_segment seen;
    ASSERT_EQ(status::ok, peer_segment::attach(folder.path().c_str(), about.identity, &seen));
    EXPECT_TRUE(seen.owner_alive());
    EXPECT_EQ(segment_sweep(folder.path()), 0);
    children.kill_one(owner);
    EXPECT_EQ(0, kill(about.grandchild, 0)) << "the child of the dead one lives";
    EXPECT_FALSE(seen.owner_alive());
    EXPECT_EQ(segment_sweep(folder.path()), 1);
    EXPECT_EQ(folder.files(), 0U);
    (void)kill(about.grandchild, SIGKILL);
}

TEST(KilledProcesses, AKilledReaderIsNoticedAndGivesEverythingBack)
{
    (void)alarm(deadline_s);
    const log_capture log;
    const scratch_folder folder;
    node self(make_segment(options(folder.path(), 0)));
    std::mt19937_64 random(any_seed());
    for (int round = 0; round < 5; ++round) {
        int ends[2] = {-1, -1};
        ASSERT_EQ(0, pipe(ends));
        family children;
        const pid_t reader = children.start([&] {
            node its(make_segment(options(folder.path(), 50)));
            (void)!write(ends[1], &its.own().identity(), sizeof(segment_identity));
            for (int taken = 0; taken < round * 3;) {
                taken += its.poll(1, [](peer &, const frag_header &, const unsigned char *) {});
            }
            for (;;) {
                (void)pause();
            }
        });
        segment_identity target{};
        ASSERT_EQ(read(ends[0], &target, sizeof(target)), ssize_t{sizeof(target)});
        (void)close(ends[0]);
        (void)close(ends[1]);

        peer &to = *self.add_peer(target, folder.path());
        std::deque<outgoing> sent;
        for (int i = 0; i < 40; ++i) {
            sent.push_back(make_fragment(self.own(), "to the dead"));
            const status s = to.post(&sent.back());
            ASSERT_TRUE(status::ok == s || status::busy == s);
        }
        until_some_moment(random(), 20000, [&] { (void)to.flush(); });
        ASSERT_TRUE(to.attach() == status::ok && to.shared().owner_alive() && !to.closed());
        children.kill_one(reader);
        EXPECT_FALSE(to.shared().owner_alive());
        EXPECT_TRUE(to.has_ended());
        EXPECT_FALSE(to.has_ended_in_order());
        const deadline end(30);
        while (!to.closed() && !end.over()) {
            (void)to.flush();
        }
        EXPECT_TRUE(to.closed()) << "flush does not notice that the reader is dead";
        for (outgoing &each : sent) {
            EXPECT_EQ(to.reap(), &each);
        }
        EXPECT_TRUE(to.idle());
        EXPECT_EQ(segment_sweep(folder.path()), 1);
    }
}

} // namespace
