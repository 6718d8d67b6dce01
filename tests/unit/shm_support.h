// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm_support.h: what the tests of base/ and shm/ share: a folder that cleans up after itself, a
// log that remembers, small segments, fragments to send, and processes that are played.
#ifndef GPUSM_TESTS_SHM_SUPPORT_H
#define GPUSM_TESTS_SHM_SUPPORT_H

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/base/threads.h"
#include "opal/mca/common/gpusm/shm/node.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <new>
#include <numeric>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace gpusm {

// How GoogleTest prints a status.
inline void PrintTo(status s, std::ostream *out)
{
    *out << to_string(s);
}

} // namespace gpusm

namespace gpusm_test {

// As if Open MPI had said that the process has threads, or would when begin() is called; as long as
// it lives. One at a time.
class several_threads {
  public:
    explicit several_threads(bool have_begun = true) : flag_(have_begun)
    {
        gpusm::watch_threads(&flag_);
    }
    ~several_threads() { gpusm::watch_threads(nullptr); }
    several_threads(const several_threads &) = delete;
    several_threads &operator=(const several_threads &) = delete;

    void begin() { __atomic_store_n(&flag_, true, __ATOMIC_RELEASE); }

  private:
    bool flag_;
};

// Collects all log lines as long as it lives. One at a time.
class log_capture {
  public:
    explicit log_capture(gpusm::log_level threshold = gpusm::log_level::warn)
    {
        lines_.clear();
        gpusm::log_install(&log_capture::sink, threshold);
    }
    ~log_capture() { gpusm::log_install(nullptr, gpusm::log_level::warn); }
    log_capture(const log_capture &) = delete;
    log_capture &operator=(const log_capture &) = delete;

    std::size_t count() const
    {
        const std::lock_guard guard(lock_);
        return lines_.size();
    }
    std::string text() const
    {
        const std::lock_guard guard(lock_);
        return std::accumulate(lines_.begin(), lines_.end(), std::string());
    }

  private:
    static void sink(gpusm::log_level, const char *line)
    {
        const std::lock_guard guard(lock_);
        lines_.push_back(line + std::string("\n"));
    }
    static inline std::vector<std::string> lines_;
    static inline std::mutex lock_;
};

// Likewise, and expects so many lines.
class expect_lines : public log_capture {
  public:
    explicit expect_lines(std::size_t wanted) : wanted_(wanted) {}
    ~expect_lines() { EXPECT_EQ(count(), wanted_) << text(); }

  private:
    const std::size_t wanted_;
};

inline std::vector<std::string> files_in(const std::string &folder)
{
    std::vector<std::string> names;
    for (const auto &entry : std::filesystem::directory_iterator(folder)) {
        names.push_back(entry.path().filename());
    }
    return names;
}

// Descriptors that this process has open; the one for looking counts every time.
inline std::size_t open_descriptors()
{
    return files_in("/proc/self/fd").size();
}

// As long as it lives this process can open no further descriptor.
class no_descriptors_left {
  public:
    no_descriptors_left()
    {
        const rlimit none{0, usual_.rlim_max};
        EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &none));
    }
    ~no_descriptors_left() { EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &usual_)); }
    no_descriptors_left(const no_descriptors_left &) = delete;
    no_descriptors_left &operator=(const no_descriptors_left &) = delete;

  private:
    const rlimit usual_ = [] {
        rlimit limit{};
        EXPECT_EQ(0, getrlimit(RLIMIT_NOFILE, &limit));
        return limit;
    }();
};

