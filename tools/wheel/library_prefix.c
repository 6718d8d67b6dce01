/* SPDX-License-Identifier: BSD-3-Clause
 * Copyright (c) 2026 The gpusm authors
 *
 * library_prefix.c: tools/make-wheel appends this to PMIx's component pinstalldirs/env.
 *
 * A wheel is unpacked anywhere. Open MPI, PMIx and PRRTE take their folder from an environment
 * variable each before the one that they were configured for; libpmix, which all their programs and
 * libraries need, sets the three from where it lies itself, PREFIX/lib/openmpi/libpmix.so.2. What
 * the user's environment says is of another installation.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static void __attribute__((constructor)) set_prefix_of_this_library(void)
{
    static const char *const variables[] = {"OPAL_PREFIX", "PMIX_PREFIX", "PRTE_PREFIX"};
    Dl_info library;
    char path[PATH_MAX];

    if (0 == dladdr((void *) set_prefix_of_this_library, &library) ||
        NULL == realpath(library.dli_fname, path)) {
        return;
    }
    /* The names of the file, of openmpi and of lib come off. */
    for (int level = 0; level < 3; level++) {
        char *slash = strrchr(path, '/');
        if (NULL == slash || path == slash) {
            return;
        }
        *slash = '\0';
    }
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        setenv(variables[i], path, 1);
    }
}
