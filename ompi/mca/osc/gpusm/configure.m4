# -*- shell-script -*-
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# For a build inside Open MPI's source tree. opal/mca/common/gpusm, whose configure.m4 has found out what a
# C++ component needs, and ompi/mca/coll/gpusm must be there too.

# MCA_ompi_osc_gpusm_CONFIG([action-if-can-compile], [action-if-cant-compile])
AC_DEFUN([MCA_ompi_osc_gpusm_CONFIG], [
    AC_CONFIG_FILES([ompi/mca/osc/gpusm/Makefile])
    AS_IF([test -n "$common_gpusm_CXXFLAGS"], [
        compile_mode=$common_gpusm_mode
        $1
    ], [$2])
    AC_SUBST([osc_gpusm_CPPFLAGS])
    AC_SUBST([osc_gpusm_CXXFLAGS], ["$common_gpusm_CXXFLAGS -fvisibility=hidden"])
    AC_SUBST([osc_gpusm_LDFLAGS], [$common_gpusm_runtime])
    AC_SUBST([osc_gpusm_LIBS])
])
