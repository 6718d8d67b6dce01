#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_source.sh: what the house rules ask of the sources, as far as a script can see it.
# shellcheck disable=SC2086,SC2231,SC2209 # lists of files without blanks in their names
. "$(dirname "$0")/common.sh"
cd "$top" || exit 1

# All files of the repository: no build folders, nothing hidden but .ci, nothing that autogen.sh made.
everything=$(find ./.ci . \( -path './build*' -o -path './_*' -o -path './.[!c]*' -o -path './.c[!i]*' \
    -o -path './autom4te.cache' -o -path '*/.libs' -o -path '*/.deps' \) -prune -o -type f \
    ! -name 'configure*~' ! -name configure ! -name aclocal.m4 ! -name Makefile.in ! -name 'l*.m4' \
    ! -name '*.tar.gz' -print | sort -u)
sources=$(printf '%s\n' $everything | grep -E '\.(cc|cu|h)$' | grep -v -e _help_text -e _kernel_code)
scripts=$(printf '%s\n' $everything |
    while read -r file; do
        case $(head -c 40 "$file" | tr -d '\0') in
        '#!/bin/sh'* | '#!/usr/bin/env bash'* | '#!/bin/bash'*) echo "$file" ;;
        esac
    done)

# includes_of FOLDER ALLOWED: quoted includes of its files that the pattern does not allow
includes_of() {
    grep -n '^[[:space:]]*#[[:space:]]*include' -r "$1" --include='*.cc' --include='*.h' |
        grep -v -E "$2"
}
btl=opal/mca/btl/gpusm
common=opal/mca/common/gpusm
accelerator=opal/mca/accelerator/gpusm
standard='include <[a-z_0-9/]+(\.h)?>'
no_gpu_or_mpi='include <(cuda|cudart|mpi|pmix|hwloc|opal)'

report "base includes itself only" "$(grep -v _headers_ <<EOT
$(includes_of $common/base "$standard|include \"$common/base/" | grep -v openmpi_headers)
EOT
)"
report "shm includes itself and base only" \
    "$(includes_of $common/shm "$standard|include \"$common/(base|shm)/"; grep -rnE "$no_gpu_or_mpi" $common/shm)"
report "the choice of a mode includes shm and base only" \
    "$(includes_of $common/choose.h "$standard|include \"$common/(mode\.h|(base|shm)/)"
    includes_of $common/mode.h "$standard"
    grep -nE "$no_gpu_or_mpi" $common/choose.h $common/mode.h)"
report "gpu includes itself, base and cuda.h only" \
    "$(includes_of $common/gpu "$standard|include \"$common/(base|gpu)/"; grep -rnE "$no_gpu_or_mpi" $common/gpu | grep -v 'include <cuda.h>')"
report "protocol includes itself, shm and base only" \
    "$(includes_of $common/protocol "$standard|include \"$common/(base|shm|protocol)/"; grep -rnE "$no_gpu_or_mpi" $common/protocol)"
report "the accelerator's work includes itself, base, gpu and cuda.h only" \
    "$(includes_of $accelerator "$standard|include \"($common/(base|gpu)/|$accelerator/accelerator.h)" | grep -v '^[^:]*_gpusm')"
report "nobody but start-up writes btl_eager_limit" \
    "$(grep -rnE 'btl_eager_limit[)]?[[:space:]]*(=[^=]|\.store)' opal --include='*.cc' --include='*.h' | grep -v "^$btl/btl_gpusm_params.cc:")"
report "ipc includes itself, gpu, shm, base and cuda.h only" \
    "$(includes_of $common/ipc "$standard|include \"$common/(base|gpu|ipc|shm)/"; grep -rnE "$no_gpu_or_mpi" $common/ipc | grep -v 'include <cuda.h>')"
report "what puts the layers together includes these only, and no header of Open MPI's" \
    "$(grep -n '^#include' $common/[a-bd-z]*.cc $common/[a-bd-z]*.h |
        grep -v -E "$standard|include \"$common/" ; grep -ln common_gpusm $common/[a-bd-z]*.cc $common/[a-bd-z]*.h)"
report "coll includes itself, what the process has once, groups, base, driver, devices and layouts only" \
    "$(includes_of ompi/mca/coll/gpusm "$standard|include \"(ompi/mca/coll/gpusm/|$common/(base/|gpu/(device|driver|layout|strided_arguments).h|(common_gpusm_modex|exchange_call|group_(call|exchange|reduction)|local_process|meeting_schedule|process_group|reduction_call|sync_check).h))" | grep -v -e _ompi.h:)"
report "osc includes itself, headers of coll, what the process has once, copies and reductions for windows only" \
    "$(includes_of ompi/mca/osc/gpusm "$standard|include \"(ompi/mca/osc/gpusm/|ompi/mca/coll/gpusm/coll_gpusm_(accelerator|buffer_check|counters|elements|ompi|peers|type_walk).h|$common/(base/|gpu/layout.h|(local_process|window_(copies|reduction)).h))" | grep -v -e _ompi.h:)"
report "gpusm_info includes itself, the driver table and cuda.h only" \
    "$(includes_of tools/gpusm_info "$standard|include \"(tools/gpusm_info/|$common/gpu/driver.h\")"; grep -rnE "$no_gpu_or_mpi" tools/gpusm_info | grep -v 'include <cuda.h>')"
