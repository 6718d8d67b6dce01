// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// device_test.cc: which context serves which memory, what is made in it and given back, and what
// happens when the driver refuses; on a scripted driver.
#include "opal/mca/common/gpusm/gpu/device.h"

#include "tests/unit/fake_driver.h"
#include "tests/unit/shm_support.h"

#include <memory>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

const auto context_0 = handle_of<CUcontext>(0xc0); // on device 0
const auto context_1 = handle_of<CUcontext>(0xc1); // on device 1

class DeviceTable : public testing::Test {
  protected:
    // All is given back that is still there, and the program has the contexts that it had.
    void TearDown() override
    {
        if (!is_there_) {
            return;
        }
        const std::vector<CUcontext> before = fake().stack;
        fake().heal();
        table_.reset();
        EXPECT_TRUE(fake().streams.empty());
        EXPECT_TRUE(fake().events.empty());
        for (const auto &[ordinal, references] : fake().retained) {
            EXPECT_EQ(references, 0) << "primary context of device " << ordinal;
        }
        EXPECT_EQ(fake().stack, before);
    }

    driver_api api_ = reset_fake();
    std::unique_ptr<device_table> table_ = std::make_unique<device_table>(api_);
    device *found_ = nullptr;
    bool is_there_ = true;
};

TEST_F(DeviceTable, EachContextIsADeviceWithOneNonBlockingStreamOfTheHighestPriority)
{
    EXPECT_TRUE(table_->all().empty());
    EXPECT_TRUE(fake().calls.empty()) << "nothing is made before it is asked";
    device *second = nullptr;
    ASSERT_EQ(table_->for_memory(context_0, 0, &found_), status::ok);
    ASSERT_EQ(table_->for_memory(context_1, 1, &second), status::ok);
    EXPECT_TRUE(fake().stack.empty()) << "in a thread without a context";
    EXPECT_EQ(fake().retained.size(), 0U) << "no primary context is touched for that";
    EXPECT_EQ(found_->index, 0U);
    EXPECT_EQ(second->index, 1U);
    EXPECT_EQ(second->context, context_1);
    EXPECT_EQ(second->ordinal, 1);
    EXPECT_EQ(second->uuid[0], 0x11);
    EXPECT_EQ(second->uuid[15], 0x11);
    EXPECT_EQ(fake().streams[found_->stream], context_0);
    EXPECT_EQ(fake().streams[second->stream], context_1);
    for (const auto &[flags, priority] : fake().stream_arguments) {
        EXPECT_EQ(flags, unsigned{CU_STREAM_NON_BLOCKING});
        EXPECT_LE(priority, -5) << "clamped by the driver";
    }
    device *again = nullptr;
    ASSERT_EQ(table_->for_memory(context_0, 0, &again), status::ok);
    EXPECT_EQ(again, found_);
    EXPECT_EQ(fake().streams.size(), 2U);
}

TEST_F(DeviceTable, KnowsHowMuchMemoryADeviceHasOrIsUsedWithout)
{
    device *second = nullptr;
    fake().memory_bytes = 123456;
    ASSERT_EQ(table_->for_memory(context_0, 0, &found_), status::ok);
    EXPECT_EQ(found_->memory_bytes, 123456U);
    fake().fail("device_total_mem", 1, CUDA_ERROR_UNKNOWN);
    ASSERT_EQ(table_->for_memory(context_1, 1, &second), status::ok);
    EXPECT_EQ(second->memory_bytes, 0U);
}

TEST_F(DeviceTable, KnowsWhichContextsAreUnderMps)
{
    fake().under_mps = {1};
    ASSERT_EQ(table_->for_memory(context_0, 0, &found_), status::ok);
    EXPECT_FALSE(found_->under_mps);
    ASSERT_EQ(table_->for_memory(context_1, 1, &found_), status::ok);
    EXPECT_TRUE(found_->under_mps);
    // A driver that does not know the attribute.
    fake().fail("device_get_attribute", 1, CUDA_ERROR_INVALID_VALUE);
    table_ = std::make_unique<device_table>(api_);
    ASSERT_EQ(table_->for_memory(context_1, 1, &found_), status::ok);
    EXPECT_FALSE(found_->under_mps);
}

