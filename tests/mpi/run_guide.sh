#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_guide.sh: the commands of README and of the user's guide, which are their indented lines, do what
# they are there for. Each is run as it stands, in a folder like the top of the sources, by a shell like that
# of quickstart --env; but those that `excepted` names, each with the reason. A command that is in
# neither set fails, and so does an exception that is no command any more.
# shellcheck disable=SC2016,SC2034 # conditions are evaluated later
. "$(dirname "$0")/common.sh"

need_gpusm guide || finish
if [ "${GPUSM_TEST_COMPONENTS-}" = openmpi ]; then
    skip guide "mpirun --omca mca_base_component_path is for components beside Open MPI"
    finish
fi

if [ "${GPUSM_SANITIZERS:-no}" != no ]; then
    skip guide "a program of mpicc cannot load components that were built with sanitizers"
    finish
fi

# What a command that is run may begin with: nothing that changes the machine or wants the network.
runnable='mpirun mpicc gpusm_info gpusm_perf ompi_info bench/compare bench/plot build/bench/copy_bench/copy_bench build/bench/coll_bench/coll_bench'
# Beginnings of commands, and why they are not run here.
cat >"$work/excepted" <<'END'
./quickstart|.ci/run begins with it
eval "$(./quickstart --env)"|.ci/run begins with it
./autogen.sh|quickstart, or whoever has configured this build, has made it so
mkdir build && cd build|the same
../configure --with-openmpi=|the same
make && make check && make install|this test is a part of it
tools/make-wheel|it builds an Open MPI, for 10 to 20 minutes
pip install mpi4py|it needs the network, and what make-wheel makes; tests/python/check-wheel does it
mpirun -n 2 python program.py|it needs mpi4py; tests/python/check-wheel does it
nvidia-cuda-mps-control -d|it changes how all programs of this machine use its GPU
docker |it needs Docker and a GPU; run_packaging.sh reads the Dockerfile, run_namespaces.sh has such ranks
bench/build-osu|it needs the sources of OSU's benchmarks
bench/compare --osu|it needs OSU's benchmarks; run_compare.sh has programs that print what these print
END

