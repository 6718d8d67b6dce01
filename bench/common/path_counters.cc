// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// path_counters.cc: the MPI_T calls behind path_counters.h.
#include "bench/common/path_counters.h"

namespace gpusm::bench {

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

path_counts since(const path_counts &earlier, path_counts later)
{
    for (auto &[name, value] : later) {
        const auto before = earlier.find(name);
        value -= earlier.end() == before ? 0 : before->second;
    }
    return later;
}

path_counters::path_counters(const std::string &prefix)
{
    int variables = 0;
    initialized_ = init_tools();
    if (!initialized_ || MPI_SUCCESS != MPI_T_pvar_session_create(&session_) ||
        MPI_SUCCESS != MPI_T_pvar_get_num(&variables)) {
        return;
    }
    for (int i = 0; i < variables; ++i) {
        char text[256] = "";
        int text_bytes = sizeof(text);
        int kind = 0;
        int unused[5] = {};
        MPI_Datatype type = MPI_DATATYPE_NULL;
        MPI_T_pvar_handle handle = MPI_T_PVAR_HANDLE_NULL;
        const int answer =
            MPI_T_pvar_get_info(i, text, &text_bytes, &unused[0], &kind, &type, nullptr, nullptr,
                                nullptr, &unused[1], &unused[2], &unused[3], &unused[4]);
        const std::string name = text;
        if (MPI_SUCCESS == answer && name.starts_with(prefix) && MPI_T_PVAR_CLASS_COUNTER == kind &&
            MPI_UNSIGNED_LONG_LONG == type &&
            MPI_SUCCESS == MPI_T_pvar_handle_alloc(session_, i, nullptr, &handle, &unused[0])) {
            variables_[name.substr(prefix.size())] = handle;
        }
    }
}

path_counters::~path_counters()
{
    for (auto &[name, handle] : variables_) {
        (void)MPI_T_pvar_handle_free(session_, &handle);
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
    path_counts counts;
    for (const auto &[name, handle] : variables_) {
        (void)MPI_T_pvar_read(session_, handle, &counts[name]);
    }
    return counts;
}

} // namespace gpusm::bench
