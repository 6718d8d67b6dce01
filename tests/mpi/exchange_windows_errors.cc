// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_windows_errors.cc: what is wrong in a call on a window is returned as an error of the
// right class, moves nothing, and leaves the window as usable as before.
#include "tests/mpi/windows.h"

#include <climits>
#include <functional>

namespace gpusm::exchange {

namespace {

using namespace windows;

constexpr std::size_t window_bytes = 4096;
constexpr std::size_t memory_bytes = window_bytes + 2 * guard_bytes;

std::string class_name(int error_class)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(error_class, text, &length);
    std::string name = text;
    return name.substr(0, name.find(':'));
}

class errors {
  public:
    errors(context &c, memory_kind kind, memory_kind origin)
        : c_(c), on_(std::string("windows of ") + bench::letter_of(kind) + " from " +
                     bench::letter_of(origin)),
          owned_(c, kind, memory_bytes), origin_(c, origin, memory_bytes),
          result_(c, origin, memory_bytes), window_(c)
    {
        target_ = (c.rank + 1) % c.ranks;
    }
    void run()
    {
        owned_.want(guard_bytes, byte_element(), window_bytes, c_.draw_seeds(window_bytes));
        owned_.write(memory_bytes);
        origin_.want(0, byte_element(), memory_bytes, c_.draw_seeds(memory_bytes));
        origin_.write(memory_bytes);
        result_.write(memory_bytes);
        if (!window_.create(MPI_COMM_WORLD, owned_.at(guard_bytes), window_bytes, 1, on_)) {
            return;
        }
        beyond();
        untouched("after accesses beyond the window");
        arguments();
        untouched("after wrong arguments");
        epochs();
        untouched("after calls outside of epochs");
        still_works();
    }

  private:
    using call = std::function<int()>;

    // `made` returns an error of one of those classes; none given: of any.
    void refused(const std::string &what, const std::vector<int> &classes, const call &made)
    {
        const std::string which = on_ + ": " + what;
        at_step(which);
        const int code = made();
        int found = MPI_SUCCESS;
        MPI_Error_class(code, &found);
        const bool is_right =
            MPI_SUCCESS != found &&
            (classes.empty() || classes.end() != std::find(classes.begin(), classes.end(), found));
        const std::string wanted = classes.empty() ? "an error" : class_name(classes.front());
        c_.expect(is_right ? "" : "it returned " + class_name(found) + " instead of " + wanted,
                  which);
        ++c_.messages;
    }
    // Open MPI's own components do not refuse it.
    void refused_by_ours(const std::string &what, const std::vector<int> &classes, const call &made)
    {
        if (!is_stock(owned_.kind())) {
            refused(what, classes, made);
        }
    }
    void untouched(const std::string &when)
    {
        MPI_Barrier(MPI_COMM_WORLD);
        owned_.check(memory_bytes, on_ + ", " + when + ": the window");
        origin_.check(memory_bytes, on_ + ", " + when + ": the origin's buffer");
        result_.check(memory_bytes, on_ + ", " + when + ": the result");
        MPI_Barrier(MPI_COMM_WORLD);
    }
    void lock()
    {
        c_.mpi(MPI_Win_lock(MPI_LOCK_SHARED, target_, 0, *window_), on_ + ": MPI_Win_lock");
    }
    void unlock() { c_.mpi(MPI_Win_unlock(target_, *window_), on_ + ": MPI_Win_unlock"); }
    int put(MPI_Aint at, int count, int rank)
    {
        return MPI_Put(origin_.at(), count, MPI_BYTE, rank, at, count, MPI_BYTE, *window_);
    }

