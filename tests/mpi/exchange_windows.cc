// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_windows.cc: every operation on windows, from memory of each kind into windows of each
// kind, in every kind of epoch, of the next rank's window and of one's own. The owner of the window
// compares all bytes that could have been touched; so does the origin with its buffers. A pair of
// kinds is drawn for each combination of all else; --rounds N tries N of them, and as many as there
// are pairs tries all. --max-size applies.
#include "tests/mpi/random_layout.h"
#include "tests/mpi/windows.h"

namespace gpusm::exchange {

namespace {

using namespace windows;

enum class call {
    put,
    get,
    rput,
    rget,
    accumulate,
    raccumulate,
    get_accumulate,
    rget_accumulate,
    fetch_and_op,
    compare_and_swap
};
constexpr const char *call_names[] = {"put",
                                      "get",
                                      "rput",
                                      "rget",
                                      "accumulate",
                                      "raccumulate",
                                      "get_accumulate",
                                      "rget_accumulate",
                                      "fetch_and_op",
                                      "compare_and_swap"};

enum class epoch { fence, pscw, exclusive, shared, flush, flush_local };
constexpr const char *epoch_names[] = {"fence",       "post-start", "exclusive lock",
                                       "shared lock", "flush",      "flush_local"};

struct operation {
    call what;
    const element *of;
    rule how;

    bool has_request() const
    {
        return call::rput == what || call::rget == what || call::raccumulate == what ||
               call::rget_accumulate == what;
    }
    bool has_result() const
    {
        return call::put != what && call::rput != what && call::accumulate != what &&
               call::raccumulate != what;
    }
    bool has_origin() const { return call::get != what && call::rget != what; }
    // osc/rdma of Open MPI writes behind its buffer in accumulates of pairs with padding.
    bool adds_gaps() const { return call::accumulate <= what && &double_int_element() == of; }
    bool is_of_one() const { return call::fetch_and_op == what || call::compare_and_swap == what; }
};

const std::vector<operation> &operations()
{
    static const std::vector<operation> all = {
        {call::put, &byte_element(), rule::replace},
        {call::put, &double_int_element(), rule::replace},
        {call::get, &byte_element(), rule::no_op},
        {call::get, &double_element(), rule::no_op},
        {call::rput, &byte_element(), rule::replace},
        {call::rget, &byte_element(), rule::no_op},
        {call::accumulate, &int_element(), rule::sum},
        {call::accumulate, &double_element(), rule::sum},
        {call::accumulate, &int_element(), rule::replace},
        {call::accumulate, &double_element(), rule::min},
        {call::accumulate, &byte_element(), rule::band},
        {call::accumulate, &two_int_element(), rule::maxloc},
        {call::accumulate, &double_int_element(), rule::maxloc},
        {call::raccumulate, &long_element(), rule::sum},
        {call::get_accumulate, &int_element(), rule::sum},
        {call::get_accumulate, &double_element(), rule::no_op},
        {call::get_accumulate, &int_element(), rule::replace},
        {call::get_accumulate, &two_int_element(), rule::maxloc},
        {call::rget_accumulate, &double_element(), rule::sum},
        {call::fetch_and_op, &int_element(), rule::sum},
        {call::fetch_and_op, &double_element(), rule::sum},
        {call::fetch_and_op, &long_element(), rule::replace},
        {call::fetch_and_op, &int_element(), rule::no_op},
        {call::compare_and_swap, &int_element(), rule::replace}, // it is equal
        {call::compare_and_swap, &long_element(), rule::no_op},  // it is not
    };
    return all;
}

struct combination {
    operation op;
    epoch around;
    bool to_self;
    std::size_t count;
    memory_kind origin;
    memory_kind result;
    memory_kind window;
    unsigned variant; // of what can be said in several ways

