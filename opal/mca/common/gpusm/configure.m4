# -*- shell-script -*-
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# For a build inside Open MPI's source tree. Outside of it, configure.ac of this repository does
# the same work. Common libraries are configured before all components, so what the components of
# gpusm need is found out here.

# MCA_opal_common_gpusm_POST_CONFIG(happy): conditionals must be set whatever was found.
AC_DEFUN([MCA_opal_common_gpusm_POST_CONFIG], [
    m4_ifdef([gpusm_standalone_set], [], [
        m4_define([gpusm_standalone_set], [1])
        AM_CONDITIONAL([GPUSM_STANDALONE], [false])
    ])
])

# MCA_opal_common_gpusm_CONFIG([action-if-can-compile], [action-if-cant-compile])
AC_DEFUN([MCA_opal_common_gpusm_CONFIG], [
    AC_CONFIG_FILES([opal/mca/common/gpusm/Makefile])
    OPAL_VAR_SCOPE_PUSH([common_gpusm_happy common_gpusm_flag common_gpusm_item common_gpusm_save])

    # cuda.h is needed for its types; CUDA is not linked.
    OPAL_CHECK_CUDA([common_gpusm])
    common_gpusm_happy=no
    common_gpusm_CXXFLAGS=
    AS_IF([test "x$CUDA_SUPPORT" = "x1" && test -n "$CXX" && test "$CXX" != no], [
        AC_LANG_PUSH([C++])
        common_gpusm_save=$CXXFLAGS
        for common_gpusm_flag in -std=c++20 -std=c++2a; do
            CXXFLAGS="$common_gpusm_save $common_gpusm_flag"
            AC_MSG_CHECKING([if $CXX $common_gpusm_flag compiles C++20])
            AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[
#include <bit>
#include <concepts>
#include <span>
struct pair_of { int first; int second; };
struct word_of { unsigned long bits; };
template <std::integral T> constexpr T same(T value) { return value; }
]], [[
pair_of p = {.first = 1, .second = 2};
static_assert(1 == std::bit_cast<unsigned long>(word_of{1}));
return same(p.first);
]])], [common_gpusm_happy=yes])
            AC_MSG_RESULT([$common_gpusm_happy])
            AS_IF([test "$common_gpusm_happy" = yes], [break])
        done
        AS_IF([test "$common_gpusm_happy" = yes], [
            common_gpusm_CXXFLAGS="$common_gpusm_flag -fvisibility-inlines-hidden -fno-rtti"
            # Open MPI adds -O3 for C only, and keeps autoconf's -g -O2 from C++. CXXFLAGS come later and decide.
            AS_IF([test "$WANT_DEBUG" != 1], [common_gpusm_CXXFLAGS="-O2 $common_gpusm_CXXFLAGS"])
            # GCC has it, and needs it, as it makes symbols that keep a library from being unloaded.
            CXXFLAGS="$common_gpusm_save -Werror -fno-gnu-unique"
            AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])],
                              [common_gpusm_CXXFLAGS="$common_gpusm_CXXFLAGS -fno-gnu-unique"])
        ])
        CXXFLAGS=$common_gpusm_save
        AC_LANG_POP([C++])
    ])

    # The gather kernel is compiled when nvcc is there; its PTX text comes with the sources.
    AC_ARG_WITH([nvcc],
        [AS_HELP_STRING([--with-nvcc=PROGRAM],
                        [gpusm: compile the gather kernel with it (default: nvcc in PATH or in the CUDA folder); --without-nvcc takes the PTX text that comes with the sources])])
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
    # (Without flags there are no components: they ask for these.)
    AS_CASE(["$common_gpusm_happy $CFLAGS "],
            [yes*" -mcx16 "*], [common_gpusm_CXXFLAGS="$common_gpusm_CXXFLAGS -mcx16"])

    # All of them are DSOs, or, where one of them was asked to be static, all are a part of libopen-pal and
    # libmpi, which then name the C++ runtime. A mixture would have two copies of the library, or of the
    # driver table, in one process. ($compile_mode is read by our caller afterwards; the documented
    # variable for this cannot say "dso".)
    common_gpusm_LIBS=
    common_gpusm_DEPENDENCIES=
    common_gpusm_mode=dso
    AS_IF([test "$OPAL_ENABLE_DLOPEN_SUPPORT" = 0 || test "$enable_static" != no ||
           test "$enable_mca_dso" = no || test "$STATIC_all" = 1],
          [common_gpusm_mode=static])
    for common_gpusm_item in common btl coll osc accelerator rcache; do
        AS_VAR_COPY([common_gpusm_save], [STATIC_$common_gpusm_item])
        AS_IF([test "$common_gpusm_save" = 1], [common_gpusm_mode=static])
        AS_VAR_COPY([common_gpusm_save], [STATIC_${common_gpusm_item}_gpusm])
        AS_IF([test "$common_gpusm_save" = 1], [common_gpusm_mode=static])
    done
    AC_MSG_CHECKING([how the components of gpusm are built])
    AC_MSG_RESULT([$common_gpusm_mode])
    compile_mode=$common_gpusm_mode
    AS_IF([test "$common_gpusm_happy" != yes], [],
          [test "$common_gpusm_mode" = dso],
              [common_gpusm_LIBS='$(top_builddir)/opal/mca/common/gpusm/libmca_common_gpusm.la'
               common_gpusm_DEPENDENCIES=$common_gpusm_LIBS],
          [LIBS="$LIBS -lstdc++"])
    AS_IF([test -r "`$CXX -print-file-name=libstdc++.a 2>/dev/null`"],
          [common_gpusm_runtime="-Wl,-l:libstdc++.a -Wc,-static-libgcc"],
          [common_gpusm_runtime="-Wl,-lstdc++"])
    common_gpusm_LDFLAGS="$common_gpusm_runtime -Wl,-Bsymbolic"

    # What components of ompi link: Open MPI 6 has two libraries for programs above it.
    AS_IF([test "`sed -n 's/^major=//p' "$srcdir/VERSION"`" -ge 6],
          [common_gpusm_libmpi=libopen_mpi.la], [common_gpusm_libmpi=lib$OMPI_LIBMPI_NAME.la])
    AC_SUBST([common_gpusm_libmpi])
    AC_SUBST([pack_gpusm_LIBS])

    AS_IF([test "$common_gpusm_happy" = yes], [$1], [$2])
    AC_SUBST([common_gpusm_CPPFLAGS])
    AC_SUBST([common_gpusm_CXXFLAGS])
    AC_SUBST([common_gpusm_LDFLAGS])
    AC_SUBST([common_gpusm_LIBS])
    AC_SUBST([common_gpusm_DEPENDENCIES])
    AC_SUBST([NVCC])
    OPAL_VAR_SCOPE_POP
])
