# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors

# GPUSM_CUDA
# Finds cuda.h, for its types only: libcuda is opened at run time and never linked. Looks where
# --with-cuda says, else in /usr/local/cuda and beside nvcc. Sets CUDA_CPPFLAGS. Call after GPUSM_CXX20.
AC_DEFUN([GPUSM_CUDA], [
AC_ARG_WITH([cuda],
    [AS_HELP_STRING([--with-cuda=DIR], [folder that holds include/cuda.h (default: /usr/local/cuda, else where nvcc is)])],
    [], [with_cuda=])
AS_CASE([$with_cuda],
    [yes], [with_cuda=],
    [no], [AC_MSG_ERROR([gpusm is a transport for CUDA memory and needs cuda.h; drop --without-cuda])])
AC_MSG_CHECKING([for cuda.h])
gpusm_cuda_candidates=$with_cuda
AS_IF([test -z "$with_cuda"], [
    gpusm_cuda_candidates=/usr/local/cuda
    gpusm_nvcc=`command -v nvcc 2>/dev/null`
    AS_IF([test -n "$gpusm_nvcc"], [
        gpusm_nvcc=`readlink -f "$gpusm_nvcc"`
        gpusm_cuda_candidates="$gpusm_cuda_candidates "`dirname "\`dirname "$gpusm_nvcc"\`"`
    ])
])
gpusm_cuda_include=
for gpusm_dir in $gpusm_cuda_candidates; do
    for gpusm_sub in include targets/x86_64-linux/include .; do
        AS_IF([test -z "$gpusm_cuda_include" && test -r "$gpusm_dir/$gpusm_sub/cuda.h"],
              [gpusm_cuda_include="$gpusm_dir/$gpusm_sub"])
    done
done
AS_IF([test -z "$gpusm_cuda_include"], [
    AC_MSG_RESULT([no])
    AC_MSG_ERROR([cuda.h was not found in ${with_cuda:-the usual places}; install the CUDA toolkit's headers (11.8 or newer) and pass --with-cuda=DIR, the folder that holds include/cuda.h])
])
gpusm_cuda_version=`sed -n 's,^.define[[[:space:]]]*CUDA_VERSION[[[:space:]]]*\([[0-9]]*\).*,\1,p' "$gpusm_cuda_include/cuda.h"`
AC_MSG_RESULT([$gpusm_cuda_include (version $gpusm_cuda_version)])
AS_IF([test "${gpusm_cuda_version:-0}" -lt 11080],
      [AC_MSG_ERROR([cuda.h in $gpusm_cuda_include is of version ${gpusm_cuda_version:-unknown}; pass --with-cuda=DIR with CUDA 11.8 or newer])])
# The compiler looks into /usr/include itself. Named, it would come before the folders of the C++
# library, whose headers include those of C as the next ones.
CUDA_CPPFLAGS=
AS_IF([test "`cd "$gpusm_cuda_include" && pwd -P`" != "`cd /usr/include && pwd -P`"],
      [CUDA_CPPFLAGS="-isystem $gpusm_cuda_include"])
AC_SUBST([CUDA_CPPFLAGS])
AC_LANG_PUSH([C++])
gpusm_saved_CPPFLAGS=$CPPFLAGS
gpusm_saved_CXXFLAGS=$CXXFLAGS
CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS"
CXXFLAGS="$CXXFLAGS $GPUSM_STD_CXXFLAGS"
AC_MSG_CHECKING([whether cuda.h compiles beside the C++ library])
AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[
#include <cuda.h>
#include <cstdlib>
]], [[CUdeviceptr none = 0; return none != 0 ? std::abs(CUDA_VERSION) : 0;]])],
    [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     AC_MSG_ERROR([cuda.h in $gpusm_cuda_include does not compile (config.log shows why); pass --with-cuda=DIR with CUDA 11.8 or newer])])
CPPFLAGS=$gpusm_saved_CPPFLAGS
CXXFLAGS=$gpusm_saved_CXXFLAGS
AC_LANG_POP([C++])
])

# GPUSM_NVCC
# Finds nvcc, which compiles the gather kernel when it is there: in PATH, else in the toolkit that
# cuda.h belongs to. Sets NVCC, empty for none. Call after GPUSM_CUDA.
AC_DEFUN([GPUSM_NVCC], [
AC_ARG_WITH([nvcc],
    [AS_HELP_STRING([--with-nvcc=PROGRAM], [compile the gather kernel with it (default: nvcc in PATH or beside cuda.h); --without-nvcc takes the PTX text that comes with the sources])],
    [], [with_nvcc=])
NVCC=
AS_CASE([$with_nvcc],
    [no], [],
    [""|yes], [
        AC_PATH_PROG([NVCC], [nvcc], [], [$PATH:`dirname "$gpusm_cuda_include"`/bin:$gpusm_cuda_include/../../../bin])
        AS_IF([test "$with_nvcc" = yes && test -z "$NVCC"],
              [AC_MSG_ERROR([--with-nvcc was given, but there is no nvcc in PATH or beside cuda.h])])],
    [
        NVCC=`command -v "$with_nvcc"`
        AS_IF([test -z "$NVCC"], [AC_MSG_ERROR([--with-nvcc=$with_nvcc: there is no such program])])
    ])
AS_CASE([$NVCC], [""|/*], [], [NVCC=`pwd`/$NVCC])
AC_SUBST([NVCC])
])
