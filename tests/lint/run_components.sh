#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_components.sh: what the built components and the library that two of them share show to the
# process that loads them, and what they need of it; or, with GPUSM_TEST_COMPONENTS=openmpi, whether an
# Open MPI that was built with gpusm in its tree has each of them once.
# shellcheck disable=SC2086 # a list of symbols
. "$(dirname "$0")/common.sh"
build=${GPUSM_BUILDDIR:?is set by tests/environment}

needed_by() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }
system='libc|libm|libdl|librt|libpthread|ld-linux.*'

# states_of DSO: variables of ours beside the component. The driver's table, the log's sink and
# levels, whether there are threads, the locks that children do not get and Open MPI's classes belong
# to the process.
states_of() {
    objdump -tC "$1" | grep -E '[[:space:]]\.(data|bss|tdata|tbss)[[:space:]].*(gpusm|rcache|accelerator|staged)' |
        grep -v -E '(driver_load|load_once)\(\)::api|gpusm::.*known\(\)::made|gpusm::threads_(flag|have_begun)|::current_(sink|threshold|retry)|mca_(accelerator|btl|coll|osc|rcache)_gpusm(_component(_ptr)?|_module|_self)?$|_class$'
}

# in_openmpi: the case of components that are linked into Open MPI's libraries, or lie beside them because
# that Open MPI was built so
in_openmpi() {
    folder=$GPUSM_OMPI_COMPONENT_DIR
    case ${GPUSM_OMPI_VERSION-5} in
    5*) mpi=mpi number_of_dsos=6 ;;
    *) mpi=open_mpi number_of_dsos=5 ;; # libmpi has the bindings only, and rcache/gpusm is Open MPI's own
    esac
    libraries=$(ldd "$build/tests/mpi/exchange" | sed -n "s/.*lib\(open-pal\|$mpi\)\.so.* => \([^ ]*\) .*/\2/p")
    report "there are Open MPI's two libraries" "$([ "$(echo $libraries | wc -w)" -eq 2 ] || echo "$libraries")"
    for component in accelerator btl coll osc rcache; do
        report "ompi_info lists $component/gpusm once" \
            "$("$GPUSM_OMPI_INFO" --parsable | grep "^mca:$component:gpusm:version:.*component:" | sort | uniq -c |
                awk '$1 != 1 { print } END { if (NR == 0) { print "not at all" } }')"
    done
    dsos=$(find "$folder" "$GPUSM_OMPI_PREFIX/lib" -name 'mca_*_gpusm.so' -o -name 'libmca_common_gpusm.so' | sort -u)
    defined=$(for file in $libraries $dsos; do objdump -tC "$file" | sed "s,^,$file: ,"; done)
    # once NAME PATTERN: one file of all has the symbol, and once
    once() {
        found=$(printf '%s\n' "$defined" | grep -v UND | grep -E "[[:space:]]$2\$")
        report "$1 is there once" "$([ "$(printf '%s\n' "$found" | grep -c .)" -eq 1 ] || printf 'found: %s\n' "$found")"
    }
    if [ -e "$folder/mca_btl_gpusm.so" ]; then
        number=$(echo "$dsos" | grep -c .)
        report "all components and the library are DSOs" "$([ "$number" -eq $number_of_dsos ] || echo "$dsos")"
    else
        report "no component is a DSO" "$dsos"
        once "the driver table" 'gpusm::\(anonymous namespace\)::load_once\(\)::api'
        report "the libraries leave no symbol of gpusm open but lib$mpi those of libopen-pal" \
            "$(for file in $libraries; do nm -DC "$file" | grep ' U gpusm::' | sed "s,^,$file:," | grep -v "lib$mpi\.so"; done)"
    fi
    once "what a process has once" 'gpusm::local_process::acquire\(.*\)'
    for component in accelerator btl coll osc rcache; do
        once "$component/gpusm" "mca_${component}_gpusm_component"
    done
}
if [ "${GPUSM_TEST_COMPONENTS-}" = openmpi ]; then
    in_openmpi
    exit $failed
fi

folders='opal/mca/accelerator opal/mca/btl ompi/mca/coll ompi/mca/osc'
case ${GPUSM_OMPI_VERSION-5} in
5*) folders="$folders opal/mca/rcache" ;; # Open MPI 6 keeps its own
esac
for component in $folders; do
    name=mca_${component##*/}_gpusm
    dso=$build/$component/gpusm/.libs/$name.so
    if [ "${GPUSM_SANITIZERS:-no}" != no ]; then
        skip "$name" "built with sanitizers"
        continue
    fi
    symbols=$(nm -D --defined-only "$dso" | awk '{ print $3 }' | grep -v -E '^_(init|fini)$')
    report "$name exports its component only" \
        "$([ "$symbols" = "${name}_component" ] || printf 'exported: %s\n' $symbols)"
    case $name in
    *_btl_* | *_coll_* | *_osc_*)
        report "$name has the library" "$(needed_by "$dso" | grep -q '^libmca_common_gpusm\.so$' || needed_by "$dso")"
        library='|libmca_common_gpusm' open='gpusm::'
        ;;
    *)
        library='' open='none'
        ;;
    esac
    report "$name needs neither libcuda nor libstdc++" \
        "$(needed_by "$dso" | grep -v -E "^(libmpi|libopen_mpi|libopen-pal|libpmix|libhwloc|$system$library)\.so")"
    report "$name leaves no C++ symbol open but the library's" \
        "$(nm -D "$dso" | grep ' U _Z' | c++filt | grep -v " U $open")"
    report "$name keeps no state beside its component" "$(states_of "$dso")"
done

# A function of C in an unnamed namespace is the only one of its name all the same.
report "no two components have a C function of one name, as they may be linked into one library" \
    "$(for component in $folders; do
        nm "$build/$component"/gpusm/.libs/*.o | awk '$2 == "T" && $3 !~ /^_Z/ { print $3 }' | sort -u
    done | sort | uniq -d)"

library=$build/opal/mca/common/gpusm/.libs/libmca_common_gpusm.so
if [ "${GPUSM_SANITIZERS:-no}" != no ]; then
    skip libmca_common_gpusm "built with sanitizers"
else
    report "the library exports its namespace only" \
        "$(nm -DC --defined-only "$library" | cut -d ' ' -f 3- | grep -v -E '^((vtable for )?gpusm::|_(init|fini)$)')"
    report "the library needs libopen-pal only" \
        "$(needed_by "$library" | grep -v -E "^(libopen-pal|libpmix|libhwloc|$system)\.so")"
    report "the library leaves no C++ symbol open" "$(nm -D "$library" | grep ' U _Z')"
    report "the library keeps no state beside its owner" "$(states_of "$library")"
fi
exit $failed
