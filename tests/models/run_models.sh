#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_models.sh: all interleavings of the FIFO and of the handshake, by the models beside this file.
# Each promise is kept by the model of the code as it is, and broken by a mutation of it.
. "$(dirname "$0")/../lint/common.sh"
models=$top/tests/models
for tool in spin cc timeout; do
    if ! command -v "$tool" >/dev/null 2>&1; then
        echo "the models need $tool; Debian's package spin has the verifier's generator"
        exit 77
    fi
done

fifo="SENDERS=2 MORTAL=1 SLOTS=2 MESSAGES=3 FRAGMENTS=2 LAPS=8 MENDS=1 VANDAL=0 PUBLISH_BEFORE_FILL=0
    CLAIM_THEN_PUBLISH=0 OVERWRITE_WHEN_FULL=0 NO_SECOND_LOOK=0 NO_HELP=0 CONSUMED_TOO_EARLY=0
    MEND_LOOKS_AT_SLOT_FIRST=0 NO_MEND=0"
handshake="OURS=1 THEIRS=1 FAULTS=1 DEATHS=0 ROOM=8 NO_CHECK=0 WAITS_FOR_ANSWER=0 NO_COUNTDOWN=0
    ANSWERS_WHEN_IDLE=0 NO_RETRY=0 SAYS_NOTHING=0 NO_FALLBACK=0 PAUSES_END=0"

# explore MODEL KIND SETTING=VALUE...: what the verifier says of it, with these settings and the usual
# ones for the rest. Kind `ends` looks for errors and for processes that wait, `cycles` for loops.
explore() {
    model=$1 kind=$2
    shift 2
    if [ "$model" = fifo ]; then usual=$fifo; else usual=$handshake; fi
    defines=
    for each in $usual; do
        for setting in "$@"; do
            if [ "${setting%%=*}" = "${each%%=*}" ]; then each=$setting; fi
        done
        defines="$defines -D$each"
    done
    if [ "$kind" = cycles ]; then flags=-DNP options=-l; else flags=-DSAFETY options=; fi
    rm -rf "$work/run"
    mkdir "$work/run"
    # shellcheck disable=SC2086 # lists of options
    (cd "$work/run" && timeout 60 spin $defines -a "$work/$model.pml" &&
        timeout 120 cc "$optimise" -w $flags -DMEMLIM=1500 -o pan pan.c &&
        timeout 300 ./pan -m2000 $options || echo "no end: status $?") >"$work/said" 2>&1
}
# holds NAME MODEL KIND SETTING...: no error, and nothing was left out
holds() {
    name=$1 optimise=-O2
    shift
    explore "$@"
    wrong=$(grep -E 'pan:1:|too small|reached|no end|rror:|out of memory' "$work/said" |
        grep -v -E 'depth reached|unreached')
    if ! grep -q 'errors: 0' "$work/said"; then wrong="$wrong$(tail -n 20 "$work/said")"; fi
    sed -n "s/^ *\([0-9]* states, stored\).*/    $name: \1/p" "$work/said"
    report "$name" "$wrong"
}
# breaks NAME ERROR MODEL KIND SETTING...: that error is found
breaks() {
    name=$1 error=$2 optimise=-O0
    shift 2
    explore "$@"
    found=$(grep 'pan:1:' "$work/said")
    echo "    $name: $found"
    case $found in
    *"$error"*) report "$name" "" ;;
    *) report "$name" "$(tail -n 20 "$work/said")" ;;
    esac
}
cp "$models"/*.pml "$work"

holds "of a killed sender every complete message arrives, of others all, once and in order" fifo ends
holds "of three senders two may be killed" fifo ends SENDERS=3 MORTAL=2 MESSAGES=1
holds "a ring of one slot" fifo ends SLOTS=1 MESSAGES=2
holds "no post and no reader goes on for ever" fifo cycles MESSAGES=2
holds "an overwritten FIFO is put right, and all posts end" fifo ends VANDAL=1 MESSAGES=1 LAPS=4 MENDS=0
holds "none goes on for ever in an overwritten FIFO" fifo cycles VANDAL=1 MORTAL=0 MESSAGES=1 LAPS=4 MENDS=0
breaks "found when it is posted before it is filled" payload fifo ends PUBLISH_BEFORE_FILL=1
breaks "found when a fragment is given back before it is read" payload fifo ends CONSUMED_TOO_EARLY=1
breaks "found when it is claimed first and published later" next_sequence fifo ends CLAIM_THEN_PUBLISH=1 MENDS=0
breaks "found when a full slot is taken" 'seen%8)==0' fifo ends OVERWRITE_WHEN_FULL=1
breaks "found when busy is said at the first look" none_free fifo ends NO_SECOND_LOOK=1
breaks "found when words have no lap" 'assertion violated' fifo ends LAPS=1 MENDS=0
breaks "found when a sender sleeps for all laps" 'assertion violated' fifo ends LAPS=2
breaks "found when nobody helps with the tail" 'non-progress cycle' fifo cycles NO_HELP=1 MESSAGES=2
breaks "found when mending looks at the slot first" in_order fifo ends MEND_LOOKS_AT_SLOT_FIRST=1
breaks "found when nobody mends" 'invalid end state' fifo ends VANDAL=1 NO_MEND=1 MESSAGES=1 MENDS=0

holds "every message arrives by one way, and both sides know which, when both ask at once" handshake ends
holds "also later, by memory that is staged" handshake ends OURS=2 THEIRS=0
holds "also when what could not be mapped is tried again" handshake ends OURS=2 THEIRS=0 FAULTS=2 PAUSES_END=1
holds "nobody waits for a peer that ends" handshake ends DEATHS=1 THEIRS=0 FAULTS=0
holds "no question is asked for ever" handshake cycles
breaks "found when a get takes a context for granted" side handshake ends NO_CHECK=1
breaks "found when who asks does not answer" unsent handshake ends ANSWERS_WHEN_IDLE=1
breaks "found when NOT_READY is the end" unsent handshake ends NO_RETRY=1
breaks "found when the pause never ends" silent handshake ends NO_COUNTDOWN=1 OURS=6
breaks "found when a get that fails is the end" arrived handshake ends NO_FALLBACK=1
breaks "found when it is not said that memory cannot be mapped" staged_device handshake ends SAYS_NOTHING=1
breaks "found when who asks waits under the lock" locked handshake ends WAITS_FOR_ANSWER=1
breaks "found when who finds no room waits for a dead peer" 'invalid end state' handshake ends ROOM=1 DEATHS=1 OURS=2 FAULTS=0
exit $failed
