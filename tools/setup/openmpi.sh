# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# setup/openmpi.sh: finds an Open MPI that gpusm can be built for, or builds a 5.0 into the cache.
# shellcheck shell=bash disable=SC2154,SC2164 # quickstart sets the names, and set -e

openmpi_wanted=5.0.7
# Its own copies of everything, so that the result depends on no library of the machine; and none of
# what gpusm does not meet.
openmpi_options=(--with-devel-headers --disable-mpi-fortran --disable-io-romio --disable-oshmem
    --with-hwloc=internal --with-libevent=internal --with-pmix=internal --with-prrte=internal
    --without-ucx --without-ofi --disable-sphinx)
openmpi_late_header=opal/mca/timer/linux/timer_linux.h

# openmpi_says PREFIX WORD [OPTION...]: what its ompi_info says after WORD; distributions put headers
# and components where they like, so it is asked. Nothing when it fails.
openmpi_says() {
    local program=$1/bin/ompi_info word=$2
    shift 2
    OMPI_MCA_mca_base_component_show_load_errors=0 "$program" --parsable "$@" 2>/dev/null |
        awk -v word="$word:" 'index($0, word) == 1 && !seen++ { print substr($0, length(word) + 1) }' || true
}

openmpi_version() { openmpi_says "$1" ompi:version:full; }

# openmpi_include PREFIX: the folder of its development headers; nothing when there are none
openmpi_include() {
    local folder
    for folder in "$(openmpi_says "$1" path:pkgincludedir --path pkgincludedir)" "$1/include/openmpi"; do
        if [ -r "$folder/opal_config.h" ] && [ -r "$folder/opal/mca/btl/btl.h" ]; then
            echo "$folder"
            return
        fi
    done
}

is_cuda_aware() { grep -q '^#define OPAL_CUDA_SUPPORT 1' "$(openmpi_include "$1")/opal_config.h"; }

# openmpi_refusal PREFIX: why gpusm cannot be built for it; nothing when it can
openmpi_refusal() {
    local version
    if [ ! -x "$1/bin/ompi_info" ] || [ ! -x "$1/bin/mpicc" ]; then
        echo "it has no ompi_info, so it is another MPI, or not all of an Open MPI"
        return
    fi
    version=$(openmpi_version "$1")
    if [[ $version != 5.0.* && $version != 6.* ]]; then
        echo "it is version ${version:-unknown}, and gpusm is for 5.0 and 6"
    elif [ -z "$(openmpi_include "$1")" ]; then
        echo "it has no development headers; they come with the package libopenmpi-dev, or with configure --with-devel-headers"
    elif [ ! -r "$(openmpi_include "$1")/$openmpi_late_header" ] && [ -z "$with_openmpi_source" ] &&
        ! may_fetch_headers "$version"; then
        echo "some headers are in its source only; pass --with-openmpi-source=DIR"
    fi
}

# find_openmpi: sets openmpi_dir, and with_openmpi_source where headers are missing there. What
# --with-openmpi names is taken as it is; configure judges it. Else the first of: the mpicc in PATH if
# it is CUDA-aware, one built earlier, the mpicc in PATH, the distribution's; else one is built.
# --distribution leaves out what was built, --build-openmpi all that was built by others.
find_openmpi() {
    local in_path='' built='' key
    if [ -n "$with_openmpi" ]; then
        [ -x "$with_openmpi/bin/mpicc" ] && [ -x "$with_openmpi/bin/ompi_info" ] ||
            fail "$with_openmpi has no bin/mpicc and bin/ompi_info of an Open MPI; correct --with-openmpi=PREFIX"
        openmpi_dir=$(cd "$with_openmpi" && pwd)
        [ -n "$(openmpi_version "$openmpi_dir")" ] ||
            fail "$openmpi_dir/bin/ompi_info does not say its version; run it by hand, or correct --with-openmpi=PREFIX"
        complete_headers
        return
    fi
    # The key covers the options, the patches, and the text of what builds it.
    key=$(printf '%s\n' "${openmpi_options[@]}" "$(declare -f build_openmpi patch_openmpi)" \
        "$(cat "$top"/patches/*.patch)" "$(sed -n 's/^#define CUDA_VERSION *//p' "$cuda_dir/include/cuda.h")" |
        sha256sum | cut -c1-12)
    if [ -z "$openmpi_tarball" ] && [ "$whose_openmpi" != distribution ]; then
        built=$(built_openmpi "$key")
    fi
    if [ "$whose_openmpi" != built ]; then
        find_in_path
        if [ -z "$in_path" ] && [ -z "$built" ]; then
            install_openmpi
        fi
    fi
    if [ -n "$in_path" ] && { [ -z "$built" ] || is_cuda_aware "$in_path"; }; then
        openmpi_dir=$in_path
        is_cuda_aware "$in_path" ||
            say "the Open MPI in $in_path was built without CUDA: device messages up to 4 KiB go through host memory (docs/distributions.md); --build-openmpi builds one with CUDA"
        complete_headers
    elif [ -n "$built" ]; then
        openmpi_dir=$built
    else
        make_openmpi "$key"
    fi
}

