// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_packing.h: MPI_Pack, MPI_Unpack and MPI_Sendrecv_replace of device memory, for
// libgpusm_pack.so.
#ifndef GPUSM_COLL_PACKING_H
#define GPUSM_COLL_PACKING_H

namespace gpusm {

// From now on or not any more, if that library is loaded. No call of it is under way.
void serve_packing(bool serve);

} // namespace gpusm

#endif
