// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// osc_gpusm_functions.cc: what Open MPI calls, in its terms. Open MPI has looked at the arguments.
#include "ompi/mca/osc/gpusm/osc_gpusm.h"
#include "ompi/mca/osc/gpusm/osc_gpusm_at_once.h"

#include "ompi/mca/coll/gpusm/coll_gpusm_buffer_check.h"

#include <utility>

namespace gpusm {

namespace {

window &its(ompi_win_t *win)
{
    return *reinterpret_cast<ompi_osc_gpusm_module_t *>(win->w_osc_module)->its;
}

// If the user wants that (sync_check.h). What is only read has its second look when the program
// waits for it.
void check(const void *at, count_type count, const ompi_datatype_t *type, bool is_written = false)
{
    if (sync_check *checks = mca_osc_gpusm_component.checks; checks != nullptr) [[unlikely]] {
        auto look = first_look(*checks, at, static_cast<std::size_t>(count), type);
        if (is_written) {
            checks->second_look(std::move(look));
        } else {
            checks->second_look_later(std::move(look));
        }
    }
}

// The window, of which the program is about to wait for operations.
window &waited_for(ompi_win_t *win)
{
    if (sync_check *checks = mca_osc_gpusm_component.checks; checks != nullptr) [[unlikely]] {
        checks->look_at_due();
    }
    return its(win);
}

elements given(const void *at, count_type count, ompi_datatype_t *type, bool is_written = false)
{
    check(at, count, type, is_written);
    return elements_of(at, static_cast<std::size_t>(count), type);
}

// The origin of an operation that also fetches. MPI_NO_OP reads none; a program may name the
// result.
elements read_by(const ompi_op_t *op, const void *origin, count_type count, ompi_datatype_t *type)
{
    return MPI_NO_OP == op ? elements_of(origin, static_cast<std::size_t>(count), type)
                           : given(origin, count, type);
}

// Elements in the target's memory, which have no address here.
elements there(count_type count, ompi_datatype_t *type)
{
    return elements_of(nullptr, static_cast<std::size_t>(count), type);
}

int move(bool is_put, const elements &origin, int target, ptrdiff_t at, const elements &theirs,
         ompi_win_t *win)
{
    window &of = its(win);
    return of.copies_at_once(is_put, origin, target, at, theirs)
               ? static_cast<int>(OMPI_SUCCESS)
               : of.start(is_put, origin, target, at, theirs, nullptr, win);
}

extern const ompi_osc_base_module_t freed_window_functions;

// Of operations that take one element of a predefined type.
constexpr int one = 1;

// Open MPI takes a window out of its table with each MPI_Win_free, also with one that fails, and
// the place may be another window's with the next one.
void leave_place_of_others(ompi_win_t *win)
{
    if (win->w_f_to_c_index >= 0 &&
        win != opal_pointer_array_get_item(&ompi_mpi_windows, win->w_f_to_c_index)) {
        win->w_f_to_c_index = -1;
    }
}

extern "C" int osc_gpusm_win_free(ompi_win_t *win) noexcept
{
    leave_place_of_others(win);
    auto *module = reinterpret_cast<ompi_osc_gpusm_module_t *>(win->w_osc_module);
    if (!module->its->may_be_freed()) {
        return MPI_ERR_RMA_SYNC;
    }
    const int rc = module->its->free();
    delete module;
    // Where it reports an error, the program keeps its handle.
    win->w_osc_module = OMPI_SUCCESS == rc
                            ? nullptr
                            : const_cast<ompi_osc_base_module_t *>(&freed_window_functions);
    return rc;
}

// Of a window that is freed, but whose handle the program has.
extern "C" int osc_gpusm_free_handle(ompi_win_t *win) noexcept
{
    leave_place_of_others(win);
    win->w_osc_module = nullptr;
    return OMPI_SUCCESS;
}

template <typename... Given> int not_any_more(Given...) noexcept
{
    return MPI_ERR_WIN;
}

extern "C" int osc_gpusm_win_shared_query(ompi_win_t *win, int rank, size_t *size, unit_type *unit,
                                          void *base) noexcept
{
    return its(win).query(rank, size, unit, base);
}

extern "C" int osc_gpusm_win_attach(ompi_win_t *win, void *base, size_t size) noexcept
{
    return its(win).attach(base, size);
}

extern "C" int osc_gpusm_win_detach(ompi_win_t *win, const void *base) noexcept
{
    return its(win).detach(base);
}

extern "C" int osc_gpusm_rput(const void *origin, count_type count, ompi_datatype_t *type,
                              int target, ptrdiff_t at, count_type target_count,
                              ompi_datatype_t *target_type, ompi_win_t *win,
                              ompi_request_t **request) noexcept
{
    return its(win).start(true, given(origin, count, type), target, at,
                          there(target_count, target_type), request, win);
}

extern "C" int osc_gpusm_put(const void *origin, count_type count, ompi_datatype_t *type,
                             int target, ptrdiff_t at, count_type target_count,
                             ompi_datatype_t *target_type, ompi_win_t *win) noexcept
{
    return move(true, given(origin, count, type), target, at, there(target_count, target_type),
                win);
}

extern "C" int osc_gpusm_rget(void *origin, count_type count, ompi_datatype_t *type, int target,
                              ptrdiff_t at, count_type target_count, ompi_datatype_t *target_type,
                              ompi_win_t *win, ompi_request_t **request) noexcept
{
    return its(win).start(false, given(origin, count, type, true), target, at,
                          there(target_count, target_type), request, win);
}

extern "C" int osc_gpusm_get(void *origin, count_type count, ompi_datatype_t *type, int target,
                             ptrdiff_t at, count_type target_count, ompi_datatype_t *target_type,
                             ompi_win_t *win) noexcept
{
    return move(false, given(origin, count, type, true), target, at,
                there(target_count, target_type), win);
}

extern "C" int osc_gpusm_raccumulate(const void *origin, count_type count, ompi_datatype_t *type,
                                     int target, ptrdiff_t at, count_type target_count,
                                     ompi_datatype_t *target_type, ompi_op_t *op, ompi_win_t *win,
                                     ompi_request_t **request) noexcept
{
    return its(win).accumulate(given(origin, count, type), nullptr, target, at,
                               there(target_count, target_type), op, request);
}

extern "C" int osc_gpusm_accumulate(const void *origin, count_type count, ompi_datatype_t *type,
                                    int target, ptrdiff_t at, count_type target_count,
                                    ompi_datatype_t *target_type, ompi_op_t *op,
                                    ompi_win_t *win) noexcept
{
    const elements mine = given(origin, count, type);
    const elements theirs = there(target_count, target_type);
    int rc = OMPI_SUCCESS;
    return its(win).accumulates_at_once(mine, target, at, theirs, op, &rc)
               ? rc
               : its(win).accumulate(mine, nullptr, target, at, theirs, op, nullptr);
}

extern "C" int osc_gpusm_rget_accumulate(const void *origin, count_type count,
                                         ompi_datatype_t *type, void *result,
                                         count_type result_count, ompi_datatype_t *result_type,
                                         int target, ptrdiff_t at, count_type target_count,
                                         ompi_datatype_t *target_type, ompi_op_t *op,
                                         ompi_win_t *win, ompi_request_t **request) noexcept
{
    const elements mine = read_by(op, origin, count, type);
    const elements old = given(result, result_count, result_type, true);
    return its(win).accumulate(mine, &old, target, at, there(target_count, target_type), op,
                               request);
}

extern "C" int osc_gpusm_get_accumulate(const void *origin, count_type count, ompi_datatype_t *type,
                                        void *result, count_type result_count,
                                        ompi_datatype_t *result_type, int target, ptrdiff_t at,
                                        count_type target_count, ompi_datatype_t *target_type,
                                        ompi_op_t *op, ompi_win_t *win) noexcept
{
    return osc_gpusm_rget_accumulate(origin, count, type, result, result_count, result_type, target,
                                     at, target_count, target_type, op, win, nullptr);
}

extern "C" int osc_gpusm_fetch_and_op(const void *origin, void *result, ompi_datatype_t *type,
                                      int target, ptrdiff_t at, ompi_op_t *op,
                                      ompi_win_t *win) noexcept
{
    const elements mine = read_by(op, origin, one, type);
    check(result, one, type, true);
    int rc = OMPI_SUCCESS;
    if (its(win).fetches_at_once(origin, result, type, target, at, op, &rc)) {
        return rc;
    }
    const elements old = elements_of(result, one, type);
    return its(win).accumulate(mine, &old, target, at, there(one, type), op, nullptr);
}

extern "C" int osc_gpusm_compare_and_swap(const void *origin, const void *compare, void *result,
                                          ompi_datatype_t *type, int target, ptrdiff_t at,
                                          ompi_win_t *win) noexcept
{
    check(origin, one, type);
    check(compare, one, type);
    check(result, one, type, true);
    return its(win).swaps_at_once(origin, compare, result, type, target, at)
               ? static_cast<int>(OMPI_SUCCESS)
               : its(win).compare_and_swap(origin, compare, result, type, target, at);
}

extern "C" int osc_gpusm_fence(int assertion, ompi_win_t *win) noexcept
{
    return waited_for(win).fence(assertion);
}

extern "C" int osc_gpusm_start(ompi_group_t *group, int, ompi_win_t *win) noexcept
{
    return its(win).start_access(group);
}

extern "C" int osc_gpusm_complete(ompi_win_t *win) noexcept
{
    return waited_for(win).complete();
}

extern "C" int osc_gpusm_post(ompi_group_t *group, int, ompi_win_t *win) noexcept
{
    return its(win).post(group);
}

extern "C" int osc_gpusm_wait(ompi_win_t *win) noexcept
{
    return its(win).wait();
}

extern "C" int osc_gpusm_test(ompi_win_t *win, int *flag) noexcept
{
    opal_progress();
    return its(win).test(flag);
}

extern "C" int osc_gpusm_lock(int type, int target, int assertion, ompi_win_t *win) noexcept
{
    return its(win).lock(type, target, assertion);
}

extern "C" int osc_gpusm_unlock(int target, ompi_win_t *win) noexcept
{
    return waited_for(win).unlock(target);
}

extern "C" int osc_gpusm_lock_all(int assertion, ompi_win_t *win) noexcept
{
    return its(win).lock_all(assertion);
}

extern "C" int osc_gpusm_unlock_all(ompi_win_t *win) noexcept
{
    return waited_for(win).unlock_all();
}

// Both copies of a window are one, and what processors have written is seen by the next load.
extern "C" int osc_gpusm_sync(ompi_win_t *) noexcept
{
    std::atomic_thread_fence(std::memory_order_seq_cst);
    opal_progress();
    return OMPI_SUCCESS;
}

extern "C" int osc_gpusm_flush(int target, ompi_win_t *win) noexcept
{
    return waited_for(win).flush(target);
}

extern "C" int osc_gpusm_flush_all(ompi_win_t *win) noexcept
{
    return waited_for(win).flush_all();
}

const ompi_osc_base_module_t freed_window_functions = {
    .osc_win_shared_query = not_any_more,
    .osc_win_attach = not_any_more,
    .osc_win_detach = not_any_more,
    .osc_free = osc_gpusm_free_handle,
    .osc_put = not_any_more,
    .osc_get = not_any_more,
    .osc_accumulate = not_any_more,
    .osc_compare_and_swap = not_any_more,
    .osc_fetch_and_op = not_any_more,
    .osc_get_accumulate = not_any_more,
    .osc_rput = not_any_more,
    .osc_rget = not_any_more,
    .osc_raccumulate = not_any_more,
    .osc_rget_accumulate = not_any_more,
    .osc_fence = not_any_more,
    .osc_start = not_any_more,
    .osc_complete = not_any_more,
    .osc_post = not_any_more,
    .osc_wait = not_any_more,
    .osc_test = not_any_more,
    .osc_lock = not_any_more,
    .osc_unlock = not_any_more,
    .osc_lock_all = not_any_more,
    .osc_unlock_all = not_any_more,
    .osc_sync = not_any_more,
    .osc_flush = not_any_more,
    .osc_flush_all = not_any_more,
    .osc_flush_local = not_any_more,
    .osc_flush_local_all = not_any_more,
};

} // namespace

const ompi_osc_base_module_t window_functions = {
    .osc_win_shared_query = osc_gpusm_win_shared_query,
    .osc_win_attach = osc_gpusm_win_attach,
    .osc_win_detach = osc_gpusm_win_detach,
    .osc_free = osc_gpusm_win_free,
    .osc_put = osc_gpusm_put,
    .osc_get = osc_gpusm_get,
    .osc_accumulate = osc_gpusm_accumulate,
    .osc_compare_and_swap = osc_gpusm_compare_and_swap,
    .osc_fetch_and_op = osc_gpusm_fetch_and_op,
    .osc_get_accumulate = osc_gpusm_get_accumulate,
    .osc_rput = osc_gpusm_rput,
    .osc_rget = osc_gpusm_rget,
    .osc_raccumulate = osc_gpusm_raccumulate,
    .osc_rget_accumulate = osc_gpusm_rget_accumulate,
    .osc_fence = osc_gpusm_fence,
    .osc_start = osc_gpusm_start,
    .osc_complete = osc_gpusm_complete,
    .osc_post = osc_gpusm_post,
    .osc_wait = osc_gpusm_wait,
    .osc_test = osc_gpusm_test,
    .osc_lock = osc_gpusm_lock,
    .osc_unlock = osc_gpusm_unlock,
    .osc_lock_all = osc_gpusm_lock_all,
    .osc_unlock_all = osc_gpusm_unlock_all,
    .osc_sync = osc_gpusm_sync,
    .osc_flush = osc_gpusm_flush,
    .osc_flush_all = osc_gpusm_flush_all,
    // What is complete at the origin is so at the target, as one copy does both.
    .osc_flush_local = osc_gpusm_flush,
    .osc_flush_local_all = osc_gpusm_flush_all,
};

} // namespace gpusm
