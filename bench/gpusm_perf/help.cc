// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// help.cc: what `gpusm_perf --help` prints.
#include "bench/gpusm_perf/options.h"

namespace gpusm::bench {

const char *const help_text =
    R"(usage: mpirun -n N gpusm_perf {latency|bw|bibw|mbw_mr|alltoall|allreduce} [options]

  latency   half the round trip of a ping-pong between 2 ranks
  bw        one way: windows of messages; 2 ranks
  bibw      windows both ways at once; 2 ranks
  mbw_mr    n/2 pairs at once, rank i sends to rank i + n/2; MB/s and messages/s of all pairs
  alltoall  MPI_Alltoall, the size is that of one block; 2 to 64 ranks
  allreduce MPI_Allreduce, a sum of floats, the size is that of a rank's message; 2 to 64 ranks

  --src KIND, --dst KIND   memory of the first and of the second rank of a pair (default H):
                 H host, pageable              D device, cuMemAlloc
                 M managed                     V VMM, exportable as a file descriptor
                 W VMM, not exportable         A pool, exportable as a file descriptor
                 C V, in several chunks        P default pool, not exportable
                 R host, page-locked by the program (cuMemHostAlloc)
                 In latency, messages go from --src to --dst and back; the result is the mean of
                 both ways, and so is its limit. In alltoall and allreduce every rank sends from
                 --src and receives into --dst.
  --sizes MIN:MAX or A,B,C   message sizes in bytes, suffixes K M G (powers of 1024); a range
                 doubles from MIN (default 1:4M). allreduce: multiples of 4 (default 4:4M)
  --offset S,D   add S bytes to the address of all that is sent and D to that of all that is
                 received, in the limit too (default 0,0). allreduce: multiples of 4
  --window N     messages under way at once in bw, bibw, mbw_mr (default 64)
  --places N     give a window's messages so many places in each buffer, not one each; 1 is what
                 osu_bw has, where all are sent from one buffer that stays in the caches
  --blocks B     messages of a derived data type (MPI_Type_vector): blocks of B bytes, with gaps as
                 long between them; the limit copies as many bytes in one piece
  --iterations N ping-pongs, windows or calls per size (default: by size)
  --warmup N     the same, before the clock starts (default: by size; ten times as many for the
                 first size, if it is small)
  --repeat N     measure every row N times, limit and messages in turn; print medians
  -c, --check    check every byte, of the warm-up too. Before each iteration the sender's buffer
                 gets content that is used for nothing else, and the ranks meet in a barrier. What
                 is timed then follows a lead-in of the same kind (a window, a call, up to 3
                 ping-pongs) without a pause, as one iteration follows the other when nothing is
                 checked; in collectives with the barrier that comes before every call. The lead-in
                 has places of its own: as much memory again, in latency up to 3 times as much or
                 256 MiB. After the clock has stopped, the receiver compares all of both, and the
                 guard bytes before, between and behind the messages. Corrupt data ends the run
                 with status 1.
  --no-limit     measure neither the limit nor the link
  --late-cuda    make the CUDA context after MPI_Init (default: before it, because btl/smcuda of
                 Open MPI 5.0 needs it; btl/gpusm does not)
  --nccl LIBRARY send by NCCL, to compare with: ncclSend and ncclRecv of that library, mostly
                 libnccl.so.2; a window, or all blocks of an alltoall, as one group; ncclAllReduce.
                 Device memory only
  --json FILE    also write the rows, and what the header says, to FILE
  --link-scale F take the link for F times as fast as it is, and hold every row against it: for
                 tests of the check

What is timed. bw: N MPI_Irecv on one side, N MPI_Isend on the other, MPI_Waitall, then a reply of 4
bytes in the receiver's kind of memory. bibw: N of each on both sides, MPI_Waitall, no reply.
mbw_mr: as bw. Bytes are divided by the time of the slowest rank. This is what osu_bw, osu_bibw and
osu_mbw_mr do, but for one thing: they use one buffer for all messages of a window, while here each
message has a place of its own in both buffers, whether content is checked or not, since receives
that overlap are an error in MPI and cannot be checked. (Messages of a window that hold more than
256 MiB share places, and with --places they may. Then those that share one have the same content,
and a checked size ends with one more window in parts in which none do.) latency: each round trip by
itself; the median, which osu_latency has not, and the mean, which it has. alltoall and allreduce:
every call after a barrier; of each call the time of the slowest rank, of these the median and the
mean. What allreduce adds are integers whose sum a float holds, so that it is exact in any order,
and -c can compare every byte of every rank's result. Open MPI 5.0 adds device memory on the host.

The limit is the bare copy, measured in the same run just before each row, with the same places and
offsets. Between two GPU buffers it is cuMemcpyAsync out of the peer's memory, opened by CUDA IPC,
until the receiver sees its event completed; between GPU and host it is cuMemcpyAsync between device
memory and a host buffer of the same process (pageable or registered, the better of the two; with R
registered);
between hosts it is memcpy in the receiver. For bandwidth, a window of copies is submitted back to
back and one event ends it. For alltoall all ranks copy at once, after a barrier, what each has to
receive, with one event. ratio is measured / limit: for latency and alltoall 1 is perfect and more
is worse, for bandwidth 1 is perfect and less is worse. The limit is no bound: transports may submit
many copies in a cheaper way. allreduce, which is more than copies, has neither a limit nor a link:
its columns show "-".

The link is a bound. It is measured once per run: the most bytes per second that the same bare
copies reach with 64 MiB each and, but for alltoall, with 256 MiB each (and with the largest size of
the run, where it is larger), back to back, best of 5. bibw: both ways at once; mbw_mr: all pairs at
once; latency: the better way; alltoall: into the device of rank 0, from the other device that has
the most to send for its speed. A row above 1.05 x the link is a measuring error, or data that never
moved: one line on stderr, and status 1. Latency counts as size / time, alltoall as the bytes that
cross that link / time. Within one device the link is what its memory copies. There a cache is
faster than the memory, so only rows that touch 4 times the size of the L2 cache or more (both
buffers, all places of a window) are held against it; that the others moved their data, only -c can
tell. There is no link for managed memory, whose pages may be anywhere, between hosts, and for
alltoall with host memory. On a software driver the link is only shown, unless --link-scale is
given.

The last line says which way messages went: get (fetched from the peer's device memory), staged
(device memory through host fragments), host path (host memory sent; barriers are counted too),
single copy (host memory that the receiver read by itself), direct (of those by get, page-locked
host memory that the sender copied to the receiver's device by itself). Of pageable host memory for
a device it adds how much the receivers pulled themselves while the senders copied, and the other
way round how much the senders pushed while the receivers copied; between host memories how much of
the single copies the senders made. It counts from the end of the first size's warm-up to the end,
summed over ranks.

status: 0 fine; 1 corrupt data, or a row above the link; 2 bad usage or missing requirement
)";

} // namespace gpusm::bench
