// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fuzz_fifo.cc: garbage in tail and slots of a FIFO, between the posts of an honest process.
//
// These are words of others. So nothing is promised to messages that are on their way meanwhile, or
// that are posted before the owner has put things right: where slots have the word of a lap before
// and the tail has been set back, they may lie behind the reader, and be lost. Nor to a process
// that a word names which it did not write, so none names the honest one. And garbage in a slot
// further on is found when that one is due, with messages behind it. In every second input garbage
// waits until nothing is on its way, and comes to the tail and the slot that is due; and messages
// wait until it has been put right: these all arrive. In the others both come at any time and
// anywhere, and at the end a newcomer gets through.
#include "tests/fuzz/fuzz_support.h"

using namespace gpusm_test;
using namespace gpusm::fifo_word;

namespace {

enum step : std::uint8_t { slot, tail, header, post, poll, mend, flush, steps };
constexpr std::uint32_t slot_of_honest = 1;
player owner(1), broken(2), honest(3);

// Until all that can arrive has arrived, and the FIFO is in order.
void settle()
{
    for (unsigned i = 0; i < 4 * owner.own().view().fifo.slots; ++i) {
        owner.poll();
        owner.its().mend_inbox();
        (void)honest.towards(owner).flush();
    }
}

std::uint64_t garbage(fuzz_input &in, std::uint64_t old, std::uint32_t granule)
{
    const std::uint64_t lap = in.word(lap_of(old));
    const std::uint32_t sender = in.below(2) * (2 + in.below(8));
    const std::uint64_t made = in.one_of(2) ? full(lap, {sender, granule}) : in.word(old);
    return is_empty(made) || message_of(made).sender != slot_of_honest ? made : empty(lap);
}

const std::string good = bytes_of(post, poll, '\7', post, post, mend, flush, poll, '\1');

} // namespace

const std::vector<std::string> seeds{'\0' + good + good,
                                     '\1' + good + bytes_of(tail, '\1', '\2', slot, '\3') + good};

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t bytes)
{
    fuzz_input in{data, bytes};
    for (player *each : {&owner, &broken, &honest}) {
        each->begin();
    }
    const gpusm::fifo_view &fifo = owner.own().view().fifo;
    const gpusm::outgoing &of_broken = broken.send(owner, std::string(500, 'x'));
    (void)honest.send(owner, "y");
    owner.poll();
    std::string expected = owner.arrived;
    const bool careful = in.one_of(2);
    bool disorder = false;
    const auto check = [&] {
        settle();
        disorder = false;
        require(!careful || owner.arrived == expected, "an honest message has not arrived");
    };
    for (char number = '!'; in.left > 0;) {
        const std::uint32_t what = in.below(steps);
        if (careful && (what <= header || (disorder && post == what))) {
            check();
        }
        disorder = disorder || what <= tail;
        if (slot == what) {
            const std::uint64_t at = careful ? fifo.tail->load() : in.below(fifo.slots);
            std::atomic<std::uint64_t> &word = fifo.slot[at & (fifo.slots - 1)].word;
            word = garbage(in, word, of_broken.granule + in.below(8));
        } else if (tail == what) {
            *fifo.tail = in.word(*fifo.tail);
        } else if (header == what) {
            *of_broken.header = in.spoilt(*of_broken.header);
        } else if (post == what) {
            (void)honest.send(owner, {number});
            expected += {number, ' '};
            number = '~' == number ? '!' : static_cast<char>(number + 1);
        } else if (poll == what) {
            owner.poll(static_cast<int>(in.below(8)));
        } else if (mend == what) {
            owner.its().mend_inbox();
        } else {
            (void)honest.towards(owner).flush();
        }
    }
    check();
    (void)owner.send(owner, "newcomer");
    settle();
    require(owner.arrived.find("newcomer ") != std::string::npos, "a newcomer does not arrive");
    for (player *each : {&owner, &broken, &honest}) {
        each->end();
    }
    return 0;
}
