#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_fuzz.sh: builds the fuzz targets of this folder with clang's libFuzzer, and runs them, two at a
# time. In tests/fuzz-build of the build folder stay the programs, the inputs that reached something
# new, from which the next run goes on, and in found-NAME what failed: fuzz_NAME FILE repeats it.
#   GPUSM_FUZZ_SECONDS   for each (60); from 240 on with a longer GPUSM_TEST_TIMEOUT_S
# shellcheck disable=SC2086 # lists of options, and of files without blanks in their names
set -u
seconds=${GPUSM_FUZZ_SECONDS:-60}
top=${GPUSM_SRCDIR:?is set by tests/environment}
layers=$top/opal/mca/common/gpusm
flags="-std=c++20 -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -I$top $GPUSM_TEST_CPPFLAGS"
names="control stream descriptors exports fast_box fifo"
export ASAN_OPTIONS=quarantine_size_mb=32
export LD_LIBRARY_PATH="$GPUSM_SOFTCUDA_LIB"
mkdir -p "$GPUSM_BUILDDIR/tests/fuzz-build" && cd "$GPUSM_BUILDDIR/tests/fuzz-build" || exit 1

echo 'extern "C" int LLVMFuzzerTestOneInput(const char *, unsigned long) { return 0; }' >probe.cc
if ! clang++ -fsanitize=fuzzer,address,undefined probe.cc -o probe >probe.log 2>&1; then
    cat probe.log
    echo "clang++ with its libFuzzer is missing (packages clang and libclang-rt-dev)"
    exit 77
fi

build() {
    printf '%s\n' $layers/base/log.cc $layers/base/threads.cc $layers/gpu/device.cc $layers/gpu/driver.cc $layers/shm/*.cc \
        $layers/protocol/*.cc $layers/ipc/*.cc |
        xargs -P 2 -n 1 clang++ $flags -fsanitize=fuzzer-no-link -c &&
        printf '%s\n' $names |
        xargs -P 2 -I @ sh -c "clang++ $flags -fsanitize=fuzzer $top/tests/fuzz/fuzz_@.cc *.o -o fuzz_@ \
            -Wl,--wrap=mmap,--wrap=munmap $GPUSM_TEST_LIBS -ldl -lpthread"
}
if [ ! -e built ] || [ -n "$(find "$top/opal" "$top/tests" -name '*.[ch]*' -newer built)" ]; then
    rm -f built ./*.o
    build || exit 1
    touch built
fi

fuzz() {
    rm -rf "found-$1"
    mkdir -p "corpus-$1" "found-$1"
    "./fuzz_$1" --write-seeds "corpus-$1"
    # Those two are about the messages of one protocol.
    case $1 in control | stream) limit=$(((seconds + 1) / 2)) ;; *) limit=$seconds ;; esac
    timeout -k 10 $((limit + 60)) "./fuzz_$1" "corpus-$1" -max_total_time="$limit" -max_len=512 \
        -len_control=0 -timeout=10 -rss_limit_mb=2048 -reload=0 -print_final_stats=1 \
        -artifact_prefix="found-$1/" >"$1.log" 2>&1
    echo $? >"$1.status"
}
started=0
for name in $names; do
    fuzz "$name" &
    started=$((started + 1))
    [ $((started % 2)) -ne 0 ] || wait
done
wait

failed=0
for name in $names; do
    status=$(cat "$name.status")
    echo "    $name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$name.log") executions," \
        "coverage $(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$name.log" | tail -n 1)"
    if [ "$status" -eq 0 ]; then
        echo "PASS: fuzz/$name"
    else
        tail -n 40 "$name.log" | sed 's/^/    | /'
        echo "    status $status; the input is $(find "$PWD/found-$name" -type f | head -n 1)"
        echo "FAIL: fuzz/$name"
        failed=1
    fi
done
exit $failed
