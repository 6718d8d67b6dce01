// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// help.cc: what `gpusm_perf --help` prints.
#include "bench/gpusm_perf/options.h"

namespace gpusm::bench {

const char *const help_text =
    R"(usage: mpirun -n N gpusm_perf {latency|bw|bibw|mbw_mr} [options]

  latency   half the round trip of a ping-pong between 2 ranks
  bw        one way: a window of MPI_Isend, answered by 4 bytes; 2 ranks
  bibw      both ways at once; 2 ranks
  mbw_mr    n/2 pairs at once, rank i sends to rank i + n/2; MB/s and messages/s of all pairs

  --src KIND, --dst KIND   memory of the first and of the second rank of a pair (default H):
                 H host, pageable              D device, cuMemAlloc
                 M managed                     V VMM, exportable as a file descriptor
                 W VMM, not exportable         A pool, exportable as a file descriptor
                 In latency, messages go from --src to --dst and back; the result is the mean of
                 both ways, and so is its limit.
  --sizes MIN:MAX or A,B,C   message sizes in bytes, suffixes K M G (powers of 1024); a range
                 doubles from MIN (default 1:4M)
  --window N     messages under way at once in bw, bibw, mbw_mr (default 64)
  --iterations N ping-pongs, or windows, per size (default: by size)
  --warmup N     the same, before the clock starts (default: by size)
  --repeat N     measure every row N times, limit and messages in turn; print medians
  -c, --check    check every byte. latency: both buffers get fresh content before every iteration,
                 the ranks meet in a barrier, the ping-pong is timed, and both ranks compare what
                 they received after the clock has stopped. Others: the run of each size ends with
                 one more window, not timed, with fresh content and a poisoned place of its own
                 for every message (in groups when a window is over 256 MiB). Corrupt data ends
                 the run with status 1.
  --no-limit     do not measure the limit
  --strict       bandwidth above 1.10 x the limit at 1 MiB or more is a failure (status 1); without
                 it a warning
  --late-cuda    make the CUDA context after MPI_Init (default: before it, because btl/smcuda of
                 Open MPI 5.0 needs it; btl/gpusm does not)
  --json FILE    also write the rows, and what the header says, to FILE

The limit is the bare copy, measured in the same run just before each row. Between two GPU buffers
it is cuMemcpyAsync out of the peer's memory, opened by CUDA IPC, until the receiver sees its event
completed; between GPU and host it is cuMemcpyAsync between device memory and a host buffer of the
same process (pageable or registered, the better of the two); between hosts it is memcpy in the
receiver. For bandwidth, a window of copies is submitted back to back and one event ends it.
ratio is measured / limit: for latency 1 is perfect and more is worse, for bandwidth 1 is perfect
and less is worse.

The last line says which way messages went: get (fetched from the peer's device memory), staged
(device memory through host fragments), host path (host memory; answers and barriers are counted
too). It counts from the end of the first size's warm-up to the end, summed over ranks.

status: 0 fine; 1 corrupt data, or --strict and too fast; 2 bad usage or missing requirement
)";

} // namespace gpusm::bench