TEST_F(DeviceTable, MemoryWithoutAContextIsServedByTheThreadsContextOnItsDeviceOrOneThatWeKnow)
{
    fake().stack = {context_0};
    EXPECT_EQ(table_->for_memory(nullptr, 1, &found_), status::not_ready) << "another device";
    EXPECT_EQ(found_, nullptr);
    ASSERT_EQ(table_->for_memory(nullptr, 0, &found_), status::ok);
    EXPECT_EQ(found_->context, context_0);
    ASSERT_EQ(table_->for_memory(context_1, 1, &found_), status::ok);
    device *known = nullptr;
    ASSERT_EQ(table_->for_memory(nullptr, 1, &known), status::ok);
    EXPECT_EQ(known, found_);
}

TEST_F(DeviceTable, OnlyAnActivePrimaryContextIsRetainedOnceAndGivenBack)
{
    EXPECT_EQ(table_->for_memory(nullptr, 1, &found_), status::not_ready);
    EXPECT_EQ(table_->for_memory(nullptr, -1, &found_), status::not_ready);
    EXPECT_EQ(fake().calls["primary_ctx_retain"], 0) << "the program does not use it";
    EXPECT_EQ(found_, nullptr);
    fake().active_primary = {1};
    ASSERT_EQ(table_->for_memory(nullptr, 1, &found_), status::ok);
    EXPECT_EQ(found_->ordinal, 1);
    EXPECT_TRUE(found_->retained_primary);
    EXPECT_EQ(table_->for_memory(nullptr, 1, &found_), status::ok);
    EXPECT_EQ(fake().retained[1], 1);
}

TEST_F(DeviceTable, HostWorkUsesTheThreadsContextElseTheLastOneElseNone)
{
    EXPECT_EQ(table_->for_host(&found_), status::not_ready);
    EXPECT_EQ(found_, nullptr);
    fake().stack = {context_0};
    ASSERT_EQ(table_->for_host(&found_), status::ok);
    EXPECT_EQ(found_->context, context_0);
    fake().stack.clear();
    ASSERT_EQ(table_->for_memory(context_1, 1, &found_), status::ok);
    ASSERT_EQ(table_->for_host(&found_), status::ok);
    EXPECT_EQ(found_->context, context_1);
}

