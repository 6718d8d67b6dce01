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

// Of a copy that returns when it is done: at most so much is packed at a time, and less, down to
// the second, where there is no memory for it.
constexpr std::size_t piece_bytes = std::size_t{64} << 20;
constexpr std::size_t least_piece_bytes = std::size_t{1} << 20;

std::uint64_t slot_of(std::uint64_t address)
{
    return (address - view_range) >> view_offset_bits;
}

strided_place place_of(const view &of, std::uint64_t at)
{
    return strided_place_of(of.memory, view_offset(at));
}

} // namespace

view_table::~view_table()
{
    for (const list &each : lists_) {
        if (each.on->context != nullptr) {
            free_device(side_.driver, *each.on, each.address);
        }
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

view *view_table::open(const void *buffer, std::uint64_t count, shared_plan plan,
                       bool is_persistent)
{
    const std::uint64_t element_bytes = plan->layout.element_bytes;
    if (0 == count || count > view_most_bytes / element_bytes) {
        return nullptr;
    }
    const std::int64_t extent = plan->layout.extent;
    const auto far = static_cast<std::int64_t>(count - 1) * extent;
    const auto address = reinterpret_cast<std::uint64_t>(buffer);
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
    made->is_persistent = is_persistent;
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
    if (status::ok != side_.devices.for_address(of->lowest, &on, &plain_bytes) || nullptr == on ||
        plain_bytes < of->end - of->lowest) {
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
            (!of.is_persistent || is_still(side_.driver, of.lowest, of.buffer_id))) ||
           look_at_memory(&of);
}

status view_table::bring_list(view &of)
{
    if (nullptr == of.plan || of.plan->blocks.empty() || 0 != of.list_on_device) {
        return status::ok;
    }
    for (const list &each : lists_) {
        if (each.on == of.on && each.plan.lock() == of.plan) {
            of.list_on_device = each.address;
            return status::ok;
        }
    }
    const std::size_t bytes = of.plan->blocks.size() * sizeof(strided_block);
    list made{of.plan, of.on, 0};
    status s = alloc_device(side_.driver, *of.on, bytes, &made.address);
    if (status::ok != s) {
        return s;
    }
    s = move(*of.on, made.address, of.memory.layout.blocks, bytes);
    if (status::ok != s) {
        free_device(side_.driver, *of.on, made.address);
        return s;
    }
    of.list_on_device = made.address;
    lists_.push_back(std::move(made));
    return status::ok;
}

void view_table::sweep()
{
    std::erase_if(lists_, [this](const list &each) {
        if (!each.plan.expired()) {
            return false;
        }
        if (side_.devices.is_alive(*each.on)) {
            if (!side_.may_wait_for_kernels(*each.on)) {
                return false;
            }
            free_device(side_.driver, *each.on, each.address);
        }
        return true;
    });
}

status view_table::side_at(std::uint64_t address, std::uint64_t len_bytes, strided_side *out,
                           std::uint64_t *word_bits)
{
    view *of = find(address);
    if (nullptr == of) {
        *out = strided_contiguous(address, len_bytes);
        *word_bits = len_bytes;
        return status::ok;
    }
    if (!is_there(*of)) {
        return status::bad_argument;
    }
    if (!of->kernel_touches) {
        return status::unsupported;
    }
    const status s = bring_list(*of);
    *out = of->memory;
    out->begin = view_offset(address);
    out->layout.blocks = of->list_on_device;
    *word_bits = of->word_bits;
    return s;
}

packed_block view_table::take_packed(device &on, std::size_t bytes)
{
    packed_block taken = packed_.take(on, bytes);
    if (nullptr == taken.on && side_.may_wait_for_kernels(on)) {
        packed_.shrink(on);
        taken = packed_.take(on, bytes);
    }
    return taken;
}

// --- copies --------------------------------------------------------------------------------------

status view_table::describe(std::uint64_t to, std::uint64_t from, std::uint64_t len_bytes,
                            strided_copy *out)
{
    *out = {};
    out->len_bytes = len_bytes;
    std::uint64_t bits[2] = {};
    status s = side_at(from, len_bytes, &out->source, &bits[0]);
    if (status::ok == s) {
        s = side_at(to, len_bytes, &out->destination, &bits[1]);
    }
    if (status::ok == s) {
        out->word_bytes =
            strided_word_bytes(out->source, bits[0], out->destination, bits[1], len_bytes);
    }
    return s;
}

status view_table::describe(const copy_request &request, strided_copy *out)
{
    return describe(request.destination, request.source, request.len_bytes, out);
}

status view_table::copy_otherwise(const copy_request &request)
{
    const view *of = find(request.source);
    of = nullptr == of ? find(request.destination) : of;
    if (nullptr == of || nullptr == of->on->context) {
        return status::bad_argument;
    }
    if (request.wait_for != nullptr) {
        const device &on = *of->on;
        const status s = side_.driver.report(
            "waiting for a peer's work", in_context(side_.driver, on.context, [&] {
                const CUresult result =
                    side_.driver.stream_wait_event(on.stream, request.wait_for, 0);
                return CUDA_SUCCESS == result ? side_.driver.stream_synchronize(on.stream) : result;
            }));
        if (status::ok != s) {
            return s;
        }
    }
    return copy_locked(request.destination, request.source, request.len_bytes);
}

status view_table::pack(view &from, std::uint64_t at, std::uint64_t to, std::size_t len_bytes)
{
    strided_copy what;
    const status s = describe(to, at, len_bytes, &what);
    return status::ok != s
               ? s
               : side_.copies.copy_now(*from.on, what, side_.event_before_copies(*from.on));
}

// The driver's copy of memory without gaps.
status view_table::move(const device &on, std::uint64_t to, std::uint64_t from,
                        std::size_t len_bytes)
{
    return side_.driver.report(
        "copying packed bytes", in_context(side_.driver, on.context, [&] {
            const CUresult result = side_.driver.memcpy_async(to, from, len_bytes, on.stream);
            return CUDA_SUCCESS == result ? side_.driver.stream_synchronize(on.stream) : result;
        }));
}

// One copy a block, and one wait for all: where there is no kernel, or no memory to pack into.
status view_table::copy_by_driver(std::uint64_t to, std::uint64_t from, std::size_t len_bytes)
{
    const view *source = find(from);
    const view *target = find(to);
    const device &on = *(nullptr == source ? target : source)->on;
    return side_.driver.report(
        "copying blocks", in_context(side_.driver, on.context, [&] {
            const CUevent before =
                nullptr == source ? nullptr : side_.event_before_copies(*source->on);
            CUresult result = nullptr == before
                                  ? CUDA_SUCCESS
                                  : side_.driver.stream_wait_event(on.stream, before, 0);
            for (std::size_t done = 0; done < len_bytes && CUDA_SUCCESS == result;) {
                strided_place at[2] = {{from + done, len_bytes - done},
                                       {to + done, len_bytes - done}};
                at[0] = nullptr == source ? at[0] : place_of(*source, from + done);
                at[1] = nullptr == target ? at[1] : place_of(*target, to + done);
                const std::uint64_t now =
                    std::min({at[0].together, at[1].together, len_bytes - done});
                result = side_.driver.memcpy_async(at[1].address, at[0].address, now, on.stream);
                done += now;
            }
            const CUresult waited = side_.driver.stream_synchronize(on.stream);
            return CUDA_SUCCESS == result ? waited : result;
        }));
}

// By way of packed memory, on each side that is a view. Anything but `ok`: it is to be done
// otherwise, or with less memory.
status view_table::copy_piece(std::uint64_t to, std::uint64_t from, std::size_t len_bytes)
{
    view *source = find(from);
    view *target = find(to);
    const auto take = [&](view *of) {
        return nullptr == of ? packed_block{} : take_packed(*of->on, len_bytes);
    };
    const packed_block out = take(source);
    const packed_block in = take(target);
    status s = status::no_memory;
    if ((nullptr == source || out.on != nullptr) && (nullptr == target || in.on != nullptr)) {
        s = nullptr == source ? status::ok : pack(*source, from, out.address, len_bytes);
        if (status::ok == s) {
            s = move(*(nullptr == target ? source : target)->on,
                     nullptr == target ? to : in.address, nullptr == source ? from : out.address,
                     len_bytes);
        }
        strided_copy what;
        if (status::ok == s && target != nullptr) {
            s = describe(to, in.address, len_bytes, &what);
        }
        if (status::ok == s && target != nullptr) {
            s = side_.copies.copy_now(*target->on, what, nullptr);
        }
    }
    packed_.give(out);
    packed_.give(in);
    return s;
}

// The device in whose context a kernel may touch that memory; null: there is none.
device *view_table::touches(std::uint64_t address, std::size_t len_bytes)
{
    if (const view *of = find(address); of != nullptr) {
        return of->kernel_touches ? of->on : nullptr;
    }
    device *on = nullptr;
    std::uint64_t plain_bytes = 0;
    return status::ok == side_.devices.for_address(address, &on, &plain_bytes) &&
                   len_bytes <= plain_bytes
               ? on
               : nullptr;
}

// Anything but `ok`: it is to be done otherwise.
status view_table::copy_at_once(std::uint64_t to, std::uint64_t from, std::size_t len_bytes)
{
    device *on = touches(from, len_bytes);
    if (nullptr == on || on != touches(to, len_bytes)) {
        return status::unsupported;
    }
    strided_copy what;
    const status s = describe(to, from, len_bytes, &what);
    return status::ok != s ? s : side_.copies.copy_now(*on, what, side_.event_before_copies(*on));
}

status view_table::copy(void *to, const void *from, std::size_t len_bytes)
{
    const auto destination = reinterpret_cast<std::uint64_t>(to);
    const auto origin = reinterpret_cast<std::uint64_t>(from);
    view *source = find(origin);
    view *target = find(destination);
    // Nothing of the reserved range may get to the driver.
    if ((is_view_address(origin) && (nullptr == source || !source->holds(origin, len_bytes))) ||
        (is_view_address(destination) &&
         (nullptr == target || !target->holds(destination, len_bytes)))) {
        return status::bad_argument;
    }
    const std::lock_guard guard(side_.lock);
    device *on = nullptr == source && nullptr == target ? touches(origin, len_bytes) : nullptr;
    if (on != nullptr) {
        (void)side_.copies.prepare_strided(*on); // as for a view when it is opened
    }
    return copy_locked(destination, origin, len_bytes);
}

status view_table::copy_locked(std::uint64_t destination, std::uint64_t origin,
                               std::size_t len_bytes)
{
    view *source = find(origin);
    view *target = find(destination);
    if ((source != nullptr && !is_there(*source)) || (target != nullptr && !is_there(*target))) {
        return status::bad_argument;
    }
    if (0 == len_bytes || status::ok == copy_at_once(destination, origin, len_bytes)) {
        return status::ok;
    }
    if (nullptr == source && nullptr == target) {
        device *on = touches(origin, len_bytes);
        on = nullptr == on ? touches(destination, len_bytes) : on;
        return nullptr == on ? status::bad_argument : move(*on, destination, origin, len_bytes);
    }
    status s = status::ok;
    std::size_t piece = piece_bytes;
    for (std::size_t done = 0; done < len_bytes && status::ok == s;) {
        const std::size_t now = std::min(piece, len_bytes - done);
        s = copy_piece(destination + done, origin + done, now);
        if (status::no_memory == s && now > least_piece_bytes) {
            piece = now / 2;
            s = status::ok;
            continue;
        }
        if (status::ok != s) {
            s = copy_by_driver(destination + done, origin + done, now);
        }
        done += now;
    }
    return s;
}

} // namespace gpusm
