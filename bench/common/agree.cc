// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "bench/common/agree.h"

#include <cstring>

#include <mpi.h>

namespace gpusm::bench {

std::string agree_on_error(const std::string &mine)
{
    struct {
        int good;
        int rank;
    } candidate = {mine.empty() ? 1 : 0, 0}, chosen = {};
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &candidate.rank);
    (void)MPI_Allreduce(&candidate, &chosen, 1, MPI_2INT, MPI_MINLOC, MPI_COMM_WORLD);
    char text[512] = "";
    std::strncpy(text, mine.c_str(), sizeof(text) - 1);
    if (0 == chosen.good) {
        (void)MPI_Bcast(text, sizeof(text), MPI_CHAR, chosen.rank, MPI_COMM_WORLD);
    }
    return text;
}

} // namespace gpusm::bench
