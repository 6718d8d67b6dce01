// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// stream_support.h: processes that stream to each other, played in one, with devices that copy when
// the test says so.
#ifndef GPUSM_TESTS_STREAM_SUPPORT_H
#define GPUSM_TESTS_STREAM_SUPPORT_H

#include "opal/mca/common/gpusm/protocol/stream_receiver.h"
#include "opal/mca/common/gpusm/protocol/stream_sender.h"

#include "tests/unit/shm_support.h"

#include <algorithm>
#include <climits>
#include <numeric>
#include <utility>

#include <gtest/gtest.h>

namespace gpusm_test {

using gpusm::node;
using gpusm::peer;
using gpusm::share_kind;
using gpusm::status;
using gpusm::stream_copy;
using gpusm::stream_fetch;
using gpusm::stream_memory;
using gpusm::stream_memory_use;
using gpusm::stream_message;
using gpusm::stream_pool;
using gpusm::stream_source;

constexpr std::size_t kibi = 1024;

inline gpusm::segment_options options(const std::string &folder, std::uint32_t vpid)
{
    gpusm::segment_options made = small_options(folder, vpid);
    made.segment_bytes = 8 * kibi * kibi;
    return made;
}

// Both ends of streams of one process.
struct both_ends {
    both_ends(gpusm::node &local, gpusm::stream_services &services)
        : in(local, services), out(services)
    {
    }
    status fetch(peer &from, stream_fetch *message) { return in.fetch(from, message); }
    bool take(peer &from, const stream_message &message, const stream_memory *memory)
    {
        return out.take(from, message, memory);
    }
    void forget(const void *owner) { out.forget(owner); }
    bool idle() const { return in.idle() && out.idle(); }
    stream_fetch *progress()
    {
        out.progress();
        return in.progress();
    }

    gpusm::stream_receiver in;
    gpusm::stream_sender out;
};

// A process with streams; what it sends lies in `sent` until somebody delivers it. Its device is a
// list of copies that are made when somebody says so.
class stream_process final : public gpusm::stream_services {
  public:
    stream_process(const std::string &folder, std::uint32_t vpid)
        : folder_(folder), node_(make_segment(options(folder, vpid))), streams(node_, *this)
    {
    }

    status send(peer &, const stream_message &message, const stream_memory *memory) override
    {
        sent.push_back({message, memory == nullptr ? stream_memory{} : *memory});
        return status::ok;
    }
    void open(peer &, const stream_message &message, const stream_memory *memory,
              stream_source *out) override
    {
        ++opened;
        out->by_services = share_kind::staged == message.handle.kind;
        if (stream_memory_use::slots == message.uses) {
            out->unreachable = cannot_map;
            out->slots = memory->address;
        } else if (stream_memory_use::target == message.uses && writes) {
            out->by_services = true;
            out->target = memory->address;
            if (share_kind::host == memory->handle.kind) {
                out->parts = {32 * kibi, 128 * kibi, 3};
                out->unreachable = cannot_map;
            }
        }
        out->owner = reinterpret_cast<const void *>(message.handle.generation);
        if (!refuses && !out->unreachable) {
            out->memory = reinterpret_cast<const unsigned char *>(message.address);
        }
    }
    void close(const stream_source &) override { --opened; }
    void copy_back(const stream_fetch &fetch, stream_copy *copy) override
    {
        ++parts_read;
        if (fetch.to_device) {
            copies.push_back(copy);
        } else if (cannot_read) {
            copy->state = stream_copy::is::failed;
        } else {
            std::memcpy(reinterpret_cast<void *>(copy->destination),
                        reinterpret_cast<const void *>(copy->source), copy->len_bytes);
            copy->state = stream_copy::is::done;
        }
    }
    status make_slots(const stream_pool &, std::size_t bytes, std::uint64_t *slots,
                      stream_memory *memory) override
    {
        ++asked_for_slots;
        if (no_device_memory) {
            return status::no_memory;
        }
        device_memory.emplace_back(bytes);
        *slots = memory->address = reinterpret_cast<std::uint64_t>(device_memory.back().data());
        memory->handle.kind = share_kind::legacy;
        memory->handle.base = *slots;
        memory->handle.len_bytes = bytes;
        return status::ok;
    }
    void made_ring(const unsigned char *, std::size_t bytes) override
    {
        EXPECT_EQ(0U, bytes % gpusm::page_bytes) << "what follows would be registered in part";
    }
    void copy_in(const stream_source &, stream_copy *copy) override { copies.push_back(copy); }
    void copy_out(const stream_fetch &, stream_copy *copy) override { copies.push_back(copy); }

    // The device ends the oldest copies, or fails to.
    void end_copies(bool good_ones = true)
    {
        for (int more = at_once; more > 0 && !copies.empty(); copies.pop_front(), --more) {
            stream_copy &copy = *copies.front();
            longest_copy = std::max(longest_copy, copy.len_bytes);
            const bool good = copies_made++ != fails_at && good_ones;
            if (good) {
                std::memcpy(reinterpret_cast<void *>(copy.destination),
                            reinterpret_cast<const void *>(copy.source), copy.len_bytes);
            }
            copy.state = good ? stream_copy::is::done : stream_copy::is::failed;
        }
    }

