#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_coll_bench.sh: coll_bench measures every operation with every byte checked, notices what is not
# there, and answers bad input with one line and status 2.
# shellcheck disable=SC2016 # conditions are evaluated later
. "$(dirname "$0")/common.sh"
coll_bench=$GPUSM_BUILDDIR/bench/coll_bench/coll_bench
need_gpu coll-bench || finish

for ranks in 2 3 5; do
    launch 90 $ranks "$coll_bench" --no-nccl --sizes 4,4K,300K --iterations 12
    judge "$ranks-ranks" 0 $? \
        '[ "$(count_in_output "^[a-z_]* *[0-9]*[0-9K] *[0-9.]* *[0-9.]*$")" -eq 36 ] && says "^pairs, 300K"' \
        "not 12 operations of 3 sizes and the pairs"
done
launch 90 3 "$coll_bench" --gaps --sizes 4,4K --iterations 3
judge gaps 0 $? '[ "$(count_in_output "^[a-z_]* *[0-9]*[0-9K] *[0-9.]* *[0-9.]*$")" -eq 18 ]' \
    "not 9 operations of 2 sizes"
# Without the library, or where NCCL finds no device that it can use, MPI is measured alone.
launch 60 2 "$coll_bench" --sizes 8 --iterations 2 ring
judge without-nccl 0 $? 'says "^# NCCL: [^0-9]" && says "^ring  *8 "' "no measurement"
launch 60 2 -x LD_PRELOAD="$GPUSM_BUILDDIR/tests/mpi/spoil_message.so" -x GPUSM_TEST_SPOIL=alltoall \
    "$coll_bench" --no-nccl --sizes 8 --iterations 2 alltoall
judge nothing-came 1 $? 'says "^coll_bench: alltoall of 8 bytes: rank 0: MPI, block 0: "' "it is not noticed"
launch 60 2 -x LD_PRELOAD="$GPUSM_BUILDDIR/tests/mpi/spoil_message.so" -x GPUSM_TEST_SPOIL=alltoall \
    "$coll_bench" --gaps --sizes 8 --iterations 2 alltoall
judge nothing-came-with-gaps 1 $? 'says "^coll_bench: alltoall of 8 bytes: rank 0: MPI, block 0: "' \
    "it is not noticed"

# bad NAME RANKS ARGUMENTS...
bad() {
    name=$1
    ranks=$2
    shift 2
    launch 30 "$ranks" "$coll_bench" "$@"
    judge "$name" 2 $? '[ "$(count_in_output "^coll_bench:")" -eq 1 ]' "not exactly one line of explanation"
}
bad one-rank 1 ring
bad unknown-option 2 --fast
bad unknown-operation 2 sort
bad bad-size 2 --sizes 4Q
bad no-multiple-of-4 2 --sizes 6
bad no-iterations 2 --iterations 0
bad sum-of-gaps 2 --gaps allreduce
launch 30 2 "$coll_bench" --help
judge help 0 $? '[ "$(count_in_output "^usage:")" -eq 1 ]' "no usage line"
finish
