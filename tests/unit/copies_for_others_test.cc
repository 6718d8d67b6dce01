// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copies_for_others_test.cc: copies that this process makes for another one, which is played, on
// whatever driver there is. Each test runs in a process of its own.
#include "tests/unit/gpu_memory_support.h"
#include "tests/unit/local_process_support.h"

#include <algorithm>
#include <cstdlib>
#include <string>

using namespace softcuda_test;

namespace {

using namespace gpusm;
using namespace gpusm_test;

// This process, which has a device, and one that asks it for copies between two buffers here.
class submitter {
  public:
    submitter()
    {
        (void)side().devices.for_address(from, &on_, &plain_);
        from_ = name(from);
        into_ = name(into);
        requester_ = gpu_.process().own_node().add_peer(asking_.identity(), gpu_.folder());
        EXPECT_EQ(requester_->attach(), status::ok);
        store(from, pattern(bytes, 1));
        store(into, pattern(bytes, 2));
    }

    static constexpr std::size_t bytes = 100'000;
    const CUdeviceptr from = allocate(bytes);
    const CUdeviceptr into = allocate(bytes);

    gpu_side &side() { return gpu_.side(); }
    segment &own() { return gpu_.process().own_node().own(); }
    delegated_copy message()
    {
        delegated_copy made{from_, into_, bytes, {}, 0, 5, ++turn_, 0};
        std::copy(on_->uuid.begin(), on_->uuid.end(), made.device_uuid);
        (void)board_.get();
        made.granule = board_.granule();
        word().store(delegation_word::of(made.turn, delegation_stage::offered));
        return made;
    }
    bool receive(const delegated_copy &what)
    {
        return side().for_others.message_from(
            *requester_, reinterpret_cast<const unsigned char *>(&what), sizeof(what));
    }
    std::atomic<std::uint32_t> &word() { return board_.get()->slots[5].word; }
    delegation_stage stage() { return delegation_word::stage_in(word().load(), turn_); }
    // Until the copies are over.
    void complete()
    {
        while (!side().for_others.idle()) {
            side().for_others.progress();
        }
    }
    // Without this process.
    void until_told()
    {
        const delegation_slot &slot = board_.get()->slots[5];
        EXPECT_EQ(stage(), delegation_stage::launched);
        const auto *flag = reinterpret_cast<const std::atomic<std::uint32_t> *>(
            gpu_.process().own_node().own().at(slot.flag_granule));
        const deadline end(10);
        while (flag->load() < slot.flag_value && !end.over()) {
        }
        EXPECT_GE(flag->load(), slot.flag_value);
    }
    bool has_arrived() { return load(into, bytes) == pattern(bytes, 1); }
    bool is_untouched() { return load(into, bytes) == pattern(bytes, 2); }
    peer &requester() { return *requester_; }

  private:
    delegated_memory name(CUdeviceptr at)
    {
        exported *entry = nullptr; // stays referenced
        delegated_memory made{gpu_.process().own_node().own().identity(), {}, at};
        EXPECT_EQ(side().exports.export_range(at, bytes, 0, export_use::read, &entry, &made.handle),
                  status::ok);
        return made;
    }

