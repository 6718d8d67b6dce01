#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_info.sh: gpusm_info prints a page whatever is wrong; each finding is there when what it is about
# is so, and not otherwise; its JSON is what docs/gpusm_info.schema.json describes.
# shellcheck disable=SC1091,SC2016,SC2034,SC2086,SC2154 # conditions are evaluated later; lists of words
. "$(dirname "$0")/common.sh"

info=${GPUSM_INFO:-$GPUSM_BUILDDIR/tools/gpusm_info/gpusm_info}
schema=$GPUSM_SRCDIR/docs/gpusm_info.schema.json
PATH=$GPUSM_OMPI_PREFIX/bin:$PATH
if [ "${GPUSM_TEST_COMPONENTS-}" != openmpi ]; then
    export OMPI_MCA_mca_base_component_path="$GPUSM_BUILDDIR/tests/components:SYS_DEFAULT"
fi

# --- how its JSON is read -----------------------------------------------------------------------------
# check-json FILE [SEVERITY ID]: it is valid, and has that finding
cat >"$work/check-json" <<'EOT'
import json, sys
page = json.load(open(sys.argv[2], encoding="utf-8"))
try:
    import jsonschema
    jsonschema.validate(page, json.load(open(sys.argv[1])))
except ImportError:
    pass
if len(sys.argv) > 4:
    found = [each for each in page["findings"] if each["id"] == sys.argv[4]]
    assert [each["severity"] for each in found][:1] == [sys.argv[3]], page["findings"]
EOT
have_python=no
if ! command -v python3 >/dev/null 2>&1; then
    skip json "no python3 to read it"
else
    have_python=yes
    if python3 -c 'import jsonschema' 2>/dev/null; then
        python3 -c 'import json, sys, jsonschema
jsonschema.Draft7Validator.check_schema(json.load(open(sys.argv[1])))' "$schema" >"$work/output" 2>&1
        judge schema 0 $?
        python3 -c 'import json, sys; page = {"format": 1}; json.dump(page, open(sys.argv[1], "w"))' "$work/bad.json"
        python3 "$work/check-json" "$schema" "$work/bad.json" >"$work/output" 2>&1
        judge schema-refuses 1 $? 'says "ValidationError"' "a page without members is valid"
    else
        skip schema "Python has no module jsonschema (python3-jsonschema): pages are read, not validated"
    fi
fi

# page WORDS...: what a program that ends with gpusm_info prints, in $work/output, under a deadline
page() { timeout -k 5 $((60 * slowness)) "$@" >"$work/output" 2>&1 </dev/null; }
# json NAME [SEVERITY ID] -- WORDS...: a case that passes when its JSON is valid and has the finding
json() {
    [ $have_python = yes ] || return 0
    json_name=$1-json json_severity='' json_id=''
    shift
    if [ "$1" != -- ]; then
        json_severity=$1 json_id=$2
        shift 2
    fi
    shift
    timeout -k 5 $((60 * slowness)) "$@" --json >"$work/page.json" 2>"$work/errors" </dev/null
    json_status=$?
    # shellcheck disable=SC2086 # none, or two words
    python3 "$work/check-json" "$schema" "$work/page.json" $json_severity $json_id >"$work/output" 2>&1
    judge "$json_name" 0 $((json_status + $?)) '[ ! -s "$work/errors" ]' "something is said besides: $(cat "$work/errors")"
}
# reports SEVERITY ID FILE: whether a page has that finding
reports() { grep -q "^  $1 $2\$" "$3"; }

# What a machine may have without our doing.
of_machines=' shared-memory-small memlock-small descriptors-few single-copies-refused user-namespace no-proc
    openmpi-without-cuda one-device '
# found NAME SEVERITY ID WORDS...: that command ends with gpusm_info, whose page then has the finding. The
# page of the plain case has not.
found() {
    found_name=$1 found_severity=$2 found_id=$3
    shift 3
    page "$@"
    judge "$found_name" 0 $? 'reports $found_severity $found_id "$work/output"' "no $found_severity $found_id"
    json "$found_name" "$found_severity" "$found_id" -- "$@"
    if ! reports "$found_severity" "$found_id" "$work/plain"; then
        pass "$found_name-not-otherwise"
    elif [ "${of_machines#* "$found_id" }" != "$of_machines" ]; then
        skip "$found_name-not-otherwise" "this machine has it, too"
    else
        cp "$work/plain" "$work/output"
        fail "$found_name-not-otherwise" "the plain page has it, too"
    fi
}