    peer &towards(stream_process &other)
    {
        peer &known = *node_.add_peer(other.node_.own().identity(), folder_);
        EXPECT_EQ(status::ok, known.attach());
        return known;
    }
    // Gives what this process has sent to `other`. Returns whether all of it made sense.
    bool deliver_to(stream_process &other)
    {
        bool sane = true;
        for (; !sent.empty(); sent.pop_front()) {
            const auto &[message, memory] = sent.front();
            const bool has_memory = stream_memory_use::none != message.uses;
            sane =
                other.streams.take(other.towards(*this), message, has_memory ? &memory : nullptr) &&
                sane;
        }
        return sane;
    }

  private:
    const std::string folder_;
    node node_;

  public:
    std::deque<std::pair<stream_message, stream_memory>> sent;
    std::deque<stream_copy *> copies;
    std::deque<std::vector<unsigned char>> device_memory;
    std::uint64_t longest_copy = 0;
    int copies_made = 0;
    int at_once = INT_MAX; // so many copies end together
    int fails_at = -1;     // this copy of all
    int opened = 0;
    bool refuses = false;
    bool cannot_map = false;
    bool writes = true;
    bool no_device_memory = false;
    int asked_for_slots = 0;
    bool cannot_read = false;
    int parts_read = 0;
    both_ends streams;
};

inline stream_pool host_pool{16 * kibi, 128, 8};
inline stream_pool small_pool{1 * kibi, 128, 2}; // for devices
inline int any_device;
inline stream_pool device_pool{4 * kibi, 128, 2, &any_device};

// A message with the bytes that it should have.
struct message {
    explicit message(std::size_t len_bytes, unsigned char first = 1)
        : source(len_bytes), destination(len_bytes)
    {
        std::iota(source.begin(), source.end(), first);
        fetch.source = {};
        fetch.source.kind = share_kind::host;
        fetch.source.generation = reinterpret_cast<std::uint64_t>(this);
        fetch.address = reinterpret_cast<std::uint64_t>(source.data());
        fetch.destination = reinterpret_cast<std::uint64_t>(destination.data());
        fetch.len_bytes = len_bytes;
        fetch.pool = &host_pool;
    }
    // From a device, to one, through a ring that lies there.
    message &of_device()
    {
        fetch.source.kind = share_kind::staged;
        fetch.may_end_early = false;
        return *this;
    }
    message &to_device()
    {
        fetch.to_device = true;
        return *this;
    }
    message &by(stream_pool *pool)
    {
        fetch.pool = pool;
        return *this;
    }
    // The sender may write to the destination.
    message &with_target()
    {
        fetch.target = {{0, 0, share_kind::legacy, 0, 0, fetch.destination, fetch.len_bytes},
                        fetch.destination};
        return to_device();
    }
    // The receiver gets parts by itself at once, and the sender may write others to the
    // destination.
    message &of_both(bool target)
    {
        fetch.back_parts = {64 * kibi, 256 * kibi, 2};
        fetch.target =
            target ? gpusm::host_target(fetch.destination, fetch.len_bytes) : stream_memory{};
        return *this;
    }
    bool right() const { return source == destination; }

    std::vector<unsigned char> source;
    std::vector<unsigned char> destination;
    stream_fetch fetch{};
};

class Stream : public testing::Test {
  protected:
    const scratch_folder folder_;
    stream_process reader_{folder_.path(), 1};
    stream_process sender_{folder_.path(), 2};

    // The reader asks for it, and the sender hears of it.
    void ask(message *one)
    {
        ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &one->fetch));
    }
    void deliver() { ASSERT_TRUE(reader_.deliver_to(sender_)); }
    void ask_and_deliver(message *one)
    {
        ask(one);
        deliver();
    }

    // Without a device, until the reader waits for nothing any more.
    void stream_with(stream_process &from)
    {
        const deadline limit(20);
        while (!reader_.streams.idle() && !limit.over()) {
            EXPECT_EQ(nullptr, from.streams.progress());
            (void)reader_.streams.progress();
        }
    }

    // Both sides make progress until so many messages have ended at the reader, which come back.
    std::vector<stream_fetch *> run(std::size_t wanted, bool sender_too = true)
    {
        const deadline limit(20);
        std::vector<stream_fetch *> ended;
        while (ended.size() < wanted && !limit.over()) {
            if (sender_too) {
                EXPECT_EQ(nullptr, sender_.streams.progress());
                sender_.end_copies();
            }
            for (stream_fetch *each = reader_.streams.progress(); each != nullptr;
                 each = each->next) {
                ended.push_back(each);
            }
            reader_.end_copies();
        }
        EXPECT_EQ(wanted, ended.size());
        return ended;
    }
    // The only message ends in that way, and if well, with the right bytes.
    void expect_end(const message &one, status outcome = status::ok, bool sender_too = true)
    {
        (void)run(1, sender_too);
        EXPECT_EQ(outcome, one.fetch.outcome);
        EXPECT_TRUE(status::ok != outcome || one.right());
    }
};

} // namespace gpusm_test

#endif