# find_in_path: sets find_openmpi's in_path if the mpicc in PATH can be used, or says why not.
find_in_path() {
    local mpicc why
    mpicc=$(command -v mpicc) || return 0
    in_path=$(dirname "$(dirname "$mpicc")")
    why=$(openmpi_refusal "$in_path")
    [ -n "$why" ] || return 0
    say "the Open MPI in $in_path is not used: $why"
    in_path=
}

# built_openmpi KEY: the prefix of one built earlier; nothing when there is none
built_openmpi() {
    local candidate
    for candidate in "$cache/openmpi-$openmpi_wanted-$1" "$cache"/openmpi-5.0.*-"$1"; do
        if [ -e "$candidate/.complete" ]; then
            echo "$candidate"
            return
        fi
    done
}

# offered_openmpi: the version of the distribution's package; nothing when none is known
offered_openmpi() {
    apt-cache policy libopenmpi-dev | sed -n 's/^ *Candidate: *\([0-9]*:\)\{0,1\}\([0-9]\)/\2/p'
}

# install_openmpi: the distribution's, if it is 5.0; sets find_openmpi's in_path.
install_openmpi() {
    local why='this machine has no apt' offered=
    if is_debian_like; then
        offered=$(offered_openmpi)
        if [ -z "$offered" ]; then # a new machine has no lists of packages
            read_package_lists
            offered=$(offered_openmpi)
        fi
        why="the distribution has ${offered:-none}"
    fi
    if [[ $offered == 5.0.* ]]; then
        need_packages openmpi-bin libopenmpi-dev
        why=$(openmpi_refusal /usr)
        if [ -z "$why" ]; then
            in_path=/usr
            return
        fi
        [ -x /usr/bin/ompi_info ] || can_be_root || why="it takes root to install openmpi-bin and libopenmpi-dev"
    fi
    [ "$whose_openmpi" != distribution ] ||
        fail "--distribution: no Open MPI 5.0 that can be used ($why); without that option one is built"
}

# may_fetch_headers VERSION: whether complete_headers may get the headers of that Open MPI
may_fetch_headers() { is_debian_like && [[ $1 == 5.0.* ]]; }

# complete_headers: a few headers are in no installation. They come from the tarball that is named, else
# from the distribution's source package; any release of the same minor version serves. Where there is
# neither, configure says what to do.
complete_headers() {
    local include version candidate
    include=$(openmpi_include "$openmpi_dir")
    if [ -n "$with_openmpi_source" ] || [ -z "$include" ] || [ -r "$include/$openmpi_late_header" ]; then
        return 0
    fi
    version=$(openmpi_version "$openmpi_dir")
    if [ -n "$openmpi_tarball" ]; then
        version=$(tarball_version "$openmpi_tarball")
        unpack_headers "$openmpi_tarball" "$version"
    elif may_fetch_headers "$version"; then
        for candidate in "$cache/openmpi-headers-$version" "$cache/openmpi-headers-${version%.*}".*; do
            if [ -e "$candidate/.complete" ]; then
                with_openmpi_source=$candidate
                return
            fi
        done
        fetch_openmpi_source "$version" "pass --with-openmpi-source=DIR, the unpacked source of Open MPI $version"
        unpack_headers "$openmpi_fetched" "$openmpi_fetched_version"
    fi
}

# unpack_headers TARBALL VERSION: sets with_openmpi_source.
unpack_headers() {
    with_openmpi_source=$cache/openmpi-headers-$2
    [ ! -e "$with_openmpi_source/.complete" ] || return 0
    rm -rf "$with_openmpi_source"
    mkdir -p "$with_openmpi_source"
    step "unpacking the headers that no Open MPI installs" "$logs/openmpi-unpack.log" \
        tar xf "$1" -C "$with_openmpi_source" --strip-components=1 --wildcards \
        'openmpi-*/VERSION' 'openmpi-*/opal/mca/threads/pthreads/*.h' 'openmpi-*/opal/mca/timer/linux/*.h'
    touch "$with_openmpi_source/.complete"
}

# tarball_version FILE: the version of the Open MPI in it
tarball_version() {
    # awk reads to the end: a reader of tar that ends early would be an error here.
    tar tf "$1" 2>"$logs/openmpi-unpack.log" | awk -F/ '!seen { seen = 1; print $1 }' | sed 's/^openmpi-//' ||
        fail "tar cannot read $1: $(tail -n 1 "$logs/openmpi-unpack.log"); correct --openmpi-tarball=FILE"
}

# find_openmpi_source [REMEDY]: sets `tarball` and `version`, its caller's.
find_openmpi_source() {
    local remedy="pass --openmpi-tarball=FILE, a source release of Open MPI 5.0${1:+, or $1}"
    if [ -n "$openmpi_tarball" ]; then
        tarball=$openmpi_tarball
        version=$(tarball_version "$tarball")
    elif is_debian_like; then
        fetch_openmpi_source "$openmpi_wanted" "$remedy"
        tarball=$openmpi_fetched
        version=$openmpi_fetched_version
    else
        fail "this machine has no apt to fetch Open MPI's source with; $remedy"
    fi
    [[ $version == 5.0.* ]] || fail "gpusm needs Open MPI 5.0, but $tarball holds ${version:-something else}"
}

