// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/openmpi_headers_begin.h: opens the bracket in which Open MPI's C headers compile as C++20.
// Used as a pair, around nothing else, and only by the one *_opal.h door of a component:
//
//     #include "opal/mca/common/gpusm/base/openmpi_headers_begin.h"
//     #include "opal/mca/btl/btl.h"
//     #include "opal/mca/common/gpusm/base/openmpi_headers_end.h"
//
// Why a bracket: some of those headers open one `extern "C" {` more than they close, and some
// declare functions without any, which C++ would mangle and the loader would miss only when they
// are called. So everything between the pair gets C linkage once, from here, and their own
// BEGIN_C_DECLS and END_C_DECLS do nothing meanwhile. This holds for balanced headers too.
//
// No include guard: every use opens a bracket. The guarded part below names each system, C++ and
// third-party header that Open MPI's headers pull in, because those must be seen outside of it.
#ifndef GPUSM_OPENMPI_HEADERS_ONCE
#define GPUSM_OPENMPI_HEADERS_ONCE

#include <atomic>
#include <cassert>
#include <cctype>
#include <cerrno>
#include <cinttypes>
#include <climits>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <event2/event.h>
#include <event2/event_struct.h>
#include <event2/thread.h>
#include <hwloc.h>
#include <pmix.h>
#include <pmix_server.h>
#include <pmix_tool.h>
#include <pmix_version.h>

#endif

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-qualifiers"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#if !defined(__clang__) // which has it under another name, and does not warn there
#pragma GCC diagnostic ignored "-Wvolatile"
#endif
// Words of C11 in headers from Open MPI 6 on.
#define _Alignof alignof
#define _Static_assert static_assert

#include "opal_config.h" // defines the two macros that are emptied next

#if defined(OPAL_USE_C11_ATOMICS) && OPAL_USE_C11_ATOMICS
#error "This Open MPI was configured with C11 atomics, which C++ cannot read: build it without \
--disable-builtin-atomics"
#endif

#undef BEGIN_C_DECLS
#undef END_C_DECLS
#define BEGIN_C_DECLS
#define END_C_DECLS

extern "C" {