    void beyond()
    {
        const std::vector<int> range = {MPI_ERR_RMA_RANGE, MPI_ERR_DISP};
        constexpr auto end = static_cast<MPI_Aint>(window_bytes);
        constexpr struct {
            const char *name;
            MPI_Aint at;
            int count;
        } places[] = {
            {"one byte behind the end", end, 1}, {"one byte too many", 0, window_bytes + 1},
            {"across the end", end - 4, 16},     {"far away", MPI_Aint{1} << 40, 16},
            {"before the begin", -8, 16},        {"where the address wraps", INT64_MAX - 7, 16},
        };
        lock();
        for (const auto &[name, at, count] : places) {
            const auto place = [&, text = std::string(name)](const char *of) {
                return std::string(of) + ", " + text;
            };
            const MPI_Datatype byte = MPI_BYTE;
            const int n = count / 8;
            refused(place("put"), range,
                    [&, at = at, count = count] { return put(at, count, target_); });
            refused(place("get"), range, [&, at = at, count = count] {
                return MPI_Get(result_.at(), count, byte, target_, at, count, byte, *window_);
            });
            refused(place("rput"), range, [&, at = at, count = count] {
                MPI_Request request = MPI_REQUEST_NULL;
                const int code = MPI_Rput(origin_.at(), count, byte, target_, at, count, byte,
                                          *window_, &request);
                return MPI_SUCCESS == code ? MPI_Wait(&request, MPI_STATUS_IGNORE) : code;
            });
            refused(place("accumulate"), range, [&, at = at, count = count] {
                return MPI_Accumulate(origin_.at(), count, byte, target_, at, count, byte, MPI_BOR,
                                      *window_);
            });
            refused(place("get_accumulate"), range, [&, at = at, count = count] {
                return MPI_Get_accumulate(origin_.at(), count, byte, result_.at(), count, byte,
                                          target_, at, count, byte, MPI_BXOR, *window_);
            });
            if (0 < n && n < 512) {
                refused(place("fetch_and_op"), range, [&, at = at] {
                    return MPI_Fetch_and_op(origin_.at(), result_.at(), MPI_INT64_T, target_, at,
                                            MPI_SUM, *window_);
                });
                refused(place("compare_and_swap"), range, [&, at = at] {
                    return MPI_Compare_and_swap(origin_.at(), origin_.at(64), result_.at(),
                                                MPI_INT64_T, target_, at, *window_);
                });
            }
        }
        // Only the last byte of the datatype is beyond.
        MPI_Datatype spread = MPI_DATATYPE_NULL;
        MPI_Type_vector(2, 1, window_bytes, MPI_BYTE, &spread);
        MPI_Type_commit(&spread);
        refused("put, last byte of a vector", range, [&] {
            return MPI_Put(origin_.at(), 2, MPI_BYTE, target_, 0, 1, spread, *window_);
        });
        MPI_Type_free(&spread);
        // And the first byte of one that begins below its address.
        MPI_Datatype below = MPI_DATATYPE_NULL;
        const int lengths[] = {1, 1};
        const int places_below[] = {-4, 0};
        MPI_Type_indexed(2, lengths, places_below, MPI_BYTE, &below);
        MPI_Type_commit(&below);
        refused_by_ours("put, first byte of an indexed type", range, [&] {
            return MPI_Put(origin_.at(), 2, MPI_BYTE, target_, 0, 1, below, *window_);
        });
        MPI_Type_free(&below);
        unlock();
    }

    void arguments()
    {
        lock();
        refused("put to rank -5", {MPI_ERR_RANK}, [&] { return put(0, 8, -5); });
        refused("put to a rank that is not there", {MPI_ERR_RANK},
                [&] { return put(0, 8, c_.ranks); });
        refused("put of -1", {MPI_ERR_COUNT}, [&] { return put(0, -1, target_); });
        refused("put without a datatype", {MPI_ERR_TYPE}, [&] {
            return MPI_Put(origin_.at(), 1, MPI_DATATYPE_NULL, target_, 0, 8, MPI_BYTE, *window_);
        });
        MPI_Datatype uncommitted = MPI_DATATYPE_NULL;
        MPI_Type_vector(2, 1, 2, MPI_INT, &uncommitted);
        refused("put of a datatype that is not committed", {MPI_ERR_TYPE}, [&] {
            return MPI_Put(origin_.at(), 1, uncommitted, target_, 0, 2, MPI_INT, *window_);
        });
        MPI_Type_free(&uncommitted);
        MPI_Op own = MPI_OP_NULL;
        MPI_Op_create([](void *, void *, int *, MPI_Datatype *) {}, 1, &own);
        refused("accumulate with an operation of one's own", {MPI_ERR_OP, MPI_ERR_ARG}, [&] {
            return MPI_Accumulate(origin_.at(), 1, MPI_INT, target_, 0, 1, MPI_INT, own, *window_);
        });
        MPI_Op_free(&own);
        refused_by_ours("more to put than room for it", {}, [&] {
            return MPI_Put(origin_.at(), 10, MPI_INT, target_, 0, 3, MPI_INT, *window_);
        });
        refused_by_ours("less to put than room for it, which ends behind the window",
                        {MPI_ERR_RMA_RANGE}, [&] {
                            return MPI_Put(origin_.at(), 3, MPI_BYTE, target_, window_bytes - 4, 10,
                                           MPI_BYTE, *window_);
                        });
        refused_by_ours("more to get than room for it", {}, [&] {
            return MPI_Get(result_.at(), 3, MPI_INT, target_, 0, 10, MPI_INT, *window_);
        });
        refused_by_ours("more to accumulate than room for it", {}, [&] {
            return MPI_Accumulate(origin_.at(), 4, MPI_INT, target_, 0, 1, MPI_INT, MPI_SUM,
                                  *window_);
        });
        c_.mpi(put(0, 8, MPI_PROC_NULL), on_ + ": put to MPI_PROC_NULL");
        c_.mpi(put(static_cast<MPI_Aint>(window_bytes), 0, target_),
               on_ + ": put of nothing at the end");
        for (const int rank : {-5, c_.ranks, INT_MAX}) {
            refused_by_ours("flush of a rank that is not there", {MPI_ERR_RANK},
                            [&] { return MPI_Win_flush(rank, *window_); });
            refused_by_ours("flush_local of a rank that is not there", {MPI_ERR_RANK},
                            [&] { return MPI_Win_flush_local(rank, *window_); });
        }
        if (!is_stock(owned_.kind())) {
            c_.mpi(MPI_Win_flush(MPI_PROC_NULL, *window_), on_ + ": flush of MPI_PROC_NULL");
            c_.mpi(MPI_Win_flush_local(MPI_PROC_NULL, *window_),
                   on_ + ": flush_local of MPI_PROC_NULL");
        }
        unlock();
    }