make_openmpi() {
    local key=$1 tarball version
    need_packages flex m4 perl libnuma-dev zlib1g-dev xz-utils bzip2 file patch
    need_tools patch
    find_libcuda_stub
    find_openmpi_source "--with-openmpi=PREFIX (5.0, configured --with-cuda and --with-devel-headers)"
    openmpi_dir=$cache/openmpi-$version-$key
    [ ! -e "$openmpi_dir/.complete" ] || return 0
    say "building Open MPI $version into $openmpi_dir; this happens once and takes 5 to 15 minutes"
    build_openmpi "$tarball" "$openmpi_dir"
}

# patch_openmpi SOURCE: mends what gpusm cannot mend itself (patches/), as far as it fits this version,
# and sets openmpi_package, by which that build tells what it is (configure --with-package-string).
patch_openmpi() {
    local patch name applied=
    for patch in "$top"/patches/*.patch; do
        name=$(basename "$patch" .patch)
        if patch -d "$1" -p1 --forward --force --dry-run <"$patch" >"$logs/openmpi-patch.log" 2>&1 &&
            patch -d "$1" -p1 --forward --force <"$patch" >"$logs/openmpi-patch.log" 2>&1; then
            say "patched Open MPI: patches/$name.patch"
            applied+=" $name"
        else
            say "not patched, as it does not fit this version of Open MPI: patches/$name.patch ($logs/openmpi-patch.log)"
        fi
    done
    openmpi_package="Open MPI, built by gpusm${applied:+, patched:$applied}"
}

# openmpi_patches PREFIX: names of the patches that its build has; nothing when it has none
openmpi_patches() { openmpi_says "$1" package | tr -d '"' | sed -n 's/.*, patched: //p'; }

# build_openmpi TARBALL PREFIX: PREFIX/.complete appears when everything is there.
build_openmpi() {
    local tarball=$1 prefix=$2 work=$2.build
    rm -rf "$prefix" "$work"
    mkdir -p "$work/source" "$work/build"
    step "unpacking Open MPI" "$logs/openmpi-unpack.log" \
        tar xf "$tarball" -C "$work/source" --strip-components=1
    patch_openmpi "$work/source"
    cd "$work/build"
    step "configuring Open MPI" "$logs/openmpi-configure.log" \
        ../source/configure --prefix="$prefix" --with-cuda="$cuda_dir" \
        --with-cuda-libdir="$libcuda_dir" --with-package-string="$openmpi_package" "${openmpi_options[@]}"
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

# fetch_openmpi_source VERSION REMEDY: Debian's source package of Open MPI, suite trixie, of that version or
# else the newest, through an apt configuration of its own: the machine's sources stay as they are, and apt checks the signature.
# Sets openmpi_fetched and openmpi_fetched_version. The remedy is what to do where there is none.
fetch_openmpi_source() {
    local apt=$cache/apt keyring=/usr/share/keyrings/debian-archive-keyring.gpg archive versions version error=
    need_packages debian-archive-keyring xz-utils
    [ -r "$keyring" ] || fail "Debian's archive keys are not installed ($keyring); $2"
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
            >"$logs/apt-source.log" 2>&1 9>&-; then
            versions=$(APT_CONFIG=$apt/apt.conf apt-cache showsrc openmpi 2>>"$logs/apt-source.log" |
                awk '/^Version: 5\.0\./ { print $2 }' | sort -V -u)
            [ -z "$versions" ] || break
        else
            error=$(last_error "$logs/apt-source.log")
        fi
    done
    [ -n "$versions" ] ||
        fail "this machine's apt sources lead to no Debian archive with Open MPI 5.0 (suite trixie${error:+; apt-get says \"$error\"}; $logs/apt-source.log); $2"
    version=$(grep -E "^${1//./\\.}-" <<<"$versions" | tail -n 1 || true)
    if [ -z "$version" ]; then
        version=$(tail -n 1 <<<"$versions")
        say "the archive has no Open MPI $1 any more; taking $version"
    fi
    cd "$apt/source"
    APT_CONFIG=$apt/apt.conf step "fetching the source of Open MPI $version" \
        "$logs/apt-source.log" apt-get -q source --download-only "openmpi=$version"
    cd "$top"
    openmpi_fetched_version=${version%%-*}
    openmpi_fetched_version=${openmpi_fetched_version%%+*}
    openmpi_fetched=$(find "$apt/source" -name "openmpi_$openmpi_fetched_version*.orig.tar.*" ! -name '*.asc' | head -n 1)
    [ -n "$openmpi_fetched" ] || fail "the source package of Open MPI $version has no orig tarball ($apt/source); $2"
}
