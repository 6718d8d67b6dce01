#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_components.sh: what the built components show to the process that loads them.
set -u
build=${GPUSM_BUILDDIR:?is set by tests/environment}
failed=0
pass() { echo "PASS: components/$1"; }
fail() {
    echo "FAIL: components/$1"
    failed=1
}
skip() { echo "SKIP: components/$1: $2"; }

for name in mca_btl_gpusm mca_rcache_gpusm; do
    case $name in
    mca_btl_gpusm) dso=$build/opal/mca/btl/gpusm/.libs/$name.so ;;
    *) dso=$build/opal/mca/rcache/gpusm/.libs/$name.so ;;
    esac
    if [ "${GPUSM_SANITIZERS:-no}" != no ]; then
        skip "$name" "built with sanitizers"
        continue
    fi
    symbols=$(nm -D --defined-only "$dso" | awk '{ print $3 }' | grep -v -E '^_(init|fini)$')
    if [ "$symbols" = "${name}_component" ]; then
        pass "$name exports its component only"
    else
        printf '%s\n' "$symbols" | sed 's/^/    exported: /'
        fail "$name exports its component only"
    fi
    needed=$(readelf -d "$dso" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    foreign=$(printf '%s\n' "$needed" | grep -v -E '^(libopen-pal|libpmix|libhwloc|libc|libm|libdl|librt|libpthread|ld-linux.*)\.so')
    if [ -z "$foreign" ]; then
        pass "$name needs neither libcuda nor libstdc++"
    else
        printf '%s\n' "$foreign" | sed 's/^/    needed: /'
        fail "$name needs neither libcuda nor libstdc++"
    fi
    if nm -D "$dso" | grep -q -E ' U _Z'; then
        nm -DC "$dso" | grep ' U ' | grep '(' | sed 's/^/    undefined: /'
        fail "$name leaves no C++ symbol open"
    else
        pass "$name leaves no C++ symbol open"
    fi
done
exit $failed
