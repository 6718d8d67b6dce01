// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// help.cc: what `copy_bench --help` prints.
#include "bench/copy_bench/options.h"

namespace gpusm::copy_bench {

const char *const help_text =
    R"(usage: copy_bench [options]

Measures copies out of a peer GPU's memory in the three ways that gpusm has, without MPI:

  single    one cuMemcpyAsync each, then one event
  batch     one cuMemcpyBatchAsync, then one event
  kernel    one launch of the gather kernel, which sets a flag in host memory

The memory belongs to another process, which this program starts and which does nothing else; it
is opened by CUDA IPC, as btl/gpusm opens it. The copies are made by device 0 out of the memory of
device 1, or of device 0 itself when there is no other. Times are medians, in microseconds, from
the first driver call until the processor has seen that everything is there; "submit" is the part
of that which the submitting calls take. Afterwards every byte is checked once for each way.

What to print (default: --table --signals):
  --table        all counts and sizes: the three ways, the one that gpusm takes for it (gpu/
                 copy_choice.h), the best one, and whether the choice costs at most 10 % more
  --signals      one copy of 8 bytes, and how its end is noticed: an event that is queried, a word
                 in host memory written by cuStreamWriteValue32, the kernel's flag; and what
                 single driver calls cost that nobody waits for
  --grid         the kernel alone, for 64 x 64K, 64 x 256K and 16 x 1M, with 4 to 128 blocks
  --host         between the device and registered host memory, into the device and out of it, of
                 which the lines are in memory (at rest), or in this processor's cache because it
                 has just written them, or just read them
  --busy         64 x 8 and 16 x 64K while kernels of an application fill the device: none; blocks
                 of 100 us that all end together; blocks of 50 to 150 us that do not; one wave of
                 blocks of 5 ms. "longest" is the longest of all repetitions, "ended first" how
                 often the application's kernel was over before the copies were.

  --counts A,B,C copies at once, 1 to 128 (default 1,2,4,8,16,32,64,128)
  --sizes A,B,C  bytes of a copy, suffixes K M G (powers of 1024), up to 1G (default
                 8,64,512,4K,16K,64K,256K,1M,2M,4M,16M); what is more than 1 GiB in all is left out
  --seconds S    time for one way of one cell of --table, and for one row of --signals and --grid;
                 there are at least 20 repetitions whatever it is (default 0.05)
  --blocks N     thread blocks of the kernel at most, 0 for no kernel (default: gpusm's; --grid
                 has its own)
  --same-gpu     the memory is on the device that copies
  --markdown     tables in Markdown
  -h, --help     this text

status: 0 fine; 1 wrong bytes or a failing driver call; 2 bad usage, no driver, or no device that
can be used
)";

} // namespace gpusm::copy_bench
