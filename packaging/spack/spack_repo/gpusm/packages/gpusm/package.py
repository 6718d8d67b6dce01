# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
"""gpusm, from the clone that this recipe lies in, for the Open MPI beside it."""

import os
import pathlib

from spack_repo.builtin.build_systems.autotools import AutotoolsPackage

from spack.package import *

# .../packaging/spack/spack_repo/gpusm/packages/gpusm/package.py
CLONE = pathlib.Path(__file__).resolve().parents[6]


class Gpusm(AutotoolsPackage):
    """Components for Open MPI that move messages within a node, from and to host memory and the
    memory of NVIDIA GPUs: a transport through shared memory, collectives and windows."""

    git = f"file://{CLONE}"

    license("BSD-3-Clause")

    version("0.1.0", branch="main")

    variant("nvcc", default=True, description="Compile kernels for the GPUs that nvcc knows")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("autoconf@2.69:", type="build")
    depends_on("automake@1.16:", type="build")
    depends_on("libtool", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("googletest", type="test")

    # Any 5.0 or 6 does; one without CUDA sends short device messages through host memory.
    depends_on("openmpi@5.0:6 +cuda +devel_headers")
    # Only its headers and nvcc: the driver's library is opened at run time.
    depends_on("cuda@11.8:", type="build")

    conflicts("%gcc@:10", msg="gpusm is written in C++20")

    def autoreconf(self, spec, prefix):
        Executable(os.path.join(self.stage.source_path, "autogen.sh"))()

    def configure_args(self):
        nvcc = os.path.join(self.spec["cuda"].prefix.bin, "nvcc")
        return [
            f"--with-openmpi={self.spec['openmpi'].prefix}",
            f"--with-cuda={self.spec['cuda'].prefix}",
            f"--with-nvcc={nvcc}" if self.spec.satisfies("+nvcc") else "--without-nvcc",
        ]

    def setup_run_environment(self, env: EnvironmentModifications) -> None:
        # Open MPI's prefix is left alone, so it is told where the components are. PMIx would read that, too,
        # and complain of them, unless it is told its own path.
        openmpi = self.spec["openmpi"]
        pmix = openmpi if openmpi.satisfies("+internal-pmix") else self.spec["pmix"]
        components = os.path.join(self.prefix.lib, "openmpi")
        env.set("OMPI_MCA_mca_base_component_path", f"{components}:SYS_DEFAULT")
        env.set("PMIX_MCA_mca_base_component_path", os.path.join(pmix.prefix.lib, "pmix"))
