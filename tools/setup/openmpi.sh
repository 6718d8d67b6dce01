# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# setup/openmpi.sh: finds an Open MPI 5.0 that gpusm can be built for, or builds one into the cache.
# shellcheck shell=bash disable=SC2154,SC2164 # quickstart sets the names, and set -e

openmpi_wanted=5.0.7
# Its own copies of everything, so that the result depends on no library of the machine; and none of
# what gpusm does not meet.
openmpi_options=(--with-devel-headers --disable-mpi-fortran --disable-io-romio --disable-oshmem
    --with-hwloc=internal --with-libevent=internal --with-pmix=internal --with-prrte=internal
    --without-ucx --without-ofi --disable-sphinx)
openmpi_late_header=opal/mca/timer/linux/timer_linux.h

# openmpi_value PREFIX NAME: what its opal_config.h defines NAME to be
openmpi_value() {
    sed -n "s/^#define $2 //p" "$1/include/openmpi/opal_config.h" 2>/dev/null | head -n 1
}

openmpi_version() {
    echo "$(openmpi_value "$1" OPAL_MAJOR_VERSION).$(openmpi_value "$1" OPAL_MINOR_VERSION).$(openmpi_value "$1" OPAL_RELEASE_VERSION)"
}

# openmpi_is_usable PREFIX: 5.0, CUDA-aware, with every header that a component needs
openmpi_is_usable() {
    [ -x "$1/bin/ompi_info" ] && [ -x "$1/bin/mpicc" ] || return 1
    [[ $(openmpi_version "$1") == 5.0.* ]] || return 1
    [ "$(openmpi_value "$1" OPAL_CUDA_SUPPORT)" = 1 ] || return 1
    [ -n "$with_openmpi_source" ] || [ -r "$1/include/openmpi/$openmpi_late_header" ]
}

# find_openmpi: sets openmpi_dir. What --with-openmpi names is taken as it is; configure judges it.
find_openmpi() {
    local mpicc candidate key
    if [ -n "$with_openmpi" ]; then
        [ -x "$with_openmpi/bin/mpicc" ] ||
            fail "there is no bin/mpicc in $with_openmpi; correct --with-openmpi=PREFIX"
        openmpi_dir=$(cd "$with_openmpi" && pwd)
        return
    fi
    mpicc=$(command -v mpicc || true)
    if [ -z "$openmpi_tarball" ] && [ -n "$mpicc" ]; then
        candidate=$(dirname "$(dirname "$mpicc")")
        if openmpi_is_usable "$candidate"; then
            openmpi_dir=$candidate
            return
        fi
        say "the Open MPI in $candidate cannot be used (wanted: 5.0, CUDA-aware, with development headers)"
    fi
    # The key covers the options and the text of what builds it.
    key=$(printf '%s\n' "${openmpi_options[@]}" "$(declare -f build_openmpi)" \
        "$(sed -n 's/^#define CUDA_VERSION *//p' "$cuda_dir/include/cuda.h")" |
        sha256sum | cut -c1-12)
    if [ -z "$openmpi_tarball" ]; then
        for candidate in "$cache/openmpi-$openmpi_wanted-$key" "$cache"/openmpi-5.0.*-"$key"; do
            if [ -e "$candidate/.complete" ]; then
                openmpi_dir=$candidate
                return
            fi
        done
    fi
    make_openmpi "$key"
}

make_openmpi() {
    local key=$1 tarball version
    if [ -n "$openmpi_tarball" ]; then
        [ -r "$openmpi_tarball" ] || fail "cannot read $openmpi_tarball; correct --openmpi-tarball=FILE"
        tarball=$openmpi_tarball
        # Without pipes: an early end of tar's reader would be an error here.
        version=$(tar tf "$tarball" 2>/dev/null | awk -F/ '!seen { seen = 1; print $1 }' | sed 's/^openmpi-//')
    elif is_debian_like; then
        fetch_openmpi_source
        tarball=$openmpi_fetched
        version=$openmpi_fetched_version
    else
        fail "no usable Open MPI found, and this machine has no apt to fetch its source with; pass --with-openmpi=PREFIX (5.0, configured --with-cuda and --with-devel-headers) or --openmpi-tarball=FILE, a source release of Open MPI 5.0"
    fi
    [[ $version == 5.0.* ]] || fail "gpusm needs Open MPI 5.0, but $tarball holds ${version:-something else}"
    openmpi_dir=$cache/openmpi-$version-$key
    [ ! -e "$openmpi_dir/.complete" ] || return 0
    say "building Open MPI $version into $openmpi_dir; this happens once and takes 5 to 15 minutes"
    build_openmpi "$tarball" "$openmpi_dir"
}

