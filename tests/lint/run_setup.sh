#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_setup.sh: what quickstart and tools/make-wheel do before they build anything.
. "$(dirname "$0")/common.sh"
top=$(cd "$top" && pwd)

# with COMMANDS: what they print, as a part of quickstart, whose functions they call
with() {
    bash -c "set -euo pipefail
top='$top' cache='$work/cache' logs='$work/logs' with_openmpi= with_openmpi_source= openmpi_tarball= with_cuda=
whose_openmpi=any mode=run
for file in common cuda openmpi; do . \"\$top/tools/setup/\$file.sh\"; done
$1" 2>&1 </dev/null
}

# lacks TEXT WORDS: nothing when the text has the words, else both
lacks() {
    case $1 in
    *"$2"*) ;;
    *) echo "no '$2' in: $1" ;;
    esac
}

# --- what options name is there ------------------------------------------------------------------------
report "quickstart says that there is no such tarball" \
    "$(lacks "$("$top/quickstart" --openmpi-tarball="$work/none/openmpi.tar.gz" --help 2>&1)" "correct --openmpi-tarball=FILE")"
report "make-wheel says so, too" \
    "$(lacks "$("$top/tools/make-wheel" --openmpi-tarball="$work/none/openmpi.tar.gz" --help 2>&1)" "correct --openmpi-tarball=FILE")"
mkdir -p "$work/logs"
echo nothing >"$work/openmpi.tar.gz"
report "a tarball that is none is named" \
    "$(lacks "$(with "openmpi_tarball='$work/openmpi.tar.gz'; find_openmpi_source")" "tar cannot read")"
mkdir -p "$work/other/bin"
printf '#!/bin/sh\nexit 1\n' >"$work/other/bin/mpicc"
cp "$work/other/bin/mpicc" "$work/other/bin/ompi_info"
chmod +x "$work/other/bin/mpicc" "$work/other/bin/ompi_info"
report "an ompi_info that fails is named" \
    "$(lacks "$(with "with_openmpi='$work/other'; find_openmpi")" "does not say its version")"

# --- the cache ------------------------------------------------------------------------------------------
mkdir -p "$work/locked/lock"
report "a cache that cannot be written to is named" \
    "$(lacks "$(with "GPUSM_CACHE='$work/locked'; open_cache")" "set GPUSM_CACHE to another place")"
report "a missing flock is named" "$(lacks "$(with "GPUSM_CACHE='$work/cache'; has() { [ \$1 != flock ]; }; open_cache")" "install them: flock")"

# --- packages and programs ------------------------------------------------------------------------------
no_root="is_debian_like() { true; }
can_be_root() { false; }
dpkg-query() { false; }
need_packages gpusm-package"
report "without root a package may be missing, which is said" \
    "$(lacks "$(with "$no_root; need_tools sh; echo well" | tr '\n' '|')" "root to install: gpusm-package|well")"
report "but no program, and its package is named" \
    "$(lacks "$(with "$no_root; need_tools sh gpusm-program")" "install them: gpusm-program (as root: apt-get install gpusm-package)")"

# --- headers that no Open MPI installs ------------------------------------------------------------------
tree=$work/tree/openmpi-5.0.9
mkdir -p "$tree/opal/mca/threads/pthreads" "$tree/opal/mca/timer/linux"
echo major=5 >"$tree/VERSION"
touch "$tree/opal/mca/threads/pthreads/threads_pthreads.h" "$tree/opal/mca/timer/linux/timer_linux.h"
tar cf "$work/openmpi-5.0.9.tar" -C "$work/tree" openmpi-5.0.9
# headers VERSION COMMANDS: where those for an Open MPI of that version are taken from
headers() {
    with "openmpi_dir='$work/other'
openmpi_version() { echo $1; }
openmpi_include() { echo '$work/other/include'; }
is_debian_like() { true; }
fetch_openmpi_source() { openmpi_fetched='$work/openmpi-5.0.9.tar' openmpi_fetched_version=5.0.9; echo fetched; }
$2
complete_headers
echo \"from \$with_openmpi_source\""
}
report "headers of another release go by its version" "$(lacks "$(headers 5.0.7 :)" "from $work/cache/openmpi-headers-5.0.9")"
report "and are used again" "$(lacks "x$(headers 5.0.7 :)" "xfrom $work/cache/openmpi-headers-5.0.9")"
report "but not for another minor version" "$(lacks "$(headers 6.0.1 :)x" "from x")"
rm -rf "$work/cache"
report "they come from the tarball that is named" \
    "$(lacks "x$(headers 5.0.9 "openmpi_tarball='$work/openmpi-5.0.9.tar'" | grep -v quickstart:)" "xfrom $work/cache/openmpi-headers-5.0.9")"
report "where they cannot be fetched, their source is asked for" \
    "$(lacks "$(headers 5.0.7 "fetch_openmpi_source() { fail \"\$2\"; }; rm -rf '$work/cache'")" "pass --with-openmpi-source=DIR")"

# --- folders --------------------------------------------------------------------------------------------
report "configure refuses a folder with blanks" \
    "$(lacks "$(cd "$work" && sh "$top/configure" --with-cuda="$work/a cuda" 2>&1)" "a path with blanks")"
report "and so do the scripts" "$(lacks "$(with "refuse_blanks '' '$work/a folder'")" "a path with blanks"
lacks "$(with "GPUSM_CACHE='$work/a cache'; open_cache")" "a path with blanks")"

# --- a folder is configured once, and anew when it is configured in another way ---------------------------
mkdir -p "$work/sources" "$work/build"
cat >"$work/sources/configure" <<'END'
#!/bin/sh
printf '#!/bin/sh\necho "%s"\n' "$*" >config.status
chmod +x config.status
printf 'clean:\n\techo cleaned >>done\n' >Makefile
echo "configured $*" >>done
END
chmod +x "$work/sources/configure"
# does NAME EXPECTED COMMANDS: what they configure and clean in the folder
does() {
    rm -f "$work/build/done"
    said=$(with "top='$work/sources'; cd '$work/build'; $3")
    found=$(cat "$work/build/done" 2>/dev/null)
    report "$1" "$([ "$found" = "$2" ] || echo "expected '$2', found '$found': $said")"
}
quickstart="configure_gpusm '$work/logs/configure.log'"
does "a new folder is configured" "configured --a" "$quickstart --a"
does "and once is enough" "" "$quickstart --a"
touch -d '1 minute' "$work/sources/configure"
does "a newer configure keeps what was made" "configured --a" "$quickstart --a"
touch -d '1 hour ago' "$work/sources/configure"
does "other options remove it" "configured --b
cleaned" "$quickstart --b"
does "so does a configure by hand in between" "configured --hand
configured --b
cleaned" "'$work/sources/configure' --hand; $quickstart --b"
rm -rf "$work/build"
mkdir "$work/build"
does "and one by hand at first" "configured --b
configured --b
cleaned" "'$work/sources/configure' --b; $quickstart --b"
exit "$failed"
