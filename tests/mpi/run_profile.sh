#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_profile.sh: bench/where tells for both sides where the time of a message goes; its shares add
# up, its rules put stacks where they belong, and it answers bad input with one line and status 2.
. "$(dirname "$0")/common.sh"

where=$(dirname "$0")/../../bench/where
sampler=$GPUSM_BUILDDIR/bench/profile/.libs/libgpusm_profile.so
if ! command -v python3 >/dev/null 2>&1; then
    skip tables "no python3 to run bench/where"
    finish
fi

# profile SECONDS ARGUMENTS...: bench/where under a deadline; its tables are in $work/output
profile() {
    launch_limit=$(($1 * slowness))
    shift
    timeout -k 5 "$launch_limit" python3 "$where" --perf "$perf" --sampler "$sampler" \
        --mpirun "$GPUSM_MPIRUN ${GPUSM_TEST_MPIRUN_ARGS-} --mca pml ob1 --mca btl $btl" "$@" \
        >"$work/output" 2>&1 </dev/null
}

# has NAME STATUS PATTERN...: a case: the last profile ended well, and all of them are in it
has() {
    has_name=$1
    has_status=$2
    shift 2
    if [ "$has_status" -ne 0 ]; then
        fail "$has_name" "$(explain "$has_status")"
        return
    fi
    for pattern in "$@"; do
        if [ "$(count_in_output "$pattern")" -eq 0 ]; then
            fail "$has_name" "nothing fits $pattern"
            return
        fi
    done
    pass "$has_name"
}

# What the tables of a rank have to say: "<tables of parts> <parts> <worst distance from 100 %>"
sums() {
    awk -F '|' '
        /^\| part / { tables++; sum = 0; rows = 0; inside = 1; next }
        inside && /^\| sum / { off = sum - 100; off = off < 0 ? -off : off
                               worst = off > worst ? off : worst; inside = 0 }
        inside && $3 ~ /%/ { sum += $3; rows++; parts++ }
        END { printf "%d %d %.2f\n", tables, parts, worst }' "$work/output"
}

# adds_up NAME: each share is rounded to 0.1, so that twenty of them may be off by 1
adds_up() {
    # shellcheck disable=SC2046 # three words
    set -- "$1" $(sums)
    if [ "$2" -eq 2 ] && [ "$3" -ge 4 ] && awk "BEGIN { exit !($4 <= 1.0) }"; then
        pass "$1"
    else
        fail "$1" "$2 tables with $3 parts, off by $4 %"
    fi
}

if [ "${GPUSM_SANITIZERS:-no}" != no ]; then
    skip tables "a sanitizer's run time does not bear another library preloaded before it"
else
    profile 60 --seconds 0.5 latency --sizes 8
    has host-latency $? '^## Rank 0' '^## Rank 1' '^| ob1 ' '^| gpusm code: FIFO and polling \*' \
        '^### Rank 1: the 25 functions' '| component_progress |'
    adds_up host-shares
    # Sampled is what gpusm_perf measures, and not the warm-up, which is ten times as long here.
    windows=3000
    profile 60 bw --sizes 8 --window 64 --iterations $windows --warmup $((10 * windows))
    status=$?
    ratio=$(awk -v messages=$((64 * windows)) '
        / with the sampler at / { rate = $1 }
        / samples in / { seconds = $4 }
        END { print (rate > 0 ? seconds / (messages / rate) : 0) }' "$work/output")
    if [ $status -eq 0 ] && awk "BEGIN { exit !($ratio > 0.5 && $ratio < 2) }"; then
        pass measured-part-only
    else
        fail measured-part-only "status $status; sampled for $ratio times the measured time"
    fi
    if need_gpusm device && need_gpu device; then
        profile 60 --seconds 1 --keep "$work/samples" bw --src D --dst D --sizes 8
        has device-rate $? '^## Rank 0 (sender)' '^## Rank 1 (receiver)' '^| ob1 ' \
            "^| Open MPI's pointer checks " '^| gpusm: validity checks ' '^| gpusm: submit ' \
            '^| gpusm: poll \*' '^### Rank 0: functions of the driver, by caller' \
            '^| cuEventRecord | gpusm::copy_engine'
        adds_up device-shares
        if grep -q '^stack ' "$work/samples/samples.0" &&
            grep -q '^map ' "$work/samples/samples.1"; then
            pass keep
        else
            fail keep "no samples in the folder that was named"
        fi
    fi
    cat >"$work/program" <<'EOT'
#!/bin/sh
echo "the program's own words"
exit 7
EOT
    chmod +x "$work/program"
    profile 30 --perf "$work/program" latency --sizes 8
    status=$?
    if [ $status -eq 1 ] && [ "$(count_in_output '^where: status 7 from ')" -eq 1 ] &&
        [ "$(count_in_output "the program's own words")" -ge 1 ]; then
        pass failing-program
    else
        fail failing-program "$(explain $status), expected 1 and what the program said"
    fi
fi

# bad NAME ARGUMENTS...: status 2, and the last line says what is wrong
bad() {
    bad_name=$1
    shift
    profile 30 "$@"
    bad_status=$?
    if [ $bad_status -ne 2 ]; then
        fail "$bad_name" "$(explain $bad_status), expected 2"
    elif [ "$(count_in_output Traceback)" -ne 0 ]; then
        fail "$bad_name" "a traceback"
    elif [ "$(count_in_output '^where: ')" -ne 1 ]; then
        fail "$bad_name" "not exactly one line of explanation"
    else
        pass "$bad_name"
    fi
}
bad no-mode
bad unknown-mode mbw_mr --sizes 8
bad no-size bw
bad two-sizes bw --sizes 8,16
bad range-of-sizes bw --sizes 1:8
bad checked bw --sizes 8 -c
bad rate-of-zero --hz 0 bw --sizes 8
bad no-program --perf /nonexistent/gpusm_perf bw --sizes 8
bad no-mpirun --mpirun /nonexistent/mpirun bw --sizes 8
bad folder-not-to-be-made --keep /proc/nowhere latency --sizes 8
bad no-sampler --sampler /nonexistent/sampler.so bw --sizes 8
bad what-gpusm_perf-refuses bw --sizes 8 --src X

rules=$(dirname "$0")/profile_rules.py
if python3 "$rules" "$(dirname "$where")/profile" >"$work/output" 2>&1; then
    pass rules
else
    fail rules "a stack or a name went where it does not belong"
fi
finish
