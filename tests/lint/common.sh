# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# common.sh: how the scripts run_*.sh of this folder report. Sourced, never run.
# shellcheck shell=sh
set -u
top=${GPUSM_SRCDIR:-$(dirname "$0")/../..}
suite=$(basename "$0" .sh)
suite=${suite#run_}
failed=0
work=$(mktemp -d "${TMPDIR:-/tmp}/gpusm-$suite.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT

# report NAME FINDINGS: one case; it passes when nothing was found
report() {
    if [ -z "$2" ]; then
        echo "PASS: $suite/$1"
    else
        printf '%s\n' "$2" | sed 's/^/    /'
        echo "FAIL: $suite/$1"
        failed=1
    fi
}
skip() { echo "SKIP: $suite/$1: $2"; }
