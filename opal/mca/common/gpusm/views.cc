// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/views.h"

#include "opal/mca/common/gpusm/gpu/strided.h"
#include "opal/mca/common/gpusm/gpu_side.h"
#include "opal/mca/common/gpusm/ipc/legacy.h"

#include <algorithm>
#include <utility>

namespace gpusm {

namespace {

std::uint64_t slot_of(std::uint64_t address)
{
    return (address - view_range) >> view_offset_bits;
}

} // namespace

view_table::~view_table()
{
    for (const list &each : lists_) {
        lists_memory_.give(each.in);
    }
    delete[] table_.load();
}

// --- the table -----------------------------------------------------------------------------------

view *view_table::look_up(std::uint64_t address) const
{
    const std::atomic<view *> *table = table_.load(std::memory_order_acquire);
    const std::uint64_t slot = slot_of(address);
    return nullptr == table || slot >= view_slots ? nullptr
                                                  : table[slot].load(std::memory_order_acquire);
}

// Null: nothing, or too much for a view.
std::unique_ptr<view> view_table::make_view(std::uint64_t address, std::uint64_t count,
                                            shared_plan plan)
{
    const std::uint64_t element_bytes = plan->layout.element_bytes;
    if (0 == count || count > view_most_bytes / element_bytes) {
        return nullptr;
    }
    const std::int64_t extent = plan->layout.extent;
    const auto far = static_cast<std::int64_t>(count - 1) * extent;
    auto made = std::make_unique<view>();
    made->len_bytes = count * element_bytes;
    made->memory.address = address;
    made->memory.layout = plan->layout;
    if (!plan->blocks.empty()) {
        made->memory.layout.blocks = reinterpret_cast<std::uint64_t>(plan->blocks.data());
    }
    made->lowest =
        address + static_cast<std::uint64_t>(plan->lowest + std::min<std::int64_t>(far, 0));
    made->end =
        address + static_cast<std::uint64_t>(plan->highest + std::max<std::int64_t>(far, 0));
    made->word_bits = plan->word_bits;
    made->plan = std::move(plan);
    return made;
}

view *view_table::open(const void *buffer, std::uint64_t count, shared_plan plan)
{
    std::unique_ptr<view> made =
        make_view(reinterpret_cast<std::uint64_t>(buffer), count, std::move(plan));
    if (nullptr == made) {
        return nullptr;
    }
    {
        const std::lock_guard guard(side_.lock);
        if (!look_at_memory(made.get())) {
            return nullptr;
        }
        // In the program's own call, as loading the kernel waits for kernels that run.
        (void)side_.copies.prepare_strided(*made->on);
    }
    return give_slot(std::move(made));
}

view *view_table::open_mapped(std::uint64_t address, std::uint64_t count, shared_plan plan,
                              device &on, bool kernel_touches)
{
    std::unique_ptr<view> made = make_view(address, count, std::move(plan));
    if (nullptr == made) {
        return nullptr;
    }
    made->on = &on;
    made->kernel_touches = kernel_touches;
    return give_slot(std::move(made));
}

view *view_table::open_mapped(const strided_side &memory, std::uint64_t len_bytes, device &on,
                              bool kernel_touches)
{
    auto made = std::make_unique<view>();
    made->len_bytes = len_bytes;
    made->memory = memory;
    made->word_bits = strided_bits(memory.layout, nullptr);
    made->on = &on;
    made->kernel_touches = kernel_touches;
    return give_slot(std::move(made));
}

// Null: there is none.
view *view_table::give_slot(std::unique_ptr<view> made)
{
    const std::lock_guard guard(slots_lock_);
    if (free_slots_.empty() && view_slots == used_slots_) {
        return nullptr;
    }
    if (nullptr == table_.load(std::memory_order_relaxed)) {
        table_.store(new std::atomic<view *>[view_slots](), std::memory_order_release);
    }
    std::uint64_t slot = used_slots_;
    if (free_slots_.empty()) {
        ++used_slots_;
    } else {
        slot = free_slots_.back();
        free_slots_.pop_back();
    }
    made->address = view_range | slot << view_offset_bits;
    view *opened = made.release();
    table_.load()[slot].store(opened, std::memory_order_release);
    return opened;
}

void view_table::close(view *given)
{
    const std::unique_ptr<view> over(given);
    const std::uint64_t slot = slot_of(given->address);
    const std::lock_guard guard(slots_lock_);
    table_.load()[slot].store(nullptr, std::memory_order_release);
    free_slots_.push_back(static_cast<std::uint32_t>(slot));
}

// --- the memory ----------------------------------------------------------------------------------

bool view_table::look_at_memory(view *of)
{
    device *on = nullptr;
    std::uint64_t plain_bytes = 0;
    const std::uint64_t needed = of->end - of->lowest;
    if (status::ok != side_.devices.for_address(of->lowest, &on, &plain_bytes) || nullptr == on ||
        (plain_bytes < needed && !side_.devices.kernel_touches_managed(*on, of->lowest, needed))) {
        return false;
    }
    if (on != of->on) {
        of->list_on_device = 0;
    }
    of->on = on;
    of->buffer_id = side_.devices.facts_of(of->lowest, true).buffer_id;
    return true;
}

bool view_table::is_there(view &of)
{
    return (of.on->context != nullptr &&
            (0 == of.buffer_id || is_still(side_.driver, of.lowest, of.buffer_id))) ||
           look_at_memory(&of);
}

status view_table::bring_list(view &of)
{
    if (nullptr == of.plan || of.plan->blocks.empty() || 0 != of.list_on_device) {
        return status::ok;
    }
    for (const list &each : lists_) {
        if (each.in.on == of.on && each.plan.lock() == of.plan) {
            of.list_on_device = each.in.address;
            return status::ok;
        }
    }
    sweep();
    const std::size_t bytes = of.plan->blocks.size() * sizeof(strided_block);
    const list made{of.plan, take(&lists_memory_, *of.on, bytes)};
    if (nullptr == made.in.on) {
        return status::no_memory;
    }
    const status s = move(*of.on, made.in.address, of.memory.layout.blocks, bytes);
    if (status::ok != s) {
        lists_memory_.give(made.in);
        return s;
    }
    of.list_on_device = made.in.address;
    lists_.push_back(made);
    return status::ok;
}

// No copy reads a list of a plan that is gone, as it has a view, which holds its plan.
void view_table::sweep()
{
    std::erase_if(lists_, [this](const list &each) {
        const bool is_over = each.plan.expired();
        if (is_over && side_.devices.is_alive(*each.in.on)) {
            lists_memory_.give(each.in);
        }
        return is_over;
    });
}

status view_table::side_at(std::uint64_t address, std::uint64_t len_bytes, strided_side *out,
                           std::uint64_t *word_bits)
{
    if (!is_view_address(address)) {
        *out = strided_contiguous(address, len_bytes);
        *word_bits = len_bytes;
        return status::ok;
    }
    view *of = look_up(address);
    if (nullptr == of || !of->holds(address, len_bytes) || !is_there(*of)) {
        return status::bad_argument;
    }
    if (!of->kernel_touches || !side_.has_kernels()) {
        return status::unsupported;
    }
    const status s = bring_list(*of);
    *out = of->memory;
    out->begin = view_offset(address);
    out->layout.blocks = of->list_on_device;
    *word_bits = of->word_bits;
    return s;
}

packed_block view_table::take(packed_memory *from, device &on, std::size_t bytes)
{
    packed_block taken = from->take(on, bytes);
    if (nullptr == taken.on && side_.may_wait_for_kernels(on)) {
        from->shrink(on);
        taken = from->take(on, bytes);
    }
    return taken;
}

} // namespace gpusm
