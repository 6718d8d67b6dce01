// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// peer_segment_test.cc: somebody else's segment: what a file may say and what it may not, peer
// slots, fragments, and whether its owner lives.
#include "opal/mca/btl/gpusm/shm/segment.h"

#include "tests/unit/shm_support.h"

#include <optional>
#include <set>

#include <fcntl.h>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

constexpr segment_identity stranger{0xabcd0001, 77, 0x1122334455667788};

bool has_fragment(const peer_segment &theirs, std::uint32_t granule)
{
    frag_header copy{};
    const unsigned char *payload = nullptr;
    return theirs.read_fragment(granule, &copy, &payload);
}

class PeerSegment : public testing::Test {
  protected:
    status attach(const segment_identity &identity, peer_segment *out)
    {
        return peer_segment::attach(folder_.path().c_str(), identity, out);
    }
    void SetUp() override { ASSERT_EQ(attach(own_->identity(), &theirs_), status::ok); }

    scratch_folder folder_;
    std::optional<segment> own_ = make_segment(folder_.path(), 1);
    peer_segment theirs_;
};

TEST_F(PeerSegment, SeesWhatTheOwnerWrites)
{
    const outgoing sent = make_fragment(*own_, "seen by both");
    EXPECT_NE(theirs_.base(), own_->base());
    frag_header seen{};
    const unsigned char *payload = nullptr;
    ASSERT_TRUE(theirs_.read_fragment(sent.granule, &seen, &payload));
    EXPECT_EQ(payload_of(seen, payload), "seen by both");
    EXPECT_EQ(theirs_.view().fifo.slots, own_->view().fifo.slots);
}

TEST_F(PeerSegment, StaysUsableWhenTheFileIsRemoved)
{
    own_.reset();
    EXPECT_EQ(theirs_.view().header->magic, segment_magic);
}

TEST_F(PeerSegment, WithoutAFileIsNotFound)
{
    peer_segment none;
    EXPECT_EQ(attach(stranger, &none), status::not_found);
    EXPECT_FALSE(none.valid());
}

TEST_F(PeerSegment, ASymbolicLinkIsNotFollowed)
{
    ASSERT_EQ(symlink(own_->path().c_str(), segment_path(folder_.path(), stranger).c_str()), 0);
    const log_capture log;
    peer_segment none;
    EXPECT_EQ(attach(stranger, &none), status::bad_peer);
    EXPECT_FALSE(none.valid());
    EXPECT_EQ(log.count(), 1U) << log.text();
}

class BadSegment : public testing::TestWithParam<fault<segment_header>> {
  protected:
    // Makes the file of `stranger`: `file_bytes` long, and its header is that of a good segment
    // after `spoil`.
    static void forge(const std::string &folder, std::size_t file_bytes,
                      void (*spoil)(segment_header *))
    {
        const segment good = make_segment(folder, 1);
        file_mapping forged(open(segment_path(folder, stranger).c_str(), O_RDWR | O_CREAT, 0600));
        ASSERT_GE(forged.fd(), 0);
        ASSERT_EQ(ftruncate(forged.fd(), 1 << 20), 0);
        ASSERT_TRUE(forged.map(1 << 20));
        auto *header = reinterpret_cast<segment_header *>(forged.base());
        std::memcpy(static_cast<void *>(header), good.base(), sizeof(*header));
        header->identity = stranger;
        spoil(header);
        ASSERT_EQ(ftruncate(forged.fd(), static_cast<off_t>(file_bytes)), 0);
    }
    static void expect_refused(const scratch_folder &folder)
    {
        const log_capture log;
        peer_segment theirs;
        EXPECT_EQ(peer_segment::attach(folder.path().c_str(), stranger, &theirs), status::bad_peer);
        EXPECT_FALSE(theirs.valid());
        EXPECT_EQ(log.count(), 1U) << log.text();
    }
};

TEST_F(BadSegment, TheForgeryItselfIsAccepted)
{
    const scratch_folder folder;
    forge(folder.path(), 1 << 20, [](segment_header *) {});
    peer_segment theirs;
    EXPECT_EQ(peer_segment::attach(folder.path().c_str(), stranger, &theirs), status::ok);
}

TEST_P(BadSegment, IsReportedOnceAndNotUsed)
{
    const scratch_folder folder;
    forge(folder.path(), 1 << 20, GetParam().spoil);
    expect_refused(folder);
}