// A fresh folder in shared memory, removed with whatever is in it.
class scratch_folder {
  public:
    explicit scratch_folder(const char *parent = "/dev/shm")
        : path_(std::string(parent) + "/gpusm-test.XXXXXX")
    {
        if (nullptr == mkdtemp(path_.data())) {
            std::perror("mkdtemp");
            std::abort();
        }
    }
    ~scratch_folder()
    {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    scratch_folder(const scratch_folder &) = delete;
    scratch_folder &operator=(const scratch_folder &) = delete;

    const std::string &path() const { return path_; }
    std::size_t files() const { return files_in(path_).size(); }

  private:
    std::string path_;
};

// Namespaces of this process's own, those of unshare's `flags`; made within a user namespace, in
// which this user keeps its number, by those who may not do without.
inline bool enter_namespaces(int flags)
{
    const auto write = [](const char *path, const std::string &text) {
        return static_cast<bool>(std::ofstream(path) << text << std::flush);
    };
    const std::string uid = std::to_string(geteuid());
    const std::string gid = std::to_string(getegid());
    return 0 == unshare(flags) ||
           (0 == unshare(CLONE_NEWUSER) && write("/proc/self/setgroups", "deny") &&
            write("/proc/self/uid_map", uid + " " + uid + " 1") &&
            write("/proc/self/gid_map", gid + " " + gid + " 1") && 0 == unshare(flags));
}

// The oldest message, which is not there any more then. False: nothing there.
inline bool take(gpusm::fifo_reader &reader, gpusm::fifo_message *message)
{
    const bool found = reader.peek(message);
    if (found) {
        reader.pop();
    }
    return found;
}

// A row of a table of what may be wrong with a thing: a name, and how it becomes so.
template <typename Thing> struct fault {
    const char *name;
    void (*spoil)(Thing *);
};
template <typename Thing> void PrintTo(const fault<Thing> &about, std::ostream *out)
{
    *out << about.name;
}
// Cases of a table have the names of its rows.
inline constexpr auto name_of_row = [](const auto &about) { return about.param.name; };

// The seed of a test of random rounds, which is printed; GPUSM_TEST_SEED repeats them.
inline std::uint64_t any_seed()
{
    const char *given = std::getenv("GPUSM_TEST_SEED");
    const std::uint64_t seed =
        given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
    std::printf("GPUSM_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
    return seed;
}

// What somebody may have stored over a word.
inline std::uint64_t any_word(std::mt19937_64 &random, std::uint64_t old)
{
    const std::uint64_t values[] = {
        random(), 0, ~0ULL, old + random() % 33 - 16, random() % 64, old ^ 1ULL << random() % 64};
    return values[random() % std::size(values)];
}

// A segment of 1 MiB with room for 4 messages and 8 peers.
inline gpusm::segment_options small_options(const std::string &folder, std::uint32_t vpid)
{
    gpusm::segment_options options;
    options.directory = folder.c_str();
    options.jobid = 0xabcd0001;
    options.vpid = vpid;
    options.segment_bytes = 1U << 20;
    options.fifo_slots = 4;
    options.peer_slots = 8;
    options.event_slots = 2;
    options.export_slots = 4;
    return options;
}

// Stops the program when the segment cannot be made: no test can go on without it.
inline gpusm::segment make_segment(const gpusm::segment_options &options)
{
    gpusm::segment made;
    std::string why;
    if (gpusm::status::ok != gpusm::segment::create(options, &made, &why)) {
        std::fprintf(stderr, "no segment for the test: %s\n", why.c_str());
        std::abort();
    }
    return made;
}
inline gpusm::segment make_segment(const std::string &folder, std::uint32_t vpid)
{
    return make_segment(small_options(folder, vpid));
}

// A fragment with that payload in `own`, ready to post.
inline gpusm::outgoing make_fragment(gpusm::segment &own, const std::string &payload)
{
    gpusm::outgoing made;
    const gpusm::status s = own.carve(sizeof(gpusm::frag_header) + payload.size(), &made.granule);
    if (gpusm::status::ok != s) {
        std::fprintf(stderr, "no fragment for the test: %s\n", gpusm::to_string(s));
        std::abort();
    }
    made.header = new (own.at(made.granule)) gpusm::frag_header{};
    made.header->kind = gpusm::frag_kind::active_message;
    made.header->payload_bytes = static_cast<std::uint32_t>(payload.size());
    std::memcpy(static_cast<void *>(made.header + 1), payload.data(), payload.size());
    return made;
}

inline std::string payload_of(const gpusm::frag_header &header, const unsigned char *payload)
{
    return {reinterpret_cast<const char *>(payload), header.payload_bytes};
}

// The same where the payload is behind that very header.
inline std::string payload_of(const gpusm::frag_header &header)
{
    return payload_of(header, reinterpret_cast<const unsigned char *>(&header + 1));
}

inline bool send_inline(gpusm::peer &to, const std::string &payload)
{
    return to.send_inline(
        gpusm::frag_kind::active_message, 3, payload.size(),
        [&](unsigned char *at) { std::memcpy(at, payload.data(), payload.size()); });
}

// A handler of messages that adds them to a text, as "vpid:payload ".
struct adding_to {
    std::string *text;
    void operator()(gpusm::peer &from, const gpusm::frag_header &header,
                    const unsigned char *payload) const
    {
        *text += std::to_string(from.identity().vpid) + ":" + payload_of(header, payload) + " ";
    }
};

// One process of several that a test plays: its node, and the fragments that it has sent.
class process {
  public:
    process(const std::string &folder, std::uint32_t vpid, std::uint32_t fast_box_max = 0)
        : folder_(folder), node_(make_segment(options(folder, vpid)), fast_box_max)
    {
    }

    gpusm::node &its() { return node_; }
    const gpusm::segment_identity &identity() { return node_.own().identity(); }
    gpusm::peer &towards(process &other) { return *node_.add_peer(other.identity(), folder_); }

    gpusm::outgoing &send(process &to, const std::string &payload)
    {
        fragments_.push_back(make_fragment(node_.own(), payload));
        const gpusm::status s = towards(to).post(&fragments_.back());
        if (gpusm::status::ok != s && gpusm::status::busy != s) {
            std::fprintf(stderr, "a message was not sent: %s\n", gpusm::to_string(s));
            std::abort();
        }
        return fragments_.back();
    }
    bool send_inline(process &to, const std::string &payload)
    {
        return gpusm_test::send_inline(towards(to), payload);
    }
    // All that has come, as "vpid:payload ".
    std::string poll(int limit = 1000)
    {
        std::string all;
        (void)node_.poll(limit, adding_to{&all});
        return all;
    }
    // The same of what had been put aside.
    std::string take_put_aside()
    {
        std::string all;
        (void)node_.take_put_aside(adding_to{&all});
        return all;
    }
    int reap(process &to)
    {
        int reaped = 0;
        while (towards(to).reap() != nullptr) {
            ++reaped;
        }
        return reaped;
    }

  private:
    static gpusm::segment_options options(const std::string &folder, std::uint32_t vpid)
    {
        gpusm::segment_options made = small_options(folder, vpid);
        made.fifo_slots = 16;
        return made;
    }
    const std::string folder_;
    gpusm::node node_;
    std::deque<gpusm::outgoing> fragments_;
};

// Every wait asks this.
class deadline {
  public:
    explicit deadline(int seconds)
        : end_(std::chrono::steady_clock::now() + std::chrono::seconds(seconds))
    {
    }
    bool over() const { return std::chrono::steady_clock::now() > end_; }

  private:
    std::chrono::steady_clock::time_point end_;
};

} // namespace gpusm_test

#endif
