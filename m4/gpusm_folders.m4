# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors

# GPUSM_FOLDERS(OPTION...)
# Makes the folders that these options --with-OPTION=DIR name absolute, because make and the compiler
# run in other folders than configure, and refuses those with blanks, which they take for several.
AC_DEFUN([GPUSM_FOLDERS], [
for gpusm_option in $1; do
    gpusm_variable=with_`echo $gpusm_option | sed 's/-/_/g'`
    eval "gpusm_value=\$$gpusm_variable"
    AS_CASE([$gpusm_value],
        [*[[[:space:]]]*], [AC_MSG_ERROR([--with-$gpusm_option=$gpusm_value: make takes a path with blanks for several; use one without])],
        [""|yes|no|[[/\$]]*], [],
        [gpusm_dir=`cd "$gpusm_value" 2>/dev/null && pwd` || gpusm_dir=`pwd`/$gpusm_value
         eval "$gpusm_variable=\$gpusm_dir"])
done
])
