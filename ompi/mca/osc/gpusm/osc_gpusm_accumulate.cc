// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/osc/gpusm/osc_gpusm.h"

#include "ompi/mca/coll/gpusm/coll_gpusm_elements.h"

#include "opal/mca/common/gpusm/window_reduction.h"

#include <array>
#include <cstring>
#include <memory>
#include <new>
#include <optional>

namespace gpusm {

namespace {

// Whether elements of `of` lie in memory as those of its predefined type do.
bool are_basic(const elements &of, const basic_elements &basic)
{
    return of.type == basic.type || (!of.has_gaps() && basic.extent() == basic.type->super.size);
}

unsigned char *first_of(const elements &of)
{
    return of.at + of.type->super.true_lb;
}

int reduce(const unsigned char *from, unsigned char *into, const basic_elements &of, ompi_op_t *op)
{
    constexpr std::size_t most = std::size_t{1} << 30; // Open MPI counts in int
    int rc = OMPI_SUCCESS;
    for (std::size_t done = 0; OMPI_SUCCESS == rc && done < of.count; done += most) {
        const std::size_t at = done * of.extent();
        rc = mca_coll_base_reduce_local(from + at, into + at,
                                        static_cast<count_type>(std::min(most, of.count - done)),
                                        of.type, op, nullptr);
    }
    return rc;
}

} // namespace

// With the target's lock. By a kernel where there is one for it.
int window::combine(const elements &origin, int target, const place &to, const elements &theirs,
                    const elements *fetched, ompi_op_t *op)
{
    std::size_t in_each = 0;
    const basic_elements basic{basic_type_of(theirs.type, &in_each), theirs.count * in_each};
    std::size_t in_origin = 0;
    if (nullptr == basic.type || basic.type != basic_type_of(origin.type, &in_origin)) {
        return MPI_ERR_TYPE;
    }
    // MPI_Fetch_and_op of 8 bytes from host memory takes 24.5 us so, and 31 by a kernel (H200).
    constexpr std::size_t few_bytes = 1024;
    const bool is_for_processor =
        origin.bytes() <= few_bytes && !is_device(origin.at + origin.span().lowest);
    if (to.in->mapped != nullptr && !is_for_processor) {
        const status s = combine_on_device(origin, to, theirs, basic, op);
        if (status::unsupported != s) {
            return status::ok == s ? static_cast<int>(OMPI_SUCCESS) : MPI_ERR_OTHER;
        }
    }
    return combine_on_processor(origin, target, to, theirs, fetched, basic, op);
}

// `unsupported`: nothing has been written.
status window::combine_on_device(const elements &origin, const place &to, const elements &theirs,
                                 const basic_elements &basic, ompi_op_t *op)
{
    const std::optional<reduce_op> operation = operation_of(op);
    const std::optional<reduce_type> element = element_of(basic.type);
    if (!operation || !element || !is_defined(*operation, *element) ||
        basic.extent() != element_bytes(*element)) {
        return status::unsupported;
    }
    const auto describe = [&](const elements &of, std::uint64_t address) {
        window_elements out = described(of, address);
        if (are_basic(of, basic)) {
            out = {of.type == basic.type ? address : out.address, basic.count, basic.bytes(),
                   nullptr};
        } else if (basic.extent() != basic.type->super.size) {
            out.len_bytes = 0; // packed they are not elements that a kernel knows
        }
        return out;
    };
    const window_elements mine = describe(origin, reinterpret_cast<std::uint64_t>(origin.at));
    const window_elements its = describe(theirs, to.address);
    if (0 == mine.len_bytes || 0 == its.len_bytes ||
        (mine.plan != nullptr && !is_device(origin.at + origin.span().lowest))) {
        return status::unsupported;
    }
    window_reduction reduces(*operation, *element, mine, its, *to.in->mapped);
    status s = status::busy;
    while (status::busy == (s = reduces.step())) {
        opal_progress();
    }
    if (status::ok == s) {
        mca_osc_gpusm_component.counted.device_reductions.fetch_add(1, std::memory_order_relaxed);
    }
    return s;
}

int window::combine_on_processor(const elements &origin, int target, const place &to,
                                 const elements &theirs, const elements *fetched,
                                 const basic_elements &basic, ompi_op_t *op)
{
    // Copies of what the processor cannot use as it is.
    std::unique_ptr<unsigned char[]> copies[2];
    const auto copy_of = [&](std::unique_ptr<unsigned char[]> &in) {
        in.reset(new (std::nothrow) unsigned char[basic.bytes()]);
        return elements_of(in.get(), basic.count, basic.type);
    };
    elements mine = origin;
    if (is_device(origin.at + origin.span().lowest) || !are_basic(origin, basic)) {
        mine = copy_of(copies[0]);
        if (nullptr == mine.at) {
            return OMPI_ERR_OUT_OF_RESOURCE;
        }
        const place between{nullptr, 0, mine};
        int rc = OMPI_SUCCESS;
        window_pending pending;
        if (is_device(origin.at + origin.span().lowest) && !mine.has_gaps() &&
            move_on_device(true, origin, rank_, between, mine, &pending, &rc)) {
            rc = OMPI_SUCCESS == rc ? wait_for(pending) : rc;
        } else {
            rc = copy_own(mine, origin);
        }
        if (OMPI_SUCCESS != rc) {
            return rc;
        }
    }
    const unsigned char *mine_at = mine.type == basic.type ? mine.at : first_of(mine);
    if (to.here.at != nullptr && are_basic(theirs, basic)) {
        return reduce(mine_at, theirs.type == basic.type ? to.here.at : first_of(to.here), basic,
                      op);
    }
    const elements there = copy_of(copies[1]);
    if (nullptr == there.at) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    int rc = OMPI_SUCCESS;
    if (fetched != nullptr && !is_device(fetched->at + fetched->span().lowest)) {
        copy_elements(there, *fetched);
    } else {
        rc = move_and_wait(false, there, target, to, theirs);
    }
    if (OMPI_SUCCESS == rc) {
        rc = reduce(mine_at, there.at, basic, op);
    }
    return OMPI_SUCCESS == rc ? move_and_wait(true, there, target, to, theirs) : rc;
}

// Between two buffers of this process.
int window::copy_own(const elements &to, const elements &from)
{
    if (is_device(to.at + to.span().lowest) || is_device(from.at + from.span().lowest)) {
        return copy_device_elements(to, from);
    }
    copy_elements(to, from);
    return OMPI_SUCCESS;
}

int window::move_and_wait(bool is_put, const elements &mine, int target, const place &to,
                          const elements &theirs)
{
    window_pending pending;
    const int rc = move(is_put, mine, target, to, theirs, &pending);
    return OMPI_SUCCESS == rc ? wait_for(pending) : rc;
}

int window::accumulate(const elements &origin, const elements *result, int target,
                       std::ptrdiff_t at, const elements &theirs, ompi_op_t *op,
                       ompi_request_t **request)
{
    if (request != nullptr) {
        *request = &ompi_request_empty; // it is complete when this returns
    }
    if (!may_access(target)) {
        return MPI_ERR_RMA_SYNC;
    }
    const bool takes_origin = MPI_NO_OP != op;
    if ((takes_origin && origin.bytes() != theirs.bytes()) ||
        (result != nullptr && result->bytes() != theirs.bytes())) {
        return MPI_ERR_TRUNCATE;
    }
    if (0 == theirs.bytes()) {
        return OMPI_SUCCESS;
    }
    place to;
    int rc = find(target, at, theirs, &to);
    if (OMPI_SUCCESS == rc) {
        rc = wait_until([&] { return takes_accumulates(target); });
    }
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    if (result != nullptr) {
        rc = move_and_wait(false, *result, target, to, theirs);
    }
    if (OMPI_SUCCESS == rc && takes_origin) {
        rc = MPI_REPLACE == op ? move_and_wait(true, origin, target, to, theirs)
                               : combine(origin, target, to, theirs, result, op);
    }
    unlock_accumulates(target);
    return rc;
}

int window::compare_and_swap(const void *origin, const void *compare, void *result,
                             ompi_datatype_t *type, int target, std::ptrdiff_t at)
{
    constexpr std::size_t most_bytes = 8;
    if (!may_access(target)) {
        return MPI_ERR_RMA_SYNC;
    }
    // MPI's integer, logical and byte types.
    const std::optional<reduce_type> element = element_of(type);
    if (!element || !is_integer(*element)) {
        return MPI_ERR_TYPE;
    }
    swapped_type_.store(type, std::memory_order_relaxed);
    const std::size_t bytes = type->super.size;
    const elements theirs = elements_of(nullptr, 1, type);
    place to;
    int rc = find(target, at, theirs, &to);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    std::array<unsigned char, most_bytes> wanted;
    std::array<unsigned char, most_bytes> was;
    const elements old = elements_of(was.data(), 1, type);
    rc = copy_own(elements_of(wanted.data(), 1, type), elements_of(compare, 1, type));
    rc = OMPI_SUCCESS == rc ? wait_until([&] { return takes_accumulates(target); }) : rc;
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    rc = move_and_wait(false, old, target, to, theirs);
    if (OMPI_SUCCESS == rc && 0 == std::memcmp(wanted.data(), was.data(), bytes)) {
        rc = move_and_wait(true, elements_of(origin, 1, type), target, to, theirs);
    }
    unlock_accumulates(target);
    return OMPI_SUCCESS == rc ? copy_own(elements_of(result, 1, type), old) : rc;
}

} // namespace gpusm