    std::size_t len_bytes() const { return count * op.of->extent; }
    std::string describe() const
    {
        return std::string(call_names[static_cast<int>(op.what)]) + " (" + op.of->name + ", " +
               name_of(op.how) + ") of " + std::to_string(count) + " from " +
               bench::letter_of(origin) +
               (op.has_result() ? std::string(" with result in ") + bench::letter_of(result) : "") +
               (to_self ? " to its own window of " : " to the next rank's window of ") +
               bench::letter_of(window) + ", " + epoch_names[static_cast<int>(around)];
    }
};

// Large enough for the longest access, one byte further for those that begin at odd addresses.
constexpr std::size_t longest_bytes = (std::size_t{1} << 20) + 4099 * 8;
constexpr std::size_t room_bytes = 2 * guard_bytes + longest_bytes + 1;

// One access of each rank's.
class access {
  public:
    access(context &c, const combination &of, exposed &target, watched &origin, watched &compare,
           watched &result)
        : c_(c), of_(of), window_(*target.window), owned_(target.memory), origin_(origin),
          compare_(compare), result_(result), seed_(c.draw_seeds(4 * longest_bytes)),
          what_(of.describe())
    {
        target_ = of.to_self ? c.rank : (c.rank + 1) % c.ranks;
        source_ = of.to_self ? c.rank : (c.rank + c.ranks - 1) % c.ranks;
        shift_ = guard_bytes + (1 == of.op.of->extent ? of.variant % 2 : 0);
        used_bytes_ = shift_ + of.len_bytes() + guard_bytes;
    }

    void run()
    {
        at_step(what_);
        const bool is_passive = epoch::fence != of_.around && epoch::pscw != of_.around;
        const auto as_owner = [&](auto work) {
            if (is_passive) {
                in_own_epoch(c_, window_, c_.rank, work);
            } else {
                work();
            }
        };
        as_owner([&] { prepare(); });
        run_epoch();
        want_in_window();
        as_owner([&] { owned_.check(used_bytes_, what_ + ": the window"); });
        check_origin();
    }

  private:
    std::uint64_t seed_of(int rank, int role) const
    {
        return seed_ + mixed(static_cast<std::uint64_t>(rank * 4 + role));
    }
    static constexpr int in_window = 0;
    static constexpr int at_origin = 1;

    void prepare()
    {
        owned_.clear(used_bytes_);
        owned_.want(shift_, *of_.op.of, of_.count, seed_of(c_.rank, in_window));
        owned_.write(used_bytes_);
        origin_.clear(used_bytes_);
        origin_.want(shift_, *of_.op.of, of_.count, seed_of(c_.rank, at_origin));
        origin_.write(used_bytes_);
        result_.clear(used_bytes_);
        result_.write(used_bytes_);
        if (call::compare_and_swap == of_.op.what) {
            // What is in the window, or another value.
            const std::uint64_t other = rule::replace == of_.op.how ? 0 : 1;
            compare_.clear(used_bytes_);
            compare_.want(shift_, *of_.op.of, 1, seed_of(target_, in_window) + other);
            compare_.write(used_bytes_);
        }
    }
    void want_in_window()
    {
        bytes from(of_.op.of->extent);
        for (std::size_t i = 0; i < of_.count; ++i) {
            of_.op.of->put(from.data(), seed_of(source_, at_origin) + i);
            of_.op.of->combine(of_.op.how, from.data(),
                               owned_.wanted(shift_ + i * of_.op.of->extent));
        }
    }
    void check_result()
    {
        if (of_.op.has_result() && !checked_result_) {
            checked_result_ = true;
            result_.want(shift_, *of_.op.of, of_.count, seed_of(target_, in_window));
            result_.check(used_bytes_, what_ + ": the result");
        }
    }
    void check_origin()
    {
        check_result();
        origin_.check(used_bytes_, what_ + ": the origin's buffer");
        if (call::compare_and_swap == of_.op.what) {
            compare_.check(used_bytes_, what_ + ": the buffer to compare with");
        }
    }
    // It is over for the origin: what is in its buffers then does not matter to MPI.
    void is_complete_here()
    {
        check_result();
        origin_.check(used_bytes_, what_ + ": the origin's buffer");
        origin_.spoil(used_bytes_);
    }

