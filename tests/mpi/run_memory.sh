#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_memory.sh: freed device memory comes back soon, many live allocations stay within the bounds of
# the cache, and addresses that are used again never bring old data.
#
#   GPUSM_TEST_LIFE   options of `exchange life` instead of the usual ones, such as
#                     "--rounds 40 --mebibytes 4096" (the usual ones on a real device, which needs
#                     three buffers of that size) or "--rounds 40 --mebibytes 64"
# shellcheck disable=SC2016,SC2034 # conditions are evaluated later
. "$(dirname "$0")/common.sh"

let_others_run

need_gpusm memory || finish
need_gpu memory || finish

case $gpu_name in
*software*)
    # Buffers of 64 MiB to 2 GiB, of which only the ends are ever touched.
    life_usual="--rounds 1000"
    life_other="--rounds 100"
    # Other jobs use the software driver, too: count apart from them.
    apart="-x GPUSM_SOFTCUDA_GROUP=$$"
    ;;
*)
    life_usual="--rounds 40 --mebibytes 4096"
    life_other="--rounds 40 --mebibytes 256"
    apart=
    ;;
esac

# life NAME SUBTEST OPTIONS: never more than one buffer and what a peer may keep mapped beyond what the program holds
life() {
    # shellcheck disable=SC2086 # options
    check "$1" 120 2 $apart "$exchange" $2 $3
    grep '^life: ' "$work/output" || true
}
life freed-memory-comes-back life "--kinds D ${GPUSM_TEST_LIFE-$life_usual}"
# Among many live allocations that the peer knows a freed one is noticed as soon.
life freed-memory-comes-back-among-many life "--kinds D ${GPUSM_TEST_LIFE-$life_other} --live 5000"
for kind in V C A W P; do
    life "freed-memory-comes-back-kind-$kind" life "--kinds $kind ${GPUSM_TEST_LIFE-$life_other}"
done
life freed-memory-comes-back-that-the-peer-wrote-to locked-life "--kinds D"

# A mapping that no message uses is closed, also if its owner never calls MPI again.
check mapping-that-nobody-uses-is-closed 60 2 \
    -x LD_PRELOAD="$GPUSM_BUILDDIR/tests/mpi/fast_clock.so" "$exchange" idle-mapping

# many_small NAME ENTRIES ALLOCATIONS [OPTIONS OF MPIRUN]: so many live allocations, all sent, of which
# a peer never has more than ENTRIES mapped, as the performance variable says
many_small() {
    name=$1 entries=$2 allocations=$3
    shift 3
    launch 90 2 "$@" "$exchange" many-small --rounds "$allocations"
    status=$?
    grep '^many-small: ' "$work/output" || true
    most=$(sed -n 's/^many-small: .*, at most \([0-9]*\) mapped$/\1/p' "$work/output" |
        sort -n | tail -n 1)
    judge "$name" 0 $status \
        '[ "${most:-0}" -ge $((entries / 2)) ]' "the performance variable does not tell" \
        '[ "$most" -le "$entries" ]' "$most allocations were mapped at once"
}
# A peer keeps 16 mappings of what is over a while longer (mapping_cache::max_kept_entries).
many_small many-small-allocations-within-the-default-bound 1040 10000
# More than a process can export at once (1024): what ob1 does not give back would make the rest go in fragments.
many_small many-small-allocations-that-ob1-does-not-leave-registered 1040 3000 --mca opal_leave_pinned 0
many_small many-small-allocations-within-a-small-bound 100 2000 --mca btl_gpusm_cache_max_bytes 102400

# reuse NAME [OPTIONS OF MPIRUN]: skipped when the driver never gave an address again
reuse() {
    name=$1
    shift
    launch 90 2 "$@"
    status=$?
    grep '^reuse: ' "$work/output" || true
    if [ $status -eq 0 ] && says '^reuse: the same address in 0 of'; then
        skip "$name" "no address was used again"
    else
        judge "$name" 0 $status
    fi
}
# Ten thousand messages of each rank in all.
reuse addresses-again-without-mappings-that-nobody-uses --mca btl_gpusm_cache_max_bytes 1 \
    "$exchange" reuse --kinds D --rounds 4500
reuse addresses-again-with-few-mappings --mca btl_gpusm_cache_max_bytes 4194304 \
    "$exchange" reuse --kinds D --rounds 4500
for kind in V C A; do
    reuse "addresses-again-kind-$kind" --mca btl_gpusm_cache_max_bytes 16777216 \
        "$exchange" reuse --kinds $kind --rounds 700
done
# The limit that exchange reckons with. Where it holds for device memory, too, it is lower, and an inline
# send that finds no room becomes a get.
options="--mca btl_gpusm_eager_limit 6144 --mca btl_gpusm_rndv_eager_limit 6144"
[ "$GPUSM_OMPI_CUDA_AWARE" = yes ] || options="-x GPUSM_TEST_ANY_WAY=1"
# shellcheck disable=SC2086 # a list of options
reuse addresses-again-of-every-kind --mca btl_gpusm_cache_max_bytes 16777216 $options \
    "$exchange" reuse --kinds DVACWPMR --rounds 700
finish
