#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_install.sh: tools/install-components keeps what it replaces and takes back only what is ours;
# tools/pmix-path does the same to one line.
. "$(dirname "$0")/common.sh"
tool=$top/tools/install-components
dir=$work/lib/openmpi
btl=mca_btl_gpusm.so
rcache=mca_rcache_gpusm.so

# expect NAME FILE TEXT: FILE holds TEXT; an empty TEXT: there is no such file
expect() {
    holds=$(cat "$2" 2>/dev/null)
    report "$1" "$([ "$holds" = "$3" ] || echo "$2 should hold '$3' but holds '$holds'")"
}
run() { REPLACE_RCACHE=$1 sh "$tool" "$2" "$dir" "$work/$btl" "$work/$rcache" >"$work/said" || exit 1; }
start() {
    rm -rf "${work:?}/lib"
    mkdir -p "$dir"
    echo ours >"$work/$btl"
    echo ours >"$work/$rcache"
    [ -z "$1" ] || echo "$1" >"$dir/$rcache"
}

start stock
run no install
expect "btl is installed" "$dir/$btl" ours
expect "the stock rcache stays" "$dir/$rcache" stock
if grep -q REPLACE_RCACHE "$work/said"; then said=yes; else said=no; fi
echo $said >"$work/answer"
expect "and the user is told" "$work/answer" yes
run no uninstall
expect "btl is removed" "$dir/$btl" ""
expect "the stock rcache is still there" "$dir/$rcache" stock

start stock
run yes install
expect "rcache is replaced when asked" "$dir/$rcache" ours
echo newer >"$work/$rcache"
run no install
expect "ours is renewed without asking" "$dir/$rcache" newer
run no uninstall
expect "the stock rcache is brought back" "$dir/$rcache" stock
find "$dir" -name 'gpusm*' >"$work/answer"
expect "nothing is left behind" "$work/answer" ""

start ""
run no install
expect "rcache is installed where there was none" "$dir/$rcache" ours
run no uninstall
expect "and removed" "$dir/$rcache" ""

start ""
mkdir "$work/lib/stock"
echo stock >"$work/lib/stock/$rcache"
OPENMPI_COMPONENT_DIR=$work/lib/stock
export OPENMPI_COMPONENT_DIR
run no install
expect "elsewhere ours does not come before the stock rcache" "$dir/$rcache" ""
unset OPENMPI_COMPONENT_DIR

start stock
run yes install
echo reinstalled >"$dir/$rcache"
run no uninstall
expect "a file that somebody put there since is left alone" "$dir/$rcache" reinstalled

# PMIx's file of parameters: the path goes, the rest stays, and all of it comes back.
params=$work/pmix-mca-params.conf
path_tool() { sh "$top/tools/pmix-path" "$1" "$params" >"$work/said"; }
printf 'one = 1\nmca_base_component_path = %s\ntwo = 2\n' "$work" >"$params"
before=$(cat "$params")
path_tool install
grep -v '^#' "$params" >"$work/answer"
expect "PMIx's path of components is taken out, and nothing else" "$work/answer" "one = 1
two = 2"
path_tool install
path_tool uninstall
expect "PMIx's file comes back as it was" "$params" "$before"
printf 'one = 1\n' >"$params"
path_tool install
expect "a file without a path stays as it is" "$params" "one = 1"
path_tool uninstall
expect "and is not taken for one of ours" "$params" "one = 1"
exit $failed
