// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fuzz_stream.cc: what a broken sender may store in the ring that a receiver has lent to it:
// pieces, and how much it has begun. Each message ends once, and nobody touches its memory then or
// writes beyond it before.
#include "opal/mca/common/gpusm/protocol/stream_receiver.h"

#include "tests/fuzz/fuzz_support.h"

using namespace gpusm_test;
using namespace gpusm;

namespace {

enum step : std::uint8_t { fetch, piece, begun, progress, end_copy, steps };
constexpr std::size_t most_bytes = 20000, most_fetches = 20;
stream_pool pool{1024, 8, 2};
player owner(1), broken(2);

struct services final : stream_services {
    status send(peer &, const stream_message &message, const stream_memory *) override
    {
        granule = message.granule;
        return status::ok;
    }
    void open(peer &, const stream_message &, const stream_memory *, stream_source *) override {}
    void copy_back(const stream_fetch &, stream_copy *copy) override
    {
        copy->source = reinterpret_cast<std::uint64_t>(theirs.data());
        copies.push_back(copy);
    }
    void copy_out(const stream_fetch &, stream_copy *copy) override { copies.push_back(copy); }
    void end_one(bool good)
    {
        stream_copy &copy = *copies.front();
        copies.pop_front();
        std::memcpy(reinterpret_cast<void *>(copy.destination),
                    reinterpret_cast<const void *>(copy.source), copy.len_bytes);
        copy.state = good ? stream_copy::is::done : stream_copy::is::failed;
    }

    const std::vector<char> theirs = std::vector<char>(most_bytes);
    std::deque<stream_copy *> copies;
    std::uint32_t granule = 0;
};

struct message : stream_fetch {
    explicit message(fuzz_input &in)
        : stream_fetch{}, memory(1 + in.next<std::uint16_t>() % most_bytes)
    {
        const std::uint32_t kind = in.below(8);
        destination = reinterpret_cast<std::uint64_t>(memory.data());
        len_bytes = memory.size();
        gpusm::stream_fetch::pool = &::pool;
        to_device = 0 != (kind & 1);
        may_end_early = !to_device;
        back_parts = 0 == (kind & 2) ? stream_parts{} : stream_parts{4096, 8192, 2};
        target = 0 == (kind & 4) ? stream_memory{} : host_target(destination, len_bytes);
    }
    std::vector<char> memory; // until it has ended
};

// What an honest sender writes next, but for what the input spoils.
struct honest_sender {
    void put(fuzz_input &in, stream_ring &ring, std::uint64_t len_bytes)
    {
        const std::uint64_t left = len_bytes - std::min(len_bytes, offset);
        stream_piece_facts facts{
            offset, static_cast<std::uint32_t>(std::min<std::uint64_t>(pool.slot_bytes, left)),
            want, stream_answer::bytes};
        if (in.one_of(4)) {
            facts.answer = static_cast<stream_answer>(in.below(6));
            facts = in.spoilt(facts);
        }
        stream_piece &to = ring.pieces[next % pool.pieces];
        to.offset = facts.offset;
        to.bytes = facts.bytes;
        to.want = facts.want;
        to.answer = facts.answer;
        to.sequence = ++next;
        offset += facts.bytes;
        if (stream_answer::bytes != facts.answer || offset >= len_bytes) {
            offset = 0;
            ++want;
        }
    }
    std::uint64_t next = 0, offset = 0;
    std::uint32_t want = 0;
};

std::string one(char kind)
{
    const std::string some =
        bytes_of(piece, '\7') + std::string(8, '\1') + bytes_of(progress, end_copy, '\1');
    return bytes_of(fetch, '\0', '\20', kind) + some + bytes_of(begun, '\0', '\0') + some + some;
}

} // namespace

const std::vector<std::string> seeds{one(0), one(1), one(2), one(3), one(4), one(6)};

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t bytes)
{
    fuzz_input in{data, bytes};
    owner.begin();
    broken.begin();
    services offers;
    std::deque<message> messages;
    std::size_t ended = 0;
    stream_receiver streams(owner.its(), offers);
    peer &from = owner.towards(broken);
    (void)from.attach();
    const auto go_on = [&] {
        for (stream_fetch *each = streams.progress(); each != nullptr; each = each->next) {
            const std::vector<char> over = std::exchange(static_cast<message *>(each)->memory, {});
            require(!over.empty(), "a message has ended twice");
            ++ended;
        }
    };
    honest_sender honest;
    while (in.left > 0) {
        const std::uint32_t what = in.below(steps);
        auto &ring = *reinterpret_cast<stream_ring *>(owner.own().at(offers.granule));
        if (fetch == what && messages.size() < most_fetches) {
            if (status::ok != streams.fetch(from, &messages.emplace_back(in))) {
                messages.pop_back();
            }
        } else if (piece == what && honest.want < messages.size()) {
            for (std::uint32_t more = 1 + in.below(8); more > 0 && honest.want < messages.size();
                 --more) {
                honest.put(in, ring, messages[honest.want].len_bytes);
            }
        } else if (begun == what && !messages.empty()) {
            std::atomic<std::uint64_t> &word = ring.begun_bytes[in.below(4)];
            word = in.word(word);
        } else if (end_copy != what) {
            go_on();
        } else if (!offers.copies.empty()) {
            offers.end_one(!in.one_of(4));
        }
    }
    from.close();
    for (int i = 0; i < 1000 && !streams.idle(); ++i) {
        while (!offers.copies.empty()) {
            offers.end_one(true);
        }
        go_on();
    }
    require(streams.idle() && messages.size() == ended, "a message of a closed peer does not end");
    owner.end();
    broken.end();
    return 0;
}
