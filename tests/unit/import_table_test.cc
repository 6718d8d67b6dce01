// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// import_table_test.cc: a peer's events are opened once and closed when the peer is gone and
// nothing uses its memory, and how long memory that it has freed stays mapped; on a scripted
// driver.
#include "opal/mca/common/gpusm/ipc/import_table.h"

#include "tests/unit/fd_services.h"
#include "tests/unit/fake_driver.h"
#include "tests/unit/shm_support.h"

#include <cstring>
#include <optional>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

const auto context_0 = handle_of<CUcontext>(0xc0);
constexpr std::uint32_t owner = 5;
constexpr CUdeviceptr mapped_at = 0x70000;

class ImportTable : public testing::Test {
  protected:
    void SetUp() override
    {
        api_.ipc_open_event_handle = [](CUevent *out, CUipcEventHandle) {
            *out = fake().make<CUevent>();
            fake().events[*out] = fake().current();
            return fake().enter("ipc_open_event_handle");
        };
        api_.ipc_open_mem_handle = [](CUdeviceptr *out, CUipcMemHandle, unsigned) {
            *out = mapped_at;
            return fake().enter("ipc_open_mem_handle");
        };
        api_.ipc_close_mem_handle = [](CUdeviceptr) { return fake().enter("ipc_close"); };
        ASSERT_EQ(devices_.for_memory(context_0, 0, &into_), status::ok);
        ASSERT_EQ(them_.attach(), status::ok);
        ASSERT_EQ(theirs_.commit_exports(1), status::ok);
        const segment_view &view = theirs_.view();
        export_slot &slot = view.exports[0];
        slot.base = exported_.base;
        slot.len_bytes = exported_.len_bytes;
        slot.kind = exported_.kind;
        slot.anchor_slot = no_export_slot;
        slot.generation.store(exported_.generation);
        view.events[exported_.event_slot].ready.store(1);
    }
    std::size_t opened() { return fake().events.size(); }
    CUevent event()
    {
        CUevent made = nullptr;
        EXPECT_EQ(imports_.event_of(owner, them_, exported_, *into_, &made), status::ok);
        EXPECT_NE(made, nullptr);
        return made;
    }

    scratch_folder folder_;
    driver_api api_ = reset_fake();
    segment own_ = make_segment(folder_.path(), 1);
    segment theirs_ = make_segment(folder_.path(), 2);
    peer them_{own_.identity(), theirs_.identity(), folder_.path()};
    device_table devices_{api_};
    export_directory exports_{api_, devices_, own_, false};
    fd_services services_{nullptr};
    fd_passing fds_{own_, exports_, services_};
    import_table imports_{api_, devices_, fds_, 0};
    device *into_ = nullptr;
    const remote_handle exported_{0, 1, share_kind::legacy, 0, 7, 0x10000, 0x1000};
};

TEST_F(ImportTable, TheEventsOfAPeerThatIsGoneAreClosed)
{
    CUevent first = event();
    EXPECT_EQ(event(), first) << "it is opened once";
    EXPECT_EQ(opened(), 1U);
    EXPECT_TRUE(imports_.drop_owner(owner + 1));
    EXPECT_EQ(opened(), 1U) << "another one's";
    EXPECT_TRUE(imports_.drop_owner(owner));
    EXPECT_EQ(opened(), 0U);
    EXPECT_NE(event(), first) << "opened anew when it comes back";
    EXPECT_EQ(opened(), 1U);
    EXPECT_TRUE(imports_.drop_owner(owner));
    EXPECT_EQ(opened(), 0U);
}

TEST_F(ImportTable, AnEventStaysWhileACopyOfThatPeersMemoryMayStillWaitForIt)
{
    mapping *used = nullptr;
    ASSERT_EQ(imports_.import(owner, them_, exported_, *into_, &used), status::ok);
    (void)event();
    EXPECT_FALSE(imports_.drop_owner(owner)) << "some of its memory is in use";
    EXPECT_EQ(opened(), 1U);
    EXPECT_EQ(fake().calls["ipc_close"], 0);
    imports_.release(used);
    EXPECT_TRUE(imports_.drop_owner(owner));
    EXPECT_EQ(opened(), 0U);
}

TEST_F(ImportTable, WhatWasGivenOutLastIsGivenOutAgainUntilItsExportIsOver)
{
    mapping *first = nullptr;
    mapping *again = nullptr;
    ASSERT_EQ(imports_.import(owner, them_, exported_, *into_, &first), status::ok);
    ASSERT_EQ(imports_.import(owner, them_, exported_, *into_, &again), status::ok);
    EXPECT_EQ(again, first);
    EXPECT_EQ(first->references, 2U);
    EXPECT_EQ(fake().calls["ipc_open_mem_handle"], 1);
    EXPECT_EQ(imports_.asked().hits, 1U);
    remote_handle longer = exported_;
    longer.len_bytes += 1;
    EXPECT_EQ(imports_.import(owner, them_, longer, *into_, &again), status::bad_peer);
    const segment_view &view = theirs_.view();
    view.exports[0].generation.store(exported_.generation + 1);
    view.header->retire_epoch.fetch_add(1);
    EXPECT_EQ(imports_.import(owner, them_, exported_, *into_, &again), status::not_found);
    imports_.release(first);
    imports_.release(first);
    ASSERT_NE(imports_.import(owner, them_, exported_, *into_, &again), status::ok);
    EXPECT_TRUE(imports_.drop_owner(owner));
}

TEST_F(ImportTable, FreedMemoryStaysMappedForAWhileIfItIsAPartOfTheDevice)
{
    const auto use_and_end = [&](std::size_t memory_bytes) {
        into_->memory_bytes = memory_bytes;
        const segment_view &view = theirs_.view();
        remote_handle used = exported_;
        used.generation = view.exports[0].generation;
        mapping *lent = nullptr;
        ASSERT_EQ(imports_.import(owner, them_, used, *into_, &lent), status::ok);
        imports_.release(lent);
        view.exports[0].generation.fetch_add(1);
        view.header->retire_epoch.fetch_add(1);
        imports_.close_over(owner, them_);
    };
    const std::size_t just_kept = import_table::kept_part * exported_.len_bytes;
    use_and_end(just_kept - 1);
    EXPECT_EQ(fake().calls["ipc_close"], 1) << "it is too much";
    use_and_end(just_kept);
    EXPECT_EQ(fake().calls["ipc_close"], 1);
    use_and_end(0);
    EXPECT_EQ(fake().calls["ipc_close"], 2) << "the older of two; the largest device counts";
}

} // namespace
