#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_ptx.sh: the PTX text of each kernel that is checked in is what nvcc makes of the source beside
# it, and a build that cannot use nvcc takes it.
. "$(dirname "$0")/common.sh"
gpu=$top/opal/mca/common/gpusm/gpu
nvcc=${GPUSM_NVCC:-}
kernels='gather reduce strided'
printf '.version 7.8\n.target sm_70\n' >"$work/wanted"
printf '#!/bin/sh\necho what a pity >&2\nexit 1\n' >"$work/bad-nvcc"
chmod +x "$work/bad-nvcc"

# --- without nvcc -----------------------------------------------------------------------------------
# header NVCC FILE, for $kernel
header() {
    sh "$gpu/make-ptx" header "$1" "$gpu/${kernel}_kernel.cu" "$gpu/${kernel}_kernel.ptx" "$work/$2" 2>"$work/said"
}

for kernel in $kernels; do
    text=$gpu/${kernel}_kernel.ptx
    head -n 5 "$text" | tail -n 2 >"$work/target"
    report "$kernel: the text is for drivers from CUDA 11.8 and GPUs from Volta on" "$(diff "$work/wanted" "$work/target")"

    header '' none.h
    sed -e '1,/R"ptx(/{/R"ptx(/!d;s/.*R"ptx(//;}' -e '/^)ptx";$/,$d' "$work/none.h" >"$work/none.ptx"
    report "$kernel: a build without nvcc takes the text as it is" "$(diff "$text" "$work/none.ptx" 2>&1; cat "$work/said")"

    header "$work/bad-nvcc" bad.h
    report "$kernel: so does one whose nvcc fails" "$(diff "$work/none.h" "$work/bad.h" 2>&1)"
    report "$kernel: and says so" "$(grep -q 'what a pity' "$work/said" && grep -q "from ${kernel}_kernel.ptx instead" "$work/said" || echo "it said: $(cat "$work/said")")"
done

# --- with nvcc --------------------------------------------------------------------------------------
if [ -z "$nvcc" ]; then
    skip "the texts are what nvcc makes of the kernels" "configure found no nvcc"
    exit $failed
fi
ptxas=$(dirname "$(readlink -f "$nvcc")")/ptxas

# For $kernel, whose text is $text.
check_text() {
    if ! sh "$gpu/make-ptx" compile "$nvcc" "$gpu/${kernel}_kernel.cu" "$work/new.ptx" 2>"$work/said"; then
        report "$kernel: nvcc compiles the kernel" "$(cat "$work/said")"
        return
    fi
    report "$kernel: nvcc compiles the kernel without a warning" "$(cat "$work/said")"
    if [ "$(sed -n 3p "$text")" != "$(sed -n 3p "$work/new.ptx")" ]; then
        # Another compiler, another text. What the host relies on must be the same.
        for each in "$text" "$work/new.ptx"; do
            grep -A 1 -E '^\.visible \.entry|^\.global' "$each" | sort >"$work/${each##*/}.entries"
        done
        report "$kernel: the text has the entries that nvcc makes of the kernel" \
            "$(diff "$work/${kernel}_kernel.ptx.entries" "$work/new.ptx.entries")"
        skip "$kernel: the text is what nvcc makes of the kernel" "$(sed -n 's/.* with \(nvcc .*\)\. Do.*/\1/p' "$text") made it," \
            "here is $(sed -n 's/.* with \(nvcc .*\)\. Do.*/\1/p' "$work/new.ptx")"
        return
    fi
    report "$kernel: the text is what nvcc makes of the kernel" "$(diff "$text" "$work/new.ptx" | head -n 20)"

    # A stack frame would make the driver set aside memory for every thread that the device can run.
    entries=$(grep -c '^\.visible \.entry' "$text")
    report "$kernel: it needs no memory of its own, and two blocks fit on a multiprocessor" "$(for arch in sm_75 sm_80 sm_90 sm_100; do
        "$ptxas" -v -arch=$arch -o "$work/cubin" "$text" >"$work/$arch" 2>&1
        [ "$(grep -c '0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads' "$work/$arch")" = "$entries" ] ||
            { echo "$arch:"; cat "$work/$arch"; }
        sed -n 's/.*Used \([0-9]*\) registers.*/\1/p' "$work/$arch" | awk -v arch=$arch '$1 > 64 { print arch ": " $1 " registers" }'
    done)"
}

for kernel in $kernels; do
    text=$gpu/${kernel}_kernel.ptx
    check_text
done
exit $failed
