# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors

# GPUSM_OPENMPI
# Finds the Open MPI that the components are for. Sets
#   OMPI_PREFIX OMPI_VERSION OMPI_COMPONENT_DIR OMPI_DATA_DIR OMPI_BIN_DIR OMPI_LIB_DIR
#   OMPI_CUDA_AWARE          yes or no
#   MPIRUN OMPI_INFO         its programs
#   PMIX_COMPONENT_PATH      PMIx's path of components: what its file of parameters sets, mostly nothing, or its
#                            folder; nothing where neither is known
#   PMIX_PARAMS_FILE         that file, if it does, or did before make install (tools/pmix-path)
#   OPAL_CPPFLAGS            its development headers, and the five that no installation has
#   OPAL_CXXFLAGS            -mcx16 where its inline atomics need it
#   OPAL_LIBS                libopen-pal, libpmix, libhwloc
#   OMPI_COMPONENT_LIBS      Open MPI's own library above that
#   MPI_CPPFLAGS MPI_LIBS    what its mpicc gives an MPI program
AC_DEFUN([GPUSM_OPENMPI], [
AC_ARG_WITH([openmpi],
    [AS_HELP_STRING([--with-openmpi=PREFIX], [Open MPI 5.0.x or 6.x, installed with --with-devel-headers (default: the mpicc in PATH)])],
    [], [with_openmpi=])
AC_ARG_WITH([openmpi-source],
    [AS_HELP_STRING([--with-openmpi-source=DIR], [source tree of the same Open MPI; five headers that no installation has are taken from it])],
    [], [with_openmpi_source=])

# --- its programs -------------------------------------------------------------------------------
AC_MSG_CHECKING([for Open MPI])
AS_CASE([$with_openmpi],
    [no], [AC_MSG_ERROR([gpusm is a component of Open MPI; drop --without-openmpi])],
    [""|yes], [
        gpusm_mpicc=`command -v mpicc 2>/dev/null`
        AS_IF([test -z "$gpusm_mpicc"],
              [AC_MSG_ERROR([no Open MPI found: there is no mpicc in PATH; install Open MPI 5.0 or 6 and pass --with-openmpi=PREFIX, or let ./quickstart build it])])
        OMPI_BIN_DIR=`cd "\`dirname "$gpusm_mpicc"\`" && pwd`],
    [OMPI_BIN_DIR="$with_openmpi/bin"])
OMPI_INFO="$OMPI_BIN_DIR/ompi_info"
MPIRUN="$OMPI_BIN_DIR/mpirun"
AS_IF([test ! -x "$OMPI_INFO" || test ! -x "$OMPI_BIN_DIR/mpicc"],
      [AC_MSG_ERROR([$OMPI_BIN_DIR has no ompi_info and mpicc of an Open MPI; pass --with-openmpi=PREFIX of an Open MPI 5.0 or 6])])
gpusm_info () {
    OMPI_MCA_mca_base_component_show_load_errors=0 "$OMPI_INFO" --parsable "$[@]" 2>/dev/null
}
gpusm_path () { gpusm_info --path $[]1 | sed -n "s/^path:$[]1://p" | head -n 1; }
OMPI_VERSION=`gpusm_info | sed -n 's/^ompi:version:full://p'`
OMPI_PREFIX=`gpusm_path prefix`
OMPI_LIB_DIR=`gpusm_path libdir`
OMPI_DATA_DIR=`gpusm_path pkgdatadir`
AC_MSG_RESULT([$OMPI_PREFIX (version ${OMPI_VERSION:-unknown})])
AS_CASE([$OMPI_VERSION],
    [5.0.*|6.*], [],
    [""], [AC_MSG_ERROR([$OMPI_INFO does not say its version; pass --with-openmpi=PREFIX of an Open MPI 5.0 or 6])],
    [AC_MSG_ERROR([Open MPI in $OMPI_PREFIX is version $OMPI_VERSION, but gpusm needs 5.0.x or 6.x; pass --with-openmpi=PREFIX of one, or let ./quickstart build it])])

# The first folder that Open MPI scans is the one that belongs to the installation; distributions
# move it, so the parameter is asked before the folder that the build had in mind.
OMPI_COMPONENT_DIR=`gpusm_info --param mca base --level 9 | sed -n 's/^mca:mca:base:param:mca_base_component_path:value:"*\([[^":]]*\).*/\1/p'`
AS_IF([test ! -d "$OMPI_COMPONENT_DIR"], [OMPI_COMPONENT_DIR=`gpusm_path pkglibdir`])

# --- its headers --------------------------------------------------------------------------------
AC_MSG_CHECKING([for Open MPI's development headers])
gpusm_include=
for gpusm_dir in "`gpusm_path pkgincludedir`" "$OMPI_PREFIX/include/openmpi" \
                 `"$OMPI_BIN_DIR/mpicc" --showme:incdirs 2>/dev/null`; do
    AS_IF([test -z "$gpusm_include" && test -r "$gpusm_dir/opal_config.h" &&
           test -r "$gpusm_dir/opal/mca/btl/btl.h"], [gpusm_include=$gpusm_dir])
done
AS_IF([test -z "$gpusm_include"], [
    AC_MSG_RESULT([no])
    AC_MSG_ERROR([Open MPI in $OMPI_PREFIX has no development headers; install the one of your distribution's development package, or one configured with --with-devel-headers])
])
AC_MSG_RESULT([$gpusm_include])
gpusm_config_value () { sed -n "s/^.define $[]1 \(.*\)/\1/p" "$gpusm_include/opal_config.h" | head -n 1; }
gpusm_header_version=`gpusm_config_value OPAL_MAJOR_VERSION`.`gpusm_config_value OPAL_MINOR_VERSION`.`gpusm_config_value OPAL_RELEASE_VERSION`
AS_CASE([$OMPI_VERSION], [$gpusm_header_version*], [],
    [AC_MSG_ERROR([the headers in $gpusm_include are those of Open MPI $gpusm_header_version, its programs are $OMPI_VERSION; pass --with-openmpi=PREFIX of one installation])])
AS_IF([test "`gpusm_config_value OPAL_USE_C11_ATOMICS`" = 1],
    [AC_MSG_ERROR([Open MPI in $OMPI_PREFIX uses C11 atomics, which C++ cannot read; use one configured without --disable-builtin-atomics])])
OMPI_CUDA_AWARE=no
AS_IF([test "`gpusm_config_value OPAL_CUDA_SUPPORT`" = 1], [OMPI_CUDA_AWARE=yes])
AC_MSG_CHECKING([whether this Open MPI is CUDA-aware])
AC_MSG_RESULT([$OMPI_CUDA_AWARE])

# --- the five headers that its install leaves out -----------------------------------------------
# btl.h reaches them through opal_config.h, and no installation has them. They are copied into the
# build folder, never into this repository, and come last on the include path, so that an Open MPI
# that ships its own is served by its own.
GPUSM_MISSING_HEADERS="opal/mca/threads/pthreads/threads_pthreads.h
opal/mca/threads/pthreads/threads_pthreads_mutex.h
opal/mca/threads/pthreads/threads_pthreads_threads.h
opal/mca/threads/pthreads/threads_pthreads_tsd.h
opal/mca/timer/linux/timer_linux.h"
OPAL_CPPFLAGS="-isystem $gpusm_include"
gpusm_dir=`gpusm_path incdir`
AS_IF([test "$gpusm_dir" != /usr/include], [OPAL_CPPFLAGS="$OPAL_CPPFLAGS -isystem $gpusm_dir"])
AC_MSG_CHECKING([for the headers that Open MPI does not install])
gpusm_missing=
for gpusm_header in $GPUSM_MISSING_HEADERS; do
    AS_IF([test ! -r "$gpusm_include/$gpusm_header"], [gpusm_missing="$gpusm_missing $gpusm_header"])
done
AS_IF([test -z "$gpusm_missing"], [AC_MSG_RESULT([installed])], [
    AS_IF([test -z "$with_openmpi_source" || test "$with_openmpi_source" = yes], [
        AC_MSG_RESULT([not installed])
        AC_MSG_ERROR([Open MPI $OMPI_VERSION does not install five headers that every transport needs (threads_pthreads.h and its kin); unpack its source and pass --with-openmpi-source=DIR])
    ])
    AS_IF([test ! -r "$with_openmpi_source/VERSION"],
          [AC_MSG_ERROR([$with_openmpi_source is not an unpacked Open MPI source: it has no VERSION file; correct --with-openmpi-source=DIR])])
    gpusm_source_version=`sed -n 's/^major=//p' "$with_openmpi_source/VERSION"`.`sed -n 's/^minor=//p' "$with_openmpi_source/VERSION"`
    AS_CASE([$OMPI_VERSION], [$gpusm_source_version.*], [],
        [AC_MSG_ERROR([$with_openmpi_source is the source of Open MPI $gpusm_source_version, but the installed one is $OMPI_VERSION; pass --with-openmpi-source=DIR of the same version])])
    for gpusm_header in $gpusm_missing; do
        AS_IF([test ! -r "$with_openmpi_source/$gpusm_header"],
              [AC_MSG_ERROR([$with_openmpi_source has no $gpusm_header; pass --with-openmpi-source=DIR of Open MPI $OMPI_VERSION])])
        AS_MKDIR_P(["openmpi-headers/`dirname $gpusm_header`"])
        cp "$with_openmpi_source/$gpusm_header" "openmpi-headers/$gpusm_header" ||
            AC_MSG_ERROR([cannot copy $gpusm_header into the build folder])
    done
    OPAL_CPPFLAGS="$OPAL_CPPFLAGS -idirafter `pwd`/openmpi-headers"
    AC_MSG_RESULT([from $with_openmpi_source])
])

# --- what its headers and libraries lean on -----------------------------------------------------
OPAL_LIBS="-L$OMPI_LIB_DIR"
GPUSM_OPAL_NEEDS([hwloc], [hwloc.h], [hwloc], [libhwloc-dev])
GPUSM_OPAL_NEEDS([pmix], [pmix.h], [pmix], [libpmix-dev])
GPUSM_OPAL_NEEDS([libevent], [event2/event.h], [], [libevent-dev])
OPAL_LIBS="$OPAL_LIBS -lopen-pal $gpusm_needed_libs"
# Open MPI 6 has two libraries that programs link, one for each ABI, over one that components link.
AS_IF([test -e "$OMPI_LIB_DIR/libopen_mpi.so"], [OMPI_COMPONENT_LIBS=-lopen_mpi], [OMPI_COMPONENT_LIBS=-lmpi])

# --- what PMIx says of components ---------------------------------------------------------------
# mpirun gives every process what PMIx's file of parameters sets, under Open MPI's names, too. Debian's
# sets mca_base_component_path, which is PMIx's own folder: there Open MPI then looks for its
# components, and nowhere else.
AC_MSG_CHECKING([whether PMIx sets a path of components])
PMIX_PARAMS_FILE=
PMIX_COMPONENT_PATH=
gpusm_dir=`pkg-config --variable=prefix pmix 2>/dev/null`
for gpusm_file in "$gpusm_dir/share/pmix-mca-params.conf" "$gpusm_dir/etc/pmix-mca-params.conf" \
                  "$OMPI_PREFIX/etc/pmix-mca-params.conf"; do
    AS_IF([test -z "$PMIX_COMPONENT_PATH" && test -r "$gpusm_file"], [
        PMIX_COMPONENT_PATH=`sed -n 's/^[[[:space:]]]*mca_base_component_path[[[:space:]]]*=[[[:space:]]]*//p' "$gpusm_file" | tail -n 1`
        AS_IF([test -n "$PMIX_COMPONENT_PATH" || test -r "$gpusm_file.without-gpusm"],
              [PMIX_PARAMS_FILE=$gpusm_file])
    ])
done
AC_MSG_RESULT([${PMIX_COMPONENT_PATH:-no}])
# Who sets Open MPI's path for all programs of a job sets PMIx's, too, if it is not told its own.
for gpusm_dir in "$OMPI_LIB_DIR/pmix" "`pkg-config --variable=libdir pmix 2>/dev/null`/pmix"; do
    AS_IF([test -z "$PMIX_COMPONENT_PATH" && test -d "$gpusm_dir"], [PMIX_COMPONENT_PATH=$gpusm_dir])
done
AC_SUBST([PMIX_PARAMS_FILE])
AC_SUBST([PMIX_COMPONENT_PATH])

# 16-byte compare-and-swap: Open MPI puts the switch into its C flags only.
OPAL_CXXFLAGS=
AS_CASE([" `gpusm_info --all | sed -n 's/^option:build:cflags://p'` "],
        [*" -mcx16 "*], [OPAL_CXXFLAGS=-mcx16],
        [AS_IF([test "`gpusm_config_value OPAL_HAVE_SYNC_BUILTIN_CSWAP_INT128`" = 1],
               [GPUSM_CXXFLAG_IF_KNOWN([OPAL_CXXFLAGS], [-mcx16])])])

AC_LANG_PUSH([C++])
gpusm_saved_CPPFLAGS=$CPPFLAGS
gpusm_saved_CXXFLAGS=$CXXFLAGS
gpusm_saved_LIBS=$LIBS
CPPFLAGS="$CPPFLAGS -I$srcdir $OPAL_CPPFLAGS"
CXXFLAGS="$CXXFLAGS $GPUSM_STD_CXXFLAGS $OPAL_CXXFLAGS"
LIBS="$OPAL_LIBS $LIBS"
AC_MSG_CHECKING([whether a transport compiles and links against them])
AC_LINK_IFELSE([AC_LANG_PROGRAM([[
#include "opal/mca/common/gpusm/base/openmpi_headers_begin.h"
#include "opal/mca/btl/btl.h"
#include "opal/mca/btl/base/base.h"
#include "opal/util/output.h"
#include "opal/mca/common/gpusm/base/openmpi_headers_end.h"
]], [[return opal_output_check_verbosity(0, 0) ? static_cast<int>(sizeof(mca_btl_base_module_t)) : 0;]])],
    [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     AC_MSG_ERROR([the development headers or libraries of Open MPI in $OMPI_PREFIX are incomplete (config.log shows what is missing); reinstall it with --with-devel-headers])])
CPPFLAGS=$gpusm_saved_CPPFLAGS
CXXFLAGS=$gpusm_saved_CXXFLAGS
LIBS=$gpusm_saved_LIBS
AC_LANG_POP([C++])

MPI_CPPFLAGS=`"$OMPI_BIN_DIR/mpicc" --showme:compile`
MPI_LIBS=`"$OMPI_BIN_DIR/mpicc" --showme:link`
AC_SUBST([OMPI_PREFIX])
AC_SUBST([OMPI_VERSION])
AC_SUBST([OMPI_COMPONENT_DIR])
AC_SUBST([OMPI_DATA_DIR])
AC_SUBST([OMPI_BIN_DIR])
AC_SUBST([OMPI_LIB_DIR])
AC_SUBST([OMPI_CUDA_AWARE])
AC_SUBST([OMPI_INFO])
AC_SUBST([MPIRUN])
AC_SUBST([OPAL_CPPFLAGS])
AC_SUBST([OPAL_CXXFLAGS])
AC_SUBST([OPAL_LIBS])
AC_SUBST([MPI_CPPFLAGS])
AC_SUBST([MPI_LIBS])
])

# GPUSM_OPAL_NEEDS(PACKAGE, HEADER, LIBRARY, DEBIAN-PACKAGE)
# An Open MPI that brought its own copy has it in its prefix; otherwise it is the system's, which
# pkg-config knows.
AC_DEFUN([GPUSM_OPAL_NEEDS], [
AC_MSG_CHECKING([for $1])
AS_IF([test -r "`gpusm_path incdir`/$2"], [
    AC_MSG_RESULT([in $OMPI_PREFIX])
    m4_ifval([$3], [gpusm_needed_libs="$gpusm_needed_libs -l$3"])
], [pkg-config --exists $1 2>/dev/null], [
    AC_MSG_RESULT([of the system])
    OPAL_CPPFLAGS="$OPAL_CPPFLAGS `pkg-config --cflags $1`"
    m4_ifval([$3], [gpusm_needed_libs="$gpusm_needed_libs `pkg-config --libs $1`"])
], [
    AC_MSG_RESULT([no])
    AC_MSG_ERROR([the headers of $1, which Open MPI's headers include, were not found; install $4 (and pkg-config)])
])
])