# --- the plain case -----------------------------------------------------------------------------------
page "$info"
status=$?
cp "$work/output" "$work/plain"
judge text 0 $status \
    '[ "$(grep -cE "^(Open MPI|CUDA driver|Memory of one process.*|Limits|Namespaces and job|Environment|Findings)\$" "$work/output")" -eq 7 ]' \
    "not all sections" 'says "^  btl  *.*gpusm"' "btl/gpusm is not listed" 'says "^  version  *$GPUSM_OMPI_VERSION"' "no version" \
    '! grep -q "^  error " "$work/output"' "an error is reported" '! says "not found"' "something was not found"
[ "$(awk 'length($0) > 100 && !/=/ && !/^  says/' "$work/plain" | grep -vc /)" -eq 0 ]
judge text-has-100-columns 0 $?
json plain -- "$info"
if [ $have_python = yes ] && need_softcuda json-content; then
    timeout 60 "$info" --json >"$work/page.json" </dev/null
    python3 -c 'import json, sys
page = json.load(open(sys.argv[1]))
assert [each["ordinal"] for each in page["devices"]] == [0, 1], page["devices"]
assert page["devices"][0]["uuid"] != page["devices"][1]["uuid"]
assert page["devices"][1]["pci"] == "0000:11:00.0" and page["devices"][1]["memory_bytes"] == 16 << 30
assert [(each["from"], each["to"], each["access"]) for each in page["links"]] == [(0, 1, True), (1, 0, True)]
pairs = {(each["kind"], each["from"], each["to"]): each for each in page["tries"]["memory"]}
assert len(pairs) == 5 * 4 == len(page["tries"]["memory"]), pairs
for (kind, *_), each in pairs.items():
    if kind == "managed":
        assert (each["result"], each["call"]) == ("refused", "cuIpcGetMemHandle"), each
    else:
        assert each["result"] == "mapped", each
assert [each for each in page["environment"] if each["name"] == "LD_LIBRARY_PATH"]
assert page["job"]["rank"] is None and page["limits"]["proc"] and page["tries"]["problem"] is None' \
        "$work/page.json" >"$work/output" 2>&1
    judge json-content 0 $?
fi
if [ $have_python = yes ]; then
    value=$(printf 'a"b\\c\td\377\303\251')
    OMPI_MCA_gpusm_test="$value" timeout 60 "$info" --json --no-tries >"$work/page.json" </dev/null
    python3 -c 'import json, sys
page = json.load(open(sys.argv[1], encoding="utf-8"))
value = [each["value"] for each in page["environment"] if each["name"] == "OMPI_MCA_gpusm_test"]
assert value == ["a\"b\\c\td\ufffd\u00e9"], value
assert not page["tries"]["wanted"] and not page["tries"]["memory"], page["tries"]' "$work/page.json" >"$work/output" 2>&1
    judge json-of-any-bytes 0 $?
fi

NVIDIA_REQUIRE_CUDA=$(printf '%0400d' 0) timeout 60 "$info" --no-tries >"$work/output" </dev/null
judge long-values-are-cut 0 $? 'grep -Eq "^  NVIDIA_REQUIRE_CUDA=0{300} \.\.\. \(400 bytes, " "$work/output"' \
    "a value is told whole"

