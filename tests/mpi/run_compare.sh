#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_compare.sh: bench/compare starts each transport in turns, reads what the OSU benchmarks print, and
# tells ratios of speed; and likewise gpusm_perf. No OSU benchmark has to be installed: an mpirun of this
# test prints what theirs have printed.
# shellcheck disable=SC2016,SC2034 # conditions are evaluated later
. "$(dirname "$0")/common.sh"

bench=${GPUSM_SRCDIR:-.}/bench
if ! command -v python3 >/dev/null 2>&1; then
    skip compare "no python3 to run it"
    finish
fi
mkdir "$work/osu" "$work/osu/installed"
for name in latency bw mbw_mr ialltoall fails wrong hangs empty put_latency; do
    : >"$work/osu/installed/osu_$name"
done
cat >"$work/mpirun" <<END
#!/bin/sh
echo "\$*" >>"$work/log"
case "\$*" in
*' gpusm,self '*) faster=1 slower=2 ;;
*) faster=2 slower=1 ;;
esac
case "\$*" in
*/osu_latency*) cat <<ROWS
# HOST/POSIX_MEMALIGN: allocated 64 bytes at 0x55b10e8ba000

# OSU MPI Latency Test v7.4
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)
1                       \$faster.00
# HOST/POSIX_MEMALIGN: allocated 64 bytes at 0x55b10e8ba000
1024                    \$slower.00
4096                    \${faster}0.00
ROWS
    ;;
*/osu_bw*) printf '# Size      Bandwidth (MB/s)\n1      %s0.5\n2     %s1\n' \$faster \$slower ;;
*/osu_mbw_mr*) printf '# [ pairs: 1 ] [ window size: 64 ]\n# Size     MB/s     Messages/s\n8     %s00.0    7141.54\n' \$slower ;;
*/osu_ialltoall*) cat <<ROWS
# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait
# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)        Validation
8                       \$faster.00              1.03              0.51             4\$slower.00              Pass
ROWS
    ;;
*/osu_wrong*) printf '# Size  Avg Latency(us)  Validation\n8   1.00   Fail\n' ;;
*/osu_hangs*) sleep 60 ;;
*/osu_empty*) echo nothing here ;;
*/osu_put_latency*) printf '# Size          Latency (us)\n1     0.12\n' ;;
*) echo this is why >&2 && exit 7 ;;
esac
END
chmod +x "$work/mpirun"

# compare NAME ARGUMENTS...: its output is in $work/output, its status is returned
compare() {
    : >"$work/log"
    timeout -k 5 $((120 * slowness)) python3 "$bench/compare" --osu "$work/osu" --mpirun "$work/mpirun" \
        "$@" >"$work/output" 2>&1 </dev/null
}
# tells NAME STATUS LINE...: all of the lines are in what the last one printed
tells() {
    tells_name=$1 tells_status=$2
    shift 2
    printf '%s\n' "$@" | grep -vxF -f "$work/output" >"$work/missing"
    judge "$tells_name" 0 "$tells_status" '[ ! -s "$work/missing" ]' "no line: $(cat "$work/missing")"
}
# fails_with NAME STATUS PATTERN: the last one has failed and said why
fails_with() {
    status=$2 pattern=$3
    judge "$1" 0 0 '[ $status -ne 0 ]' "it has not failed" 'says "$pattern"' "it does not say: $pattern"
}

compare --ranks 1 --rounds 3 --json "$work/latency.json" --markdown "$work/latency.md" osu_latency
tells latency $? '| 1 | 1 | 2 | 2.00 |' '| 1K | 2 | 1 | 0.50 |' '| 4K | 10 | 20 | 2.00 |' \
    'gpusm / sm, speed: geometric mean 1.26, worst 0.50 at 1K'
turns=$(sed 's/.*--mca btl \([a-z]*\),self.*/\1/' "$work/log" | tr '\n' ' ')
judge takes-turns 0 0 '[ "$turns" = "gpusm sm gpusm sm gpusm sm " ]' "the turns are $turns" \
    'cmp -s "$work/output" "$work/latency.md"' "the file has another table" \
    'grep -q -e "--bind-to core" "$work/log"' "ranks are not bound"
