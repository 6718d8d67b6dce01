#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_thread_sanitizer.sh: several threads call the BTL's entries at the same time, under ThreadSanitizer: no two
# accesses of gpusm's race. For a build with --enable-sanitizers=thread.
#
# Open MPI is not built so: its atomic operations are not seen, and what goes through them from thread to thread looks
# like a race. So a report counts when both accesses are made by gpusm, which tells of what it gives to Open MPI
# and gets back (base/sanitizer.h).
# shellcheck disable=SC2016,SC2154 # conditions are evaluated later; set by common.sh
. "$(dirname "$0")/common.sh"
need_gpusm threads || finish
case ${GPUSM_SANITIZERS-no} in
*thread*) ;;
*)
    skip threads "needs a build with --enable-sanitizers=thread"
    finish
    ;;
esac

cat >"$work/ours.awk" <<'EOT'
/^WARNING: ThreadSanitizer: data race/ { inside = 1; text = ""; ours = 0; wanted = 0 }
inside { text = text $0 "\n" }
inside && /^  (Previous )?([Aa]tomic )?([Rr]ead|[Ww]rite) of size/ { wanted = 1; next }
inside && wanted && /^    #[0-9]+ / {
    if ($2 ~ /^(mem(cpy|move|set)|operator)/) next
    wanted = 0
    if ($0 ~ /\/(btl|rcache|common)\/gpusm\//) ++ours
}
inside && /^SUMMARY/ { inside = 0; if (ours > 1) print text }
EOT

# races NAME SUBTEST OPTIONS...: it ends well, and has no race of ours. PMIx maps memory at a place that the sanitizer
# takes for itself, unless it is told to keep its data elsewhere.
races() {
    name=$1
    shift
    rm -f "$work"/report.*
    launch 60 2 --pmixmca gds hash \
        -x TSAN_OPTIONS="exitcode=0 detect_deadlocks=0 report_signal_unsafe=0 history_size=4 log_path=$work/report" \
        "$exchange" "$@"
    status=$?
    cat "$work"/report.* 2>/dev/null | awk -f "$work/ours.awk" >"$work/ours"
    [ ! -s "$work/ours" ] || cp "$work/ours" "$work/output"
    judge "$name" 0 $status '[ ! -s "$work/ours" ]' "data races"
}
races host threads --kinds H --rounds 8
races sessions session-threads --rounds 1500
races sessions-later session-threads-later --rounds 1500
races two-sessions two-session-threads --rounds 1500
if need_gpu devices; then
    races devices threads --kinds DRMVWA --rounds 8
    races devices-and-host threads --kinds HD --rounds 8
fi
finish