# commands FILE: its commands, one a line, without remarks; those that go on in a next line are joined
commands() {
    awk '
        /^```/ { fenced = !fenced }
        fenced || !/^    / { next }
        { sub(/^ +/, ""); sub(/ +#.*$/, "") }
        /\\$/ { sub(/ *\\$/, " "); held = held $0; next }
        { print held $0; held = "" }' "$1"
}

# --- a folder and a shell like those of a user ----------------------------------------------------------
mkdir "$work/bin" "$work/components" "$work/top"
ln -s "$GPUSM_MPIRUN" "$work/bin/mpirun"
ln -s "$perf" "${GPUSM_INFO:-$GPUSM_BUILDDIR/tools/gpusm_info/gpusm_info}" "$work/bin"
printf '#!/bin/sh\nexport OMPI_MCA_mca_base_component_path="%s:SYS_DEFAULT"\nexec "%s" "$@"\n' \
    "$GPUSM_BUILDDIR/tests/components" "$GPUSM_OMPI_INFO" >"$work/bin/ompi_info"
chmod 755 "$work/bin/ompi_info"
mkdir -p "$work/components/lib"
ln -s "$GPUSM_BUILDDIR/tests/components" "$work/components/lib/openmpi"
ln -s "$GPUSM_SRCDIR/bench" "$work/top/bench"
ln -s "$GPUSM_BUILDDIR" "$work/top/build"
PATH=$work/bin:$GPUSM_OMPI_PREFIX/bin:$PATH
export PATH
# The tests' own limits: a user has none.
unset OMPI_MCA_btl_gpusm_eager_limit OMPI_MCA_btl_gpusm_max_send_size
# Where PMIx has its components; empty in mpirun: it sets no path, and needs none.
pmix=$(sed -n "s/^pmix_path='\(.*\)'\$/\1/p" "$GPUSM_MPIRUN")
cat >"$work/top/program.c" <<'END'
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

/* A ring of long messages, and the sum of what came. */
int main(int argc, char **argv)
{
    enum { count = 100000 };
    int rank, size, wrong = 0, all = 0;
    int *out = malloc(count * sizeof(int)), *in = malloc(count * sizeof(int));
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < count; ++i) {
        out[i] = rank * count + i;
    }
    MPI_Sendrecv(out, count, MPI_INT, (rank + 1) % size, 0, in, count, MPI_INT, (rank + size - 1) % size, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < count; ++i) {
        wrong += in[i] != (rank + size - 1) % size * count + i;
    }
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (0 == rank) {
        printf("program: %d numbers are wrong\n", all);
    }
    MPI_Finalize();
    return all != 0;
}
END
if ! (cd "$work/top" && mpicc program.c -o program) >"$work/output" 2>&1; then
    fail program "the program of the commands cannot be compiled"
    finish
fi

# --- the commands -------------------------------------------------------------------------------------
# exception COMMAND: why it is not run; false: it is none
exception() {
    while IFS='|' read -r beginning why; do
        case $1 in
        "$beginning"*)
            printf '%s\n' "$beginning" >>"$work/met"
            echo "$why"
            return 0
            ;;
        esac
    done <"$work/excepted"
    return 1
}

# does COMMAND: what it has printed, or written, is what it is there for
does() {
    case $1 in
    *' > '*)
        written=${1#* > }
        written=$work/top/${written%% *}
        [ -s "$written" ] && { cat "$written" >>"$work/output"; }
        ;;
    esac
    case $1 in
    *./program*) says 'program: 0 numbers are wrong' ;;
    *gpusm_perf\ check*) says '^check: OK' ;;
    *gpusm_perf*) says ' *[0-9][0-9]* *[0-9.]* ' ;;
    *gpusm_info*) says '^Findings' && ! says '^  error ' ;;
    ompi_info*) says "MCA $(echo "$1" | cut -d ' ' -f 3) gpusm: parameter" ;;
    mpicc*) [ -x "$work/top/program" ] ;;
    *bench/compare*) says 'geometric mean' && [ -s "$work/top/latency.json" ] ;;
    *bench/plot*) [ -s "$work/top/latency.svg" ] ;;
    *copy_bench*) says 'Every byte was right' ;;
    *coll_bench*) says '^allreduce .* 1M ' ;;
    *) false ;;
    esac
}
# as_a_user COMMAND: with the places that the page leaves open
as_a_user() {
    printf '%s\n' "$1" | sed -e "s,PREFIX/lib/pmix,$pmix," -e "s,DIR/lib/openmpi,$work/components/lib/openmpi,"
}

for page in README.md docs/guide.md; do
    commands "$GPUSM_SRCDIR/$page" >"$work/commands"
    number=0
    while IFS= read -r command; do
        [ -n "$command" ] || continue
        number=$((number + 1))
        name=$(basename "$page" .md)-$number
        first=${command%% *}
        if exception "$command" >"$work/why"; then
            continue
        fi
        case " $runnable " in
        *" $first "*) ;;
        *)
            : >"$work/output"
            fail "$name" "'$command' is neither run by this test nor excepted"
            continue
            ;;
        esac
        case $command in
        *smcuda*) [ "$GPUSM_OMPI_CUDA_AWARE" = yes ] || { skip "$name" "this Open MPI has no btl/smcuda: $command" && continue; } ;;
        *--omca*) [ -n "$pmix" ] || { skip "$name" "this PMIx says nothing of its components: $command" && continue; } ;;
        esac
        case $command in
        bench/plot*) [ -e "$work/top/latency.json" ] || { skip "$name" "nothing has been measured: $command" && continue; } ;;
        esac
        case $command in
        *' D'* | *copy_bench* | *coll_bench*) need_gpu "$name" || continue ;;
        esac
        case $first in
        bench/*) command -v python3 >/dev/null 2>&1 || { skip "$name" "no python3: $command" && continue; } ;;
        esac
        launch_limit=$((120 * slowness))
        path=$PATH
        case $command in
        *--omca*) path=${PATH#"$work/bin:"} ;; # with gpusm in a folder of its own mpirun is Open MPI's
        esac
        (cd "$work/top" && PATH=$path timeout -k 5 $launch_limit sh -c "$(as_a_user "$command")") \
            >"$work/output" 2>&1 </dev/null
        judge "$name" 0 $? 'does "$command"' "it does not do what it is there for: $command"
    done <"$work/commands"
    [ $number -gt 0 ]
    judge "$(basename "$page" .md)-has-commands" 0 $?
done
left=$(while IFS='|' read -r beginning why; do
    grep -qxF -e "$beginning" "$work/met" || echo "$beginning"
done <"$work/excepted")
: >"$work/output"
judge exceptions-are-commands 0 0 '[ -z "$left" ]' "no command begins with: $left"
finish
