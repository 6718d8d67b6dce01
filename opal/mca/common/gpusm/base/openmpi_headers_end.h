// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/openmpi_headers_end.h: closes what openmpi_headers_begin.h opened, and gives its two
// declaration macros their usual meaning back.
} // extern "C"

#undef BEGIN_C_DECLS
#undef END_C_DECLS
#define BEGIN_C_DECLS extern "C" {
#define END_C_DECLS }

#undef _Static_assert
#undef _Alignof
#pragma GCC diagnostic pop