# Only choose() picks a mode by lengths and kinds of memory. What else looks at them:
#   messages        counts offers that are over; takes gets without a device to where no GPU lock is
#   device          a context for what will be mapped, if the buffer has none; which handle has a
#                   description
#   views           gives that back
#   stage           whether a processor reads the source
#   stage_services  checks a peer's words; whether to ask for file descriptors
#   host, self      which registration a handle names
#   gpu_side, rings what CUDA IPC has mapped
limits=$(sed -n 's/^inline constexpr std::uint64_t \([a-z_]*_bytes\) = .*/\1/p' $common/choose.h | tr '\n' '|')
report "lengths pick a mode in choose.h only" \
    "$(grep -rnwE "${limits%|}|[a-z_]+_least_bytes" opal ompi --include='*.cc' --include='*.h' |
        grep -v -E "^$common/choose.h:|^$btl/btl_gpusm_params.cc:.*warm_ring_bytes")"
report "kinds of memory pick a mode in choose.h only" \
    "$(grep -rnE '(share|memory)_kind::[a-z]+ [!=]=|[!=]= (gpusm::)?(share|memory)_kind::|case (share|memory)_kind' opal/mca/btl ompi $common/*.cc $common/*.h $common/gpu |
        grep -v -E -e "^$common/choose.h:" \
            -e '_(messages|device|views).cc:.*remote[.]kind' -e '_device.cc:.*nullptr == get->into' \
            -e '_stage.cc:.*may_end_early' -e '_stage_services.cc:.*(known|handle)[.](kind|source|target)' \
            -e '_host.cc:.*message.handle.kind' -e '_self.cc:.*remote.kind' \
            -e '(gpu_side.h|_rings.cc):.*share_kind::legacy')"
# Progress has no argument; Open MPI may ask about addresses after the end.
report "who needs the transport is given it" \
    "$(grep -rnE 'mca_btl_gpusm_component\.(transport|checks_for)' opal --include='*.cc' --include='*.h' |
        grep -v -E "^$btl/btl_gpusm_(component|pointer_check).cc:|:    gpusm::transport \*ours = mca_btl_gpusm_component.transport;$")"
report "Open MPI's headers come in through one door" "$(grep -rnE 'include ["<](opal_config|ompi/|opal/(class|constants|datatype|include|memoryhooks|runtime|threads|util|sys)|opal/mca/(base|accelerator/(base|accelerator)|btl/(base|btl)|rcache/(base|rcache)|mpool|pmix|hwloc|shmem|smsc|threads)[/.])' ompi opal --include='*.cc' --include='*.h' | grep -v -E -e 'include "ompi/mca/(coll|osc)/gpusm/' -e '_(opal|ompi)\.h:' -e 'openmpi_headers_begin\.h:')"
report "files have at most 450 lines" "$(wc -l $sources | awk '$2 != "total" && $1 > 450 { print $2 ": " $1 " lines" }')"
report "every file has its licence line" "$(for file in $(printf '%s\n' $everything | grep -E '\.(cc|cu|h|am|ac|m4|map|pml|ptx|sh|in)$') $scripts; do
    head -n 6 "$file" | grep -q 'SPDX-License-Identifier: BSD-3-Clause' || echo "$file"
done)"
report "no tabs, no trailing blanks in C++" "$(grep -nE "$(printf '\t')|[ ]+\$" $sources)"
report "lines have at most 100 columns" "$(awk 'length($0) > 100 { print FILENAME ":" FNR }' $sources)"
report "every unit test is in the Makefile" "$(for file in tests/unit/*_test.cc; do
    grep -q "unit/$(basename "$file" .cc)\( .\)*\$" tests/Makefile.am || echo "$file"
done)"
# Open MPI ignores a parameter that nobody has registered. The second list is every BTL's.
own=$(sed -n 's/^    {"\([a-z_]*\)", [a-z].*/\1/p' $btl/btl_gpusm_params.cc | tr '\n' '|')
report "parameters that are set exist" "$(grep -rnoE '(--mca |OMPI_MCA_)btl_gpusm_[a-z_]+' $everything |
    grep -vE "btl_gpusm_(${own}exclusivity|flags|get_limit|((rndv|accelerator)_)?(eager_limit|max_send_size))\$")"
letters=$(sed -n 's/.*all_kinds = "\([A-Z]*\)".*/\1/p' bench/common/buffer.h)
sorted() { printf %s "$1" | fold -w 1 | sort | tr -d '\n'; }
report "lists of all kinds of memory have all" "$({
    sed -n 's/.*every-kind-by-its-way.* --kinds \([A-Z]*\).*/run_paths.sh \1/p' tests/mpi/run_paths.sh
    sed -n 's/^ALL_KINDS = "\([A-Z]*\)".*/random-types \1/p' tests/campaign/random-types
    sed -n 's/.*usage: exchange SUBTEST \[--kinds \([A-Z]*\).*/exchange.cc \1/p' tests/mpi/exchange.cc
} | {
    lists=0
    while read -r file found; do
        lists=$((lists + 1))
        [ "$(sorted "$found")" = "$(sorted "$letters")" ] || echo "$file: $found, of $letters"
    done
    [ $lists -eq 3 ] || echo "$lists lists instead of 3"
})"
report "scripts that users run are executable" "$(printf '%s\n' $everything | grep -v '^\./tests/' |
    while read -r file; do
        if [ "$(head -c 2 "$file" | tr -d '\0')" = '#!' ] && [ ! -x "$file" ]; then echo "$file"; fi
    done)"
report "shell scripts parse" "$(for file in $scripts tests/*/common.sh tools/setup/*.sh; do
    if head -n 12 "$file" | grep -q bash; then shell=bash; else shell=sh; fi
    $shell -n "$file" 2>&1
done)"
# Addresses of package registries and paths of one machine have no place in a repository.
report "no machine's paths, no registry's address" "$(grep -nIE '/(root|home|mnt|scratch)/[a-z]|/wo''rk/|(deb|pypi|files|registry|security)\.(debian|python|pythonhosted|npmjs)|https?://[0-9]' $everything |
    grep -v -F '/home/you')"
exit $failed