const fault<segment_header> bad_headers[] = {
    {"Magic", [](segment_header *h) { h->magic ^= 1; }},
    {"OlderVersion", [](segment_header *h) { h->version -= 1; }},
    {"NewerVersion", [](segment_header *h) { h->version += 1; }},
    {"Jobid", [](segment_header *h) { h->identity.jobid += 1; }},
    {"Vpid", [](segment_header *h) { h->identity.vpid += 1; }},
    {"Nonce", [](segment_header *h) { h->identity.nonce += 1; }},
    {"LongerThanItsFile", [](segment_header *h) { h->segment_bytes += 1; }},
    {"LongerThanAnySegment", [](segment_header *h) { h->segment_bytes = ~0ULL; }},
    {"NoBytes", [](segment_header *h) { h->segment_bytes = 0; }},
    {"EndsInItsTables", [](segment_header *h) { h->segment_bytes = 4096; }},
    {"FifoSlotsZero", [](segment_header *h) { h->counts.fifo_slots = 0; }},
    {"FifoSlotsThree", [](segment_header *h) { h->counts.fifo_slots = 3; }},
    {"FifoSlotsHuge", [](segment_header *h) { h->counts.fifo_slots = 1U << 31; }},
    {"PeerSlotsHuge", [](segment_header *h) { h->counts.peer_slots = 0xffffffffU; }},
    {"PeerSlotsBeyondTheFile", [](segment_header *h) { h->counts.peer_slots = 1U << 15; }},
    {"EventSlotsHuge", [](segment_header *h) { h->counts.event_slots = 0xffffffffU; }},
    {"ExportSlotsHuge", [](segment_header *h) { h->counts.export_slots = 0xffffffffU; }},
    {"ExportSlotsMore", [](segment_header *h) { h->counts.export_slots = 0x4000; }},
    {"AllOnes", [](segment_header *h) { std::memset(static_cast<void *>(h), 0xff, 128); }},
    {"AllZero", [](segment_header *h) { std::memset(static_cast<void *>(h), 0, 128); }},
};
INSTANTIATE_TEST_SUITE_P(Header, BadSegment, testing::ValuesIn(bad_headers), name_of_row);

TEST_F(BadSegment, AFileOfTheWrongLengthIsReportedOnceAndNotUsed)
{
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{4096}, (1UL << 20) - 1,
          max_segment_bytes + 4096, 1UL << 40}) {
        SCOPED_TRACE(bytes);
        const scratch_folder folder;
        forge(folder.path(), bytes, [](segment_header *) {});
        expect_refused(folder);
    }
}

TEST_F(PeerSegment, ALaterChangeOfTheHeaderChangesNothing)
{
    own_->view().header->counts.peer_slots = 1U << 20;
    own_->view().header->counts.fifo_slots = 1U << 20;
    own_->view().header->counts.event_slots = 0;
    EXPECT_EQ(theirs_.view().peer_slots, 8U);
    EXPECT_EQ(theirs_.view().fifo.slots, 4U);
    EXPECT_EQ(theirs_.view().frag_offset, own_->view().frag_offset);
    own_->view().header->segment_bytes = ~0ULL;
    EXPECT_FALSE(has_fragment(theirs_, 0xffffff));
    const outgoing sent = make_fragment(*own_, "payload");
    ASSERT_TRUE(has_fragment(theirs_, sent.granule));
    own_->view().header->committed_bytes.store(0);
    EXPECT_TRUE(has_fragment(theirs_, sent.granule)) << "it never shrinks";
}

TEST_F(PeerSegment, EachClaimGetsAPeerSlotOfItsOwnAndDescribesTheClaimerUntilAllAreTaken)
{
    std::uint32_t slot = 1000;
    for (std::uint32_t i = 0; i < 8; ++i) {
        const segment_identity self{1, i, 99};
        ASSERT_EQ(theirs_.claim_peer_slot(self, &slot), status::ok);
        ASSERT_EQ(slot, i);
        EXPECT_EQ(own_->view().peers[slot].ready.load(), 1U);
        EXPECT_TRUE(own_->view().peers[slot].identity == self);
        EXPECT_EQ(own_->view().peers[slot].consumed.load(), 0U);
    }
    slot = 1000;
    for (int i = 0; i < 10000; ++i) {
        ASSERT_EQ(theirs_.claim_peer_slot(stranger, &slot), status::no_memory);
    }
    EXPECT_EQ(slot, 1000U);
    EXPECT_EQ(own_->view().header->peers_claimed.load(), 8U) << "so that it cannot wrap";
}

