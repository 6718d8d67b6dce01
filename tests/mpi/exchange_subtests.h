// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_subtests.h: the subtests of exchange, and what each needs.
#ifndef GPUSM_TESTS_MPI_EXCHANGE_SUBTESTS_H
#define GPUSM_TESTS_MPI_EXCHANGE_SUBTESTS_H

#include "tests/mpi/exchange.h"

#include <cstring>

namespace gpusm::exchange {

// Who takes part; the others of a job wait at the end.
enum class ranks {
    everyone,
    pair,   // ranks 0 and 1
    by_get, // these two, when messages of device memory go by get
};

// How MPI begins and ends.
enum class frame {
    usual,
    finalize_at_exit, // MPI_Finalize comes when the CUDA driver has ended
    own,              // by the subtest itself, without MPI_Init
};

struct subtest {
    const char *name;
    test_function *function;
    ranks who;
    bool context_first; // make the CUDA context before MPI_Init, as stock btl/smcuda needs it
    int threads = MPI_THREAD_SINGLE; // the level that it needs
    frame around = frame::usual;

    int least_ranks() const { return ranks::everyone == who ? 1 : 2; }
};

inline constexpr subtest subtests[] = {
    {"pairs", test_pairs, ranks::pair, true},
    {"gather", test_gather, ranks::by_get, true},
    {"gather-from-host", test_gather_from_host, ranks::by_get, true},
    {"behind-end", test_behind_end, ranks::by_get, true},
    {"alltoall", test_alltoall, ranks::everyone, true},
    {"random", test_random, ranks::everyone, true},
    {"any-source", test_any_source, ranks::everyone, true},
    {"unexpected", test_unexpected, ranks::everyone, true},
    {"many", test_many, ranks::pair, true},
    {"truncation", test_truncation, ranks::pair, true},
    {"truncation-at-end", test_truncation_at_end, ranks::pair, true},
    {"datatypes", test_datatypes, ranks::pair, true},
    {"random-types", test_random_types, ranks::everyone, true},
    {"random-types-threads", test_random_types_threads, ranks::everyone, true, MPI_THREAD_MULTIPLE},
    {"views", test_views, ranks::everyone, true},
    {"views-threads", test_views_threads, ranks::pair, true, MPI_THREAD_MULTIPLE},
    {"packing", test_packing, ranks::everyone, true},
    {"ways", test_ways, ranks::pair, true},
    {"recovery", test_recovery, ranks::pair, true},
    {"rooted-between-groups", test_rooted_between_groups, ranks::everyone, true},
    {"idup", test_idup, ranks::everyone, true},
    {"idup-threads", test_idup, ranks::everyone, true, MPI_THREAD_MULTIPLE},
    {"told", test_told, ranks::pair, true, MPI_THREAD_MULTIPLE},
    {"first", test_first, ranks::pair, true},
    {"late", test_late, ranks::pair, false},
    {"late-pairs", test_pairs, ranks::pair, false},
    {"self", test_self, ranks::everyone, true},
    {"self-short", test_self_short, ranks::everyone, true},
    {"absolute-reductions", test_absolute_reductions, ranks::everyone, true},
    {"type-handles", test_type_handles, ranks::everyone, true},
    {"many-types", test_many_types, ranks::pair, true},
    {"other-device", test_other_device, ranks::pair, true},
    {"calls", test_calls, ranks::everyone, true},
    {"shared-device", test_shared_device, ranks::everyone, true},
    {"shared-device-contexts", test_shared_device_contexts, ranks::everyone, true},
    {"shared-device-away", test_shared_device_away, ranks::everyone, true},
    {"silent-senders", test_silent_senders, ranks::everyone, true},
    {"persistent", test_persistent, ranks::by_get, true},
    {"context-lost", test_context_lost, ranks::by_get, true},
    {"life", test_life, ranks::pair, true},
    {"many-small", test_many_small, ranks::by_get, true},
    {"idle-mapping", test_idle_mapping, ranks::by_get, true},
    {"reuse", test_reuse, ranks::by_get, true},
    {"cooperative-late", test_cooperative_late, ranks::pair, false},
    {"locked", test_locked, ranks::pair, true},
    {"locked-one-way", test_locked_one_way, ranks::pair, true},
    {"locked-in-part", test_locked_in_part, ranks::by_get, true},
    {"locked-later", test_locked_later, ranks::by_get, true},
    {"locked-life", test_locked_life, ranks::pair, true},
    {"threads-without-context", test_threads_without_context, ranks::pair, true,
     MPI_THREAD_MULTIPLE},
    {"context-switched", test_context_switched, ranks::by_get, true},
    {"context-of-two-destroyed", test_context_of_two_destroyed, ranks::pair, false},
    {"host-context-destroyed", test_host_context_destroyed, ranks::by_get, true},
    {"device-switched", test_device_switched, ranks::by_get, true},
    {"two-devices", test_two_devices, ranks::by_get, true},
    {"never", test_never, ranks::pair, false},
    {"closed", test_closed, ranks::pair, false},
    {"elsewhere", test_elsewhere, ranks::by_get, true},
    {"stress", test_stress, ranks::everyone, true, MPI_THREAD_FUNNELED},
    {"capture-first", test_capture_first, ranks::pair, true, MPI_THREAD_FUNNELED},
    {"capture", test_capture, ranks::pair, true, MPI_THREAD_FUNNELED},
    {"work-waits", test_work_waits, ranks::by_get, true},
    {"work-waits-first", test_work_waits_first, ranks::pair, true},
    {"work-waits-window", test_work_waits_window, ranks::pair, true},
    {"work-waits-collective", test_work_waits_collective, ranks::everyone, true},
    {"work-waits-child-ends", test_work_waits_child_ends, ranks::pair, true},
    {"streamed-child", streamed_child, ranks::everyone, true},
    {"foreign", test_foreign, ranks::by_get, true},
    {"context-destroyed", test_context_destroyed, ranks::by_get, true},
    {"primary-reset", test_primary_reset, ranks::by_get, true},
    {"primary-released", test_primary_released, ranks::by_get, true},
    {"primary-renewed", test_primary_renewed, ranks::by_get, true},
    {"primary-again", test_primary_again, ranks::by_get, true},
    {"finalize-at-exit", test_finalize_at_exit, ranks::pair, false, MPI_THREAD_SINGLE,
     frame::finalize_at_exit},
    {"threads", test_threads, ranks::pair, true, MPI_THREAD_MULTIPLE},
    {"spawn", test_spawn, ranks::everyone, true},
    {"spawned-child", spawned_child, ranks::everyone, true},
    {"connect", test_connect, ranks::pair, true},
    {"sessions", test_sessions, ranks::everyone, true, MPI_THREAD_SINGLE, frame::own},
    {"session-threads", test_session_threads, ranks::everyone, true, MPI_THREAD_SINGLE, frame::own},
    {"session-threads-later", test_session_threads_later, ranks::everyone, true, MPI_THREAD_SINGLE,
     frame::own},
    {"two-session-threads", test_two_session_threads, ranks::everyone, true, MPI_THREAD_SINGLE,
     frame::own},
    {"forks", test_forks, ranks::pair, true},
    {"children", test_children, ranks::everyone, true},
    {"children-and-threads", test_children, ranks::everyone, true, MPI_THREAD_MULTIPLE},
    {"ending-child", ending_child, ranks::everyone, true},
    {"lost-child", test_lost_child, ranks::everyone, true},
    {"dying-child", dying_child, ranks::everyone, true},
    {"left-child", test_left_child, ranks::everyone, true},
    {"leaving-child", leaving_child, ranks::everyone, true},
    {"early-children", test_early_children, ranks::everyone, false},
    {"early-child", early_child, ranks::everyone, false},
    {"early-session", test_early_session, ranks::everyone, false, MPI_THREAD_SINGLE, frame::own},
    {"early-receiver", test_early_receiver, ranks::everyone, false, MPI_THREAD_SINGLE, frame::own},
    {"unread", test_unread, ranks::everyone, false, MPI_THREAD_SINGLE, frame::own},
    {"left-session", test_left_session, ranks::everyone, true, MPI_THREAD_SINGLE, frame::own},
    {"unread-by-the-dead", test_unread_by_the_dead, ranks::everyone, false, MPI_THREAD_SINGLE,
     frame::own},
    {"lost-segment", test_lost_segment, ranks::everyone, false},
    {"child-without-segment", child_without_segment, ranks::everyone, false},
    {"deaf-child", deaf_child, ranks::everyone, false},
    {"out-of-reach", test_out_of_reach, ranks::everyone, false},
    {"collectives", test_collectives, ranks::everyone, true},
    {"collectives-content", test_collectives_content, ranks::everyone, true},
    {"reductions", test_reductions, ranks::everyone, true},
    {"reductions-types", test_reductions_types, ranks::everyone, true},
    {"reductions-long", test_reductions_long, ranks::everyone, true},
    {"reductions-inter", test_reductions_inter, ranks::everyone, true},
    {"reductions-threads", test_reductions_threads, ranks::everyone, true, MPI_THREAD_MULTIPLE},
    {"started-otherwise", test_started_otherwise, ranks::everyone, true},
    {"blocking-behind-started", test_blocking_behind_started, ranks::everyone, true,
     MPI_THREAD_MULTIPLE},
    {"reductions-startall", test_reductions_startall, ranks::everyone, true},
    {"collective-stream", test_collective_stream, ranks::everyone, true},
    {"collectives-alone", test_collectives_alone, ranks::everyone, true},
    {"collectives-killed", test_collectives_killed, ranks::everyone, true},
    {"collectives-recover", test_collectives_recover, ranks::everyone, true},
    {"collectives-revoked", test_collectives_revoked, ranks::everyone, true},
    {"collectives-survive", test_collectives_survive, ranks::everyone, true},
    {"windows", test_windows, ranks::everyone, true},
    {"windows-types", test_windows_types, ranks::everyone, true},
    {"windows-flavours", test_windows_flavours, ranks::everyone, true},
    {"windows-atomics", test_windows_atomics, ranks::everyone, true},
    {"windows-epochs", test_windows_epochs, ranks::everyone, true},
    {"windows-threads", test_windows_threads, ranks::everyone, true, MPI_THREAD_MULTIPLE},
    {"windows-ends", test_windows_ends, ranks::everyone, true},
    {"windows-errors", test_windows_errors, ranks::everyone, true},
    {"windows-survive", test_windows_survive, ranks::everyone, true},
    {"written-late", test_written_late, ranks::pair, true},
    {"written-in-time", test_written_in_time, ranks::pair, true},
    {"soak", test_soak, ranks::everyone, true},
    {"soak-threads", test_soak_threads, ranks::everyone, true, MPI_THREAD_MULTIPLE},
    {"survive", test_survive, ranks::everyone, true},
    {"killed", test_killed, ranks::everyone, true},
};

inline const subtest *find_subtest(const char *name)
{
    for (const subtest &candidate : subtests) {
        if (0 == std::strcmp(candidate.name, name)) {
            return &candidate;
        }
    }
    return nullptr;
}

} // namespace gpusm::exchange

#endif
