# -*- shell-script -*-
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# For a build inside Open MPI's source tree. opal/mca/common/gpusm must be there too: its
# configure.m4 has found out what a C++ component needs.

# MCA_opal_btl_gpusm_CONFIG([action-if-can-compile], [action-if-cant-compile])
AC_DEFUN([MCA_opal_btl_gpusm_CONFIG], [
    AC_CONFIG_FILES([opal/mca/btl/gpusm/Makefile])
    AS_IF([test -n "$common_gpusm_CXXFLAGS"], [
        compile_mode=$common_gpusm_mode
        $1
    ], [$2])
    AC_SUBST([btl_gpusm_CPPFLAGS], [$common_gpusm_CPPFLAGS])
    AC_SUBST([btl_gpusm_CXXFLAGS], ["$common_gpusm_CXXFLAGS -fvisibility=hidden"])
    AC_SUBST([btl_gpusm_LDFLAGS], [$common_gpusm_runtime])
    AC_SUBST([btl_gpusm_LIBS])
    AC_SUBST([gpusm_help_dir], ['$(srcdir)'])
    AC_SUBST([gpusm_embed_help], ['$(srcdir)/embed-help'])
])
