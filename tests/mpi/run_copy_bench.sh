#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_copy_bench.sh: copy_bench measures every way, compares every byte, notices copies that never
# happened, and answers bad input with one line and status 2. It needs no MPI; what is shared here
# is how cases are reported.
# shellcheck disable=SC2016,SC2034 # conditions are evaluated later
. "$(dirname "$0")/common.sh"
copy_bench=${GPUSM_COPY_BENCH:-$GPUSM_BUILDDIR/bench/copy_bench/copy_bench}

# bench SECONDS ARGUMENTS...: its output is in $work/output, its status is returned
bench() {
    launch_limit=$(($1 * slowness))
    shift
    timeout -k 5 $launch_limit "$copy_bench" "$@" >"$work/output" 2>&1 </dev/null
}

# good NAME SCRIPT-OF-AWK ARGUMENTS...: status 0, and awk finds nothing to print about the output
good() {
    good_name=$1 good_script=$2
    shift 2
    need_gpu "$good_name" || return
    bench 60 --iterations 20 "$@"
    good_status=$?
    good_findings=$(awk "$good_script" "$work/output")
    if [ $good_status -eq 2 ] && says 'cannot read the memory'; then
        skip "$good_name" "$(tail -n 1 "$work/output")"
    else
        judge "$good_name" 0 $good_status \
            'says "Every byte was right"' "it does not say that the bytes were right" \
            '[ -z "$good_findings" ]' "$good_findings"
    fi
}

# broken NAME CALLS STATUS TEXT ARGUMENTS...: with these calls of the software driver doing nothing,
# or failing (GPUSM_SOFTCUDA_FAIL), it ends with that status and says so
broken() {
    broken_name=$1 broken_calls=$2 broken_expected=$3 broken_text=$4
    shift 4
    need_softcuda "$broken_name" || return
    GPUSM_SOFTCUDA_FAIL=$broken_calls
    export GPUSM_SOFTCUDA_FAIL
    bench 60 --iterations 20 "$@"
    broken_status=$?
    unset GPUSM_SOFTCUDA_FAIL
    case $broken_calls:$(grep -o 'batch: none' "$work/output") in
    cuMemcpyBatchAsync*:batch*) skip "$broken_name" "built with a cuda.h that has no batch calls" ;;
    *) judge "$broken_name" "$broken_expected" $broken_status 'says "$broken_text"' "it does not say: $broken_text" ;;
    esac
}

# Rows of the table: 12 cells. A driver may be without batch calls, not without the other two.
table='
    BEGIN { FS = " *[|] *" }
    /single us.*batch us.*kernel us.*choice.*best.*good.*GB\/s.*submit single/ { heading = 1 }
    $2 ~ /^[0-9]+$/ {
        ++rows
        if (NF != 14 || $4 !~ /^[0-9.]+$/ || $5 !~ /^([0-9.]+|-)$/ || $6 !~ /^[0-9.]+$/ ||
            $7 !~ /^(single|batch|kernel)$/ || $8 !~ /^(single|batch|kernel)$/ ||
            $9 !~ /^(yes|no)$/ || $10 !~ /^[0-9.e+-]+$/ || $11 !~ /^[0-9.]+$/ || $13 !~ /^[0-9.]+$/)
            print "not a row: " $0
        if ($2 == 1 && $7 != "single") print "one copy is not single: " $0
        if ($2 > 1 && $3 != "3M" && $7 != "kernel") print "small copies do not go by kernel: " $0
        if ($2 > 1 && $3 == "3M" && $7 == "kernel") print "large copies go by kernel: " $0
    }
    END {
        if (!heading) print "no heading"
        if (rows != 9) print rows + 0 " rows, expected 9"
    }'
good ways "$table" --counts 1,4,17 --sizes 3,4K,3M
good no-kernel 'BEGIN { FS = " *[|] *" }
    $2 == 2 { ++rows; if ($6 != "-" || $7 == "kernel" || $13 != "-") print "a kernel: " $0 }
    END { if (rows != 1) print "no row" }' --counts=2 --sizes=64 --blocks 0

few="--counts 4 --sizes 64"
# shellcheck disable=SC2086 # lists of options
{
    broken lost-batch-is-noticed cuMemcpyBatchAsync:0:0 1 '4 x 64, batch: copy 0: byte 0 is' $few
    broken lost-kernel-is-noticed cuLaunchKernel:0:0 1 'waiting for copies, kernel' $few
    broken failing-copy-is-noticed cuMemcpyAsync:9:719 1 'CUDA_ERROR_LAUNCH_FAILED' $few
    broken refused-kernel-is-left-out cuModuleLoadDataEx:0:209 0 'cuModuleLoadDataEx' $few
    broken no-device cuInit:0:100 2 '^copy_bench: .*NO_DEVICE' $few
}

# bad NAME ARGUMENTS...: status 2 and one line, which begins with "copy_bench:"
bad() {
    bad_name=$1
    shift
    bench 30 "$@"
    judge "$bad_name" 2 $? \
        '[ "$(count_in_output "^copy_bench:")" -eq 1 ] && [ "$(count_in_output "^[^#]")" -eq 1 ]' \
        "not exactly one line of explanation"
}
bad unknown-option --fast
bad unexpected-argument table
bad missing-value --counts
bad count-of-zero --counts 0
bad too-many-copies --counts 129
bad bad-size --sizes 4Q
bad size-too-large --sizes 2G
bad nothing-left --counts 128 --sizes 1G
bad no-iterations --iterations 0
bad bad-blocks --blocks -1
"$copy_bench" --help >"$work/output"
judge help 0 $? '[ "$(count_in_output "^usage:")" -eq 1 ]' "no usage line"
finish
