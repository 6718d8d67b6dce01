// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/reach.h: may this be tried now? What fails some times in a row is left alone for a while and
// then tried again, for as long as the process lives: what was lacking may be there again.
//
//   works            failed           failing
//   failing          the fourth one   waits
//   works, failing   refused          waits
//   waits            its pause is over, and it has failed or been refused: waits for longer
//   failing, waits   worked           works
//   all              never_again      never
//
// A pause takes 1, 2, 4 ... 64 s. It is doubled by a failure after the pause, and by one that comes
// sooner after a success than the last pause was long, so that what works now and then is not tried
// all the time.
#ifndef GPUSM_BASE_REACH_H
#define GPUSM_BASE_REACH_H

#include "opal/mca/common/gpusm/base/status.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <map>
#include <mutex>
#include <utility>

namespace gpusm {

enum class reach_state : std::uint8_t {
    works,   // or nobody has tried
    failing, // lately, but not often enough in a row
    waits,   // for its pause to end; then it is tried again
    never,   // cannot work in this process
};

// A time that need not be exact, from which other times are counted.
inline std::int64_t coarse_now_ns()
{
    constexpr std::int64_t second_ns = 1'000'000'000;
    timespec now{};
    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec * second_ns + now.tv_nsec;
}

// One such fact. Any thread. While all is well a question is one load, without a look at the clock.
class reach {
  public:
    using clock = std::int64_t (*)();
    static constexpr std::int64_t first_pause_ns = 1'000'000'000;
    static constexpr std::int64_t longest_pause_ns = 64 * first_pause_ns;

    reach() : reach(coarse_now_ns) {}
    explicit reach(clock now) : now_(now) {}
    reach(const reach &) = delete;
    reach &operator=(const reach &) = delete;

    // --- asked by who would try. Between the end of a pause and the next answer all may try.

    bool may_try() const
    {
        return failures_.load(std::memory_order_relaxed) < failures_in_a_row || pause_is_over();
    }
    // Failures in a row, refusals included.
    std::uint32_t failures() const { return failures_.load(std::memory_order_relaxed); }
    // Has it failed often enough to be left alone? So it is for the one that tries after a pause.
    bool is_refused() const { return failures() >= failures_in_a_row; }

    // --- fed by who has tried

    // True: it had been refused.
    bool worked() { return failures_.load(std::memory_order_relaxed) != 0 && recover(); }
    // True: it is refused for the first time ever, which is worth a line. While it waits, the end
    // of what had been tried before says nothing new.
    bool failed(status why) { return add(why, 1); }
    // The same where one failure says enough, as others have tried for us.
    bool refused(status why) { return add(why, failures_in_a_row); }
    // It is not tried any more.
    bool never_again(status why)
    {
        const std::lock_guard guard(mutex_);
        why_ = why;
        next_try_ns_.store(INT64_MAX, std::memory_order_relaxed);
        failures_.store(failures_in_a_row, std::memory_order_relaxed);
        return !std::exchange(told_, true);
    }

    // --- for those who want to know

    reach_state state() const
    {
        return 0 == failures()                                             ? reach_state::works
               : !is_refused()                                             ? reach_state::failing
               : INT64_MAX == next_try_ns_.load(std::memory_order_relaxed) ? reach_state::never
                                                                           : reach_state::waits;
    }
    // The next try, by the clock; of no meaning unless it waits.
    std::int64_t next_try_ns() const { return next_try_ns_.load(std::memory_order_relaxed); }
    // Of the last failure.
    status why() const
    {
        const std::lock_guard guard(mutex_);
        return why_;
    }

  private:
    bool pause_is_over() const { return now_() >= next_try_ns(); }

    bool recover()
    {
        const std::lock_guard guard(mutex_);
        const bool was_refused = is_refused();
        if (reach_state::never == state()) {
            return false;
        }
        failures_.store(0, std::memory_order_relaxed);
        if (was_refused) {
            worked_at_ns_ = now_();
        }
        return was_refused;
    }

    bool add(status why, std::uint32_t failures)
    {
        const std::lock_guard guard(mutex_);
        const bool was_refused = is_refused();
        if (was_refused && !pause_is_over()) {
            return false;
        }
        why_ = why;
        if (!was_refused && this->failures() + failures < failures_in_a_row) {
            failures_.fetch_add(failures, std::memory_order_relaxed);
            return false;
        }
        const std::int64_t now = now_();
        const bool again = pause_ns_ > 0 && (was_refused || now - worked_at_ns_ < pause_ns_);
        pause_ns_ = again ? std::min(2 * pause_ns_, longest_pause_ns) : first_pause_ns;
        next_try_ns_.store(now + pause_ns_, std::memory_order_relaxed);
        failures_.store(failures_in_a_row, std::memory_order_relaxed);
        return !std::exchange(told_, true);
    }

    const clock now_;
    std::atomic<std::uint32_t> failures_{0};
    std::atomic<std::int64_t> next_try_ns_{0};
    mutable std::mutex mutex_; // of the rest; taken only when something has failed
    std::int64_t pause_ns_ = 0;
    std::int64_t worked_at_ns_ = 0; // since the last pause
    status why_ = status::ok;
    bool told_ = false;
};

// Such facts of one kind, by what they are about. Empty, and asked at no cost, as long as nothing
// has failed. Not thread-safe.
template <typename Key> class reach_table {
  public:
    bool may_try(const Key &key) const
    {
        const reach *known = find(key);
        return nullptr == known || known->may_try();
    }
    bool is_refused(const Key &key) const
    {
        const reach *known = find(key);
        return known != nullptr && known->is_refused();
    }
    // Since it last worked.
    bool has_failed(const Key &key) const
    {
        const reach *known = find(key);
        return known != nullptr && known->failures() > 0;
    }
    bool worked(const Key &key)
    {
        const auto known = facts_.empty() ? facts_.end() : facts_.find(key);
        return known != facts_.end() && known->second.worked();
    }
    bool failed(const Key &key, status why) { return facts_[key].failed(why); }
    bool refused(const Key &key, status why) { return facts_[key].refused(why); }

  private:
    const reach *find(const Key &key) const
    {
        const auto known = facts_.empty() ? facts_.end() : facts_.find(key);
        return known == facts_.end() ? nullptr : &known->second;
    }

    std::map<Key, reach> facts_;
};

} // namespace gpusm

#endif