compare --rounds 1 osu_bw
tells bandwidth $? '| 1 | 10.5 | 20.5 | 0.51 |' '| 2 | 21 | 11 | 1.91 |'
compare --rounds 1 --btl gpusm,smcuda osu_mbw_mr
tells message-rate $? '| size | gpusm | smcuda | gpusm / smcuda |' '| 8 | 200 | 100 | 2.00 |'
compare --rounds 1 --check osu_ialltoall
tells overlap $? '| size | gpusm | sm | gpusm / sm | gpusm overlap % | sm overlap % |' \
    '| 8 | 1 | 2 | 2.00 | 42 | 41 |'
compare --rounds 1 --cold --sizes 1K:4K --ranks 1000 osu_latency -- D D
judge cold 0 $? '[ "$(wc -l <"$work/log")" -eq 6 ]' "$(cat "$work/log")" \
    'grep -q -e "--oversubscribe --bind-to none" "$work/log"' "$(cat "$work/log")" \
    'grep -q -e "osu_latency -m 2048:2048 -x 0 -i 300 D D\$" "$work/log"' "$(cat "$work/log")"
compare --rounds 1 --btl gpusm --other "mine=$work/mpirun -n 2 other,self " --check osu_put_latency
tells another-mpi $? '| size | gpusm | mine | gpusm / mine |' '| 1 | 0.12 | 0.12 | 1.00 |'
judge no-validation-where-there-is-none 0 0 '! grep -q -e " -c\$" "$work/log"' "$(cat "$work/log")"
compare --rounds 1 osu_fails
fails_with failing-run $? 'this is why'
compare --rounds 1 osu_wrong
fails_with wrong-bytes $? 'wrong bytes in messages of 8 bytes'
compare --rounds 1 --deadline 1 osu_hangs
fails_with deadline $? 'no end in time'
compare --rounds 1 osu_empty
fails_with no-rows $? 'nothing here'
compare --rounds 1 osu_nothing
fails_with no-program $? 'osu_nothing is not in'
compare --rounds 1 --other name osu_bw
fails_with other-without-command $? 'needs NAME=COMMAND'

for mode in latency bw; do
    timeout -k 5 $((120 * slowness)) python3 "$bench/compare" --rounds 2 --btl "${btl%,self}" \
        --mpirun "$GPUSM_MPIRUN ${GPUSM_TEST_MPIRUN_ARGS-}" --perf "$perf" --json "$work/$mode.json" \
        --sizes 8:16 $mode -- --iterations 2 >"$work/output" 2>&1
    judge "gpusm_perf-$mode" 0 $? '[ "$(count_in_output "^| \(8\|16\) | [0-9.]* |\$")" -eq 2 ]' "there is no table"
done
python3 "$bench/plot" -o "$work/plot.svg" --csv "$work/plot.csv" "$work/bw.json" "$work/latency.json" >"$work/output" 2>&1
judge plot 0 $? 'grep -q "</svg>" "$work/plot.svg"' "no picture" \
    'grep -qE "^bw .*,GB/s,16,[0-9.]+$" "$work/plot.csv"' "no row of 16 bytes: $(cat "$work/plot.csv")" \
    '[ "$(grep -c "^latency .*,us," "$work/plot.csv")" -eq 2 ]' "not two sizes: $(cat "$work/plot.csv")"
printf '# a remark\nbenchmark,unit,bytes,ours,theirs,others\nsome,us,8,10,40,25\nsome,us,64,20,,10\n' >"$work/table.csv"
python3 "$bench/plot" -o "$work/table.svg" "$work/table.csv" >"$work/output" 2>&1
judge plot-of-a-table 0 $? 'grep -q ">2.5×<" "$work/table.svg"' "not 2.5 times as fast as the better one" \
    'grep -q ">0.5×<" "$work/table.svg"' "not half as fast" 'grep -q ">a remark<" "$work/table.svg"' "no remark"
echo '{}' >"$work/other.json"
python3 "$bench/plot" -o "$work/other.svg" "$work/other.json" >"$work/output" 2>&1
fails_with plot-of-something-else $? 'was not written by compare'
finish
