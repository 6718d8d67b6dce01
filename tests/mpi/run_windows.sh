#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_windows.sh: operations on windows in host and device memory: all of them in every kind of
# epoch, with derived datatypes, on windows of every flavour, by all ranks on the same numbers, by
# threads, and what is wrong in them is refused.
#   GPUSM_TEST_WINDOWS_KINDS  letters of --kinds instead of those that are there
#   GPUSM_TEST_STOCK_WINDOWS  set: windows in host memory are those of Open MPI's own components, and
#                             what these do wrong is not tried
# shellcheck disable=SC2016,SC2154 # conditions are evaluated later; set by common.sh
. "$(dirname "$0")/common.sh"
let_others_run

kinds=${GPUSM_TEST_WINDOWS_KINDS:-$kinds}
few=$(echo "$kinds" | tr -cd HDM)
stock=${GPUSM_TEST_STOCK_WINDOWS-}
stock_option=
[ -z "$stock" ] || stock_option="-x GPUSM_TEST_STOCK_WINDOWS=$stock"

# passes NAME SECONDS RANKS KINDS SUBTEST [OPTIONS OF MPIRUN] [-- OPTIONS OF THE SUBTEST]
passes() {
    name=$1
    seconds=$2
    ranks=$3
    of=$4
    what=$5
    shift 5
    options=
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        options="$options $1"
        shift
    done
    [ $# -eq 0 ] || shift
    # shellcheck disable=SC2086 # lists of options
    launch "$seconds" "$ranks" $stock_option $options "$exchange" "$what" --kinds "$of" "$@"
    judge "$name" 0 $? 'says "$what: passed, [1-9]"' "it does not pass"
}
for ranks in 1 2 4; do
    passes "$ranks-ranks" 90 "$ranks" "$kinds" windows
done
for ranks in 3 8; do
    passes "$ranks-ranks" 90 "$ranks" "$few" windows -- --max-size 65536
done
for each in types flavours; do
    for ranks in 1 3; do
        passes "$each-of-$ranks-ranks" 60 "$ranks" "$kinds" "windows-$each"
    done
done
passes flavours-of-8-ranks 60 8 "$few" windows-flavours -- --rounds 10
for each in atomics epochs ends errors; do
    for ranks in 1 2 4; do
        passes "$each-of-$ranks-ranks" 60 "$ranks" "$kinds" "windows-$each"
    done
done
for ranks in 1 2 4; do
    passes "threads-of-$ranks-ranks" 60 "$ranks" "$few" windows-threads
done
for each in atomics epochs; do
    passes "$each-of-8-ranks" 60 8 "$few" "windows-$each"
done
passes every-pair-of-two-kinds 60 2 "$(echo "$kinds" | cut -c1-2)" windows -- --rounds 4 --max-size 4096
# Mappable device memory is the devices' work; managed memory is copied by its owner.
if [ -z "$stock" ] && need_gpu windows-by-devices; then
    launch 60 2 "$exchange" windows-atomics --kinds D
    judge windows-by-devices 0 $? 'says "rank 0: device_copies [1-9][0-9]*, device_reductions [1-9]"' \
        "devices have copied and calculated nothing" 'says "rank 0: .*owner_bytes 0$"' "owners have copied"
    launch 60 2 "$exchange" windows-atomics --kinds M
    judge windows-by-owners 0 $? 'says "rank 0: .*owner_bytes [1-9]"' "owners have copied nothing"
fi
# Who has asked an owner that cannot answer is told. The library knows the layout of Open MPI 5.0.
case ${GPUSM_OMPI_VERSION-} in
5.0.*)
    if [ -z "$stock" ] && need_gpu windows-whose-owner-fails; then
        passes windows-whose-owner-fails 60 2 M windows-ends -x LD_PRELOAD="$GPUSM_BUILDDIR/tests/mpi/refuse_message.so"
    fi
    ;;
esac
# Without mappings Open MPI copies what is the process's own, and its owner all else.
if [ -z "$stock" ] && need_gpu windows-without-mappings; then
    for each in windows windows-types windows-atomics; do
        passes "$each-without-mappings" 120 2 D "$each" --mca btl_gpusm_use_cuda_ipc 0
    done
fi
# Devices copy into host memory, and the processor as well.
case $kinds in
*M*R* | *R*M*) passes epochs-of-host-memory 60 1 MR windows-epochs ;;
esac
# What the driver refuses goes another way, or is tried once more.
if need_softcuda windows-whose-driver-fails; then
    for call in cuIpcGetMemHandle:1:2 cuIpcOpenMemHandle:1:2 cuIpcOpenMemHandle:0:217 cuModuleLoadData:0:2 cuMemcpyAsync:5:2 \
        cuLaunchKernel:5:2 cuLaunchKernel:0:1 cuEventQuery:5:2 cuStreamCreateWithPriority:1:2; do
        for each in windows windows-types; do
            passes "$each-where-$call-fails" 60 2 D "$each" -x GPUSM_SOFTCUDA_FAIL="$call" \
                -x GPUSM_SOFTCUDA_FAIL_CALLER=libmca_common_gpusm.so -- --max-size 65536
        done
    done
fi
# A process that is killed: who waits for it is told.
if [ -z "$stock" ] && need_gpu windows-of-a-killed-process; then
    for kind in D M; do # memory of M is written by its owner
        launch 60 3 --with-ft ulfm "$exchange" windows-survive --kinds $kind
        # A survivor may wait for the dead one in MPI_Finalize: docs/reliability.md.
        judge "windows-of-a-killed-process-$kind" 0 0 '[ "$(count_in_output "windows: rank . survived")" -eq 2 ]' \
            "not all who waited have been told" '! says FAILED' "who waited was told something else"
    done
fi
# What it has made for its windows is removed.
if [ -z "$stock" ]; then
    mkdir "$work/segments"
    launch 60 2 --mca btl_gpusm_backing_directory "$work/segments" \
        -x LD_PRELOAD="$GPUSM_BUILDDIR/tests/mpi/killed_in_unlink.so" "$exchange" windows --kinds H
    judge no-file-of-a-killed-process-stays 0 0 'says "signal 9"' "no process was killed" \
        '[ -z "$(ls -A "$work/segments")" ]' "there is $(ls -A "$work/segments")"
fi
finish
