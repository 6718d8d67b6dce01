#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# autogen.sh: makes ./configure and the Makefile.in files from a clone.
set -eu
cd "$(dirname "$0")"
for tool in autoreconf automake libtoolize; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "autogen.sh: $tool is missing; install autoconf, automake and libtool" >&2
        exit 1
    }
done
exec autoreconf --force --install
