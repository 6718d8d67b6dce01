// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// path_counters.cc: the MPI_T calls behind path_counters.h.
#include "bench/common/path_counters.h"

#include <iterator>

namespace gpusm::bench {

namespace {

constexpr const char *variable_names[] = {
    "btl_gpusm_get_messages",         "btl_gpusm_staged_messages",
    "btl_gpusm_host_messages",        "btl_gpusm_get_bytes",
    "btl_gpusm_staged_bytes",         "btl_gpusm_host_bytes",
    "btl_gpusm_single_copy_messages", "btl_gpusm_direct_host_messages",
    "btl_gpusm_pulled_host_bytes",    "btl_gpusm_pushed_host_bytes",
    "btl_gpusm_joint_copy_bytes",     "btl_gpusm_stream_messages",
};

using raw_counts = std::array<unsigned long long, std::size(variable_names)>;

path_counts from_raw(const raw_counts &raw)
{
    return {raw[0], raw[1], raw[2], raw[3], raw[4],  raw[5],
            raw[6], raw[7], raw[8], raw[9], raw[10], raw[11]};
}

raw_counts to_raw(const path_counts &counts)
{
    return {counts.get_messages,         counts.staged_messages,
            counts.host_messages,        counts.get_bytes,
            counts.staged_bytes,         counts.host_bytes,
            counts.single_copy_messages, counts.direct_host_messages,
            counts.pulled_host_bytes,    counts.pushed_host_bytes,
            counts.joint_copy_bytes,     counts.stream_messages};
}

} // namespace

bool init_tools()
{
    int begun = 0;
    int ended = 0;
    int level = MPI_THREAD_SINGLE;
    int provided = MPI_THREAD_SINGLE;
    (void)MPI_Initialized(&begun);
    (void)MPI_Finalized(&ended);
    if (0 != begun && 0 == ended) {
        (void)MPI_Query_thread(&level);
    }
    return MPI_SUCCESS == MPI_T_init_thread(level, &provided);
}

path_counts operator-(const path_counts &later, const path_counts &earlier)
{
    raw_counts difference = to_raw(later);
    const raw_counts before = to_raw(earlier);
    for (std::size_t i = 0; i < difference.size(); ++i) {
        difference[i] -= before[i];
    }
    return from_raw(difference);
}

path_counters::path_counters()
{
    handles_.fill(MPI_T_PVAR_HANDLE_NULL);
    initialized_ = init_tools();
    if (!initialized_) {
        return;
    }
    if (MPI_SUCCESS != MPI_T_pvar_session_create(&session_)) {
        session_ = MPI_T_PVAR_SESSION_NULL;
        return;
    }
    for (std::size_t i = 0; i < count; ++i) {
        int index = -1;
        int values = 0;
        if (MPI_SUCCESS !=
                MPI_T_pvar_get_index(variable_names[i], MPI_T_PVAR_CLASS_COUNTER, &index) ||
            MPI_SUCCESS !=
                MPI_T_pvar_handle_alloc(session_, index, nullptr, &handles_[i], &values)) {
            handles_[i] = MPI_T_PVAR_HANDLE_NULL;
            return;
        }
        if (1 != values) {
            return;
        }
    }
    available_ = true;
}

path_counters::~path_counters()
{
    for (MPI_T_pvar_handle &handle : handles_) {
        if (MPI_T_PVAR_HANDLE_NULL != handle) {
            (void)MPI_T_pvar_handle_free(session_, &handle);
        }
    }
    if (MPI_T_PVAR_SESSION_NULL != session_) {
        (void)MPI_T_pvar_session_free(&session_);
    }
    if (initialized_) {
        (void)MPI_T_finalize();
    }
}

path_counts path_counters::read() const
{
    raw_counts raw = {};
    if (available_) {
        for (std::size_t i = 0; i < count; ++i) {
            (void)MPI_T_pvar_read(session_, handles_[i], &raw[i]);
        }
    }
    return from_raw(raw);
}

path_counts sum_over_ranks(const path_counts &mine, MPI_Comm communicator)
{
    const raw_counts raw = to_raw(mine);
    raw_counts sum = {};
    (void)MPI_Reduce(raw.data(), sum.data(), static_cast<int>(raw.size()), MPI_UNSIGNED_LONG_LONG,
                     MPI_SUM, 0, communicator);
    return from_raw(sum);
}

} // namespace gpusm::bench