# build_openmpi TARBALL PREFIX: PREFIX/.complete appears when everything is there.
build_openmpi() {
    local tarball=$1 prefix=$2 work=$2.build
    rm -rf "$prefix" "$work"
    mkdir -p "$work/source" "$work/build"
    step "unpacking Open MPI" "$logs/openmpi-unpack.log" \
        tar xf "$tarball" -C "$work/source" --strip-components=1
    cd "$work/build"
    step "configuring Open MPI" "$logs/openmpi-configure.log" \
        ../source/configure --prefix="$prefix" --with-cuda="$cuda_dir" \
        --with-cuda-libdir="$libcuda_dir" "${openmpi_options[@]}"
    grep -q '^#define OPAL_CUDA_SUPPORT 1' opal/include/opal_config.h ||
        fail "Open MPI's configure did not accept CUDA from $cuda_dir and $libcuda_dir ($logs/openmpi-configure.log)"
    step "compiling Open MPI" "$logs/openmpi-make.log" make -j"$(job_count)"
    step "installing Open MPI" "$logs/openmpi-install.log" make install
    # The headers that its own make install leaves out, from the same source.
    local folder
    for folder in opal/mca/threads/pthreads opal/mca/timer/linux; do
        mkdir -p "$prefix/include/openmpi/$folder"
        cp "../source/$folder"/*.h "$prefix/include/openmpi/$folder/"
    done
    cd "$top"
    rm -rf "$work"
    touch "$prefix/.complete"
}

# debian_archives: addresses of archives that may be Debian's main one, from this machine's own apt
# sources, both styles of file. The signature decides which of them is.
debian_archives() {
    local files=(/etc/apt/sources.list.d/*.sources)
    {
        awk '
            function flush(   i, n, words) {
                if (types ~ /deb/ && components ~ /main/ && enabled != "no") {
                    n = split(uris, words, /[ \t]+/)
                    for (i = 1; i <= n; i++) { print words[i] }
                }
                types = uris = components = enabled = ""
            }
            FNR == 1 { flush() }
            /^[ \t]*$/ { flush(); next }
            /^#/ { next }
            tolower($1) == "types:" { types = $0 }
            tolower($1) == "uris:" { sub(/^[^:]*:[ \t]*/, ""); uris = $0 }
            tolower($1) == "components:" { components = $0 }
            tolower($1) == "enabled:" { enabled = tolower($2) }
            END { flush() }
        ' "${files[@]}" 2>/dev/null || true
        # deb [options] address suite component...
        cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
            sed -n 's/^deb\(-src\)\{0,1\}[[:space:]]\{1,\}\(\[[^]]*\]\)\{0,1\}[[:space:]]*//p' |
            awk '/ main( |$)/ { print $1 }'
    } | grep -E '^(https?|ftp|file|copy|mirror[a-z+]*):' | grep -v -E 'security' | awk '!seen[$0]++'
}

# fetch_openmpi_source: Debian's source package of Open MPI, suite trixie, through an apt
# configuration of its own: the machine's sources stay as they are, and apt checks the signature.
# Sets openmpi_fetched and openmpi_fetched_version.
fetch_openmpi_source() {
    local apt=$cache/apt keyring=/usr/share/keyrings/debian-archive-keyring.gpg archive versions version
    need_packages debian-archive-keyring
    [ -r "$keyring" ] || fail "Debian's archive keys are not installed ($keyring); pass --with-openmpi=PREFIX or --openmpi-tarball=FILE"
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/source"
    cat >"$apt/apt.conf" <<EOT
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::Lists "$apt/lists";
Dir::Cache "$apt/cache";
APT::Sandbox::User "$(id -un)";
Acquire::Languages "none";
EOT
    versions=
    for archive in $(debian_archives); do
        echo "deb-src [signed-by=$keyring] $archive trixie main" >"$apt/sources.list"
        say "asking the archive of this machine's apt sources for Open MPI's source ..."
        if APT_CONFIG=$apt/apt.conf apt-get -q -o APT::Update::Error-Mode=any update \
            >"$logs/apt-source.log" 2>&1; then
            versions=$(APT_CONFIG=$apt/apt.conf apt-cache showsrc openmpi 2>>"$logs/apt-source.log" |
                awk '/^Version: 5\.0\./ { print $2 }' | sort -V -u)
            [ -z "$versions" ] || break
        fi
    done
    [ -n "$versions" ] ||
        fail "this machine's apt sources lead to no Debian archive with Open MPI 5.0 (suite trixie; $logs/apt-source.log); pass --with-openmpi=PREFIX or --openmpi-tarball=FILE"
    version=$(grep -E "^${openmpi_wanted//./\\.}-" <<<"$versions" | tail -n 1 || true)
    if [ -z "$version" ]; then
        version=$(tail -n 1 <<<"$versions")
        say "the archive has no Open MPI $openmpi_wanted any more; taking $version"
    fi
    cd "$apt/source"
    APT_CONFIG=$apt/apt.conf step "fetching the source of Open MPI $version" \
        "$logs/apt-source.log" apt-get -q source --download-only "openmpi=$version"
    cd "$top"
    openmpi_fetched_version=${version%%-*}
    openmpi_fetched_version=${openmpi_fetched_version%%+*}
    openmpi_fetched=$(find "$apt/source" -name "openmpi_$openmpi_fetched_version*.orig.tar.*" ! -name '*.asc' | head -n 1)
    [ -n "$openmpi_fetched" ] || fail "the source package of Open MPI $version has no orig tarball ($apt/source)"
}