# --- the driver and its devices -----------------------------------------------------------------------
if need_softcuda driver; then
    found one-device note one-device env CUDA_VISIBLE_DEVICES=1 "$info"
    found no-device note no-device env CUDA_VISIBLE_DEVICES= "$info"
    if env LD_LIBRARY_PATH= python3 -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null; then
        skip no-driver "this machine has a driver besides"
    else
        found no-driver note no-driver env LD_LIBRARY_PATH= "$info"
    fi
    found driver-fails error driver-fails env GPUSM_SOFTCUDA_FAIL=cuInit:0:304 "$info"
    page env GPUSM_SOFTCUDA_FAIL=cuInit:0:304 "$info"
    judge driver-fails-by-name 0 $? 'says "cuInit: CUDA_ERROR_OPERATING_SYSTEM"' "the error has no name" 'says "/proc"' "no advice"
    # driver_of NAME BODY: a driver in that folder of $work that has cuInit only
    driver_of() {
        mkdir "$work/$1" && printf 'extern "C" int cuInit(unsigned) { %s; }\n' "$2" >"$work/$1.cc" &&
            ${CXX:-g++} -shared -fPIC -o "$work/$1/libcuda.so.1" "$work/$1.cc" 2>/dev/null
    }
    if driver_of old 'return 100' && driver_of crashing '__builtin_abort()'; then
        found driver-too-old error driver-too-old env LD_LIBRARY_PATH="$work/old" "$info"
        found driver-crashes error tries-ended env LD_LIBRARY_PATH="$work/crashing" "$info"
        page env LD_LIBRARY_PATH="$work/crashing" "$info"
        judge driver-crashes-by-signal 0 $? 'says "ended with signal 6 (Aborted)" && says "begun: cuInit\$"' "the end is not described"
    else
        skip driver-too-old "no compiler for a driver with one function"
        skip driver-crashes "no compiler for a driver with one function"
    fi
    found no-peers warning memory-not-shared env GPUSM_SOFTCUDA_PEERS=0 "$info"
    page env GPUSM_SOFTCUDA_PEERS=0 "$info"
    judge no-peers-says-which 0 $? 'says "^  device  *mapped: devices 0-0 1-1\$"' "the device itself is not mapped" \
        'says "^  device  *refused, cuIpcOpenMemHandle: CUDA_ERROR_PEER_ACCESS_UNSUPPORTED: devices 0-1 1-0\$"' "no error by name" \
        'says "^  0 -> 1  *access no"' "the link is not said to be missing"
    # One call of the peer's fails, or of the owner's.
    found memory-refused warning memory-not-shared env GPUSM_SOFTCUDA_FAIL=cuMemImportFromShareableHandle:1:999 "$info"
    found memory-not-made warning memory-not-shared env GPUSM_SOFTCUDA_FAIL=cuMemPoolCreate:0:801 "$info"
    # A copy that is said to be made, and is not.
    found memory-wrong error memory-wrong-bytes env GPUSM_SOFTCUDA_FAIL=cuMemcpyDtoD:2:0 "$info"
    found driver-hangs error tries-ended env GPUSM_SOFTCUDA_DELAY_US=100000000 "$info" --timeout 2
    found instances warning mig env GPUSM_SOFTCUDA_INSTANCES=1 "$info"
    found exclusive warning compute-mode-exclusive env GPUSM_SOFTCUDA_ATTRIBUTES=20:3 "$info"
    found prohibited error compute-mode-prohibited env GPUSM_SOFTCUDA_ATTRIBUTES=20:2 "$info"
    page env GPUSM_SOFTCUDA_ATTRIBUTES=133:1,20:3 "$info"
    judge mps 0 $? 'says "MPS yes"' "MPS is not said to run" '! reports note no-mps "$work/output"' "MPS is missed all the same" \
        '! reports warning compute-mode-exclusive "$work/output"' "the compute mode matters with MPS, too"
    reports note no-mps "$work/plain"
    judge no-mps 0 $?
    mkdir "$work/mps" && : >"$work/mps/control"
    page env CUDA_MPS_PIPE_DIRECTORY="$work/mps" "$info"
    judge mps-of-others 0 $? 'reports note no-mps "$work/output"' "taken for MPS of this process" \
        'says "not served by MPS"' "the control file is not seen"
    found two-devices-and-more-ranks warning ranks-share-devices env OMPI_COMM_WORLD_LOCAL_SIZE=3 "$info"
    page env OMPI_COMM_WORLD_LOCAL_SIZE=2 "$info"
    judge as-many-devices-as-ranks 0 $? '! reports warning ranks-share-devices "$work/output"' "a warning"
fi

if need_softcuda many-devices; then
    page env GPUSM_SOFTCUDA_DEVICES=10 "$info"
    judge many-devices 0 $? '[ "$(grep -c "^  device [0-9]" "$work/output")" -eq 10 ]' "not all are listed" \
        'says "only the first 8 were tried"' "it does not say which were tried" 'says "^  device  *mapped: all pairs of devices 0 to 7\$"' "not all of 8 were tried"
fi

# --- in a job -----------------------------------------------------------------------------------------
btl=''
launch 60 3 "$info"
judge job-one-page 0 $? '[ "$(count_in_output "^Findings")" -eq 1 ]' "not one page" 'says "rank 0 of 3, 3 on this node"' "no job" \
    'says "^  btl  *.*gpusm"' "btl/gpusm is not listed"
launch 60 3 --mca btl ^gpusm "$info"
judge job-settings 0 $? 'reports error btl-excluded "$work/output"' "the job's settings are not seen"
launch 60 3 "$info" --every-rank --no-tries
judge job-every-rank 0 $? '[ "$(count_in_output "^Findings")" -eq 3 ]' "not three pages"

