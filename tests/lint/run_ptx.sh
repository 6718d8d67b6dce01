#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_ptx.sh: the PTX text of the gather kernel that is checked in is what nvcc makes of the source
# beside it, and a build that cannot use nvcc takes it.
. "$(dirname "$0")/common.sh"
gpu=$top/opal/mca/common/gpusm/gpu
text=$gpu/gather_kernel.ptx
nvcc=${GPUSM_NVCC:-}
header() { sh "$gpu/make-ptx" header "$1" "$gpu/gather_kernel.cu" "$text" "$work/$2" 2>"$work/said"; }

# --- without nvcc -----------------------------------------------------------------------------------
head -n 5 "$text" | tail -n 2 >"$work/target"
printf '.version 7.8\n.target sm_70\n' >"$work/wanted"
report "the text is for drivers from CUDA 11.8 and GPUs from Volta on" "$(diff "$work/wanted" "$work/target")"

header '' none.h
sed -e '1,/R"ptx(/{/R"ptx(/!d;s/.*R"ptx(//;}' -e '/^)ptx";$/,$d' "$work/none.h" >"$work/none.ptx"
report "a build without nvcc takes the text as it is" "$(diff "$text" "$work/none.ptx" 2>&1; cat "$work/said")"

printf '#!/bin/sh\necho what a pity >&2\nexit 1\n' >"$work/bad-nvcc"
chmod +x "$work/bad-nvcc"
header "$work/bad-nvcc" bad.h
report "so does one whose nvcc fails" "$(diff "$work/none.h" "$work/bad.h" 2>&1)"
report "and says so" "$(grep -q 'what a pity' "$work/said" && grep -q 'from gather_kernel.ptx instead' "$work/said" || echo "it said: $(cat "$work/said")")"

# --- with nvcc --------------------------------------------------------------------------------------
if [ -z "$nvcc" ]; then
    skip "the text is what nvcc makes of the kernel" "configure found no nvcc"
    exit $failed
fi
if ! sh "$gpu/make-ptx" compile "$nvcc" "$gpu/gather_kernel.cu" "$work/new.ptx" 2>"$work/said"; then
    report "nvcc compiles the kernel" "$(cat "$work/said")"
    exit $failed
fi
report "nvcc compiles the kernel without a warning" "$(cat "$work/said")"
if [ "$(sed -n 3p "$text")" != "$(sed -n 3p "$work/new.ptx")" ]; then
    # Another compiler, another text. What the host relies on must be the same.
    for each in "$text" "$work/new.ptx"; do
        grep -A 1 -E '^\.visible \.entry|^\.global' "$each" | sort >"$work/${each##*/}.entries"
    done
    report "the text has the entries that nvcc makes of the kernel" \
        "$(diff "$work/gather_kernel.ptx.entries" "$work/new.ptx.entries")"
    skip "the text is what nvcc makes of the kernel" "$(sed -n 's/.* with \(nvcc .*\)\. Do.*/\1/p' "$text") made it," \
        "here is $(sed -n 's/.* with \(nvcc .*\)\. Do.*/\1/p' "$work/new.ptx")"
    exit $failed
fi
report "the text is what nvcc makes of the kernel" "$(diff "$text" "$work/new.ptx" | head -n 20)"

# A stack frame would make the driver set aside memory for every thread that the device can run.
ptxas=$(dirname "$(readlink -f "$nvcc")")/ptxas
report "the kernel needs no memory of its own, and two blocks fit on a multiprocessor" "$(for arch in sm_75 sm_80 sm_90 sm_100; do
    "$ptxas" -v -arch=$arch -o "$work/cubin" "$text" >"$work/$arch" 2>&1
    [ "$(grep -c '0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads' "$work/$arch")" = 2 ] ||
        { echo "$arch:"; cat "$work/$arch"; }
    sed -n 's/.*Used \([0-9]*\) registers.*/\1/p' "$work/$arch" | awk -v arch=$arch '$1 > 64 { print arch ": " $1 " registers" }'
done)"
exit $failed
