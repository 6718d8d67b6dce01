# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# setup/cuda.sh: cuda.h to compile with, and a libcuda.so to link Open MPI with. Neither needs a GPU,
# and gpusm itself is linked with no libcuda.
# shellcheck shell=bash disable=SC2154,SC2164 # quickstart sets the names, and set -e

# find_cuda: sets cuda_dir, a folder with include/cuda.h.
find_cuda() {
    local candidate nvcc
    if [ -n "$with_cuda" ]; then
        [ -r "$with_cuda/include/cuda.h" ] ||
            fail "there is no include/cuda.h in $with_cuda; correct --with-cuda=DIR"
        cuda_dir=$(cd "$with_cuda" && pwd)
        return
    fi
    nvcc=$(command -v nvcc || true)
    for candidate in /usr/local/cuda ${nvcc:+"$(dirname "$(dirname "$(readlink -f "$nvcc")")")"} \
        /usr "$cache/cuda-headers"; do
        if [ -r "$candidate/include/cuda.h" ]; then
            cuda_dir=$candidate
            return
        fi
    done
    fetch_cuda_headers
    cuda_dir=$cache/cuda-headers
}

# cuda.h out of NVIDIA's Python package of the CUDA runtime. It is unpacked, never installed.
fetch_cuda_headers() {
    local work=$cache/cuda-headers.new name error=
    say "no cuda.h on this machine; fetching it from NVIDIA's Python package of the CUDA runtime"
    need_packages python3 python3-pip
    need_tools python3
    python3 -m pip --version >/dev/null 2>&1 ||
        fail "cuda.h is missing and so is pip to fetch it; install the CUDA toolkit's headers and pass --with-cuda=DIR"
    for name in nvidia-cuda-runtime-cu12 nvidia-cuda-runtime; do
        rm -rf "$work"
        mkdir -p "$work/wheel"
        if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps \
            --only-binary :all: --dest "$work" "$name" >"$logs/cuda-headers.log" 2>&1 9>&-; then
            error=$(last_error "$logs/cuda-headers.log")
            continue
        fi
        python3 -m zipfile -e "$work"/*.whl "$work/wheel"
        local header
        header=$(find "$work/wheel" -path '*/include/cuda.h' | head -n 1)
        if [ -n "$header" ]; then
            cp -R "$(dirname "$header")" "$work/include"
            rm -rf "$work/wheel" "$work"/*.whl "$cache/cuda-headers"
            mv "$work" "$cache/cuda-headers"
            return
        fi
    done
    fail "cuda.h could not be fetched${error:+: pip says \"$error\"} ($logs/cuda-headers.log); install the CUDA toolkit's headers and pass --with-cuda=DIR"
}

# find_libcuda_stub: sets libcuda_dir, a folder with a libcuda.so to link Open MPI's own CUDA
# components with. Without the toolkit's stub the stand-in driver of the tests serves.
find_libcuda_stub() {
    local candidate
    for candidate in "$cuda_dir/lib64/stubs" "$cuda_dir/lib/stubs" \
        "$cuda_dir/targets/$(uname -m)-linux/lib/stubs"; do
        if [ -e "$candidate/libcuda.so" ]; then
            libcuda_dir=$candidate
            return
        fi
    done
    libcuda_dir=$cache/libcuda-stub
    [ ! -e "$libcuda_dir/libcuda.so" ] || return 0
    local sources
    sources=$(find "$top/tests/softcuda" -maxdepth 1 -name '*.cc' ! -name '*_test.cc')
    mkdir -p "$libcuda_dir"
    # Open MPI's configure looks for this function's oldest version, which nothing calls.
    echo 'extern "C" int cuMemFree(unsigned int) { return 801; }' >"$libcuda_dir/oldest.cc"
    # shellcheck disable=SC2086 # a list of files
    step "building a libcuda.so to link with" "$logs/libcuda-stub.log" \
        g++ -std=c++20 -O1 -shared -fPIC -I"$top" -I"$cuda_dir/include" $sources \
        "$libcuda_dir/oldest.cc" \
        -Wl,-soname,libcuda.so.1 -o "$libcuda_dir/libcuda.so.new" -lpthread -lrt
    mv "$libcuda_dir/libcuda.so.new" "$libcuda_dir/libcuda.so"
}
