#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
"""pack.py: packs a tree of programs and libraries into a wheel, for tools/make-wheel.

The files go into the places of the environment that they have in the tree. The platform's tag is
what the libraries say: the newest version of glibc that they ask for. Needs readelf.
"""
import argparse
import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
import zipfile

# What every Linux that the tag names has: glibc, and zlib.
SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread|util|z)|ld-linux[-\w]*)\.so\.\d+")

METADATA = """\
Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: Open MPI {openmpi} that sends GPU memory within a node
License: BSD-3-Clause
Requires-Python: >=3.8
Description-Content-Type: text/markdown

Open MPI {openmpi} with the components gpusm, for mpi4py and for programs compiled with its mpicc.
Messages may lie in GPU memory: mpi4py takes every array that has `__cuda_array_interface__`.

It stands in the places of the packages `openmpi` and `mpich`: an environment can have one of them.
"""


def elf_files(tree):
    """Paths of the ELF files below tree."""
    for folder, _, names in os.walk(tree):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def platform_tag(tree):
    """The tag of the oldest platform for the tree; ends the program if a library is missing."""
    own = {os.path.basename(path) for path in elf_files(tree)}
    glibc = (2, 17)
    missing = set()
    for path in elf_files(tree):
        text = subprocess.run(["readelf", "-d", "-V", "-W", path], check=True, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", text):
            if needed not in own and not SYSTEM.fullmatch(needed):
                missing.add(f"{needed}, which {os.path.relpath(path, tree)} needs")
        for major, minor in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", text):
            glibc = max(glibc, (int(major), int(minor)))
    if missing:
        sys.exit("make-wheel: not in the wheel: " + "; ".join(sorted(missing)))
    return f"manylinux_{glibc[0]}_{glibc[1]}_{platform.machine()}"


class Wheel:
    """A wheel that is being written, with the list of what is in it."""

    def __init__(self, path, info):
        self.archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self.info = info
        self.record = []

    def add(self, name, data, executable=False):
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100755 if executable else 0o100644) << 16
        self.archive.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def add_file(self, name, path):
        with open(path, "rb") as file:
            self.add(name, file.read(), os.access(path, os.X_OK))

    def close(self):
        name = f"{self.info}/RECORD"
        lines = "\n".join([*self.record, f"{name},,"]) + "\n"
        self.archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), lines)
        self.archive.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("name", "version", "openmpi", "licenses", "license", "tree", "output"):
        parser.add_argument(f"--{option}", required=True)
    args = parser.parse_args()

    tag = f"py3-none-{platform_tag(args.tree)}"
    stem = f"{args.name}-{args.version}"
    info = f"{stem}.dist-info"
    path = os.path.join(args.output, f"{stem}-{tag}.whl")
    wheel = Wheel(path + ".new", info)
    for folder, folders, names in os.walk(args.tree):
        folders.sort()
        for name in sorted(names):
            file = os.path.join(folder, name)
            wheel.add_file(f"{stem}.data/data/{os.path.relpath(file, args.tree)}", file)
    for name in sorted(os.listdir(args.licenses)):
        wheel.add_file(f"{info}/licenses/{name}", os.path.join(args.licenses, name))
    wheel.add_file(f"{info}/licenses/LICENSE", args.license)
    wheel.add(f"{info}/METADATA", METADATA.format(**vars(args)).encode())
    wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: make-wheel\n"
              f"Root-Is-Purelib: false\nTag: {tag}\n".encode())
    wheel.close()
    os.replace(path + ".new", path)
    print(f"{path} ({os.path.getsize(path) / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
