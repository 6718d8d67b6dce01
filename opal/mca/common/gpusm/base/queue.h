// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/queue.h: items one behind the other by their member `next`. The queue owns none of them.
#ifndef GPUSM_BASE_QUEUE_H
#define GPUSM_BASE_QUEUE_H

#include <utility>

namespace gpusm {

template <typename T> class queue {
  public:
    T *first() const { return first_; } // null: it is empty
    void append(T *item)
    {
        item->next = nullptr;
        (nullptr == first_ ? first_ : last_->next) = item;
        last_ = item;
    }
    T *take() { return std::exchange(first_, first_->next); } // the first one, which there is
    T *take_all() { return std::exchange(first_, nullptr); }  // as a list

  private:
    T *first_ = nullptr;
    T *last_ = nullptr; // if there is a first one
};

} // namespace gpusm

#endif
