// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/sanitizer.h: tells ThreadSanitizer what it cannot see: that an object goes from one thread
// to another through a library that it does not watch. Nothing without it.
#ifndef GPUSM_BASE_SANITIZER_H
#define GPUSM_BASE_SANITIZER_H

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void *object);
extern "C" void __tsan_release(void *object);
#endif

namespace gpusm {

// All that this thread has done to it comes before what the next owner does.
template <typename Object> Object *hand_over(Object *object)
{
#if defined(__SANITIZE_THREAD__)
    __tsan_release(object);
#endif
    return object;
}
template <typename Object> Object *take_over(Object *object)
{
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(object);
#endif
    return object;
}

} // namespace gpusm

#endif
