#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_components.sh: what the built components show to the process that loads them.
# shellcheck disable=SC2086 # a list of symbols
. "$(dirname "$0")/common.sh"
build=${GPUSM_BUILDDIR:?is set by tests/environment}
for component in opal/mca/accelerator opal/mca/btl opal/mca/rcache ompi/mca/coll; do
    name=mca_${component##*/}_gpusm
    dso=$build/$component/gpusm/.libs/$name.so
    if [ "${GPUSM_SANITIZERS:-no}" != no ]; then
        skip "$name" "built with sanitizers"
        continue
    fi
    symbols=$(nm -D --defined-only "$dso" | awk '{ print $3 }' | grep -v -E '^_(init|fini)$')
    report "$name exports its component only" \
        "$([ "$symbols" = "${name}_component" ] || printf 'exported: %s\n' $symbols)"
    needed=$(readelf -d "$dso" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    foreign=$(printf '%s\n' "$needed" | grep -v -E '^(libmpi|libopen-pal|libpmix|libhwloc|libc|libm|libdl|librt|libpthread|ld-linux.*)\.so')
    report "$name needs neither libcuda nor libstdc++" "$foreign"
    report "$name leaves no C++ symbol open" "$(nm -D "$dso" | grep ' U _Z')"
    # The driver's table, the log's sink and levels, whether there are threads, the locks that children do not get and Open
    # MPI's classes belong to
    # the process.
    report "$name keeps no state beside its component" "$(objdump -tC "$dso" |
        grep -E '[[:space:]]\.(data|bss|tdata|tbss)[[:space:]].*(gpusm|rcache|accelerator|staged)' |
        grep -v -E '(driver_load|load_once)\(\)::api|gpusm::.*known\(\)::made|gpusm::threads_(flag|have_begun)|::current_(sink|threshold|retry)|mca_(accelerator|btl|coll|rcache)_gpusm(_component|_module|_self)?$|_class$')"
done
exit $failed
