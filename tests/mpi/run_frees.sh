#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_frees.sh: with btl_gpusm_notice_frees, device memory that its owner has freed is given back as
# soon as the receiver calls MPI; without, when both have. And what could go wrong with patches in the
# driver's code.
# shellcheck disable=SC2086 # lists of options
. "$(dirname "$0")/common.sh"

# The ranks take turns here, and many test machines have few processors.
export OMPI_MCA_mpi_yield_when_idle=1

need_gpusm frees || finish
need_gpu frees || finish
frees=$GPUSM_BUILDDIR/tests/mpi/frees
notice="--mca btl_gpusm_notice_frees 1"
case $gpu_name in
*software*)
    # Other jobs use the software driver, too: count apart from them.
    mkdir "$work/accounting"
    apart="-x GPUSM_SOFTCUDA_DIR=$work/accounting"
    ;;
*) apart= ;;
esac

# noticed NAME ...: as check; skipped where the driver cannot be patched, which it must say
noticed() {
    name=$1
    shift
    launch 60 2 $notice $apart "$@"
    status=$?
    grep '^frees: ' "$work/output" || true
    if [ "$(count_in_output 'notice_frees has no effect')" -ne 0 ]; then
        skip "$name" "$(grep 'notice_frees has no effect' "$work/output" | head -n 1)"
    elif [ $status -eq 0 ]; then
        pass "$name"
    else
        fail "$name" "$(explain $status)"
    fi
}
for kind in D V C A; do
    noticed "given-back-while-the-owner-is-silent-kind-$kind" "$frees" soon $kind
    check "not-given-back-without-notices-kind-$kind" 60 2 $apart "$frees" late $kind
done

# Where functions cannot be patched all is as without the parameter, and one line says so.
name=where-code-cannot-be-changed
launch 60 2 $notice $apart "$frees" late D strict
status=$?
if [ $status -eq 77 ]; then
    skip $name "$(grep '^frees: skipped' "$work/output" | head -n 1)"
elif [ $status -ne 0 ]; then
    fail $name "$(explain $status)"
elif [ "$(count_in_output 'notice_frees has no effect')" -ne 2 ]; then
    fail $name "not one line of each rank"
else
    pass $name
fi

noticed freed-by-another-thread "$frees" thread D
noticed refused-by-the-driver "$frees" refused
noticed threads-that-allocate-and-free "$frees" busy

# What others test without notices, with them.
noticed all-kinds-of-pairs "$exchange" pairs --kinds "$kinds" --max-size 2M
noticed memory-that-comes-back "$exchange" life --kinds D --rounds 50 --mebibytes 16
noticed several-threads-in-mpi "$exchange" threads --kinds HD
for subtest in capture context-destroyed finalize-at-exit; do
    noticed "$subtest" "$exchange" "$subtest" --kinds D
done
for subtest in primary-reset primary-released; do
    if primary_context_may_go "$subtest"; then
        noticed "$subtest" "$exchange" "$subtest" --kinds D
    fi
done
finish
