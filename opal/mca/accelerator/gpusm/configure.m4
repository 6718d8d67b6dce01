# -*- shell-script -*-
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# For a build inside Open MPI's source tree. Frameworks are configured in the order of their names,
# so this one before btl, and what a C++ component needs is found out by opal/mca/btl/gpusm later:
# its variables are named here, and have their values in the Makefile. Whether it can be built must
# be known now.

# MCA_opal_accelerator_gpusm_CONFIG([action-if-can-compile], [action-if-cant-compile])
AC_DEFUN([MCA_opal_accelerator_gpusm_CONFIG], [
    AC_CONFIG_FILES([opal/mca/accelerator/gpusm/Makefile])
    OPAL_CHECK_CUDA([accelerator_gpusm])
    AS_IF([test "x$CUDA_SUPPORT" = "x1" && test -n "$CXX" && test "$CXX" != no], [
        AS_IF([test "$STATIC_accelerator_gpusm" != 1 && test "$STATIC_accelerator" != 1 &&
               test "$STATIC_all" != 1 && test "$OPAL_ENABLE_DLOPEN_SUPPORT" != 0 &&
               test "$enable_static" = no && test "$enable_mca_dso" != no],
              [compile_mode=dso])
        $1
    ], [$2])
])