// By their number in the header, or by their own word.
TEST_F(PeerSegment, WhateverIsStoredThereEachClaimGetsASlotThatNobodyHas)
{
    for (const std::uint32_t number : {0U, 1U, 7U, 8U, 9U, 1U << 31, ~0U}) {
        SCOPED_TRACE(number);
        own_ = make_segment(folder_.path(), 1);
        ASSERT_EQ(attach(own_->identity(), &theirs_), status::ok);
        own_->view().peers[3].ready.store(number);
        std::set<std::uint32_t> claimed;
        std::uint32_t slot = 0;
        for (std::uint32_t i = 0 == number ? 0 : 1; i < 8; ++i) {
            own_->view().header->peers_claimed.store(number);
            ASSERT_EQ(theirs_.claim_peer_slot(stranger, &slot), status::ok);
            EXPECT_TRUE(slot < 8 && claimed.insert(slot).second) << slot;
        }
        EXPECT_EQ(theirs_.claim_peer_slot(stranger, &slot), status::no_memory);
    }
}

TEST_F(PeerSegment, WhateverItsHeaderSaysItIsRefusedOrAllThatItHasLiesInTheFile)
{
    (void)alarm(60);
    const log_capture log;
    std::mt19937_64 random(3);
    const std::string good(reinterpret_cast<const char *>(own_->base()), sizeof(segment_header));
    int used = 0;
    for (int round = 0; round < 5000; ++round) {
        std::memcpy(own_->base(), good.data(), good.size());
        for (std::uint64_t i = random() % 3; i < 3; ++i) {
            unsigned char *at = own_->base() + random() % 16 * sizeof(std::uint32_t);
            std::uint32_t word = 0;
            std::memcpy(&word, at, sizeof(word));
            word = static_cast<std::uint32_t>(0 == random() % 2 ? 1ULL << random() % 32
                                                                : any_word(random, word));
            std::memcpy(at, &word, sizeof(word));
        }
        peer_segment theirs;
        if (status::ok != attach(own_->identity(), &theirs)) {
            continue;
        }
        ++used;
        const segment_view &view = theirs.view();
        const auto in_file = [&](const auto *end) {
            return reinterpret_cast<const unsigned char *>(end) <= theirs.base() + view.frag_offset;
        };
        ASSERT_LE(view.frag_offset, 1U << 20);
        ASSERT_TRUE(
            in_file(view.fifo.slot + view.fifo.slots) && in_file(view.peers + view.peer_slots) &&
            in_file(view.events + view.event_slots) && in_file(view.exports + view.export_slots));
        std::uint32_t slot = 0;
        if (status::ok == theirs.claim_peer_slot(stranger, &slot)) {
            ASSERT_LT(slot, view.peer_slots);
        }
        (void)(status::ok == fifo_post(view.fifo, {slot, 1}));
    }
    EXPECT_GT(used, 100);
    (void)alarm(0);
}

TEST_F(PeerSegment, AFragmentIsFoundOnlyInsideTheFragmentSection)
{
    outgoing sent = make_fragment(*own_, "payload");
    EXPECT_TRUE(has_fragment(theirs_, sent.granule));
    for (const std::uint32_t granule : {0U, 1U, sent.granule - 1, 1U << 14, 0xffffffU}) {
        EXPECT_FALSE(has_fragment(theirs_, granule)) << granule;
    }
    const std::size_t room = (1U << 20) - sent.granule * granule_bytes - sizeof(frag_header);
    for (const std::size_t bytes : {room + 1, std::size_t{0xffffffffU}}) {
        sent.header->payload_bytes = static_cast<std::uint32_t>(bytes);
        EXPECT_FALSE(has_fragment(theirs_, sent.granule)) << bytes;
    }
}

TEST_F(PeerSegment, AFragmentOfWhichTheHeaderWasReadIsNotChangedByItsSenderAnyMore)
{
    outgoing sent = make_fragment(*own_, "payload");
    frag_header copy{};
    const unsigned char *payload = nullptr;
    ASSERT_TRUE(theirs_.read_fragment(sent.granule, &copy, &payload));
    const frag_header before = copy;
    std::memset(static_cast<void *>(sent.header), 0xff, sizeof(*sent.header));
    EXPECT_EQ(std::memcmp(&copy, &before, sizeof(copy)), 0);
    EXPECT_EQ(payload, theirs_.base() + sent.granule * granule_bytes + sizeof(copy));
}

TEST_F(PeerSegment, ItsOwnerLivesUntilTheSegmentEnds)
{
    peer_segment other;
    ASSERT_EQ(attach(own_->identity(), &other), status::ok);
    EXPECT_TRUE(theirs_.owner_alive());
    EXPECT_TRUE(other.owner_alive()) << "asking must not look like owning";
    own_.reset();
    EXPECT_FALSE(theirs_.owner_alive());
    EXPECT_FALSE(other.owner_alive());
    EXPECT_FALSE(theirs_.owner_alive());
}

} // namespace
