# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
"""Spack's Open MPI, with the headers that components built outside of its tree need."""

import os

from spack_repo.builtin.packages.openmpi.package import Openmpi as BuiltinOpenmpi

from spack.package import *


class Openmpi(BuiltinOpenmpi):
    __doc__ = BuiltinOpenmpi.__doc__

    variant(
        "devel_headers",
        default=True,
        when="@5:",
        description="Install the headers of Open MPI's own libraries, for components built elsewhere",
    )

    def configure_args(self):
        args = super().configure_args()
        if self.spec.satisfies("+devel_headers"):
            args.append("--with-devel-headers")
        return args

    @run_after("install")
    def install_late_headers(self):
        """Those that make install leaves out even then."""
        if not self.spec.satisfies("+devel_headers"):
            return
        for folder in ("opal/mca/threads/pthreads", "opal/mca/timer/linux"):
            to = os.path.join(self.prefix.include, "openmpi", folder)
            mkdirp(to)
            for header in find(os.path.join(self.stage.source_path, folder), "*.h", recursive=False):
                install(header, to)
