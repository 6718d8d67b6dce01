# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# setup/common.sh: words that the other files of quickstart use. Everything is said on stderr,
# because quickstart --env speaks to a shell on stdout.
# shellcheck shell=bash disable=SC2154,SC2164 # quickstart sets the names, and set -e

say() { echo "quickstart: $*" >&2; }

fail() {
    echo "quickstart: $*" >&2
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# step TEXT LOG COMMAND...: runs it with its output in LOG, says every 15 s that it still runs, and
# shows the end of the log when it fails.
step() {
    local text=$1 log=$2 started=$SECONDS pid status=0 next=15
    shift 2
    mkdir -p "$(dirname "$log")"
    say "$text ..."
    "$@" >"$log" 2>&1 </dev/null &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.2
        if [ $((SECONDS - started)) -ge $next ]; then
            say "  $text: $((SECONDS - started)) s so far"
            next=$((next + 15))
        fi
    done
    wait "$pid" || status=$?
    if [ $status -ne 0 ]; then
        tail -n 30 "$log" >&2
        fail "$text failed (status $status); the whole log is $log"
    fi
    say "  $text: done in $((SECONDS - started)) s"
}

# as_root COMMAND...
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif has sudo; then
        sudo -n "$@" || fail "this needs root: $* (run quickstart as root, or let sudo work without a password)"
    else
        fail "this needs root and there is no sudo: $*"
    fi
}

is_debian_like() { has apt-get && has dpkg-query; }

# need_packages PACKAGE...: installs those that are missing.
need_packages() {
    local missing=() package
    is_debian_like || return 0
    for package in "$@"; do
        if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
            missing+=("$package")
        fi
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ -z "${apt_updated-}" ]; then
        step "reading the lists of packages" "$logs/apt-update.log" as_root apt-get -q update
        apt_updated=yes
    fi
    step "installing ${missing[*]}" "$logs/apt-install.log" \
        as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -q -y -o Dpkg::Lock::Timeout=120 install --no-install-recommends "${missing[@]}"
}

# need_tools TOOL...: on a machine without apt, says what is missing in one sentence.
need_tools() {
    local missing=() tool
    for tool in "$@"; do
        has "$tool" || missing+=("$tool")
    done
    [ ${#missing[@]} -eq 0 ] ||
        fail "these programs are missing, please install them: ${missing[*]}"
}

# How many compilers at once: one per core, and 1 GiB for each.
job_count() {
    local cores memory_gib
    cores=$(nproc)
    memory_gib=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)
    [ "${memory_gib:-1}" -ge 1 ] || memory_gib=1
    echo $((cores < memory_gib ? cores : memory_gib))
}
