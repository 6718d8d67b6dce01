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
. "$(dirname "$0")/common.sh"

# The ranks take turns here, and many test machines have few processors: whoever waits lets others
# run.
export OMPI_MCA_mpi_yield_when_idle=1

need_gpusm memory || finish
need_gpu memory || finish

case $gpu_name in
*software*)
    # Buffers of 64 MiB to 2 GiB, of which only the ends are ever touched.
    life_usual="--rounds 1000"
    life_other="--rounds 100"
    # Other jobs use the software driver, too: count apart from them.
    mkdir "$work/accounting"
    apart="-x GPUSM_SOFTCUDA_DIR=$work/accounting"
    ;;
*)
    life_usual="--rounds 40 --mebibytes 4096"
    life_other="--rounds 40 --mebibytes 256"
    apart=
    ;;
esac

# life NAME KINDS OPTIONS: never more than one buffer beyond what the program holds
life() {
    # shellcheck disable=SC2086 # options
    check "$1" 120 2 $apart "$exchange" life --kinds "$2" ${GPUSM_TEST_LIFE-$3}
    grep '^life: ' "$work/output" || true
}
life freed-memory-comes-back D "$life_usual"
# Among many live allocations that the peer knows a freed one is noticed as soon.
# shellcheck disable=SC2086 # options
check freed-memory-comes-back-among-many 120 2 $apart "$exchange" life --kinds D ${GPUSM_TEST_LIFE-$life_other} --live 5000
grep '^life: ' "$work/output" || true
for kind in V C A W P; do
    life "freed-memory-comes-back-kind-$kind" $kind "$life_other"
done

# shellcheck disable=SC2086 # options
check freed-memory-comes-back-that-the-peer-wrote-to 60 2 $apart "$exchange" locked-life --kinds D
grep '^life: ' "$work/output" || true

# A mapping that no message uses is closed, also if its owner never calls MPI again.
check mapping-that-nobody-uses-is-closed 60 2 -x GPUSM_TEST_FOLDER="$work" \
    -x LD_PRELOAD="$GPUSM_BUILDDIR/tests/mpi/fast_clock.so" "$exchange" idle-mapping

# many_small NAME ENTRIES ALLOCATIONS [OPTIONS OF MPIRUN]: so many live allocations, all sent, of which
# a peer never has more than ENTRIES mapped, as the performance variable says
many_small() {
    name=$1
    entries=$2
    allocations=$3
    shift 3
    launch 90 2 "$@" "$exchange" many-small --rounds "$allocations"
    status=$?
    grep '^many-small: ' "$work/output" || true
    most=$(sed -n 's/^many-small: .*, at most \([0-9]*\) mapped$/\1/p' "$work/output" |
        sort -n | tail -n 1)
    if [ $status -ne 0 ]; then
        fail "$name" "$(explain $status)"
    elif [ "${most:-0}" -lt $((entries / 2)) ]; then
        fail "$name" "the performance variable does not tell"
    elif [ "$most" -gt "$entries" ]; then
        fail "$name" "$most allocations were mapped at once"
    else
        pass "$name"
    fi
}
many_small many-small-allocations-within-the-default-bound 1024 10000
mkdir "$work/log"
many_small many-small-allocations-within-a-small-bound 100 2000 \
    --mca btl_gpusm_cache_max_bytes 102400 -x GPUSM_SOFTCUDA_LOG="$work/log"
name=many-small-allocations-by-the-call-log
if need_softcuda $name; then
    # Of each process: the most handles that gpusm had open at once, and how many it has opened.
    for file in "$work"/log/*.log; do
        awk '/^cuIpcOpenMemHandle 0 mca_btl_gpusm/ { all++; if (++now > most) { most = now } }
            /^cuIpcCloseMemHandle 0 mca_btl_gpusm/ { --now }
            END { if (all > 0) { print most, all } }' "$file"
    done >"$work/mapped"
    rm -f "$work/output"
    echo "many-small: at once and in all, of each rank: $(tr '\n' ' ' <"$work/mapped")"
    if ! awk '$1 <= 100 && $2 > 2000 { good++ } END { exit 2 == good ? 0 : 1 }' "$work/mapped"; then
        fail $name "more than 100 at once, or too few to tell"
    else
        pass $name
    fi
fi

# reuse NAME [OPTIONS OF MPIRUN]: skipped when the driver never gave an address again
reuse() {
    name=$1
    shift
    launch 90 2 "$@"
    status=$?
    grep '^reuse: ' "$work/output" || true
    if [ $status -ne 0 ]; then
        fail "$name" "$(explain $status)"
    elif [ "$(count_in_output '^reuse: the same address in 0 of')" -ne 0 ]; then
        skip "$name" "no address was used again"
    else
        pass "$name"
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
# The limit that exchange reckons with; the default depends on the machine.
reuse addresses-again-of-every-kind --mca btl_gpusm_cache_max_bytes 16777216 \
    --mca btl_gpusm_eager_limit 6144 --mca btl_gpusm_rndv_eager_limit 6144 \
    "$exchange" reuse --kinds DVACWPMR --rounds 700
finish
