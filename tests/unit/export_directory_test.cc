// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// export_directory_test.cc: what ipc/export_directory.h promises, of memory of every kind on
// whatever driver there is. GPUSM_TEST_SEED repeats the random rounds.
#include "opal/mca/common/gpusm/ipc/export_directory.h"
#include "opal/mca/common/gpusm/ipc/fd_passing.h"

#include "tests/unit/fd_services.h"
#include "tests/unit/counted_driver.h"
#include "tests/unit/descriptor_support.h"
#include "tests/unit/failing_recvmsg.h"
#include "tests/unit/test_clock.h"

#include <cstdio>
#include <algorithm>
#include <map>
#include <utility>

using namespace gpusm_test;
using namespace softcuda_test;

namespace {

using namespace gpusm;

constexpr std::size_t small = 4096;
// What a process with a segment of its own has.
struct owner {
    explicit owner(std::uint32_t slots = 64) : own(make_segment(options(slots))) { (void)start(); }

    scratch_folder folder;
    segment own;
    driver_api api = counted_driver();
    device_table devices{api};
    export_directory exports{api, devices, own, false};

    segment_options options(std::uint32_t slots) const
    {
        segment_options made = small_options(folder.path(), 1);
        made.export_slots = slots;
        return made;
    }
    struct answer {
        status s;
        remote_handle handle;
        exported *entry; // held, until it is released
    };
    answer hold(CUdeviceptr at, std::size_t len_bytes = small,
                const mappings_of_exports &by_peer = {})
    {
        answer made{};
        made.s = exports.export_range(at, len_bytes, 0, export_use::read, &made.entry, &made.handle,
                                      by_peer);
        return made;
    }
    answer try_offer(CUdeviceptr at, std::size_t len_bytes, const mappings_of_exports &by_peer = {})
    {
        const answer made = hold(at, len_bytes, by_peer);
        if (status::ok == made.s) {
            exports.release(made.entry);
        }
        return made;
    }
    remote_handle offer(CUdeviceptr at, std::size_t len_bytes = small)
    {
        const answer made = try_offer(at, len_bytes);
        EXPECT_EQ(made.s, status::ok);
        return made.handle;
    }
    // So many small allocations, all of them offered.
    std::vector<CUdeviceptr> offer_new(int count)
    {
        std::vector<CUdeviceptr> all;
        for (int i = 0; i < count; ++i) {
            all.push_back(allocate(small));
            (void)offer(all.back());
        }
        return all;
    }
    std::uint64_t generation_in(std::uint32_t slot) const
    {
        return own.view().exports[slot].generation.load();
    }
    std::uint64_t epoch() const { return own.view().header->retire_epoch.load(); }
};

bool same_export(const remote_handle &left, const remote_handle &right)
{
    return left.slot == right.slot && left.generation == right.generation;
}

void free_memory(CUdeviceptr at)
{
    OK(CU(cuMemFree)(at));
}

ALONE(ExportDirectory, DescribesAnAllocationWholeAndOnce)
{
    owner me;
    const CUdeviceptr at = allocate(mib);
    const remote_handle first = me.offer(at + 5, 100);
    EXPECT_EQ(first.kind, share_kind::legacy);
    EXPECT_EQ(first.base, at);
    EXPECT_GE(first.len_bytes, mib);
    EXPECT_TRUE(same_export(first, me.offer(at, mib)));
    EXPECT_TRUE(same_export(first, me.offer(at + mib - 1, 0)));
    EXPECT_EQ(me.try_offer(at, first.len_bytes + 1).s, status::unsupported);
    EXPECT_EQ(me.exports.live(), 1U);
    const remote_handle now = me.offer(at);
    EXPECT_EQ(me.generation_in(now.slot), now.generation);
    EXPECT_NE(me.exports.live_export(now), nullptr);
}

ALONE(ExportDirectory, TellsTheKindOfAllMemoryAndGivesDescriptorsForWhatNeedsThem)
{
    owner me;
    const expect_lines log(0);
    const CUdeviceptr mixed = allocate_chunks({two, -two});
    const struct {
        CUdeviceptr at;
        share_kind kind;
        std::vector<std::uint64_t> lengths;
    } table[] = {{allocate(mib), share_kind::legacy, {}},
                 {allocate_from(make_pool(), mib), share_kind::pool, {0}},
                 {allocate_chunks({two, 2 * two}), share_kind::descriptors, {2 * mib, 4 * mib}},
                 {mixed, share_kind::descriptors, {2 * mib}}};
    for (const auto &each : table) {
        remote_handle handle = me.offer(each.at + 5);
        EXPECT_EQ(handle.kind, each.kind);
        descriptor_message out;
        EXPECT_EQ(me.exports.descriptors_of(handle, &out),
                  each.lengths.empty() ? status::not_found : status::ok);
        EXPECT_EQ(out.lengths, each.lengths);
        EXPECT_EQ(out.fds.size(), each.lengths.size());
        ++handle.generation;
        EXPECT_EQ(me.exports.descriptors_of(handle, &out), status::not_found);
    }
    const int host = 0;
    const CUdeviceptr freed = allocate_from(make_pool(), mib);
    OK(CU(cuMemFreeAsync)(freed, nullptr));
    OK(CU(cuStreamSynchronize)(nullptr));
    for (const CUdeviceptr at : {allocate_managed(mib), allocate_pool(mib), mixed + 3 * mib,
                                 reinterpret_cast<CUdeviceptr>(&host), CUdeviceptr{0}, freed}) {
        EXPECT_EQ(me.try_offer(at, small).s, status::unsupported);
    }
    EXPECT_EQ(me.offer(mixed).kind, share_kind::descriptors);
}

ALONE(ExportDirectory, FreedMemoryEndsItsExportBeforeAnotherIsMadeAndInARoundOfSweeps)
{
    owner me;
    me.exports.sweep();
    const std::vector<CUdeviceptr> all = me.offer_new(40);
    const remote_handle first = me.offer(all[0]);
    free_memory(all[17]);
    free_memory(all[3]);
    (void)me.offer(allocate(2 * mib));
    EXPECT_EQ(me.exports.live(), 39U);
    for (const std::size_t each : {0, 5, 39}) {
        free_memory(all[each]);
    }
    for (int i = 0; i < 39; ++i) {
        me.exports.sweep();
    }
    EXPECT_EQ(me.exports.live(), 36U);
    EXPECT_EQ(me.generation_in(first.slot), 0U);
    EXPECT_EQ(me.exports.live_export(first), nullptr);
    EXPECT_EQ(me.epoch(), 5U);
}

ALONE(ExportDirectory, AFullOneGivesTheSlotOfTheLeastRecentlyUsedThatNobodyHolds)
{
    owner me(3 + 1); // one for the anchor
    const CUdeviceptr a = allocate(small);
    const CUdeviceptr b = allocate(small);
    const remote_handle first = me.offer(a);
    const remote_handle second = me.offer(b);
    const remote_handle third = me.offer(allocate(small));
    (void)me.offer(a);
    exported *const held = me.hold(b).entry; // unused for the longest time, but held
    const exported *const fourth = me.hold(allocate(small)).entry;
    EXPECT_EQ(fourth->slot, third.slot);
    EXPECT_EQ(fourth->generation, third.generation + 1);
    EXPECT_TRUE(same_export(me.offer(a), first));
    EXPECT_TRUE(same_export(me.offer(b), second));
    const exported *const again = me.hold(a).entry;
    const CUdeviceptr more = allocate(small);
    EXPECT_EQ(me.try_offer(more, small).s, status::no_memory);
    EXPECT_FALSE(held->retired || fourth->retired || again->retired);
    me.exports.release(held);
    EXPECT_EQ(me.offer(more).slot, second.slot);
    EXPECT_FALSE(fourth->retired || again->retired);
}

ALONE(ExportDirectory, RetiredWhileReferencedLivesUntilItsLastRelease)
{
    owner me;
    const CUdeviceptr at = allocate(small);
    exported *const entry = me.hold(at).entry;
    EXPECT_EQ(me.hold(at).entry, entry);
    free_memory(at);
    me.exports.sweep();
    EXPECT_TRUE(entry->retired);
    EXPECT_EQ(me.generation_in(entry->slot), 0U) << "the generation is over at once";
    const remote_handle next = me.offer(allocate(small));
    EXPECT_NE(next.slot, entry->slot);
    EXPECT_EQ(entry->generation, 1U);
    EXPECT_EQ(entry->base, at);
    me.exports.release(entry);
    me.exports.release(entry);
    const remote_handle after = me.offer(allocate(small));
    EXPECT_EQ(after.slot, entry->slot) << "the slot is free now";
    EXPECT_EQ(after.generation, 2U);
}

ALONE(ExportDirectory, MemoryThatCannotBeExportedIsAskedAboutOnce)
{
    owner me;
    (void)me.offer_new(40);
    for (const CUdeviceptr at : {allocate_managed(mib), allocate_pool(mib)}) {
        EXPECT_EQ(me.try_offer(at, mib).s, status::unsupported);
        fake().calls.clear();
        EXPECT_EQ(me.try_offer(at, mib).s, status::unsupported);
        EXPECT_LE(fake().calls["pointer_get_attribute"] + fake().calls["pointer_get_attributes"],
                  1);
    }
    EXPECT_EQ(me.exports.live(), 40U);
}

ALONE(ExportDirectory, MemoryThatThePeerCannotMapIsNotOfferedForAWhile)
{
    owner me;
    const CUdeviceptr at = allocate(mib);
    mappings_of_exports refused;
    mappings_of_exports others;
    (void)refused.refused({0, share_kind::legacy}, status::unsupported);
    for (const auto &[device, kind] :
         {std::pair{1, share_kind::legacy}, std::pair{0, share_kind::pool}}) {
        (void)others.refused({device, kind}, status::unsupported);
    }
    EXPECT_EQ(me.try_offer(at, mib, refused).s, status::unsupported);
    EXPECT_EQ(me.exports.live(), 0U);
    const auto made = me.try_offer(at, mib, others);
    EXPECT_EQ(made.s, status::ok);
    EXPECT_EQ(made.handle.flags, 0U);
    EXPECT_EQ(me.try_offer(at, mib, refused).s, status::unsupported) << "also if it is already";
    // After the pause it is, and the peer is asked to say what comes of it.
    clock_gained_ns += reach::first_pause_ns;
    const auto again = me.try_offer(at, mib, refused);
    EXPECT_EQ(again.s, status::ok);
    EXPECT_EQ(again.handle.flags, asks_for_answer);
    EXPECT_TRUE(refused.worked({0, share_kind::legacy}));
    EXPECT_EQ(me.try_offer(at, mib, refused).handle.flags, 0U);
}

// A buffer in the old part, one across the border, and so on in turns: one export serves them all.
ALONE(ExportDirectory, BuffersOfARunThatHasGrownDoNotEndEachOthersExport)
{
    owner me;
    const CUdeviceptr at = allocate_chunks({two, two, 0, 0});
    const remote_handle before = me.offer(at, 4 * mib);
    EXPECT_EQ(before.len_bytes, 4 * mib);
    map_chunk(at + 4 * mib, 2 * mib, true, 0); // the segment grows
    map_chunk(at + 6 * mib, 2 * mib, true, 0);
    (void)me.offer(at + 6 * mib, mib); // by itself
    EXPECT_EQ(me.exports.live(), 2U);
    const remote_handle across = me.offer(at + 3 * mib, 4 * mib);
    EXPECT_EQ(me.exports.live(), 1U) << "those that it overlaps have ended";
    const std::uint64_t epoch = me.epoch();
    for (int i = 0; i < 5; ++i) {
        EXPECT_TRUE(same_export(me.offer(at, 4 * mib), across));
        EXPECT_TRUE(same_export(me.offer(at + 3 * mib, 2 * mib), across));
        EXPECT_TRUE(same_export(me.offer(at + 6 * mib, mib), across));
    }
    EXPECT_EQ(across.len_bytes, 8 * mib);
    EXPECT_EQ(me.epoch(), epoch);
    OK(CU(cuMemUnmap)(at + 2 * mib, 2 * mib));
    map_chunk(at + 2 * mib, 2 * mib, true, 0);
    EXPECT_TRUE(same_export(me.offer(at, mib), across)) << "its own chunk is as it was";
    EXPECT_FALSE(same_export(me.offer(at + 3 * mib, mib), across)) << "other memory";
}

ALONE(ExportDirectory, OfAnImporterThatAsksAndTakesNothingFewDescriptorsAreHeld)
{
    owner me;
    const std::string folder = me.folder.path();
    const segment_identity importer{1, 2, 3};
    peer known(me.own.identity(), importer, folder);
    fd_services services(&known);
    const int &refused = services.refused;
    fd_passing fds(me.own, me.exports, services);
    descriptor_socket theirs(folder, importer);
    const remote_handle handle = me.offer(allocate_chunks({two}));
    const std::size_t before = open_descriptors();
    for (int i = 0; i < 600; ++i) {
        fds.send(0, handle);
    }
    EXPECT_LT(open_descriptors(), before + 300);
    EXPECT_GT(refused, 300);
    descriptor_message got;
    int arrived = 0;
    for (; status::ok == theirs.receive(&got); ++arrived) {
        fds.progress();
    }
    EXPECT_EQ(arrived + refused, 600) << "each is answered";
    fds.send(0, handle);
    EXPECT_EQ(theirs.receive(&got), status::ok) << "and goes on when they have been taken";
}

ALONE(ExportDirectory, WhoWaitsForDescriptorsOfAnOwnerThatHasEndedIsCalledAndNobodyElse)
{
    owner me;
    peer known(me.own.identity(), {1, 2, 3}, me.folder.path());
    fd_services services(&known);
    fd_passing fds(me.own, me.exports, services);
    constexpr std::uint32_t ended = 3;
    constexpr std::uint32_t other = 4;
    const remote_handle handle{7, no_event_slot, share_kind::descriptors, 0, 1, 0, mib};
    int told = 0;
    int others_told = 0;
    descriptor_message got;
    for (int i = 0; i < 2; ++i) {
        EXPECT_TRUE(fds.ask(ended, handle, [&] {
            ++told;
            EXPECT_EQ(fds.take(ended, handle, &got), status::not_ready) << "none have come";
        }));
        EXPECT_TRUE(fds.ask(other, handle, [&] { ++others_told; }));
    }
    fds.drop_owner(ended);
    EXPECT_EQ(told, 2);
    EXPECT_EQ(others_told, 0);
    fds.answered(ended, handle); // late
    fds.drop_owner(ended);
    EXPECT_EQ(told, 2);
    fds.answered(other, handle);
    EXPECT_EQ(others_told, 2);
}

// Of the importer's socket: as often as it fails, and not for longer than the pauses.
ALONE(ExportDirectory, DescriptorsAreReceivedAgainAfterReceivingHasFailed)
{
    owner me;
    const segment_identity sender{1, 2, 3};
    peer known(me.own.identity(), sender, me.folder.path());
    fd_services services(&known);
    fd_passing fds(me.own, me.exports, services);
    const descriptor_socket by(me.folder.path(), sender);
    const file_descriptor file = file_with("one");
    std::uint64_t generation = 0;
    // Asks for an export's descriptors, which come, and takes them.
    const auto fetch = [&] {
        remote_handle handle{};
        handle.generation = ++generation;
        if (!fds.ask(0, handle)) {
            return false;
        }
        descriptor_message sent{sender, generation, 0, {8}, {}};
        sent.fds.emplace_back(dup(file.get()));
        EXPECT_EQ(by.send(me.folder.path(), me.own.identity(), sent), status::ok);
        fds.answered(0, handle);
        descriptor_message got;
        return status::ok == fds.take(0, handle, &got);
    };
    EXPECT_TRUE(fetch());
    for (std::int64_t pause_ns = reach::first_pause_ns; pause_ns < 100 * reach::first_pause_ns;
         pause_ns *= 2) {
        fail_to_receive(failures_in_a_row, ENOMEM);
        for (unsigned i = 0; i < failures_in_a_row; ++i) {
            EXPECT_FALSE(fetch());
        }
        EXPECT_FALSE(fetch()) << "not for a while";
        clock_gained_ns += std::min(pause_ns, reach::longest_pause_ns);
    }
    EXPECT_TRUE(fetch());
    EXPECT_TRUE(fetch());
}

ALONE(ExportDirectory, RandomRoundsKeepToTheRules)
{
    constexpr std::uint32_t slots = 5;
    owner me(slots + 1); // one for the anchor
    const std::uint64_t seed = any_seed();
    std::mt19937_64 random(seed);
    std::vector<CUdeviceptr> memory;
    std::vector<exported *> held;
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> ids;
    for (int round = 0; round < 3000; ++round) {
        SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
        const std::uint64_t what = random() % 100;
        const std::size_t pick = memory.empty() ? 0 : random() % memory.size();
        if (memory.empty() || (what < 15 && memory.size() < 9)) {
            memory.push_back(allocate(small));
        } else if (what < 25) {
            free_memory(memory[pick]);
            memory.erase(memory.begin() + static_cast<std::ptrdiff_t>(pick));
        } else if (what < 60) {
            const std::uint64_t id = buffer_id(memory[pick]);
            const auto [s, handle, entry] = me.hold(memory[pick]);
            if (status::ok != s) {
                ASSERT_EQ(s, status::no_memory);
                ASSERT_GE(held.size(), slots) << "a slot that nobody uses is given";
                continue;
            }
            held.push_back(entry);
            ASSERT_FALSE(entry->retired);
            ASSERT_EQ(entry->base, memory[pick]);
            ASSERT_EQ(me.generation_in(handle.slot), handle.generation);
            const auto [at, is_new] =
                ids.emplace(std::make_pair(handle.slot, handle.generation), id);
            ASSERT_EQ(at->second, id) << "a name of other memory was used again";
        } else if (what < 95 && !held.empty()) {
            const std::size_t last = random() % held.size();
            std::swap(held[last], held.back());
            me.exports.release(held.back());
            held.pop_back();
        } else {
            me.exports.sweep();
        }
        std::uint32_t published = 0;
        for (std::uint32_t slot = 0; slot <= slots; ++slot) {
            published += 0 != me.generation_in(slot) ? 1 : 0;
        }
        ASSERT_EQ(me.exports.live(), published - std::min(published, 1U));
        for (const exported *each : held) {
            const auto name = std::make_pair(each->slot, each->generation);
            ASSERT_EQ(ids.count(name), 1U);
            ASSERT_EQ(ids[name], each->buffer_id) << "a referenced one is as it was";
        }
    }
}

} // namespace