    with_gpu gpu_;
    process asking_{gpu_.folder(), 77};
    own_delegation_board board_{asking_.its().own()};
    device *on_ = nullptr;
    std::uint64_t plain_ = 0;
    delegated_memory from_{};
    delegated_memory into_{};
    peer *requester_ = nullptr;
    std::uint32_t turn_ = 8;
};

ALONE(CopiesForOthers, AreMadeAndToldByTheDevice)
{
    (void)start();
    submitter s;
    EXPECT_TRUE(s.receive(s.message()));
    s.side().for_others.progress();
    s.until_told();
    EXPECT_TRUE(s.has_arrived());
    EXPECT_FALSE(s.side().for_others.forget_peer(s.requester())) << "it has not been seen";
    s.complete();
    EXPECT_EQ(s.side().for_others.made(), 1U);
    EXPECT_TRUE(s.side().for_others.forget_peer(s.requester()));
}

SOFT_ALONE(CopiesForOthers, ALaunchThatTheDriverRefusesIsRefused)
{
    setenv("GPUSM_SOFTCUDA_FAIL", "cuLaunchKernel:0:1", 1);
    (void)start();
    submitter s;
    EXPECT_TRUE(s.receive(s.message()));
    s.complete();
    EXPECT_EQ(s.stage(), delegation_stage::refused);
    EXPECT_TRUE(s.is_untouched());
    EXPECT_TRUE(s.side().for_others.forget_peer(s.requester()));
}

ALONE(CopiesForOthers, OnlyTheLastTurnOfASlotIsMade)
{
    (void)start();
    submitter s;
    for (int i = 0; i < 300; ++i) { // each of another turn of the slot: all but the last are over
        EXPECT_TRUE(s.receive(s.message()));
    }
    s.complete();
    s.until_told();
    EXPECT_TRUE(s.has_arrived());
    EXPECT_EQ(s.side().for_others.made(), 1U);
}

ALONE(CopiesForOthers, WhatIsWithdrawnIsNotMade)
{
    (void)start();
    submitter s;
    const delegated_copy message = s.message();
    s.word().store(delegation_word::of(message.turn, delegation_stage::withdrawn));
    EXPECT_TRUE(s.receive(message));
    s.complete();
    EXPECT_EQ(s.stage(), delegation_stage::withdrawn);
    EXPECT_TRUE(s.is_untouched());
    EXPECT_EQ(s.side().for_others.made(), 0U);
}

ALONE(CopiesForOthers, WhatMakesNoSenseIsRefused)
{
    (void)start();
    submitter s;
    const auto refuses = [&](const auto &change) {
        delegated_copy message = s.message();
        change(message);
        EXPECT_TRUE(s.receive(message));
        s.complete();
        return delegation_stage::refused == s.stage() && s.is_untouched();
    };
    EXPECT_TRUE(refuses([](delegated_copy &m) { m.len_bytes += 1; }));
    EXPECT_TRUE(refuses([](delegated_copy &m) { m.len_bytes = UINT64_MAX; }));
    EXPECT_TRUE(refuses([](delegated_copy &m) { m.source.address -= 1; }));
    EXPECT_TRUE(refuses([](delegated_copy &m) { m.target.address += 1; }));
    EXPECT_TRUE(refuses([](delegated_copy &m) { m.source.handle.generation += 1; }));
    EXPECT_TRUE(refuses([](delegated_copy &m) { m.source.handle.kind = share_kind::host; }));
    EXPECT_TRUE(refuses([](delegated_copy &m) { m.target.handle.event_slot = 0; }));
    EXPECT_TRUE(refuses([](delegated_copy &m) { m.target.handle.slot = 12345; }));
    EXPECT_TRUE(refuses([](delegated_copy &m) { m.source.owner.vpid = 4321; }));
    EXPECT_TRUE(refuses([](delegated_copy &m) { m.device_uuid[0] ^= 1; }));

    delegated_copy message = s.message();
    message.slot = delegation_slots;
    EXPECT_FALSE(s.receive(message));
    message = s.message();
    message.granule = 0xffffff;
    EXPECT_FALSE(s.receive(message));
    message.granule = 0;
    EXPECT_FALSE(s.receive(message));
    EXPECT_FALSE(s.side().for_others.message_from(s.requester(), nullptr, 3));
}

ALONE(CopiesForOthers, DevicesInUseArePublishedWhileItServes)
{
    (void)start();
    submitter s;
    const segment_view &view = s.own().view();
    const auto published = [&] {
        s.side().for_others.publish();
        const std::uint32_t granule = view.header->delegations.load();
        return 0 != granule && 0 != reinterpret_cast<delegation_board *>(s.own().at(granule))
                                        ->devices[0]
                                        .in_use.load();
    };
    EXPECT_FALSE(published()) << "nobody carries messages";
    s.side().for_others.serve(true);
    EXPECT_TRUE(published());
    s.side().for_others.serve(false);
    EXPECT_FALSE(published());
}

} // namespace
