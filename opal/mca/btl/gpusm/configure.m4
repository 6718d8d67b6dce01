# -*- shell-script -*-
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# For a build inside Open MPI's source tree. Outside of it, configure.ac of this repository does
# the same work.

# MCA_opal_btl_gpusm_POST_CONFIG(happy): conditionals must be set whatever was found.
AC_DEFUN([MCA_opal_btl_gpusm_POST_CONFIG], [
    m4_ifdef([gpusm_standalone_set], [], [
        m4_define([gpusm_standalone_set], [1])
        AM_CONDITIONAL([GPUSM_STANDALONE], [false])
    ])
])

# MCA_opal_btl_gpusm_CONFIG([action-if-can-compile], [action-if-cant-compile])
AC_DEFUN([MCA_opal_btl_gpusm_CONFIG], [
    AC_CONFIG_FILES([opal/mca/btl/gpusm/Makefile])
    OPAL_VAR_SCOPE_PUSH([btl_gpusm_happy btl_gpusm_flag btl_gpusm_save])

    # cuda.h is needed for its types; CUDA is not linked.
    OPAL_CHECK_CUDA([btl_gpusm])
    btl_gpusm_happy=no
    btl_gpusm_CXXFLAGS=
    btl_gpusm_LIBS=
    AS_IF([test "x$CUDA_SUPPORT" = "x1" && test -n "$CXX" && test "$CXX" != no], [
        AC_LANG_PUSH([C++])
        btl_gpusm_save=$CXXFLAGS
        for btl_gpusm_flag in -std=c++20 -std=c++2a; do
            CXXFLAGS="$btl_gpusm_save $btl_gpusm_flag"
            AC_MSG_CHECKING([if $CXX $btl_gpusm_flag compiles C++20])
            AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[
#include <concepts>
#include <span>
struct pair_of { int first; int second; };
template <std::integral T> constexpr T same(T value) { return value; }
]], [[pair_of p = {.first = 1, .second = 2}; return same(p.first);]])], [btl_gpusm_happy=yes])
            AC_MSG_RESULT([$btl_gpusm_happy])
            AS_IF([test "$btl_gpusm_happy" = yes], [break])
        done
        CXXFLAGS=$btl_gpusm_save
        AC_LANG_POP([C++])
        btl_gpusm_CXXFLAGS="$btl_gpusm_flag -fvisibility=hidden -fvisibility-inlines-hidden -fno-rtti -fno-gnu-unique"
    ])

    # The gather kernel is compiled when nvcc is there; its PTX text comes with the sources.
    AC_ARG_WITH([nvcc],
        [AS_HELP_STRING([--with-nvcc=PROGRAM],
                        [btl/gpusm: compile the gather kernel with it (default: nvcc in PATH or in the CUDA folder); --without-nvcc takes the PTX text that comes with the sources])])
    NVCC=
    AS_CASE([$with_nvcc],
        [no], [],
        [""|yes], [AC_PATH_PROG([NVCC], [nvcc], [], [$PATH:$with_cuda/bin:/usr/local/cuda/bin])],
        [NVCC=$with_nvcc])
    AS_IF([test "$with_nvcc" = yes && test -z "$NVCC"],
          [AC_MSG_ERROR([nvcc was asked for and not found; name it: --with-nvcc=PROGRAM])])
    AS_IF([test -n "$NVCC" && ! command -v "$NVCC" >/dev/null 2>&1],
          [AC_MSG_ERROR([--with-nvcc=$NVCC: there is no such program])])

    # 16-byte compare-and-swap in inline functions: Open MPI gives this switch to C only.
    AS_CASE([" $CFLAGS "], [*" -mcx16 "*], [btl_gpusm_CXXFLAGS="$btl_gpusm_CXXFLAGS -mcx16"])

    # A DSO, unless a static component was asked for: libopen-pal is linked by the C compiler, and
    # would then have to name the C++ runtime. ($compile_mode is read by our caller afterwards; the
    # documented variable for this cannot say "dso".)
    AS_IF([test "$btl_gpusm_happy" = yes], [
        AS_IF([test "$STATIC_btl_gpusm" != 1 && test "$STATIC_btl" != 1 && test "$STATIC_all" != 1 &&
               test "$OPAL_ENABLE_DLOPEN_SUPPORT" != 0 && test "$enable_static" = no &&
               test "$enable_mca_dso" != no],
              [compile_mode=dso],
              [LIBS="$LIBS -lstdc++"])
    ])
    AS_IF([test -r "`$CXX -print-file-name=libstdc++.a 2>/dev/null`"],
          [btl_gpusm_LDFLAGS="-Wl,-l:libstdc++.a -Wc,-static-libgcc"],
          [btl_gpusm_LDFLAGS="-Wl,-lstdc++"])

    AS_IF([test "$btl_gpusm_happy" = yes], [$1], [$2])
    AC_SUBST([btl_gpusm_CPPFLAGS])
    AC_SUBST([btl_gpusm_LAYERS_CPPFLAGS], [$btl_gpusm_CPPFLAGS])
    AC_SUBST([btl_gpusm_CXXFLAGS])
    AC_SUBST([btl_gpusm_LDFLAGS])
    AC_SUBST([btl_gpusm_LIBS])
    AC_SUBST([NVCC])
    AC_SUBST([gpusm_help_dir], ['$(srcdir)'])
    AC_SUBST([gpusm_embed_help], ['$(srcdir)/embed-help'])
    OPAL_VAR_SCOPE_POP
])
