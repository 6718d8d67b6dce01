// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/coll/gpusm/coll_gpusm.h"

#include "opal/mca/common/gpusm/base/pages.h"
#include "opal/mca/common/gpusm/gpu/driver.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <utility>

namespace gpusm {

namespace {

constexpr std::size_t least_step_bytes = 64 * 1024; // and a page of any system
constexpr std::size_t line_bytes = 64;

// Where the data of so many elements lies, relative to the argument of the call. An extent may be
// negative.
struct layout {
    std::ptrdiff_t low = 0;
    std::size_t len_bytes = 0;
};

layout layout_of(const ompi_datatype_t *type, std::size_t count)
{
    const opal_datatype_t &t = type->super;
    if (0 == count || 0 == t.size) {
        return {};
    }
    const std::ptrdiff_t rest = (t.ub - t.lb) * static_cast<std::ptrdiff_t>(count - 1);
    return {t.true_lb + std::min<std::ptrdiff_t>(rest, 0),
            static_cast<std::size_t>(t.true_ub - t.true_lb + std::abs(rest))};
}

int copy(void *to, const void *from, std::size_t len_bytes, opal_accelerator_transfer_type_t way)
{
    const int rc = 0 == len_bytes ? OPAL_SUCCESS
                                  : opal_accelerator.mem_copy(MCA_ACCELERATOR_NO_DEVICE_ID,
                                                              MCA_ACCELERATOR_NO_DEVICE_ID, to,
                                                              from, len_bytes, way);
    return OPAL_SUCCESS == rc ? OMPI_SUCCESS : OMPI_ERROR;
}

// The first byte of the data if that is device memory, else nullptr. The argument itself may lie
// outside of any allocation, or be MPI_BOTTOM.
char *device_data(const void *buffer, const layout &of)
{
    const std::uintptr_t first =
        reinterpret_cast<std::uintptr_t>(buffer) + static_cast<std::uintptr_t>(of.low);
    auto *data = reinterpret_cast<char *>(first);
    return 0 != of.len_bytes && is_device_memory(data) ? data : nullptr;
}

// Of few lengths, so that a block fits other calls too, and at most an eighth too long.
std::size_t block_bytes(std::size_t len_bytes)
{
    const std::size_t step = std::max(std::bit_floor(len_bytes) / 8, least_step_bytes);
    return (len_bytes + step - 1) / step * step;
}

// Room for data whose place within a cache line is that of the original: so elements of a type
// that begins with a gap are aligned as the program has them.
std::size_t room_for(std::size_t len_bytes)
{
    return len_bytes + 2 * line_bytes;
}

char *place_like(char *from, const char *original)
{
    const auto line = reinterpret_cast<std::uintptr_t>(from) + line_bytes - 1;
    return reinterpret_cast<char *>(
        (line & ~(line_bytes - 1)) +
        (reinterpret_cast<std::uintptr_t>(original) & (line_bytes - 1)));
}

} // namespace

bool has_device_memory(const operands &of, const ompi_datatype_t *type)
{
    return nullptr != device_data(of.send, layout_of(type, of.send_count)) ||
           nullptr != device_data(of.receive, layout_of(type, of.receive_count));
}

// --- blocks --------------------------------------------------------------------------------------

// Asked of the driver: where it refuses, Open MPI 5.0's accelerator/cuda prints a help text with an
// argument too few, by way of a scanner that has no lock (opal/util/show_help.c).
staging_block staging_pool::lock_new(std::size_t len_bytes)
{
    const driver_api *driver = driver_load();
    if (nullptr == driver) {
        return {};
    }
    staging_block block{static_cast<char *>(std::aligned_alloc(system_page_bytes(), len_bytes)),
                        len_bytes, true};
    const auto lock = [&] {
        return driver->mem_host_register(block.base, len_bytes, CU_MEMHOSTREGISTER_PORTABLE);
    };
    if (nullptr != block.base && CUDA_SUCCESS != in_any_context(*driver, lock)) {
        std::free(block.base);
        block.base = nullptr;
    }
    return block;
}

void staging_pool::free_locked(const staging_block &block)
{
    const driver_api &driver = *driver_load(); // which has locked it
    const auto unlock = [&] { return driver.mem_host_unregister(block.base); };
    // Memory that the driver may still hold is not used for anything else.
    if (CUDA_SUCCESS == in_any_context(driver, unlock)) {
        std::free(block.base);
    }
}

staging_block staging_pool::take(std::size_t len_bytes)
{
    const std::size_t wanted = block_bytes(len_bytes);
    std::vector<staging_block> too_small;
    bool may_lock = false;
    {
        const std::lock_guard guard(mutex_);
        auto best = free_.end();
        for (auto each = free_.begin(); each != free_.end(); ++each) {
            if (each->len_bytes >= wanted &&
                (best == free_.end() || each->len_bytes < best->len_bytes)) {
                best = each;
            }
        }
        if (best != free_.end()) {
            const staging_block block = *best;
            free_.erase(best);
            return block;
        }
        std::size_t lent_bytes = locked_bytes_;
        for (const staging_block &each : free_) {
            lent_bytes -= each.len_bytes;
        }
        may_lock = lent_bytes + wanted <= kept_bytes_ && locking_.may_try();
        while (may_lock && locked_bytes_ + wanted > kept_bytes_) {
            too_small.push_back(free_.back());
            locked_bytes_ -= free_.back().len_bytes;
            free_.pop_back();
        }
        locked_bytes_ += may_lock ? wanted : 0;
    }
    for (const staging_block &each : too_small) {
        free_locked(each);
    }
    if (may_lock) {
        const staging_block block = lock_new(wanted);
        if (nullptr != block.base) {
            (void)locking_.worked();
            return block;
        }
        (void)locking_.failed(status::driver_failed);
        const std::lock_guard guard(mutex_);
        locked_bytes_ -= wanted;
    }
    return {static_cast<char *>(std::malloc(len_bytes)), len_bytes, false};
}

void staging_pool::give_back(const staging_block &block)
{
    if (!block.is_locked) {
        std::free(block.base);
        return;
    }
    const std::lock_guard guard(mutex_);
    free_.push_back(block);
}

// --- one call ------------------------------------------------------------------------------------

staged_call::staged_call(staged_call &&other) noexcept
    : pool_(other.pool_), block_(std::exchange(other.block_, {})), has_gaps_(other.has_gaps_),
      send_(other.send_), receive_(other.receive_)
{
}

staged_call::~staged_call()
{
    if (is_staged()) {
        pool_->give_back(block_);
    }
}

int staged_call::prepare(const operands &of, const ompi_datatype_t *type)
{
    const layout sent = layout_of(type, of.send_count);
    const layout received = layout_of(type, of.receive_count);
    send_.program = static_cast<char *>(const_cast<void *>(of.send));
    send_.first = device_data(of.send, sent);
    receive_.program = static_cast<char *>(of.receive);
    receive_.first = device_data(of.receive, received);
    if (nullptr == send_.first && nullptr == receive_.first) {
        return OMPI_SUCCESS;
    }
    has_gaps_ = has_gaps(type, std::max(of.send_count, of.receive_count));
    mca_coll_gpusm_component.counted.host_reductions.fetch_add(1, std::memory_order_relaxed);
    const std::size_t send_room = nullptr == send_.first ? 0 : room_for(sent.len_bytes);
    const std::size_t receive_room = nullptr == receive_.first ? 0 : room_for(received.len_bytes);
    block_ = pool_->take(send_room + receive_room);
    if (nullptr == block_.base) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    if (nullptr != send_.first) {
        send_.host = place_like(block_.base, send_.first);
        send_.in_bytes = sent.len_bytes;
    }
    if (nullptr != receive_.first) {
        const layout written = layout_of(type, of.written_count);
        receive_.host = place_like(block_.base + send_room, receive_.first);
        // What lies between the elements is copied back with them, so it has to be there.
        const bool is_needed = of.receive_is_read || has_gaps(type, of.written_count);
        receive_.in_bytes = is_needed ? received.len_bytes : 0;
        receive_.out_bytes = written.len_bytes;
        receive_.out_offset = 0 == written.len_bytes ? 0 : written.low - received.low;
    }
    return OMPI_SUCCESS;
}

// Not what lies in the gaps of a datatype, where the program may write.
void staged_call::check() const
{
    message_checks *checks = mca_coll_gpusm_component.checks;
    if (checks != nullptr && !has_gaps_) [[unlikely]] {
        checks->check_now(send_.first, send_.in_bytes);
        checks->check_now(receive_.first, receive_.in_bytes);
        checks->check_now(receive_.first + receive_.out_offset, receive_.out_bytes);
    }
}

int staged_call::copy_in()
{
    check();
    int rc = copy(send_.host, send_.first, send_.in_bytes, MCA_ACCELERATOR_TRANSFER_DTOH);
    if (OMPI_SUCCESS == rc) {
        rc = copy(receive_.host, receive_.first, receive_.in_bytes, MCA_ACCELERATOR_TRANSFER_DTOH);
    }
    return rc;
}

int staged_call::copy_back()
{
    return copy(receive_.first + receive_.out_offset, receive_.host + receive_.out_offset,
                receive_.out_bytes, MCA_ACCELERATOR_TRANSFER_HTOD);
}

void staged_call::enter_context() const
{
    (void)is_device_memory(nullptr != receive_.first ? receive_.first : send_.first);
}

} // namespace gpusm
