# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# wheel/openmpi.sh: Open MPI as the wheel carries it, built once into the cache.
# shellcheck shell=bash disable=SC2154,SC2164 # make-wheel sets the names, and set -e

# The layout of a CUDA build, so that ob1 has limits of its own for device memory; accelerator/gpusm
# and coll/gpusm stand in the places of what needs the driver's library when it is linked. And nothing
# of what this machine happens to have: only glibc and zlib may be needed.
wheel_openmpi_options=(
    --enable-mca-no-build=accelerator-cuda,coll-cuda,btl-smcuda,rcache-gpusm,rcache-rgpusm
    --disable-static --disable-libompitrace --disable-libxml2 --disable-pci --disable-opencl
    --disable-nvml --disable-libudev --without-libnl --without-psm2 --without-xpmem --without-munge
    --without-curl --without-jansson --disable-dependency-tracking)

# find_wheel_openmpi: sets openmpi_dir and openmpi_version_built.
find_wheel_openmpi() {
    local key candidate
    # The key covers the options, the patches, and the text of what builds it.
    key=$(printf '%s\n' "${openmpi_options[@]}" "${wheel_openmpi_options[@]}" \
        "$(declare -f build_wheel_openmpi patch_openmpi arrange_libraries)" \
        "$(cat "$top"/patches/*.patch)" "$(cat "$top/tools/wheel/library_prefix.c")" |
        sha256sum | cut -c1-12)
    if [ -z "$openmpi_tarball" ]; then
        for candidate in "$cache"/wheel-openmpi-5.0.*-"$key"; do
            [ ! -e "$candidate/.complete" ] || openmpi_dir=$candidate
        done
    fi
    [ -n "${openmpi_dir-}" ] || make_wheel_openmpi "$key"
    openmpi_version_built=$(openmpi_version "$openmpi_dir")
}

make_wheel_openmpi() {
    local key=$1 tarball version
    find_openmpi_source
    openmpi_dir=$cache/wheel-openmpi-$version-$key
    [ ! -e "$openmpi_dir/.complete" ] || return 0
    build_wheel_openmpi "$tarball" "$openmpi_dir"
}

# build_wheel_openmpi TARBALL TO: TO/.complete appears when everything is there.
build_wheel_openmpi() {
    local tarball=$1 to=$2 work=$2.build folder
    say "building Open MPI for the wheel in $to; this happens once and takes 5 to 15 minutes"
    rm -rf "$to" "$work"
    mkdir -p "$work/source" "$work/build"
    step "unpacking Open MPI" "$logs/openmpi-unpack.log" \
        tar xf "$tarball" -C "$work/source" --strip-components=1
    patch_openmpi "$work/source"
    cat "$top/tools/wheel/library_prefix.c" \
        >>"$work/source/3rd-party/openpmix/src/mca/pinstalldirs/env/pmix_pinstalldirs_env.c"
    cd "$work/build"
    step "configuring Open MPI" "$logs/openmpi-configure.log" env USER=builder HOSTNAME=localhost \
        ../source/configure --prefix=/opt/gpusm --with-cuda="$cuda_dir" \
        --with-cuda-libdir="$libcuda_dir" --with-package-string="$openmpi_package" \
        "${openmpi_options[@]}" "${wheel_openmpi_options[@]}" \
        CFLAGS="-O2 -ffile-prefix-map=$work=/openmpi"
    # What ompi_info and its kin say of the build shall not name this machine's folders.
    find . \( -name '*_config.h' -o -name version.h -o -path '*_info/Makefile' \) \
        -exec sed -i "/#define\|_BUILD_/s|$work|/openmpi|g" {} +
    step "compiling Open MPI" "$logs/openmpi-make.log" make -j"$(job_count)"
    step "installing Open MPI" "$logs/openmpi-install.log" make install-strip DESTDIR="$work/stage"
    for folder in opal/mca/threads/pthreads opal/mca/timer/linux; do
        mkdir -p "$work/stage/opt/gpusm/include/openmpi/$folder"
        cp "../source/$folder"/*.h "$work/stage/opt/gpusm/include/openmpi/$folder/"
    done
    mkdir "$work/stage/opt/gpusm/licenses"
    collect_licenses "$work" "$work/stage/opt/gpusm/licenses"
    cd "$top"
    arrange_libraries "$work/stage/opt/gpusm"
    mv "$work/stage/opt/gpusm" "$to"
    rm -rf "$work"
    touch "$to/.complete"
}

collect_licenses() {
    local work=$1 to=$2
    cp "$work/source/LICENSE" "$to/LICENSE.openmpi"
    cp "$work/source/3rd-party/openpmix/LICENSE" "$to/LICENSE.openpmix"
    cp "$work/source/3rd-party/prrte/LICENSE" "$to/LICENSE.prrte"
    cp "$work/source/3rd-party/treematch/LICENSE" "$to/LICENSE.treematch"
    cp "$work"/build/3rd-party/hwloc-*/COPYING "$to/LICENSE.hwloc"
    cp "$work"/build/3rd-party/libevent-*/LICENSE "$to/LICENSE.libevent"
}

# arrange_libraries PREFIX: as the environment will have them. lib/ is shared with other packages and
# gets only what is Open MPI's own; what it brings along lies in lib/openmpi. A library is a file of
# its soname; links without a version are for linking the components here.
arrange_libraries() {
    local prefix=$1 link file soname folder
    find "$prefix/lib" -name '*.la' -delete
    for link in "$prefix"/lib/lib*.so; do
        file=$(readlink -f "$link")
        soname=$(patchelf --print-soname "$file")
        case $soname in
        libmpi.* | libopen-pal.*) folder= ;;
        *) folder=openmpi/ ;;
        esac
        rm -f "$link"
        mv "$file" "$prefix/lib/.$soname"
        rm -f "$prefix/lib/$soname"
        mv "$prefix/lib/.$soname" "$prefix/lib/$folder$soname"
        ln -s "$folder$soname" "$link"
    done
    find "$prefix/lib" -maxdepth 1 -type l -name '*.so.*' -delete
    find_own_libraries "$prefix"
}

# find_own_libraries PREFIX: programs and libraries look for each other beside themselves, before
# they look where LD_LIBRARY_PATH says, which may name another Open MPI.
find_own_libraries() {
    local prefix=$1 file origin
    while IFS= read -r -d '' file; do
        # shellcheck disable=SC2016 # for the dynamic linker
        case ${file#"$prefix"/} in
        bin/*) origin='$ORIGIN/../lib:$ORIGIN/../lib/openmpi' ;;
        lib/openmpi/*) origin='$ORIGIN:$ORIGIN/..' ;;
        lib/*/*) origin='$ORIGIN/../openmpi' ;;
        *) origin='$ORIGIN:$ORIGIN/openmpi' ;;
        esac
        if readelf -d "$file" 2>/dev/null | grep -q NEEDED; then
            patchelf --force-rpath --set-rpath "$origin" "$file"
        fi
    done < <(find "$prefix/bin" "$prefix/lib" -type f -print0)
}