slurm() { env SLURM_STEP_NUM_TASKS=8 SLURM_STEP_TASKS_PER_NODE='4(x2)' SLURM_PROCID="$1" SLURM_LOCALID="$2" "$info" --no-tries; }
slurm 4 0 >"$work/output" 2>&1
judge job-of-slurm 0 $? 'says "rank 4 of 8, 4 on this node"' "no job"
slurm 5 1 >"$work/output" 2>&1
judge job-of-slurm-one-page 0 $? '[ ! -s "$work/output" ]' "not the first rank of its node, and says something"

# --- Open MPI -----------------------------------------------------------------------------------------
found btl-excluded error btl-excluded env OMPI_MCA_btl=^gpusm "$info"
found btl-not-named error btl-excluded env OMPI_MCA_btl=sm,self "$info"
page env OMPI_MCA_btl=gpusm,self "$info"
judge btl-named 0 $? '! reports error btl-excluded "$work/output"' "it is named"
found btl-exclusivity warning btl-exclusivity env OMPI_MCA_btl_sm_exclusivity=70000 "$info"
page env OMPI_MCA_btl_sm_exclusivity=70000 OMPI_MCA_btl=gpusm,self "$info"
judge btl-exclusivity-of-one-left-out 0 $? '! reports warning btl-exclusivity "$work/output"' "btl/sm is not used"
found pml error pml-not-ob1 env OMPI_MCA_pml=cm "$info"
found no-smsc warning no-smsc env OMPI_MCA_smsc=^cma,xpmem,knem,accelerator "$info"
found accelerator warning accelerator-excluded env OMPI_MCA_accelerator=null "$info"
found openmpi-not-found error openmpi-not-found env PATH=/nonexistent "$info"
if [ "${GPUSM_TEST_COMPONENTS-}" != openmpi ] && [ ! -e "$GPUSM_OMPI_COMPONENT_DIR/mca_btl_gpusm.so" ]; then
    found btl-not-loaded error btl-not-loaded env OMPI_MCA_mca_base_component_path=SYS_DEFAULT "$info"
    page env OMPI_MCA_mca_base_component_path="$work/lib/pmix" "$info"
    judge btl-not-loaded-by-pmix 0 $? 'says "PMIx has set Open MPI.s path"' "the cause is not named"
else
    skip btl-not-loaded "this Open MPI has btl/gpusm itself"
fi
# other NAME SEVERITY ID SCRIPT [OPTIONS]: with an ompi_info of its own
mkdir "$work/bin"
other() {
    printf '#!/bin/sh\n%s\n' "$4" >"$work/bin/ompi_info"
    chmod 755 "$work/bin/ompi_info"
    other_name=$1 other_severity=$2 other_id=$3
    shift 4
    found "$other_name" "$other_severity" "$other_id" env PATH="$work/bin:$PATH" "$info" "$@"
}
real=$GPUSM_OMPI_INFO
other openmpi-4 error openmpi-too-old 'echo ompi:version:full:4.1.6'
other openmpi-of-another-minor error openmpi-other-version 'echo ompi:version:full:9.9.0'
other openmpi-silent error openmpi-no-answer 'sleep 100' --timeout 2
other openmpi-fails error openmpi-no-answer 'echo ompi:version:full:5.0.7; exit 3'
other openmpi-crashes error openmpi-no-answer 'kill -SEGV $$'
other openmpi-without-cuda note openmpi-without-cuda "$real"' "$@" | sed "s/\(built_with_cuda_support:value\):true/\1:false/"'
other components-missing warning components-missing "$real"' "$@" | grep -v "^mca:osc:gpusm:"'
other pml-ucx note pml-ucx "$real"' "$@"; echo "mca:pml:ucx:version:\"component:5.0.7\""'

# --- limits, namespaces -------------------------------------------------------------------------------
limited='ulimit "$1" "$2" && shift 2 && exec "$@"'
found memlock note memlock-small sh -c "$limited" sh -l 64 "$info"
found descriptors warning descriptors-few sh -c "$limited" sh -n 48 "$info"
apart='unshare --mount'
if ! $apart true 2>/dev/null || ! $apart mount -t tmpfs gpusm-test /mnt 2>/dev/null; then
    skip shared-memory "no tmpfs can be mounted in a mount namespace"
    skip no-proc "no tmpfs can be mounted in a mount namespace"
