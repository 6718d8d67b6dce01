// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// peer_segment_test.cc: somebody else's segment: what a file may say and what it may not, peer
// slots, fragments, and whether its owner lives.
#include "opal/mca/common/gpusm/shm/segment.h"

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
        const expect_lines log(1);
        peer_segment theirs;
        EXPECT_EQ(peer_segment::attach(folder.path().c_str(), stranger, &theirs), status::bad_peer);
        EXPECT_FALSE(theirs.valid());
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

TEST_F(BadSegment, ASymbolicLinkIsNotFollowed)
{
    const scratch_folder folder;
    const segment good = make_segment(folder.path(), 1);
    ASSERT_EQ(symlink(good.path().c_str(), segment_path(folder.path(), stranger).c_str()), 0);
    expect_refused(folder);
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

// The number of the next one in the header, or a slot's own word.
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
            ASSERT_TRUE(slot < 8 && claimed.insert(slot).second) << slot;
            EXPECT_EQ(own_->view().peers[slot].ready.load(), 1U);
            EXPECT_TRUE(own_->view().peers[slot].identity == stranger);
        }
        slot = 1000;
        EXPECT_EQ(theirs_.claim_peer_slot(stranger, &slot), status::no_memory);
        EXPECT_EQ(slot, 1000U);
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
            auto &word = reinterpret_cast<std::uint32_t *>(own_->base())[random() % 16];
            word = static_cast<std::uint32_t>(0 == random() % 2 ? 1ULL << random() % 32
                                                                : any_word(random, word));
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

TEST_F(PeerSegment, ItsOwnerLivesUntilTheSegmentEnds)
{
    peer_segment other;
    ASSERT_EQ(attach(own_->identity(), &other), status::ok);
    for (const bool alive : {true, false}) {
        EXPECT_EQ(theirs_.owner_alive(), alive);
        EXPECT_EQ(other.owner_alive(), alive) << "asking must not look like owning";
        EXPECT_EQ(theirs_.owner_alive(), alive);
        own_.reset();
    }
    EXPECT_EQ(theirs_.view().header->magic, segment_magic) << "what is mapped stays";
}

} // namespace
