# -*- shell-script -*-
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# For a build inside Open MPI's source tree. btl/gpusm must be there too: its configure.m4 has found
# out what a C++ component needs, because the frameworks of opal are configured before those of ompi.

# MCA_ompi_coll_gpusm_CONFIG([action-if-can-compile], [action-if-cant-compile])
AC_DEFUN([MCA_ompi_coll_gpusm_CONFIG], [
    AC_CONFIG_FILES([ompi/mca/coll/gpusm/Makefile])
    AS_IF([test -n "$btl_gpusm_CXXFLAGS"], [
        AS_IF([test "$STATIC_coll_gpusm" != 1 && test "$STATIC_coll" != 1 &&
               test "$STATIC_all" != 1 && test "$OPAL_ENABLE_DLOPEN_SUPPORT" != 0 &&
               test "$enable_static" = no && test "$enable_mca_dso" != no],
              [compile_mode=dso])
        $1
    ], [$2])
    AC_SUBST([coll_gpusm_CPPFLAGS])
    AC_SUBST([coll_gpusm_CXXFLAGS], [$btl_gpusm_CXXFLAGS])
    AC_SUBST([coll_gpusm_LDFLAGS], [$btl_gpusm_LDFLAGS])
    AC_SUBST([coll_gpusm_LIBS], [$btl_gpusm_LIBS])
])