else
    with='mount -t tmpfs -o "$1" gpusm-test "$2" && shift 2 && exec "$@"'
    # The parameter's value is there with Open MPI's default, /dev/shm.
    found shared-memory-small warning shared-memory-small $apart sh -c "$with" sh size=64m /dev/shm "$info"
    page $apart sh -c "$with" sh size=2g /dev/shm "$info"
    judge shared-memory-large 0 $? '! reports warning shared-memory-small "$work/output"' "2 GiB are small"
    if [ "${GPUSM_SANITIZERS:-no}" != no ]; then
        skip no-proc "a sanitizer's run time needs /proc"
    else
        found no-proc error no-proc $apart sh -c "$with" sh size=1m /proc "$info"
    fi
fi
mkdir "$work/folder"
page env OMPI_MCA_btl_gpusm_backing_directory="$work/folder" "$info"
judge shared-memory-elsewhere 0 $? 'says "^  shared memory  *$work/folder"' "not the folder that is set"
if ! unshare --user --map-root-user true 2>/dev/null; then
    skip user-namespace "this user may not make a user namespace"
else
    found user-namespace note user-namespace unshare --user --map-root-user "$info"
fi
if ! unshare --pid --fork --kill-child --mount-proc true 2>/dev/null; then
    skip pid-namespace "this user may not make a PID namespace, or not mount its /proc"
else
    if [ "${GPUSM_SANITIZERS:-no}" != no ]; then
        skip proc-of-others "a sanitizer's run time needs a /proc of its own"
    else
        found proc-of-others error proc-of-others unshare --pid --fork --kill-child "$info"
    fi
    page unshare --pid --fork --kill-child --mount-proc "$info"
    judge pid-namespace 0 $? '[ "$(sed -n "s/^  namespaces .*\(pid:[^ ]*\).*/\1/p" "$work/output")" != "$(readlink /proc/self/ns/pid)" ]' \
        "not the namespace's id" '! reports error proc-of-others "$work/output"' "its /proc is taken for another one's" 'says "single copies work"' "its processes do not reach each other"
fi
refuse=$GPUSM_BUILDDIR/tests/mpi/refuse_single_copy.so
if [ "${GPUSM_SANITIZERS:-no}" != no ]; then
    skip single-copies "a sanitizer's run time does not bear another library preloaded before it"
else
    found single-copies-refused warning single-copies-refused env LD_PRELOAD="$refuse" "$info"
    # As the filter of a container may have it: copies work, and smsc/cma makes none.
    found single-copies-refused-by-kcmp warning single-copies-refused \
        env LD_PRELOAD="$refuse" GPUSM_TEST_REFUSE_FIRST=0 GPUSM_TEST_REFUSE_KCMP=1 "$info"
    page env LD_PRELOAD="$refuse" GPUSM_TEST_REFUSE_FIRST=0 GPUSM_TEST_REFUSE_KCMP=1 "$info"
    judge single-copies-refused-by-kcmp-is-told 0 $? 'says "kcmp: Operation not permitted"' "the call is not named"
    # Only until the owner permits it.
    page env LD_PRELOAD="$refuse" GPUSM_TEST_REFUSE_FIRST=1 "$info"
    judge single-copies-permitted 0 $? 'says "work when their owner permits them"' "not said" \
        '! reports warning single-copies-refused "$work/output"' "Open MPI asks for the permission"
fi

# --- usage --------------------------------------------------------------------------------------------
# bad NAME ARGUMENTS...: status 2, one line of explanation and no page
bad() {
    bad_name=$1
    shift
    page "$info" "$@"
    judge "$bad_name" 2 $? '[ "$(count_in_output "")" -eq 1 ] && says "^gpusm_info: .*; see gpusm_info --help"' "not one line"
}
bad unknown-option --fast
bad unknown-short-option -x
bad argument now
bad missing-value --timeout
bad timeout-of-zero --timeout 0
bad timeout-of-words --timeout soon
bad value-of-a-flag --json=1
page "$info" --help
judge help 0 $? 'says "^usage: gpusm_info"' "no usage line"
timeout 60 "$info" --json --no-tries >/dev/full 2>"$work/output" </dev/null
judge not-writable 1 $? '[ "$(count_in_output "^gpusm_info: ")" -eq 1 ]' "nothing is said"

# --- manuals ------------------------------------------------------------------------------------------
for program in "$info" "$perf"; do
    manual=$GPUSM_SRCDIR/docs/man/$(basename "$program").1
    "$program" --help >"$work/output"
    left=$(grep -oE -e '--[a-z-]+' "$work/output" | sort -u | while read -r option; do
        sed 's/\\-/-/g' "$manual" | grep -qF -e "$option" || echo "$option"
    done)
    judge "manual-of-$(basename "$program")-has-every-option" 0 0 '[ -z "$left" ]' "it lacks $left"
done
finish