TEST_F(DeviceTable, ItsInterprocessEventIsMadeOnceAndInItsContext)
{
    const expect_lines log(1);
    ASSERT_EQ(table_->for_memory(context_1, 1, &found_), status::ok);
    EXPECT_TRUE(fake().events.empty()) << "not before somebody asks";
    fake().stack = {context_0};
    for (const char *function : {"event_create", "ctx_push_current"}) {
        fake().fail(function, 0, CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(table_->record_ipc_event(*found_), nullptr);
        fake().heal();
    }
    EXPECT_EQ(fake().calls["stream_synchronize"], 1) << "in the place of the event";
    EXPECT_TRUE(fake().events.empty()) << "and in no other context";
    CUevent event = table_->record_ipc_event(*found_);
    ASSERT_NE(event, nullptr) << "it is asked for again";
    EXPECT_EQ(fake().events[event], context_1);
    EXPECT_EQ(fake().event_flags[event],
              unsigned{CU_EVENT_INTERPROCESS} | unsigned{CU_EVENT_DISABLE_TIMING});
    EXPECT_EQ(table_->record_ipc_event(*found_), event);
}

// The id of what lies where the canary was.
unsigned long long id_now = 0;

TEST_F(DeviceTable, AContextThatTheProgramHasDestroyedHasNoneAndNothingOfItIsTouched)
{
    is_there_ = false;
    constexpr CUdeviceptr canary_at = 0x9000;
    api_.mem_alloc = [](CUdeviceptr *out, size_t) {
        *out = canary_at;
        return CUDA_SUCCESS;
    };
    api_.mem_free = [](CUdeviceptr) { return fake().enter("mem_free"); };
    api_.pointer_get_attribute = [](void *out, CUpointer_attribute, CUdeviceptr) {
        std::memcpy(out, &id_now, sizeof(id_now));
        return 0 == id_now ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    };
    for (const unsigned long long id_then : {0ULL, 8ULL}) { // nothing, or something of another one
        id_now = 7;
        table_ = std::make_unique<device_table>(api_);
        ASSERT_EQ(table_->for_memory(context_1, 1, &found_), status::ok);
        ASSERT_NE(table_->record_ipc_event(*found_), nullptr);
        EXPECT_TRUE(table_->is_alive(*found_));
        id_now = id_then;
        EXPECT_FALSE(table_->is_alive(*found_));
        EXPECT_EQ(found_->context, nullptr);
        device *made = nullptr;
        EXPECT_EQ(table_->for_host(&made), status::not_ready) << "it is not the last one any more";
        const log_capture log;
        EXPECT_EQ(table_->record_ipc_event(*found_), nullptr);
        table_.reset();
        EXPECT_EQ(fake().calls["mem_free"] + fake().calls["stream_destroy"] +
                      fake().calls["event_destroy"],
                  0);
    }
}

// While there is no device memory for what tells, a context counts as alive. It is asked for again,
// but not all the time.
TEST_F(DeviceTable, AContextOfWhichNothingTellsWhetherItLivesIsLookedAtAgain)
{
    is_there_ = false;
    static CUresult memory = CUDA_ERROR_OUT_OF_MEMORY;
    api_.mem_alloc = [](CUdeviceptr *out, size_t) {
        *out = 0x9000;
        (void)fake().enter("mem_alloc");
        return memory;
    };
    api_.pointer_get_attribute = [](void *out, CUpointer_attribute, CUdeviceptr) {
        std::memcpy(out, &id_now, sizeof(id_now));
        return 0 == id_now ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    };
    id_now = 7;
    ASSERT_EQ(table_->for_memory(context_1, 1, &found_), status::ok);
    EXPECT_EQ(found_->canary, 0U);
    EXPECT_TRUE(table_->is_alive(*found_));
    for (int look = 0; look < 5; ++look) {
        table_->look_at_contexts(100);
    }
    EXPECT_EQ(fake().calls["mem_alloc"], 2) << "at first, and once in that second";
    memory = CUDA_SUCCESS;
    table_->look_at_contexts(101);
    EXPECT_EQ(fake().calls["mem_alloc"], 3);
    EXPECT_TRUE(fake().stack.empty()) << "the context has been left again";
    table_->look_at_contexts(102);
    EXPECT_EQ(fake().calls["mem_alloc"], 3) << "there is one";
    id_now = 8;
    table_->look_at_contexts(102);
    EXPECT_EQ(found_->context, nullptr) << "the program has destroyed it";
    table_->look_at_contexts(103);
    EXPECT_EQ(fake().calls["mem_alloc"], 3) << "and nothing of it is touched";
}

// What the driver says about an address, by attribute; zero for the rest.
struct address_answers {
    CUmemorytype type = static_cast<CUmemorytype>(0);
    CUcontext context = nullptr;
    unsigned managed = 0;
    CUdeviceptr start = 0;
    std::size_t len_bytes = 0;
    int ordinal = 0;
    unsigned long long buffer_id = 7;
};
address_answers answers;

CUresult CUDAAPI answer(unsigned count, CUpointer_attribute *attributes, void **out, CUdeviceptr)
{
    const auto put = [&](CUpointer_attribute which, auto value) {
        for (unsigned i = 0; i < count; ++i) {
            if (attributes[i] == which) {
                std::memcpy(out[i], &value, sizeof(value));
            }
        }
    };
    put(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, answers.type);
    put(CU_POINTER_ATTRIBUTE_CONTEXT, answers.context);
    put(CU_POINTER_ATTRIBUTE_IS_MANAGED, answers.managed);
    put(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, answers.start);
    put(CU_POINTER_ATTRIBUTE_RANGE_SIZE, answers.len_bytes);
    put(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, answers.ordinal);
    put(CU_POINTER_ATTRIBUTE_BUFFER_ID, answers.buffer_id);
    return fake().enter("pointer_get_attributes");
}

CUresult CUDAAPI answer_id(void *out, CUpointer_attribute which, CUdeviceptr)
{
    EXPECT_EQ(which, CU_POINTER_ATTRIBUTE_BUFFER_ID);
    std::memcpy(out, &answers.buffer_id, sizeof(answers.buffer_id));
    return fake().enter("pointer_get_attribute");
}

// for_address on memory [start, start + len_bytes).
class DeviceOfAnAddress : public DeviceTable {
  protected:
    static constexpr std::uint64_t start = 0x7000000000;
    static constexpr std::size_t len_bytes = 0x10000;

    DeviceOfAnAddress()
    {
        api_.pointer_get_attributes = answer;
        api_.pointer_get_attribute = answer_id;
        answers = {CU_MEMORYTYPE_DEVICE, context_1, 0, start, len_bytes, 1};
    }

    std::uint64_t plain_bytes_ = 99;
};

TEST_F(DeviceOfAnAddress, MemoryOfAContextIsPlainToTheEndOfItsAllocation)
{
    struct {
        std::uint64_t inside;
        std::uint64_t plain_bytes;
    } const table[] = {{0, len_bytes}, {1, len_bytes - 1}, {len_bytes - 1, 1}};
    for (const auto &row : table) {
        ASSERT_EQ(table_->for_address(start + row.inside, &found_, &plain_bytes_), status::ok);
        EXPECT_EQ(found_->context, context_1);
        EXPECT_EQ(plain_bytes_, row.plain_bytes) << row.inside;
    }
    EXPECT_EQ(fake().calls["pointer_get_attributes"], 1);
    EXPECT_EQ(fake().calls["pointer_get_attribute"], 2) << "the same allocation";
}

TEST_F(DeviceOfAnAddress, ABufferDoesNotLeaveItsAllocation)
{
    struct {
        std::uint64_t inside;
        std::size_t len;
        bool fits;
    } const table[] = {
        {0, len_bytes, true},      {0, len_bytes + 1, false}, {len_bytes - 1, 1, true},
        {len_bytes - 1, 2, false}, {1, SIZE_MAX, false},      {8, 0, true},
    };
    for (const auto &row : table) {
        SCOPED_TRACE(&row - table);
        ASSERT_EQ(table_->for_address(start + row.inside, &found_, &plain_bytes_), status::ok);
        EXPECT_EQ(table_->can_hold(start + row.inside, row.len), row.fits);
    }
    answers = {CUmemorytype{}, nullptr, 0, 0, 0, 0};
    EXPECT_TRUE(table_->can_hold(16, len_bytes)) << "of host memory nothing is known";
    answers = {CU_MEMORYTYPE_DEVICE, context_1, 0, start + 2 * len_bytes, 0, 2};
    EXPECT_TRUE(table_->can_hold(start + 2 * len_bytes, 1)) << "the driver does not say";
}

TEST_F(DeviceOfAnAddress, AnotherBufferIdIsAnotherAllocation)
{
    ASSERT_EQ(table_->for_address(start, &found_, &plain_bytes_), status::ok);
    answers = {CU_MEMORYTYPE_DEVICE, context_0, 0, start - 0x1000, 0x2000, 0, 8};
    ASSERT_EQ(table_->for_address(start, &found_, &plain_bytes_, true), status::ok);
    EXPECT_EQ(found_->context, context_1) << "the caller knows that it is still the same";
    EXPECT_EQ(fake().calls["pointer_get_attribute"], 0);
    EXPECT_EQ(table_->facts_of(start).context, context_0);
    ASSERT_EQ(table_->for_address(start + len_bytes - 1, &found_, &plain_bytes_, true), status::ok);
    EXPECT_EQ(plain_bytes_, 0U) << "what overlaps it is over";
    ASSERT_EQ(table_->for_address(start, &found_, &plain_bytes_, true), status::ok);
    EXPECT_EQ(found_->context, context_0);
    EXPECT_EQ(plain_bytes_, 0x1000U);
}

TEST_F(DeviceOfAnAddress, NoOtherMemoryIsPlainAndHostMemoryHasNoDevice)
{
    struct {
        CUmemorytype type;
        CUcontext context;
        unsigned managed;
        std::size_t len;
        std::uint64_t address;
        bool on_device;
    } const table[] = {
        {CU_MEMORYTYPE_DEVICE, context_1, 0, len_bytes, start + len_bytes, true}, // behind it
        {CU_MEMORYTYPE_DEVICE, context_1, 0, len_bytes, start - 1, true},
        {CU_MEMORYTYPE_DEVICE, context_1, 0, 0, start, true}, // the driver does not say
        {CU_MEMORYTYPE_DEVICE, context_1, 1, len_bytes, start, true},
        {CU_MEMORYTYPE_DEVICE, nullptr, 0, len_bytes, start, true}, // VMM or pool
        {CUmemorytype{}, nullptr, 0, len_bytes, start, false},
        {CU_MEMORYTYPE_HOST, context_1, 0, len_bytes, start, false}, // registered
    };
    fake().stack = {context_1}; // for memory that has none
    device other;
    for (const auto &row : table) {
        SCOPED_TRACE(&row - table);
        answers = {row.type, row.context, row.managed, start, row.len, 1};
        table_ = std::make_unique<device_table>(api_);
        found_ = &other;
        plain_bytes_ = 99;
        EXPECT_EQ(table_->for_address(row.address, &found_, &plain_bytes_), status::ok);
        EXPECT_EQ(plain_bytes_, 0U);
        EXPECT_EQ(found_ != nullptr ? found_->context : nullptr,
                  row.on_device ? context_1 : nullptr);
        EXPECT_EQ(table_->all().size(), row.on_device ? 1U : 0U);
    }
}

TEST_F(DeviceOfAnAddress, MemoryOfADeviceThatTheProgramHasNotUsedHasNoneYet)
{
    answers.context = nullptr;
    EXPECT_EQ(table_->for_address(start, &found_, &plain_bytes_), status::not_ready);
    EXPECT_EQ(plain_bytes_, 0U);
}

TEST_F(DeviceOfAnAddress, OfWhatTheDriverDoesNotAnswerNobodyKnowsWhetherItIsHostMemory)
{
    const log_capture log;
    fake().fail("pointer_get_attributes", 0, CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(table_->for_address(start, &found_, &plain_bytes_), status::driver_failed);
    fake().fail("pointer_get_attributes", 0, CUDA_ERROR_NOT_INITIALIZED); // it has no memory
    EXPECT_EQ(table_->for_address(start, &found_, &plain_bytes_), status::ok);
    EXPECT_EQ(plain_bytes_, 0U);
    EXPECT_EQ(found_, nullptr);
    fake().heal();
    fake().fail("stream_create", 1, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(table_->for_address(start, &found_, &plain_bytes_), status::driver_failed)
        << "nor can a device be used in which nothing can be made";
    EXPECT_EQ(found_, nullptr);
}

TEST_F(DeviceTable, ACallThatFailsLeavesNoEntryAndGivesBackThePrimaryContextIfItWasTakenForThat)
{
    for (const char *function : {"exchange_capture_mode", "ctx_push_current", "ctx_get_device",
                                 "device_get_uuid", "stream_create"}) {
        SCOPED_TRACE(function);
        const expect_lines log(2);
        table_ = std::make_unique<device_table>(api_);
        fake().calls.clear();
        fake().active_primary = {0, 1};
        for (const CUcontext context : {context_1, CUcontext{nullptr}}) {
            fake().fail(function, 1, CUDA_ERROR_OUT_OF_MEMORY);
            EXPECT_EQ(table_->for_memory(context, 1, &found_), status::driver_failed);
            EXPECT_EQ(found_, nullptr);
            EXPECT_TRUE(table_->all().empty());
            EXPECT_EQ(fake().calls["primary_ctx_retain"], nullptr == context ? 1 : 0);
            EXPECT_EQ(fake().retained[1], 0);
            EXPECT_TRUE(fake().stack.empty());
            EXPECT_EQ(fake().capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
        }
        EXPECT_EQ(fake().retained[0], 0) << "not ours";
        EXPECT_EQ(table_->for_memory(nullptr, 1, &found_), status::ok);
        found_ = nullptr;
        fake().heal();
    }
}

TEST_F(DeviceTable, EndsQuietlyWhenTheDriverIsGone)
{
    const expect_lines log(0);
    is_there_ = false;
    fake().active_primary = {0};
    ASSERT_EQ(table_->for_memory(nullptr, 0, &found_), status::ok);
    for (const char *function : {"exchange_capture_mode", "ctx_push_current", "ctx_get_current",
                                 "stream_destroy", "event_destroy", "primary_ctx_release"}) {
        fake().fail(function, 0, CUDA_ERROR_DEINITIALIZED);
    }
    table_.reset();
    EXPECT_EQ(fake().calls["stream_destroy"], 0) << "its context cannot be entered";
}

} // namespace
