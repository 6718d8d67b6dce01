# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# setup/common.sh: words that the other files of quickstart use. Everything is said on stderr,
# because quickstart --env speaks to a shell on stdout.
# shellcheck shell=bash disable=SC2154,SC2164 # quickstart sets the names, and set -e

say() { echo "${program:-quickstart}: $*" >&2; }

fail() {
    echo "${program:-quickstart}: $*" >&2
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# file_of OPTION=FILE: the absolute path of a file that an option names
file_of() {
    { [ -f "${1#*=}" ] && [ -r "${1#*=}" ]; } || fail "cannot read ${1#*=}; correct ${1%%=*}=FILE"
    readlink -f "${1#*=}"
}

# refuse_blanks PATH...: for make and configure a path with blanks is several.
refuse_blanks() {
    local path
    for path in "$@"; do
        [[ $path != *[[:space:]]* ]] || fail "make takes a path with blanks for several; use one without: '$path'"
    done
}

# open_cache: sets cache and logs, and waits until nobody else writes there.
open_cache() {
    cache=${GPUSM_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/gpusm}
    [[ $cache == /* ]] || cache=$PWD/$cache
    refuse_blanks "$cache"
    need_tools flock
    if ! { mkdir -p "$cache/logs" && [ -w "$cache" ] && [ -w "$cache/logs" ] && true >>"$cache/lock"; } 2>/dev/null; then
        fail "cannot write to the cache folder $cache; set GPUSM_CACHE to another place"
    fi
    cache=$(cd "$cache" && pwd)
    logs=$cache/logs
    exec 9>"$cache/lock"
    if ! flock -n 9; then
        say "another run uses $cache; waiting for it to end"
        flock 9
    fi
}

# last_error LOG: the last line of it in which a program says what is wrong
last_error() {
    grep -E '^(E|ERROR|error|configure: error|make.*\*\*\*)|[: ](fatal )?error: ' "$1" | tail -n 1 || true
}

# step TEXT LOG COMMAND...: runs it with its output in LOG, and says every 15 s that it still runs.
# When it fails, shows the end of the log and ends quickstart.
step() { try_step "$@" || exit 1; }

# try_step TEXT LOG COMMAND...: likewise, and returns 1 when it fails. The command is in a process
# group of its own, which stop_step ends, and does not inherit the lock.
try_step() {
    local text=$1 log=$2 started=$SECONDS status=0 next=15 error
    shift 2
    mkdir -p "$(dirname "$log")"
    say "$text ..."
    set -m
    "$@" >"$log" 2>&1 </dev/null 9>&- &
    step_group=$!
    set +m
    while kill -0 "$step_group" 2>/dev/null; do
        sleep 0.2
        if [ $((SECONDS - started)) -ge $next ]; then
            say "  $text: $((SECONDS - started)) s so far"
            next=$((next + 15))
        fi
    done
    wait "$step_group" || status=$?
    step_group=
    if [ $status -ne 0 ]; then
        tail -n 30 "$log" >&2
        error=$(last_error "$log")
        say "$text failed (status $status)${error:+: $error}"
        say "the whole log is $log"
        return 1
    fi
    say "  $text: done in $((SECONDS - started)) s"
}

# stop_step STATUS: ends the step that runs, if any, and quickstart, with which the lock goes.
stop_step() {
    trap '' INT TERM HUP
    if [ -n "${step_group-}" ]; then
        # A step that runs as root by sudo cannot be ended without.
        kill -TERM -- "-$step_group" 2>/dev/null || sudo -n kill -TERM -- "-$step_group" 2>/dev/null || true
        wait "$step_group" 2>/dev/null || true
    fi
    say "interrupted"
    exit "$1"
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

can_be_root() { [ "$(id -u)" -eq 0 ] || { has sudo && sudo -n true 2>/dev/null; }; }

is_debian_like() { has apt-get && has dpkg-query; }

# read_package_lists: once; a machine that is new has none.
read_package_lists() {
    [ -z "${apt_updated-}" ] && can_be_root || return 0
    step "reading the lists of packages" "$logs/apt-update.log" as_root apt-get -q update
    apt_updated=yes
}

not_installed=() # packages, for want of root
# need_packages PACKAGE...: installs those that are missing. Without root it goes on without them: what
# they bring may be there all the same, and whoever needs it says so.
need_packages() {
    local missing=() package
    is_debian_like || return 0
    for package in "$@"; do
        if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
            missing+=("$package")
        fi
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if ! can_be_root; then
        say "going on without these packages, which take root to install: ${missing[*]}"
        not_installed+=("${missing[@]}")
        return 0
    fi
    read_package_lists
    step "installing ${missing[*]}" "$logs/apt-install.log" \
        as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -q -y -o Dpkg::Lock::Timeout=120 install --no-install-recommends "${missing[@]}"
}

# need_tools TOOL...: says in one sentence what is missing where apt-get could not bring it.
need_tools() {
    local missing=() tool
    for tool in "$@"; do
        has "$tool" || missing+=("$tool")
    done
    [ ${#missing[@]} -eq 0 ] ||
        fail "these programs are missing, please install them: ${missing[*]}${not_installed[*]:+ (as root: apt-get install ${not_installed[*]})}"
}

# configure_gpusm LOG OPTION...: configures the folder that it is called in, unless it is so configured
# already. A note there tells what this function did from what was configured by hand. Objects of
# another configuration may be for another Open MPI, and make takes them for up to date: they go, once
# there are Makefiles that work.
configure_gpusm() {
    local log=$1 note=.configured-by-gpusm other=
    shift
    if [ -x config.status ]; then
        [ "$(cat $note 2>/dev/null)" = "$(configured_with "$*")" ] || other=yes
        if [ -z "$other" ] && [ ! "$top/configure" -nt config.status ]; then
            return 0
        fi
    fi
    rm -f $note
    step "configuring gpusm" "$log" "$top/configure" "$@"
    [ -z "$other" ] ||
        step "removing what another configuration has made" "$logs/make-clean.log" make clean
    configured_with "$*" >$note
}

# configured_with WANTED: what was asked for, and what config.status says it was made with
configured_with() { printf '%s\n' "$1" "$(./config.status --config)"; }

# How many compilers at once: one per core, and 1 GiB for each.
job_count() {
    local cores memory_gib
    cores=$(nproc)
    memory_gib=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)
    [ "${memory_gib:-1}" -ge 1 ] || memory_gib=1
    echo $((cores < memory_gib ? cores : memory_gib))
}