    void epochs()
    {
        const std::vector<int> sync = {MPI_ERR_RMA_SYNC, MPI_ERR_RMA_CONFLICT};
        refused("put outside of an epoch", sync, [&] { return put(0, 8, target_); });
        refused("get outside of an epoch", sync, [&] {
            return MPI_Get(result_.at(), 8, MPI_BYTE, target_, 0, 8, MPI_BYTE, *window_);
        });
        refused("accumulate outside of an epoch", sync, [&] {
            return MPI_Accumulate(origin_.at(), 8, MPI_BYTE, target_, 0, 8, MPI_BYTE, MPI_BOR,
                                  *window_);
        });
        refused("fetch_and_op outside of an epoch", sync, [&] {
            return MPI_Fetch_and_op(origin_.at(), result_.at(), MPI_INT, target_, 0, MPI_SUM,
                                    *window_);
        });
        refused("unlock without a lock", sync, [&] { return MPI_Win_unlock(target_, *window_); });
        refused("unlock_all without a lock", sync, [&] { return MPI_Win_unlock_all(*window_); });
        refused("flush outside of an epoch", sync,
                [&] { return MPI_Win_flush(target_, *window_); });
        refused_by_ours("complete without a start", sync,
                        [&] { return MPI_Win_complete(*window_); });
        refused("wait without a post", sync, [&] { return MPI_Win_wait(*window_); });
        lock();
        refused_by_ours("a lock that it has already", sync,
                        [&] { return MPI_Win_lock(MPI_LOCK_SHARED, target_, 0, *window_); });
        refused("fence within a lock", sync, [&] { return MPI_Win_fence(0, *window_); });
        if (1 < c_.ranks) {
            refused("put to a rank that is not locked", sync, [&] { return put(0, 8, c_.rank); });
        }
        unlock();
        refused("put behind the end of an epoch", sync, [&] { return put(0, 8, target_); });
        MPI_Barrier(MPI_COMM_WORLD);
        if (1 < c_.ranks) {
            put_outside_of_group(sync);
        }
    }
    void put_outside_of_group(const std::vector<int> &sync)
    {
        MPI_Group all = MPI_GROUP_NULL;
        MPI_Group own = MPI_GROUP_NULL;
        MPI_Win_get_group(*window_, &all);
        MPI_Group_incl(all, 1, &c_.rank, &own);
        c_.mpi(MPI_Win_post(own, 0, *window_), on_ + ": MPI_Win_post");
        c_.mpi(MPI_Win_start(own, 0, *window_), on_ + ": MPI_Win_start");
        refused("put to a rank that is not in the group", sync, [&] { return put(0, 8, target_); });
        c_.mpi(MPI_Win_complete(*window_), on_ + ": MPI_Win_complete");
        c_.mpi(MPI_Win_wait(*window_), on_ + ": MPI_Win_wait");
        MPI_Group_free(&all);
        MPI_Group_free(&own);
    }

