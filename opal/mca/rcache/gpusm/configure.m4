# -*- shell-script -*-
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# For a build inside Open MPI's source tree, where this folder takes the place of Open MPI's own
# component of the name. opal/mca/btl/gpusm must be there too: the component uses its layers base, gpu
# and ipc, and its configure.m4 has found out what a C++ component needs, because btl is configured
# before rcache.

# MCA_opal_rcache_gpusm_CONFIG([action-if-can-compile], [action-if-cant-compile])
AC_DEFUN([MCA_opal_rcache_gpusm_CONFIG], [
    AC_CONFIG_FILES([opal/mca/rcache/gpusm/Makefile])
    AS_IF([test -n "$btl_gpusm_CXXFLAGS" && test "x$CUDA_SUPPORT" = "x1"], [
        AS_IF([test "$STATIC_rcache_gpusm" != 1 && test "$STATIC_rcache" != 1 &&
               test "$STATIC_all" != 1 && test "$OPAL_ENABLE_DLOPEN_SUPPORT" != 0 &&
               test "$enable_static" = no && test "$enable_mca_dso" != no],
              [compile_mode=dso])
        $1
    ], [$2])
    AC_SUBST([rcache_gpusm_CPPFLAGS], [$btl_gpusm_CPPFLAGS])
    AC_SUBST([rcache_gpusm_CXXFLAGS], [$btl_gpusm_CXXFLAGS])
    AC_SUBST([rcache_gpusm_LDFLAGS], [$btl_gpusm_LDFLAGS])
    AC_SUBST([rcache_gpusm_LIBS], [$btl_gpusm_LIBS])
])
