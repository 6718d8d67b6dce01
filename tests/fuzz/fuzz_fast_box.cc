// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fuzz_fast_box.cc: garbage in a fast box, between what its writer, an honest process and the FIFO
// bring; and an owner that says of its fast boxes, or of what it has read, what cannot be.
//
// A broken sender writes to its own fast box and fragments, so the honest one's messages all
// arrive, in order. In every second input it is the owner that is broken: then the honest one just
// goes on.
#include "tests/fuzz/fuzz_support.h"

using namespace gpusm_test;

namespace {

enum step : std::uint8_t { unit, in_line, by_broken, post, poll, lie, steps };
player owner(1), broken(2), honest(3);

std::uint64_t some_word(fuzz_input &in)
{
    const auto due = static_cast<std::uint32_t>(owner.towards(broken).next_sequence);
    const std::uint16_t bytes = in.one_of(2) ? 8 : in.next<std::uint16_t>();
    const auto kind = in.one_of(2) ? gpusm::fast_box_word::reference : in.next<std::uint8_t>();
    return gpusm::fast_box_word::pack({due + in.below(3), bytes, kind, 0});
}

void tell_lies(fuzz_input &in)
{
    gpusm::peer_slot &of_honest = owner.own().view().peers[1];
    of_honest.fast_box_taken = static_cast<std::uint32_t>(in.word(of_honest.fast_box_taken));
    of_honest.consumed = in.word(of_honest.consumed);
    of_honest.fast_box = static_cast<std::uint32_t>(in.word(of_honest.fast_box));
}

const std::string good = bytes_of(in_line, '\4', post, '\1', by_broken, '\7', poll, '\7');

} // namespace

const std::vector<std::string> seeds{'\0' + good + bytes_of(unit, '\1', '\0') + good,
                                     '\1' + good + bytes_of(lie) + good};

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t bytes)
{
    constexpr int until_fast_box = 17;
    fuzz_input in{data, bytes};
    for (player *each : {&owner, &broken, &honest}) {
        each->begin(2);
    }
    const bool owner_lies = !in.one_of(2);
    std::uint32_t granule = 0; // of the broken one's last fragment
    for (int i = 0; i < until_fast_box; ++i) {
        granule = broken.send(owner, "x").granule;
        (void)honest.send(owner, "y");
        owner.poll();
        if (owner_lies && 0 == i) {
            tell_lies(in); // before the honest one has looked for its fast box
        }
    }
    auto *box =
        reinterpret_cast<gpusm::fast_box *>(owner.own().at(owner.own().view().peers[0].fast_box));
    std::string expected = owner.arrived;
    for (char number = '!'; in.left > 0;) {
        const std::uint32_t what = in.below(steps);
        if (unit == what) {
            gpusm::fast_box_unit &at = box->unit[in.below(std::size(box->unit))];
            at.word = in.one_of(2) ? some_word(in) : in.word(at.word);
            const auto named = in.spoilt(gpusm::fast_box_reference{granule + in.below(4), 9});
            std::memcpy(at.payload, &named, sizeof(named));
        } else if (poll == what) {
            owner.poll(static_cast<int>(in.below(8)));
        } else if (lie != what) {
            const std::string payload(in.below(255), number++);
            player &from = by_broken == what ? broken : honest;
            const bool sent = post == what || send_inline(from.towards(owner), payload);
            expected += sent && by_broken != what ? payload + " " : "";
            if (post == what) {
                (void)honest.send(owner, payload);
            }
        } else if (owner_lies) {
            tell_lies(in);
        }
    }
    for (int i = 0; i < 100; ++i) {
        owner.poll();
        (void)honest.towards(owner).flush();
    }
    require(owner_lies || owner.arrived == expected, "an honest message has not arrived");
    for (player *each : {&owner, &broken, &honest}) {
        each->end();
    }
    return 0;
}
