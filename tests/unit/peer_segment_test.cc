// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// peer_segment_test.cc: somebody else's segment: what a file may say and what it may not, peer
// slots, fragments, and whether its owner lives.
#include "opal/mca/btl/gpusm/shm/segment.h"

#include "tests/unit/shm_support.h"

#include <functional>

#include <fcntl.h>

#include <gtest/gtest.h>

namespace {

using gpusm::peer_segment;
using gpusm::segment;
using gpusm::segment_header;
using gpusm::segment_identity;
using gpusm::status;
using gpusm_test::log_capture;
using gpusm_test::make_segment;
using gpusm_test::scratch_folder;
using gpusm_test::small_options;

constexpr segment_identity stranger{0xabcd0001, 77, 0x1122334455667788};

bool has_fragment(const peer_segment &theirs, std::uint32_t granule)
{
    gpusm::frag_header copy{};
    const unsigned char *payload = nullptr;
    return theirs.read_fragment(granule, &copy, &payload);
}

TEST(PeerSegment, SeesWhatTheOwnerWrites)
{
    const scratch_folder folder;
    segment own = make_segment(folder.path(), 1);
    const gpusm::outgoing sent = gpusm_test::make_fragment(own, "seen by both");
    peer_segment theirs;
    ASSERT_EQ(peer_segment::attach(folder.path().c_str(), own.identity(), &theirs), status::ok);
    EXPECT_NE(theirs.base(), own.base());
    gpusm::frag_header seen{};
    const unsigned char *payload = nullptr;
    ASSERT_TRUE(theirs.read_fragment(sent.granule, &seen, &payload));
    EXPECT_EQ(gpusm_test::payload_of(seen, payload), "seen by both");
    EXPECT_EQ(theirs.view().fifo.slots, own.view().fifo.slots);
}

TEST(PeerSegment, StaysUsableWhenTheFileIsRemoved)
{
    const scratch_folder folder;
    peer_segment theirs;
    {
        const segment own = make_segment(folder.path(), 1);
        ASSERT_EQ(peer_segment::attach(folder.path().c_str(), own.identity(), &theirs), status::ok);
    }
    EXPECT_EQ(theirs.view().header->magic, gpusm::segment_magic);
}

TEST(PeerSegment, WithoutAFileIsNotFound)
{
    const scratch_folder folder;
    peer_segment theirs;
    EXPECT_EQ(peer_segment::attach(folder.path().c_str(), stranger, &theirs), status::not_found);
    EXPECT_FALSE(theirs.valid());
}

TEST(PeerSegment, ASymbolicLinkIsNotFollowed)
{
    const scratch_folder folder;
    const segment own = make_segment(folder.path(), 1);
    ASSERT_EQ(symlink(own.path().c_str(), gpusm::segment_path(folder.path(), stranger).c_str()), 0);
    peer_segment theirs;
    EXPECT_NE(peer_segment::attach(folder.path().c_str(), stranger, &theirs), status::ok);
    EXPECT_FALSE(theirs.valid());
}

struct fault {
    const char *name;
    void (*spoil)(segment_header *);
};
void PrintTo(const fault &about, std::ostream *out)
{
    *out << about.name;
}

class BadSegment : public testing::TestWithParam<fault> {
  protected:
    // Makes the file of `stranger`: `file_bytes` long, and its header is that of a good segment
    // after `spoil`.
    static void forge(const std::string &folder, std::size_t file_bytes,
                      void (*spoil)(segment_header *))
    {
        const segment good = make_segment(folder, 1);
        gpusm::file_mapping forged(
            open(gpusm::segment_path(folder, stranger).c_str(), O_RDWR | O_CREAT, 0600));
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

INSTANTIATE_TEST_SUITE_P(
    Header, BadSegment,
    testing::Values(
        fault{"Magic", [](segment_header *h) { h->magic ^= 1; }},
        // It knows no bundles.
        fault{"VersionOne", [](segment_header *h) { h->version = 1; }},
        fault{"OlderVersion", [](segment_header *h) { h->version -= 1; }},
        fault{"NewerVersion", [](segment_header *h) { h->version += 1; }},
        fault{"Jobid", [](segment_header *h) { h->identity.jobid += 1; }},
        fault{"Vpid", [](segment_header *h) { h->identity.vpid += 1; }},
        fault{"Nonce", [](segment_header *h) { h->identity.nonce += 1; }},
        fault{"LongerThanItsFile", [](segment_header *h) { h->segment_bytes += 1; }},
        fault{"LongerThanAnySegment", [](segment_header *h) { h->segment_bytes = ~0ULL; }},
        fault{"NoBytes", [](segment_header *h) { h->segment_bytes = 0; }},
        fault{"EndsInItsTables", [](segment_header *h) { h->segment_bytes = h->export_offset; }},
        fault{"FifoOffset", [](segment_header *h) { h->fifo_offset += 64; }},
        fault{"FifoOverTheHeader", [](segment_header *h) { h->fifo_offset = 0; }},
        fault{"FifoOutside", [](segment_header *h) { h->fifo_offset = 1U << 30; }},
        fault{"FifoSlotsZero", [](segment_header *h) { h->fifo_slots = 0; }},
        fault{"FifoSlotsThree", [](segment_header *h) { h->fifo_slots = 3; }},
        fault{"FifoSlotsHuge", [](segment_header *h) { h->fifo_slots = 1U << 31; }},
        fault{"PeerOffset", [](segment_header *h) { h->peer_offset -= 64; }},
        fault{"PeerSlotsHuge", [](segment_header *h) { h->peer_slots = 0xffffffffU; }},
        fault{"PeerSlotsLarger", [](segment_header *h) { h->peer_slots = 1000; }},
        fault{"EventOffset", [](segment_header *h) { h->event_offset = 0xffffffffU; }},
        fault{"EventSlotsHuge", [](segment_header *h) { h->event_slots = 0xffffffffU; }},
        fault{"ExportOffset", [](segment_header *h) { h->export_offset += 1; }},
        fault{"ExportSlotsHuge", [](segment_header *h) { h->export_slots = 0xffffffffU; }},
        fault{"ExportSlotsMore", [](segment_header *h) { h->export_slots = 0x1000; }},
        fault{"FragOffsetEarly", [](segment_header *h) { h->frag_offset = 64; }},
        fault{"FragOffsetOutside", [](segment_header *h) { h->frag_offset = 1U << 30; }},
        fault{"AllOnes", [](segment_header *h) { std::memset(static_cast<void *>(h), 0xff, 128); }},
        fault{"AllZero", [](segment_header *h) { std::memset(static_cast<void *>(h), 0, 128); }}),
    [](const auto &about) { return about.param.name; });

TEST_F(BadSegment, AFileOfTheWrongLengthIsReportedOnceAndNotUsed)
{
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{4096}, (1UL << 20) - 1,
          gpusm::max_segment_bytes + 4096, 1UL << 40}) {
        SCOPED_TRACE(bytes);
        const scratch_folder folder;
        forge(folder.path(), bytes, [](segment_header *) {});
        expect_refused(folder);
    }
}

TEST(PeerSegment, ALaterChangeOfTheHeaderChangesNothing)
{
    const scratch_folder folder;
    const segment own = make_segment(folder.path(), 1);
    peer_segment theirs;
    ASSERT_EQ(peer_segment::attach(folder.path().c_str(), own.identity(), &theirs), status::ok);
    own.view().header->peer_slots = 1U << 20;
    own.view().header->fifo_slots = 1U << 20;
    own.view().header->frag_offset = 0;
    EXPECT_EQ(theirs.view().peer_slots, 8U);
    EXPECT_EQ(theirs.view().fifo.slots, 4U);
    EXPECT_FALSE(has_fragment(theirs, 1));
    own.view().header->segment_bytes = ~0ULL;
    EXPECT_FALSE(has_fragment(theirs, 0xffffff));
}

TEST(PeerSlot, EachClaimGetsItsOwnAndDescribesTheClaimer)
{
    const scratch_folder folder;
    const segment own = make_segment(folder.path(), 1);
    peer_segment theirs;
    ASSERT_EQ(peer_segment::attach(folder.path().c_str(), own.identity(), &theirs), status::ok);
    for (std::uint32_t i = 0; i < 8; ++i) {
        const segment_identity self{1, i, 99};
        std::uint32_t slot = 1000;
        ASSERT_EQ(theirs.claim_peer_slot(self, &slot), status::ok);
        ASSERT_EQ(slot, i);
        EXPECT_EQ(own.view().peers[slot].ready.load(), 1U);
        EXPECT_TRUE(own.view().peers[slot].identity == self);
        EXPECT_EQ(own.view().peers[slot].consumed.load(), 0U);
    }
}

TEST(PeerSlot, WhenAllAreTakenTheAnswerIsNoMemoryForEver)
{
    const scratch_folder folder;
    const segment own = make_segment(folder.path(), 1);
    peer_segment theirs;
    ASSERT_EQ(peer_segment::attach(folder.path().c_str(), own.identity(), &theirs), status::ok);
    std::uint32_t slot = 1000;
    for (std::uint32_t i = 0; i < 8; ++i) {
        ASSERT_EQ(theirs.claim_peer_slot(stranger, &slot), status::ok);
    }
    slot = 1000;
    for (int i = 0; i < 10000; ++i) {
        ASSERT_EQ(theirs.claim_peer_slot(stranger, &slot), status::no_memory);
    }
    EXPECT_EQ(slot, 1000U);
    EXPECT_EQ(own.view().header->peers_claimed.load(), 8U) << "so that it cannot wrap";
}

TEST(PeerFragment, IsFoundOnlyInsideTheFragmentSection)
{
    const scratch_folder folder;
    segment own = make_segment(folder.path(), 1);
    peer_segment theirs;
    ASSERT_EQ(peer_segment::attach(folder.path().c_str(), own.identity(), &theirs), status::ok);
    gpusm::outgoing sent = gpusm_test::make_fragment(own, "payload");
    EXPECT_TRUE(has_fragment(theirs, sent.granule));
    for (const std::uint32_t granule : {0U, 1U, sent.granule - 1, 1U << 14, 0xffffffU}) {
        EXPECT_FALSE(has_fragment(theirs, granule)) << granule;
    }
}

TEST(PeerFragment, APayloadBeyondTheSegmentIsRefused)
{
    const scratch_folder folder;
    segment own = make_segment(folder.path(), 1);
    peer_segment theirs;
    ASSERT_EQ(peer_segment::attach(folder.path().c_str(), own.identity(), &theirs), status::ok);
    gpusm::outgoing sent = gpusm_test::make_fragment(own, "payload");
    const std::size_t room =
        (1U << 20) - sent.granule * gpusm::granule_bytes - sizeof(gpusm::frag_header);
    sent.header->payload_bytes = static_cast<std::uint32_t>(room + 1);
    EXPECT_FALSE(has_fragment(theirs, sent.granule));
    sent.header->payload_bytes = 0xffffffffU;
    EXPECT_FALSE(has_fragment(theirs, sent.granule));
}

TEST(PeerFragment, OfWhichTheHeaderWasReadIsNotChangedByItsSenderAnyMore)
{
    const scratch_folder folder;
    segment own = make_segment(folder.path(), 1);
    peer_segment theirs;
    ASSERT_EQ(peer_segment::attach(folder.path().c_str(), own.identity(), &theirs), status::ok);
    gpusm::outgoing sent = gpusm_test::make_fragment(own, "payload");
    gpusm::frag_header copy{};
    const unsigned char *payload = nullptr;
    ASSERT_TRUE(theirs.read_fragment(sent.granule, &copy, &payload));
    const gpusm::frag_header before = copy;
    std::memset(static_cast<void *>(sent.header), 0xff, sizeof(*sent.header));
    EXPECT_EQ(std::memcmp(&copy, &before, sizeof(copy)), 0);
    EXPECT_EQ(payload, theirs.base() + sent.granule * gpusm::granule_bytes + sizeof(copy));
}

TEST(PeerOwner, LivesUntilItsSegmentEnds)
{
    const scratch_folder folder;
    peer_segment theirs;
    peer_segment other;
    {
        const segment own = make_segment(folder.path(), 1);
        ASSERT_EQ(peer_segment::attach(folder.path().c_str(), own.identity(), &theirs), status::ok);
        ASSERT_EQ(peer_segment::attach(folder.path().c_str(), own.identity(), &other), status::ok);
        EXPECT_TRUE(theirs.owner_alive());
        EXPECT_TRUE(other.owner_alive()) << "asking must not look like owning";
    }
    EXPECT_FALSE(theirs.owner_alive());
    EXPECT_FALSE(other.owner_alive());
    EXPECT_FALSE(theirs.owner_alive());
}

} // namespace
