// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// local_process_test.cc: what a process has once is made by the component that comes first, is
// there for those that follow, and goes with the last one; and what it answers peers that ask for
// device memory.
#include "opal/mca/common/gpusm/local_process.h"

#include "tests/unit/gpu_memory_support.h"

namespace {

using namespace gpusm;
using namespace gpusm_test;

// What goes out to peers, and what the component would be told.
struct recorder final : message_services {
    bool send(peer &, const delegated_copy &) override { return false; }
    bool send(peer &, const ipc_message &message) override
    {
        sent.push_back(message);
        return takes;
    }
    status read(peer &, void *, std::uint64_t, std::size_t) override { return status::unsupported; }
    status write(peer &, const void *, std::uint64_t, std::size_t) override
    {
        return status::unsupported;
    }
    void fetches(peer &) override { ++fetching; }
    bool serve_views() override { return false; }
    void refused(peer &, refuse_reason reason) override { reasons.push_back(reason); }

    bool takes = true;
    std::vector<ipc_message> sent;
    int fetching = 0;
    std::vector<refuse_reason> reasons;
};

class LocalProcess : public testing::Test {
  protected:
    settings with(bool use_cuda_ipc)
    {
        settings set;
        set.backing_directory = folder_.path();
        set.use_cuda_ipc = use_cuda_ipc;
        set.fifo_size = 100;
        return set;
    }
    local_process &acquired(const settings &set)
    {
        std::string why;
        local_process *made = local_process::acquire(set, &why);
        EXPECT_NE(made, nullptr) << why;
        return *made;
    }

    scratch_folder folder_;
};

TEST_F(LocalProcess, IsMadeByTheFirstAndGoesWithTheLast)
{
    EXPECT_EQ(folder_.files(), 0U) << "nobody has made one";
    local_process &first = acquired(with(false));
    EXPECT_EQ(first.own_node().own().view().fifo_slots, 128U) << "a power of two";
    settings other = with(true);
    other.fifo_size = 16;
    local_process &second = acquired(other);
    EXPECT_EQ(&second, &first);
    EXPECT_FALSE(second.uses_devices()) << "the settings are the first one's";
    EXPECT_EQ(&acquired(other), &first);
    first.release();
    first.release();
    EXPECT_GT(folder_.files(), 0U) << "the third one is still using it";
    first.release();
    EXPECT_EQ(folder_.files(), 0U);
    local_process &next = acquired(other);
    EXPECT_TRUE(next.uses_devices()) << "nothing is left of the first one";
    next.release();
}

TEST_F(LocalProcess, SaysWhyThereIsNoSegment)
{
    settings set = with(false);
    set.backing_directory = folder_.path() + "/missing";
    std::string why;
    EXPECT_EQ(local_process::acquire(set, &why), nullptr);
    EXPECT_NE(why.find("missing"), std::string::npos) << why;
    acquired(with(false)).release();
}

TEST_F(LocalProcess, KeepsWhatIsKnownOfAPeerForGood)
{
    local_process &me = acquired(with(false));
    process other(folder_.path(), 2);
    peer &one = *me.own_node().add_peer({9, 9, 9}, folder_.path());
    peer &two = *me.own_node().add_peer(other.identity(), folder_.path());
    device_link *of_two = me.offers().link_of(two);
    EXPECT_NE(me.offers().link_of(one), of_two);
    for (std::uint32_t i = 3; i < 300; ++i) {
        (void)me.offers().link_of(*me.own_node().add_peer({i, i, i}, folder_.path()));
    }
    EXPECT_EQ(me.offers().link_of(two), of_two);
    me.release();
}

TEST_F(LocalProcess, WithoutDevicesRefusesWhoAsksAndOffersNothing)
{
    local_process &me = acquired(with(false));
    recorder messages;
    me.serve(&messages);
    peer &them = *me.own_node().add_peer({9, 9, 9}, folder_.path());
    device_link &link = *me.offers().link_of(them);
    EXPECT_EQ(me.gpu(), nullptr);
    EXPECT_FALSE(me.offers().may_offer(link, them));
    EXPECT_TRUE(messages.sent.empty());
    me.offers().message_from(link, them, {ipc_operation::req, refuse_reason::none, {}, {}});
    ASSERT_EQ(messages.sent.size(), 1U);
    EXPECT_EQ(messages.sent[0].operation, ipc_operation::refuse);
    EXPECT_EQ(messages.sent[0].reason, refuse_reason::switched_off);
    me.offers().message_from(link, them, {ipc_operation::ack, refuse_reason::none, {}, {}});
    EXPECT_EQ(messages.sent.size(), 1U) << "an answer is not answered";
    me.serve(nullptr);
    me.offers().message_from(link, them, {ipc_operation::req, refuse_reason::none, {}, {}});
    EXPECT_EQ(messages.sent.size(), 1U) << "nobody carries messages any more";
    me.release();
}

ALONE(LocalProcessWithDevices, OffersFromTheFirstMessageOnAndStopsWhenRefused)
{
    const scratch_folder folder;
    const program started;
    settings set;
    set.backing_directory = folder.path();
    std::string why;
    local_process &me = *local_process::acquire(set, &why);
    recorder messages;
    me.serve(&messages);
    peer &them = *me.own_node().add_peer({9, 9, 9}, folder.path());
    device_link &link = *me.offers().link_of(them);
    EXPECT_EQ(me.gpu_if_made(), nullptr);
    EXPECT_TRUE(me.offers().may_offer(link, them)) << "the answer is not waited for";
    EXPECT_EQ(me.gpu_if_made(), me.gpu());
    ASSERT_EQ(messages.sent.size(), 1U);
    EXPECT_EQ(messages.sent[0].operation, ipc_operation::req);
    me.offers().message_from(link, them, {ipc_operation::ack, refuse_reason::none, {}, {}});
    EXPECT_EQ(messages.fetching, 1);
    EXPECT_TRUE(me.offers().may_offer(link, them));
    EXPECT_EQ(messages.sent.size(), 1U) << "it has answered";

    peer &other = *me.own_node().add_peer({8, 8, 8}, folder.path());
    device_link &refusing = *me.offers().link_of(other);
    messages.takes = false;
    EXPECT_TRUE(me.offers().may_offer(refusing, other));
    messages.takes = true;
    EXPECT_EQ(refusing.fetches.state(), ipc_state::idle) << "the question did not go";
    EXPECT_TRUE(me.offers().may_offer(refusing, other));
    EXPECT_TRUE(me.offers().may_offer(refusing, other));
    EXPECT_EQ(refusing.fetches.state(), ipc_state::asked);
    me.offers().message_from(refusing, other,
                             {ipc_operation::refuse, refuse_reason::no_driver, {}, {}});
    EXPECT_EQ(messages.reasons, std::vector{refuse_reason::no_driver});
    EXPECT_FALSE(me.offers().may_offer(refusing, other));
    me.release();
}

} // namespace
