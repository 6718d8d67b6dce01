// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/osc/gpusm/osc_gpusm.h"

#include "ompi/mca/coll/gpusm/coll_gpusm_type_walk.h"

#include <algorithm>
#include <memory>
#include <new>

namespace gpusm {

namespace {

elements packed_elements(void *packed, std::size_t bytes)
{
    return elements_of(packed, bytes, MPI_BYTE);
}

} // namespace

// --- the target's memory -------------------------------------------------------------------------

// Of a dynamic window, whose displacements are addresses of the target's.
int window::find_in_dynamic(int target, std::ptrdiff_t at, const elements &theirs, place *out)
{
    const byte_span span = theirs.span();
    out->address = static_cast<std::uint64_t>(at);
    out->held = find_attached(target, out->address + static_cast<std::uint64_t>(span.lowest),
                              static_cast<std::uint64_t>(span.end - span.lowest));
    out->in = out->held.get();
    if (nullptr == out->in) {
        return MPI_ERR_RMA_RANGE;
    }
    out->here = theirs;
    out->here.at =
        nullptr == out->in->here ? nullptr : out->in->here + (out->address - out->in->told.base);
    return OMPI_SUCCESS;
}

// --- copies --------------------------------------------------------------------------------------

window_elements window::described(const elements &of, std::uint64_t address)
{
    window_elements out;
    out.count = of.count;
    out.len_bytes = of.bytes();
    out.address = address;
    if (of.has_gaps()) {
        const std::lock_guard guard(tables_lock_);
        out.plan = plans_.of(of.type);
        out.len_bytes = nullptr == out.plan ? 0 : out.len_bytes;
    } else {
        out.address += static_cast<std::uint64_t>(of.type->super.true_lb);
    }
    return out;
}

// By this process's device, where one side at least is on it. True: it has been started, or *rc
// says why it has failed; false: it is to be done in another way.
bool window::move_on_device(bool is_put, const elements &mine, int target, const place &to,
                            const elements &theirs, window_pending *request, int *rc)
{
    window_copies *by = mca_osc_gpusm_component.open->copies.load(std::memory_order_acquire);
    if (nullptr == by) {
        gpu_side *side = process_.gpu();
        if (nullptr == side) {
            return false;
        }
        const std::lock_guard guard(side->lock);
        by = &side->windows();
        mca_osc_gpusm_component.open->copies.store(by, std::memory_order_release);
    }
    window_copy what;
    what.is_put = is_put;
    what.mine = described(mine, reinterpret_cast<std::uint64_t>(mine.at));
    what.in = to.in != nullptr ? to.in->mapped.get() : nullptr;
    what.theirs = described(
        theirs, what.in != nullptr ? to.address : reinterpret_cast<std::uint64_t>(to.here.at));
    if (0 == what.mine.len_bytes || 0 == what.theirs.len_bytes) {
        return false;
    }
    const window_elements &from = is_put ? what.mine : what.theirs;
    window_elements &into = is_put ? what.theirs : what.mine;
    if (into.len_bytes != from.len_bytes) {
        if (into.plan != nullptr) { // the bytes end within an element
            return false;
        }
        into.len_bytes = from.len_bytes;
    }
    status s = status::busy;
    *rc = wait_until([&] {
        s = by->start(what, {&ranks_[static_cast<std::size_t>(target)].pending, request});
        return status::busy != s;
    });
    if (status::ok == s) {
        window_counters &counted = mca_osc_gpusm_component.counted;
        counted.device_copies.fetch_add(1, std::memory_order_relaxed);
        counted.device_bytes.fetch_add(what.mine.len_bytes, std::memory_order_relaxed);
    }
    return status::ok == s || OMPI_SUCCESS != *rc;
}

void window::wait_for_puts(const place &to)
{
    window_copies *by = mca_osc_gpusm_component.open->copies.load(std::memory_order_acquire);
    const byte_span span = to.here.span();
    while (by != nullptr && by->writes_to(to.here.at + span.lowest,
                                          static_cast<std::uint64_t>(span.end - span.lowest))) {
        if (!by->progress()) {
            opal_progress();
        }
    }
}

int window::move_otherwise(bool is_put, const elements &mine, int target, const place &to,
                           const elements &theirs, window_pending *request)
{
    const bool mine_on_device = is_device(mine.at + mine.span().lowest);
    const bool is_here = to.here.at != nullptr;
    // What has gaps in host memory is packed by the processor.
    const bool by_device = (mine_on_device || !mine.has_gaps()) &&
                           (to.in->mapped != nullptr || (is_here && !theirs.has_gaps()));
    int rc = OMPI_SUCCESS;
    if (by_device && move_on_device(is_put, mine, target, to, theirs, request, &rc)) {
        return rc;
    }
    return move_now(is_put, mine, target, to, theirs);
}

// By way of packed bytes in host memory.
int window::move_now(bool is_put, const elements &mine, int target, const place &to,
                     const elements &theirs)
{
    const std::size_t bytes = is_put ? mine.bytes() : theirs.bytes();
    const bool mine_on_device = is_device(mine.at + mine.span().lowest);
    std::unique_ptr<unsigned char[]> made;
    unsigned char *packed = mine.at + mine.type->super.true_lb;
    const bool is_packed = !mine_on_device && !mine.has_gaps();
    if (!is_packed) {
        made.reset(new (std::nothrow) unsigned char[bytes]);
        packed = made.get();
        if (nullptr == packed) {
            return OMPI_ERR_OUT_OF_RESOURCE;
        }
    }
    const elements all = packed_elements(packed, bytes);
    // Between this process's buffer and the packed bytes.
    const auto copy_mine = [&](bool out) {
        if (is_packed) {
            return static_cast<int>(OMPI_SUCCESS);
        }
        int rc = OMPI_SUCCESS;
        window_pending pending;
        const place between{nullptr, 0, all};
        if (mine_on_device && move_on_device(out, mine, rank_, between, all, &pending, &rc)) {
            return OMPI_SUCCESS == rc ? wait_for(pending) : rc;
        }
        out ? pack_elements(mine, packed) : unpack_elements(mine, packed, bytes);
        return rc;
    };
    const auto copy_theirs = [&] {
        if (to.here.at != nullptr) {
            if (is_put && has_copies_to(target)) {
                wait_for_puts(to);
            }
            is_put ? unpack_elements(to.here, packed, bytes) : pack_elements(to.here, packed);
            return static_cast<int>(OMPI_SUCCESS);
        }
        return move_packed(is_put, all, target, to, theirs);
    };
    if (is_put) {
        const int rc = copy_mine(true);
        return OMPI_SUCCESS == rc ? copy_theirs() : rc;
    }
    const int rc = copy_theirs();
    return OMPI_SUCCESS == rc ? copy_mine(false) : rc;
}

// Between packed bytes in host memory and the target's memory that the processor cannot use as it
// is.
int window::move_packed(bool is_put, const elements &packed, int target, const place &to,
                        const elements &theirs)
{
    // What ends within an element is whole elements, and the blocks of another one.
    elements first = theirs;
    first.count = packed.count / theirs.type->super.size;
    const std::size_t done = first.bytes();
    if (theirs.has_gaps() && 0 != first.count && done != packed.count) {
        const int rc = move_packed(is_put, packed_elements(packed.at, done), target, to, first);
        place behind = to;
        behind.address +=
            static_cast<std::uint64_t>(static_cast<std::ptrdiff_t>(first.count) *
                                       (theirs.type->super.ub - theirs.type->super.lb));
        return OMPI_SUCCESS == rc
                   ? move_packed(is_put, packed_elements(packed.at + done, packed.count - done),
                                 target, behind, elements_of(nullptr, 1, theirs.type))
                   : rc;
    }
    int rc = OMPI_SUCCESS;
    window_pending pending;
    if (to.in->mapped != nullptr &&
        move_on_device(is_put, packed, target, to, theirs, &pending, &rc)) {
        return OMPI_SUCCESS == rc ? wait_for(pending) : rc;
    }
    if (target == rank_) { // nobody else is asked
        place own = to;
        own.here =
            elements_of(reinterpret_cast<const void *>(to.address), theirs.count, theirs.type);
        if (is_put && has_copies_to(target)) {
            wait_for_puts(own);
        }
        return is_put ? copy_device_elements(own.here, packed)
                      : copy_device_elements(packed, own.here);
    }
    return move_blocks(is_put, packed, target, to, theirs);
}

// The same of another process, a block at a time: by this process's device, by single copies, or by
// the owner.
int window::move_blocks(bool is_put, const elements &packed, int target, const place &to,
                        const elements &theirs)
{
    const window_rank &of = ranks_[static_cast<std::size_t>(target)];
    int rc = OMPI_SUCCESS;
    window_pending pending;
    unsigned char *next = packed.at;
    const auto copy = [&](std::ptrdiff_t offset, std::size_t block_bytes) {
        const auto left = static_cast<std::size_t>(packed.at + packed.count - next);
        const std::size_t bytes = std::min(block_bytes, left);
        const std::uint64_t address = to.address + static_cast<std::uint64_t>(offset);
        auto *remote = reinterpret_cast<void *>(address);
        const elements block = packed_elements(next, bytes);
        const bool by_device =
            to.in->mapped != nullptr &&
            move_on_device(is_put, block, target, {to.in, address, {}}, block, &pending, &rc);
        int copied = by_device ? OPAL_SUCCESS : OPAL_ERROR;
        if (0 == to.in->told.on_device && of.single_copies != nullptr) {
            copied = is_put
                         ? MCA_SMSC_CALL(copy_to, of.single_copies, next, remote, bytes, nullptr)
                         : MCA_SMSC_CALL(copy_from, of.single_copies, next, remote, bytes, nullptr);
        }
        if (OPAL_SUCCESS != copied) {
            rc = owner_.copy(is_put, target, address, next, bytes);
            mca_osc_gpusm_component.counted.owner_bytes.fetch_add(bytes, std::memory_order_relaxed);
        }
        next += bytes;
        return OMPI_SUCCESS == rc && bytes != left;
    };
    if (theirs.has_gaps()) {
        (void)for_each_block(theirs.type->super, theirs.count, copy);
    } else {
        (void)copy(theirs.type->super.true_lb, packed.count);
    }
    const int waited = wait_for(pending);
    if (OMPI_SUCCESS != rc || OMPI_SUCCESS != waited) {
        return OMPI_SUCCESS != rc ? rc : waited;
    }
    return packed.at + packed.count == next ? static_cast<int>(OMPI_SUCCESS) : MPI_ERR_TYPE;
}

// --- operations ----------------------------------------------------------------------------------

int window::start(bool is_put, const elements &origin, int target, std::ptrdiff_t at,
                  const elements &theirs, ompi_request_t **request, ompi_win_t *win)
{
    if (!may_access(target)) {
        return MPI_ERR_RMA_SYNC;
    }
    if (!fits(is_put, origin, theirs)) {
        return MPI_ERR_TRUNCATE;
    }
    const std::size_t bytes = is_put ? origin.bytes() : theirs.bytes();
    if (0 == bytes) {
        if (request != nullptr) {
            *request = &ompi_request_empty;
        }
        return OMPI_SUCCESS;
    }
    place to; // of all that there is room for, as that has to be in the window
    int rc = find(target, at, theirs, &to);
    elements mine = origin;
    elements its = theirs;
    elements &into = is_put ? its : mine;
    if (0 == bytes % into.type->super.size) { // no more elements than are written
        into.count = bytes / into.type->super.size;
        to.here.count = its.count;
    }
    if (OMPI_SUCCESS != rc || nullptr == request) {
        return OMPI_SUCCESS == rc ? move(is_put, mine, target, to, its, nullptr) : rc;
    }
    window_requests &requests = mca_osc_gpusm_component.open->requests;
    window_request *made = requests.make();
    if (nullptr == made) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    rc = move(is_put, mine, target, to, its, made->pending);
    if (OMPI_SUCCESS == rc && made->is_under_way()) {
        requests.start(made, win, request);
    } else {
        requests.drop(made);
        *request = &ompi_request_empty; // as processors' copies are
    }
    return rc;
}

} // namespace gpusm
