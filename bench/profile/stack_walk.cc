// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "bench/profile/stack_walk.h"

#include <csetjmp>
#include <csignal>
#include <iterator>

#include <link.h>
#include <pthread.h>
#include <ucontext.h>
#include <unwind.h>

namespace gpusm::profile {

namespace {

// From the handler to the code that it interrupted: walk_stack, the handler, the kernel's return
// stub, and whatever the compiler keeps of the functions between.
constexpr unsigned frames_of_handler_at_most = 8;

constexpr int guarded_signals[] = {SIGSEGV, SIGBUS, SIGABRT};

struct guard {
    struct sigaction before[std::size(guarded_signals)];
    pthread_t walker;
    volatile std::sig_atomic_t walking = 0;
    sigjmp_buf way_out;
};
guard guarded;

std::uintptr_t program_first = 0; // code of the program itself, where that is the goal
std::uintptr_t program_end = 0;

std::uintptr_t interrupted_address(const void *signal_context)
{
    const auto *context = static_cast<const ucontext_t *>(signal_context);
#if defined(__x86_64__)
    return static_cast<std::uintptr_t>(context->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
    return static_cast<std::uintptr_t>(context->uc_mcontext.pc);
#else
#error "tell where this processor keeps the interrupted address"
#endif
}

void on_fault(int signal, siginfo_t *info, void *)
{
    if (0 != guarded.walking && 0 != pthread_equal(guarded.walker, pthread_self())) {
        siglongjmp(guarded.way_out, 1);
    }
    // Not ours. Returning repeats the instruction, now with the action that was there before; a
    // signal that was sent has to be sent again.
    for (unsigned i = 0; i < std::size(guarded_signals); ++i) {
        if (signal == guarded_signals[i]) {
            (void)sigaction(signal, &guarded.before[i], nullptr);
        }
    }
    if (info->si_code <= 0) {
        (void)raise(signal);
    }
}

// The first object that the loader names is the program.
int find_program(dl_phdr_info *info, std::size_t, void *)
{
    for (unsigned i = 0; i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr) &part = info->dlpi_phdr[i];
        if (PT_LOAD == part.p_type && 0 != (part.p_flags & PF_X)) {
            program_first = info->dlpi_addr + part.p_vaddr;
            program_end = program_first + part.p_memsz;
        }
    }
    return 1;
}

struct progress {
    std::uintptr_t *out;
    unsigned limit;
    unsigned depth;   // frames kept
    unsigned skipped; // frames of the handler
    std::uintptr_t interrupted;
    walk_end end;
};

_Unwind_Reason_Code keep_frame(_Unwind_Context *context, void *argument)
{
    auto &walk = *static_cast<progress *>(argument);
    int exact = 0; // an interrupted address, and not one to return to
    const std::uintptr_t address = _Unwind_GetIPInfo(context, &exact);
    if (0 == walk.depth && address != walk.interrupted) {
        if (++walk.skipped > frames_of_handler_at_most) {
            return _URC_END_OF_STACK;
        }
        return _URC_NO_REASON;
    }
    if (walk.depth == walk.limit) {
        walk.end = walk_end::cut;
        return _URC_END_OF_STACK;
    }
    walk.out[walk.depth++] = 0 != exact ? address : address - 1;
    if (address >= program_first && address < program_end) {
        walk.end = walk_end::there;
        return _URC_END_OF_STACK;
    }
    return _URC_NO_REASON;
}

_Unwind_Reason_Code count_frame(_Unwind_Context *, void *count)
{
    ++*static_cast<unsigned *>(count);
    return _URC_NO_REASON;
}

} // namespace

void begin_walks(walk_goal goal)
{
    program_first = program_end = 0;
    if (walk_goal::program == goal) {
        (void)dl_iterate_phdr(find_program, nullptr);
    }
    unsigned frames = 0;
    (void)_Unwind_Backtrace(count_frame, &frames);
    guarded.walker = pthread_self();
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    // Not deferred, because the way out of a walk is a jump that leaves the signal mask alone.
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    for (unsigned i = 0; i < std::size(guarded_signals); ++i) {
        (void)sigaction(guarded_signals[i], &action, &guarded.before[i]);
    }
}

void end_walks()
{
    for (unsigned i = 0; i < std::size(guarded_signals); ++i) {
        (void)sigaction(guarded_signals[i], &guarded.before[i], nullptr);
    }
}

unsigned walk_stack(const void *signal_context, std::uintptr_t *out, unsigned limit, walk_end *end)
{
    // Static: what a jump comes back to must not live in registers.
    static progress walk;
    walk = {out, limit, 0, 0, interrupted_address(signal_context), walk_end::lost};
    if (0 == sigsetjmp(guarded.way_out, 0)) {
        guarded.walking = 1;
        (void)_Unwind_Backtrace(keep_frame, &walk);
        if (0 == program_end && walk.depth > 0 && walk_end::cut != walk.end) {
            walk.end = walk_end::there;
        }
    }
    guarded.walking = 0;
    if (0 == walk.depth) {
        out[0] = walk.interrupted;
        walk.depth = 1;
    }
    *end = walk.end;
    return walk.depth;
}

} // namespace gpusm::profile