    int start(MPI_Request *request)
    {
        const auto count = static_cast<int>(of_.count);
        const MPI_Datatype type = of_.op.of->type;
        const MPI_Op op = op_of(of_.op.how);
        const auto at = static_cast<MPI_Aint>(shift_);
        const void *from = origin_.at(shift_);
        void *into = result_.at(shift_);
        switch (of_.op.what) {
        case call::put:
            return MPI_Put(from, count, type, target_, at, count, type, window_);
        case call::get:
            return MPI_Get(into, count, type, target_, at, count, type, window_);
        case call::rput:
            return MPI_Rput(from, count, type, target_, at, count, type, window_, request);
        case call::rget:
            return MPI_Rget(into, count, type, target_, at, count, type, window_, request);
        case call::accumulate:
            return MPI_Accumulate(from, count, type, target_, at, count, type, op, window_);
        case call::raccumulate:
            return MPI_Raccumulate(from, count, type, target_, at, count, type, op, window_,
                                   request);
        case call::get_accumulate:
            if (rule::no_op == of_.op.how && 0 == of_.variant % 2) { // which needs no origin
                return MPI_Get_accumulate(nullptr, 0, type, into, count, type, target_, at, count,
                                          type, op, window_);
            }
            return MPI_Get_accumulate(from, count, type, into, count, type, target_, at, count,
                                      type, op, window_);
        case call::rget_accumulate:
            return MPI_Rget_accumulate(from, count, type, into, count, type, target_, at, count,
                                       type, op, window_, request);
        case call::fetch_and_op:
            return MPI_Fetch_and_op(from, into, type, target_, at, op, window_);
        case call::compare_and_swap:
            return MPI_Compare_and_swap(from, compare_.at(shift_), into, type, target_, at,
                                        window_);
        }
        return MPI_ERR_INTERN;
    }
    void operate()
    {
        MPI_Request request = MPI_REQUEST_NULL;
        c_.mpi(start(&request), what_);
        if (of_.op.has_request()) {
            c_.mpi(MPI_Wait(&request, MPI_STATUS_IGNORE), what_ + ": MPI_Wait");
            is_complete_here();
        }
    }

