// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// views_copy.cc: the copies of view_table: for the copy engine, and those that return when they are
// done.
#include "opal/mca/common/gpusm/views.h"

#include "opal/mca/common/gpusm/gpu/strided.h"
#include "opal/mca/common/gpusm/gpu_side.h"

#include <algorithm>
#include <cstring>

namespace gpusm {

namespace {

// Of a copy that returns when it is done: at most so much is packed at a time, and less, down to
// the second, where there is no memory for it.
constexpr std::size_t piece_bytes = std::size_t{64} << 20;
constexpr std::size_t least_piece_bytes = std::size_t{1} << 20;

strided_place place_of(const view &of, std::uint64_t at)
{
    return strided_place_of(of.memory, view_offset(at));
}

} // namespace

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
    return copy_locked(request.destination, request.source, request.len_bytes, false);
}

CUevent view_table::event_before(device *reads, bool is_programs)
{
    return nullptr == reads || !is_programs ? nullptr : side_.event_before_copies(*reads);
}

status view_table::pack(view &from, std::uint64_t at, std::uint64_t to, std::size_t len_bytes,
                        bool is_programs)
{
    strided_copy what;
    const status s = describe(to, at, len_bytes, &what);
    return status::ok != s
               ? s
               : side_.copies.copy_now(*from.on, what, event_before(from.on, is_programs));
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
status view_table::copy_by_driver(std::uint64_t to, std::uint64_t from, std::size_t len_bytes,
                                  bool is_programs)
{
    const view *source = find(from);
    const view *target = find(to);
    const device &on = *(nullptr == source ? target : source)->on;
    return side_.driver.report(
        "copying blocks", in_context(side_.driver, on.context, [&] {
            const CUevent before =
                event_before(nullptr == source ? nullptr : source->on, is_programs);
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
status view_table::copy_piece(std::uint64_t to, std::uint64_t from, std::size_t len_bytes,
                              bool is_programs)
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
        s = nullptr == source ? status::ok
                              : pack(*source, from, out.address, len_bytes, is_programs);
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

// The device that memory without gaps belongs to, managed memory too; null: none.
device *view_table::owner_of(std::uint64_t address)
{
    device *on = nullptr;
    std::uint64_t plain_bytes = 0;
    return status::ok == side_.devices.for_address(address, &on, &plain_bytes) ? on : nullptr;
}

// Is it host memory of our own that a kernel in the context of `by` may touch?
bool view_table::reaches(device *by, std::uint64_t address, std::size_t len_bytes)
{
    const auto *at = reinterpret_cast<const unsigned char *>(address);
    return by != nullptr && !is_view_address(address) && side_.kernel_touches(*by, at) &&
           side_.is_registered(at, len_bytes);
}

// Anything but `ok`: it is to be done otherwise.
status view_table::copy_at_once(std::uint64_t to, std::uint64_t from, std::size_t len_bytes,
                                bool is_programs)
{
    device *reads = touches(from, len_bytes);
    device *writes = touches(to, len_bytes);
    device *on = nullptr == reads ? writes : reads;
    if ((reads != on && !reaches(on, from, len_bytes)) ||
        (writes != on && !reaches(on, to, len_bytes)) || nullptr == on) {
        return status::unsupported;
    }
    strided_copy what;
    const status s = describe(to, from, len_bytes, &what);
    return status::ok != s ? s : side_.copies.copy_now(*on, what, event_before(reads, is_programs));
}

// Other host memory: a short copy of the processor is faster than one of the driver. Likewise.
status view_table::copy_through_host(std::uint64_t to, std::uint64_t from, std::size_t len_bytes,
                                     bool is_programs)
{
    const bool packs = is_view_address(from);
    device *other = nullptr;
    std::uint64_t unused = 0;
    unsigned char *between = nullptr;
    if (len_bytes > gpu_side::packed_host_bytes || packs == is_view_address(to) ||
        status::ok != side_.devices.for_address(packs ? to : from, &other, &unused) ||
        other != nullptr || status::ok != side_.packed_host_memory(&between)) {
        return status::unsupported;
    }
    const auto packed = reinterpret_cast<std::uint64_t>(between);
    if (packs) {
        const status s = copy_at_once(packed, from, len_bytes, is_programs);
        if (status::ok == s) {
            std::memcpy(reinterpret_cast<void *>(to), between, len_bytes);
        }
        return s;
    }
    std::memcpy(between, reinterpret_cast<const void *>(from), len_bytes);
    return copy_at_once(to, packed, len_bytes, false);
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
    return copy_locked(destination, origin, len_bytes, true);
}

status view_table::copy_locked(std::uint64_t destination, std::uint64_t origin,
                               std::size_t len_bytes, bool is_programs)
{
    view *source = find(origin);
    view *target = find(destination);
    if ((source != nullptr && !is_there(*source)) || (target != nullptr && !is_there(*target))) {
        return status::bad_argument;
    }
    if (0 == len_bytes || status::ok == copy_at_once(destination, origin, len_bytes, is_programs) ||
        status::ok == copy_through_host(destination, origin, len_bytes, is_programs)) {
        return status::ok;
    }
    if (nullptr == source && nullptr == target) {
        device *on = owner_of(origin);
        on = nullptr == on ? owner_of(destination) : on;
        return nullptr == on ? status::bad_argument : move(*on, destination, origin, len_bytes);
    }
    status s = status::ok;
    std::size_t piece = piece_bytes;
    for (std::size_t done = 0; done < len_bytes && status::ok == s;) {
        const std::size_t now = std::min(piece, len_bytes - done);
        s = copy_piece(destination + done, origin + done, now, is_programs);
        if (status::no_memory == s && now > least_piece_bytes) {
            piece = now / 2;
            s = status::ok;
            continue;
        }
        if (status::ok != s) {
            s = copy_by_driver(destination + done, origin + done, now, is_programs);
        }
        done += now;
    }
    return s;
}

} // namespace gpusm
