// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// stack_walk.h: who called what, seen from inside a signal handler, in code that was built without
// frame pointers: the unwind tables of the modules lead the way, as they do for exceptions.
#ifndef GPUSM_PROFILE_STACK_WALK_H
#define GPUSM_PROFILE_STACK_WALK_H

#include <cstdint>

namespace gpusm::profile {

enum class walk_goal {
    program,   // the first frame of the program itself: who called the libraries is known then
    outermost, // as far as the tables go
};

enum class walk_end {
    there, // at the goal
    cut,   // more frames than room for them
    lost,  // no way on: a module without tables, or tables that lead nowhere
};

// Does for the calling thread what must not happen inside a handler (the unwinder loads and sets up
// itself at its first use), and takes SIGSEGV, SIGBUS and SIGABRT until end_walks(): wrong tables
// make the unwinder read where nothing is, or give up by abort(). A fault outside of a walk goes to
// whom it went before. One thread at a time.
void begin_walks(walk_goal goal);
void end_walks();

// The addresses of the code that a signal interrupted, innermost first, at most `limit`; of a
// caller, an address inside its call instruction. `signal_context` is the handler's third argument.
// Returns how many, at least 1; whatever happens in the walk, the interrupted address is there.
// Only in the thread that called begin_walks(), inside a handler. Neither allocates nor locks
// (glibc from 2.35 on; before it, the loader's lock).
unsigned walk_stack(const void *signal_context, std::uintptr_t *out, unsigned limit, walk_end *end);

} // namespace gpusm::profile

#endif