    void run_epoch()
    {
        const bool varied = 0 != of_.variant / 2 % 2;
        switch (of_.around) {
        case epoch::fence:
            c_.mpi(MPI_Win_fence(varied ? MPI_MODE_NOPRECEDE : 0, window_), what_);
            operate();
            c_.mpi(MPI_Win_fence(MPI_MODE_NOSUCCEED, window_), what_);
            return;
        case epoch::pscw:
            post_and_start(varied);
            return;
        case epoch::exclusive:
        case epoch::shared:
            MPI_Barrier(MPI_COMM_WORLD);
            c_.mpi(MPI_Win_lock(epoch::shared == of_.around ? MPI_LOCK_SHARED : MPI_LOCK_EXCLUSIVE,
                                target_, 0, window_),
                   what_);
            operate();
            c_.mpi(MPI_Win_unlock(target_, window_), what_);
            break;
        case epoch::flush:
            MPI_Barrier(MPI_COMM_WORLD);
            c_.mpi(MPI_Win_lock_all(varied ? MPI_MODE_NOCHECK : 0, window_), what_);
            operate();
            c_.mpi(varied ? MPI_Win_flush_all(window_) : MPI_Win_flush(target_, window_), what_);
            is_complete_here();
            look_at_target();
            c_.mpi(MPI_Win_unlock_all(window_), what_);
            break;
        case epoch::flush_local:
            MPI_Barrier(MPI_COMM_WORLD);
            c_.mpi(MPI_Win_lock(MPI_LOCK_SHARED, target_, 0, window_), what_);
            operate();
            c_.mpi(varied ? MPI_Win_flush_local_all(window_)
                          : MPI_Win_flush_local(target_, window_),
                   what_);
            if (!is_stock(of_.window)) { // where it completes nothing
                is_complete_here();
            }
            c_.mpi(MPI_Win_unlock(target_, window_), what_);
            break;
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    // After a flush it is complete at the target: the owner sees it before the epoch ends.
    void look_at_target()
    {
        MPI_Barrier(MPI_COMM_WORLD);
        c_.mpi(MPI_Win_sync(window_), what_);
        want_in_window();
        owned_.check(used_bytes_, what_ + ": the window, after the flush");
        owned_.clear(used_bytes_);
        owned_.want(shift_, *of_.op.of, of_.count, seed_of(c_.rank, in_window));
    }
    void post_and_start(bool varied)
    {
        MPI_Group everyone = MPI_GROUP_NULL;
        MPI_Group sources = MPI_GROUP_NULL;
        MPI_Group targets = MPI_GROUP_NULL;
        MPI_Win_get_group(window_, &everyone);
        MPI_Group_incl(everyone, 1, &source_, &sources);
        MPI_Group_incl(everyone, 1, &target_, &targets);
        c_.mpi(MPI_Win_post(sources, 0, window_), what_);
        c_.mpi(MPI_Win_start(targets, 0, window_), what_);
        operate();
        c_.mpi(MPI_Win_complete(window_), what_);
        if (varied) {
            int done = 0;
            while (0 == done && c_.mpi(MPI_Win_test(window_, &done), what_)) {
            }
        } else {
            c_.mpi(MPI_Win_wait(window_), what_);
        }
        MPI_Group_free(&everyone);
        MPI_Group_free(&sources);
        MPI_Group_free(&targets);
    }

    context &c_;
    const combination &of_;
    MPI_Win window_;
    watched &owned_;
    watched &origin_;
    watched &compare_;
    watched &result_;
    std::uint64_t seed_;
    std::string what_;
    int target_ = 0;
    int source_ = 0;
    std::size_t shift_ = 0;
    std::size_t used_bytes_ = 0;
    bool checked_result_ = false;
};

// All combinations, each with as many pairs of kinds as are asked for.
class sweep {
  public:
    explicit sweep(context &c)
        : c_(c), origins_(c, room_bytes), compares_(c, room_bytes), results_(c, room_bytes),
          from_(c.draw_seeds(1))
    {
        for (const memory_kind kind : c.kinds) {
            auto made = std::make_unique<exposed>(c, kind, room_bytes);
            if (made->window.create(MPI_COMM_WORLD, made->memory.at(), room_bytes, 1,
                                    std::string("a window of ") + bench::letter_of(kind))) {
                targets_.push_back(std::move(made));
            }
        }
    }
    void run()
    {
        constexpr epoch epochs[] = {epoch::fence,  epoch::pscw,  epoch::exclusive,
                                    epoch::shared, epoch::flush, epoch::flush_local};
        for (const operation &op : operations()) {
            for (const epoch around : epochs) {
                if (op.has_request() && (epoch::fence == around || epoch::pscw == around)) {
                    continue; // MPI has them in passive epochs only
                }
                for (const bool to_self : {false, true}) {
                    run_lengths({op, around, to_self});
                }
            }
        }
    }

  private:
    void run_lengths(combination of)
    {
        const std::size_t extent = of.op.of->extent;
        const std::size_t counts[] = {1, 0, 77, 65536 / extent, (1u << 20) / extent + 1021};
        for (const std::size_t count : counts) {
            const bool is_long = count * extent > 1u << 20;
            if (count * extent > c_.sizes.back() || (of.op.is_of_one() && 1 != count) ||
                (is_long && 0 == c_.rounds && !one_of(6, from_))) {
                continue;
            }
            of.count = count;
            run_pairs(of);
        }
    }
    void run_pairs(combination of)
    {
        const std::size_t pairs = c_.kinds.size() * targets_.size();
        const std::size_t wanted = 0 < c_.rounds ? static_cast<std::size_t>(c_.rounds) : 1;
        const bool is_all = wanted >= pairs;
        for (std::size_t i = 0; i < std::min(wanted, pairs); ++i) {
            const std::size_t pair = is_all ? i : draw(from_, 0, pairs - 1);
            exposed &target = *targets_[pair % targets_.size()];
            of.window = target.memory.kind();
            if (of.op.adds_gaps() && is_stock(of.window)) {
                continue;
            }
            of.origin = c_.kinds[pair / targets_.size()];
            of.result = c_.kinds[draw(from_, 0, c_.kinds.size() - 1)];
            of.variant = static_cast<unsigned>(draw(from_, 0, 3));
            access(c_, of, target, origins_.of(of.origin), compares_.of(of.origin),
                   results_.of(of.result))
                .run();
        }
    }

    context &c_;
    buffers origins_;
    buffers compares_;
    buffers results_;
    generator from_;
    std::vector<std::unique_ptr<exposed>> targets_;
};

} // namespace

void test_windows(context &c)
{
    sweep(c).run();
}

} // namespace gpusm::exchange
