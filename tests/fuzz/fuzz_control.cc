// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fuzz_control.cc: control messages as a broken process could write them into a fragment, and what
// it stores in the rings that it lends; to the handshake and to the sender's end of streams. Only
// the memory that was offered is read, only rings are written, and at the end nothing stays open.
#include "opal/mca/common/gpusm/ipc/handshake.h"
#include "opal/mca/common/gpusm/protocol/stream_sender.h"

#include "tests/fuzz/fuzz_support.h"

using namespace gpusm_test;
using namespace gpusm;

namespace {

enum step : std::uint8_t { send, poll, ring, progress, end_copy, forget, steps };
constexpr remote_handle offered{0, 0, share_kind::host, 0, 7, 1U << 20, 5000};
player owner(1), broken(2);

// Of one offered range, which the processor copies, or a device when the input says so. A copy to
// memory of the peer alone is not made.
struct services final : stream_services {
    status send(peer &, const stream_message &, const stream_memory *) override
    {
        return status::ok;
    }
    void open(peer &, const stream_message &what, const stream_memory *theirs,
              stream_source *out) override
    {
        ++open_ranges;
        out->by_services = theirs != nullptr || share_kind::staged == what.handle.kind;
        if (stream_memory_use::target == what.uses) {
            out->target = theirs->address;
            out->parts = {4096, 8192, 2};
        }
        out->user = stream_memory_use::slots == what.uses ? nullptr : this;
        out->owner = this;
        if (what.handle.generation == 7 && covers(offered, what.address, what.len_bytes)) {
            out->memory = memory.data() + (what.address - offered.base);
        }
    }
    void close(const stream_source &) override { --open_ranges; }
    void copy_in(const stream_source &source, stream_copy *copy) override
    {
        copies.emplace_back(copy, source.user != nullptr && 0 == source.target);
    }
    void end_one(bool good)
    {
        const auto [copy, is_here] = copies.front();
        copies.pop_front();
        std::memcpy(is_here ? reinterpret_cast<void *>(copy->destination) : elsewhere.data(),
                    reinterpret_cast<const void *>(copy->source), copy->len_bytes);
        copy->state = good ? stream_copy::is::done : stream_copy::is::failed;
    }

    std::vector<unsigned char> memory = std::vector<unsigned char>(offered.len_bytes);
    std::vector<unsigned char> elsewhere = memory;
    std::deque<std::pair<stream_copy *, bool>> copies;
    int open_ranges = 0;
};

// An honest one, spoilt, about a ring of 8 pieces.
void send_message(fuzz_input &in, std::uint32_t granule)
{
    const stream_message wants{offered,
                               offered.base,
                               offered.len_bytes,
                               in.one_of(2) ? 0 : stream_continues,
                               granule,
                               0,
                               1024,
                               8,
                               stream_memory_use{in.below(3)},
                               0};
    std::string payload = bytes_of(in.spoilt(wants), in.spoilt(host_target(1U << 30, 8192)));
    payload[offsetof(remote_handle, kind)] = static_cast<char>(4 + in.below(2));
    const std::size_t lengths[] = {sizeof(wants), payload.size(), in.below(121)};
    payload.resize(lengths[in.below(3)]);
    outgoing &sent = broken.send(owner, payload, static_cast<frag_kind>(2 * in.below(4)));
    if (in.one_of(4)) {
        *sent.header = in.spoilt(*sent.header);
    }
}

std::string stream(char continues, char uses, char kind, char length)
{
    return bytes_of(send, continues, uses, '\0', '\0', kind, '\0', length, '\2', '\1', poll,
                    progress, end_copy, '\0', progress, ring, '\0', '\1', '\10', progress);
}

} // namespace

const std::vector<std::string> seeds{stream(0, 0, 0, 0), stream(0, 0, 1, 0), stream(0, 1, 0, 1),
                                     stream(0, 2, 1, 1) + stream(1, 2, 1, 1)};

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t bytes)
{
    fuzz_input in{data, bytes};
    owner.begin();
    broken.begin();
    services offers;
    handshake shakes;
    stream_sender streams(offers);
    peer &from = owner.towards(broken);
    // As btl_gpusm_messages.cc and btl_gpusm_ipc.cc do.
    const auto take = [&](peer &, const frag_header &header, const unsigned char *payload) {
        owner.check(from, header, payload);
        fuzz_input said{payload, header.payload_bytes};
        const auto message = said.next<stream_message>();
        const stream_memory memory = fuzz_input(said).next<stream_memory>();
        if (frag_kind::ipc_control == header.kind) {
            (void)shakes.step(static_cast<ipc_event>(message.handle.slot % 4));
        } else if (header.payload_bytes < sizeof(message) ||
                   (0 != said.left && sizeof(memory) != said.left) ||
                   !streams.take(from, message, 0 == said.left ? nullptr : &memory)) {
            from.close_for_nonsense();
        }
    };
    std::uint32_t granule = 0;
    const std::size_t ring_bytes = stream_slots_offset + 8 * 1024;
    require(status::ok == broken.own().carve(ring_bytes, &granule, page_bytes), "no ring");
    auto *words = reinterpret_cast<std::uint64_t *>(broken.own().at(granule));
    while (in.left > 0) {
        const std::uint32_t what = in.below(steps);
        if (send == what) {
            send_message(in, granule);
        } else if (poll == what) {
            (void)owner.its().poll(8, take);
        } else if (ring == what) { // what is released, and wanted; begun; and pieces
            const std::uint32_t at = 8 * in.below(200) + in.below(8);
            words[at] = in.word(words[at]);
        } else if (progress == what) {
            streams.progress();
        } else if (forget == what) {
            streams.forget(&offers);
        } else if (!offers.copies.empty()) {
            offers.end_one(in.one_of(2));
        }
    }
    from.close();
    for (int i = 0; i < 1000 && !streams.idle(); ++i) {
        while (!offers.copies.empty()) {
            offers.end_one(true);
        }
        streams.progress();
    }
    require(streams.idle() && 0 == offers.open_ranges, "a stream to a closed peer does not end");
    owner.end();
    broken.end();
    return 0;
}