    void still_works()
    {
        lock();
        c_.mpi(put(16, 100, target_), on_ + ": put in the end");
        unlock();
        MPI_Barrier(MPI_COMM_WORLD);
        const int source = (c_.rank + c_.ranks - 1) % c_.ranks;
        bytes sent(100);
        MPI_Sendrecv(origin_.wanted(), 100, MPI_BYTE, target_, 1, sent.data(), 100, MPI_BYTE,
                     source, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        std::copy(sent.begin(), sent.end(), owned_.wanted(guard_bytes + 16));
        in_own_epoch(c_, *window_, c_.rank,
                     [&] { owned_.check(memory_bytes, on_ + ": put in the end"); });
    }

    context &c_;
    std::string on_;
    watched owned_;
    watched origin_;
    watched result_;
    window_of window_;
    int target_ = 0;
};

// Memory that is not attached, or not any more.
void not_attached(context &c, memory_kind kind)
{
    const std::string what = std::string("a dynamic window, memory of ") + bench::letter_of(kind);
    window_of window(c);
    if (!window.open(MPI_COMM_WORLD, what, [](MPI_Win *made) {
            return MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, made);
        })) {
        return;
    }
    if (!is_stock(kind)) {
        MPI_Aint size = 0;
        int unit = 0;
        void *base = nullptr;
        int found = MPI_SUCCESS;
        MPI_Error_class(MPI_Win_shared_query(*window, MPI_PROC_NULL, &size, &unit, &base), &found);
        c.expect_true(MPI_ERR_RMA_FLAVOR == found, what + ": it has no memory to share");
    }
    watched memory(c, kind, memory_bytes);
    memory.write(memory_bytes);
    const auto refused = [&](const std::string &when, std::size_t offset) {
        MPI_Aint at = 0;
        MPI_Get_address(memory.at(offset), &at);
        std::vector<MPI_Aint> all(static_cast<std::size_t>(c.ranks));
        MPI_Allgather(&at, 1, MPI_AINT, all.data(), 1, MPI_AINT, MPI_COMM_WORLD);
        const int target = (c.rank + 1) % c.ranks;
        const char word[8] = "moved";
        int found = MPI_SUCCESS;
        at_step(what + ", " + when);
        c.mpi(MPI_Win_lock(MPI_LOCK_SHARED, target, 0, *window), what);
        MPI_Error_class(MPI_Put(word, 8, MPI_BYTE, target, all[static_cast<std::size_t>(target)], 8,
                                MPI_BYTE, *window),
                        &found);
        c.mpi(MPI_Win_unlock(target, *window), what);
        c.expect(MPI_ERR_RMA_RANGE == found ? ""
                                            : "it returned " + class_name(found) + " instead of " +
                                                  class_name(MPI_ERR_RMA_RANGE),
                 what + ", " + when);
        MPI_Barrier(MPI_COMM_WORLD);
        memory.check(memory_bytes, what + ", " + when);
    };
    refused("that was never attached", guard_bytes);
    c.mpi(MPI_Win_attach(*window, memory.at(guard_bytes), window_bytes), what);
    if (!is_stock(kind)) { // which attaches whole pages
        refused("before what is attached", guard_bytes - 4);
        refused("behind what is attached", guard_bytes + window_bytes - 4);
    }
    c.mpi(MPI_Win_detach(*window, memory.at(guard_bytes)), what);
    MPI_Barrier(MPI_COMM_WORLD);
    refused("that was detached", guard_bytes);
    int found = MPI_SUCCESS;
    MPI_Error_class(MPI_Win_detach(*window, memory.at(guard_bytes)), &found);
    c.expect_true(MPI_SUCCESS != found, what + ": to detach it once more is an error");
}

// Refused when it is made, and not when it is touched.
void more_than_there_is(context &c)
{
    const std::string what = "a window of more memory than there is";
    at_step(what);
    void *base = nullptr;
    MPI_Win win = MPI_WIN_NULL;
    MPI_Errhandler before = MPI_ERRHANDLER_NULL;
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    const int rc =
        MPI_Win_allocate(MPI_Aint{1} << 46, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, before);
    MPI_Errhandler_free(&before);
    c.expect_true(MPI_SUCCESS != rc, what + " is an error");
}

// A group of which one is not in the window.
void outside_of_window(context &c)
{
    const std::string what = "a group that has others than the window";
    window_of window(c);
    int word = 0;
    if (!window.create(MPI_COMM_SELF, &word, sizeof(word), 1, what)) {
        return;
    }
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    int found = MPI_SUCCESS;
    MPI_Error_class(MPI_Win_post(all, 0, *window), &found);
    c.expect_true(MPI_ERR_GROUP == found, what + ": MPI_Win_post");
    MPI_Error_class(MPI_Win_start(all, 0, *window), &found);
    c.expect_true(MPI_ERR_GROUP == found, what + ": MPI_Win_start");
    MPI_Group_free(&all);
}

} // namespace

void test_windows_errors(context &c)
{
    if (!c.kinds.empty() && !is_stock(memory_kind::host)) {
        more_than_there_is(c);
        if (1 < c.ranks) {
            outside_of_window(c);
        }
    }
    for (std::size_t i = 0; i < c.kinds.size(); ++i) {
        errors(c, c.kinds[i], c.kind_at(i + 1)).run();
        not_attached(c, c.kinds[i]);
    }
}

} // namespace gpusm::exchange
