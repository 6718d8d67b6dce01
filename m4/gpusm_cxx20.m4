# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors

# GPUSM_CXX20
# Appends to GPUSM_STD_CXXFLAGS what the C++ compiler needs for C++20, or stops.
AC_DEFUN([GPUSM_CXX20], [
AC_LANG_PUSH([C++])
gpusm_cxx20=no
gpusm_saved_CXXFLAGS=$CXXFLAGS
for gpusm_flag in -std=c++20 -std=c++2a; do
    CXXFLAGS="$gpusm_saved_CXXFLAGS $gpusm_flag"
    AC_MSG_CHECKING([whether $CXX $gpusm_flag compiles C++20])
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[
#include <atomic>
#include <bit>
#include <concepts>
#include <span>
struct pair_of { int first; int second; };
struct word_of { unsigned long bits; };
template <std::integral T> constexpr T same(T value) { return value; }
]], [[
pair_of p = {.first = 1, .second = 2};
std::span<int> view(&p.first, 1);
static_assert(std::atomic<unsigned long>::is_always_lock_free);
static_assert(1 == std::bit_cast<unsigned long>(word_of{1}));
return same(view[0]);
]])], [gpusm_cxx20=yes])
    AC_MSG_RESULT([$gpusm_cxx20])
    AS_IF([test "$gpusm_cxx20" = yes], [break])
done
CXXFLAGS=$gpusm_saved_CXXFLAGS
AS_IF([test "$gpusm_cxx20" = no],
      [AC_MSG_ERROR([$CXX does not compile C++20; install g++ 11 or newer (or clang 15) and pass CXX=...])])
GPUSM_STD_CXXFLAGS=$gpusm_flag
AC_LANG_POP([C++])
AC_SUBST([GPUSM_STD_CXXFLAGS])
])

# GPUSM_CXXFLAG_IF_KNOWN(VARIABLE, FLAG): appends FLAG to VARIABLE when the C++ compiler takes it.
AC_DEFUN([GPUSM_CXXFLAG_IF_KNOWN], [
AC_LANG_PUSH([C++])
gpusm_saved_CXXFLAGS=$CXXFLAGS
CXXFLAGS="$CXXFLAGS -Werror $2"
AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])], [$1="$$1 $2"])
CXXFLAGS=$gpusm_saved_CXXFLAGS
AC_LANG_POP([C++])
])
