# -*- shell-script -*-
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# For a build inside Open MPI's source tree, where this folder takes the place of Open MPI's own
# component of the name. opal/mca/common/gpusm must be there too: the component has a copy of its
# layers base, gpu and ipc, and its configure.m4 has found out what a C++ component needs.

# MCA_opal_rcache_gpusm_CONFIG([action-if-can-compile], [action-if-cant-compile])
AC_DEFUN([MCA_opal_rcache_gpusm_CONFIG], [
    AC_CONFIG_FILES([opal/mca/rcache/gpusm/Makefile])
    AS_IF([test -n "$common_gpusm_CXXFLAGS"], [
        compile_mode=$common_gpusm_mode
        $1
    ], [$2])
    AC_SUBST([rcache_gpusm_CPPFLAGS], [$common_gpusm_CPPFLAGS])
    AC_SUBST([rcache_gpusm_CXXFLAGS], ["$common_gpusm_CXXFLAGS -fvisibility=hidden"])
    AC_SUBST([rcache_gpusm_LDFLAGS], [$common_gpusm_runtime])
    AC_SUBST([rcache_gpusm_LIBS])
])
