// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_help.cc: messages for the user. The texts of help-mpi-btl-gpusm.txt are compiled
// in, because Open MPI 6 looks help texts up in a table of its own tree only and an out-of-tree
// component cannot add to it; so they are there in every installation.
#include "opal/mca/btl/gpusm/btl_gpusm.h"

#include "opal/mca/common/gpusm/base/log.h"

#include "opal/mca/btl/gpusm/btl_gpusm_help_text.h" // generated from help/

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>

namespace gpusm {

namespace {

void to_output(log_level level, const char *line)
{
    const bool matters = level <= log_level::warn;
    opal_output(matters ? 0 : mca_btl_gpusm_component.output, "btl/gpusm: %s", line);
}

constexpr char rule[] =
    "--------------------------------------------------------------------------";

// Prints through the runtime, which shows a message that many ranks have only once. Waits for
// its answer, because nothing of ours may be left with it when Open MPI unloads this component.
bool print_once_per_job(const char *topic, const std::string &message)
{
    bool aggregate = true;
    pmix_info_t what;
    pmix_info_t how[3];
    PMIX_INFO_LOAD(&what, PMIX_LOG_STDERR, message.c_str(), PMIX_STRING);
    PMIX_INFO_LOAD(&how[0], PMIX_LOG_AGG, &aggregate, PMIX_BOOL);
    PMIX_INFO_LOAD(&how[1], PMIX_LOG_KEY, "help-mpi-btl-gpusm.txt", PMIX_STRING);
    PMIX_INFO_LOAD(&how[2], PMIX_LOG_VAL, topic, PMIX_STRING);
    const pmix_status_t rc = PMIx_Log(&what, 1, how, 3);
    PMIX_INFO_DESTRUCT(&what);
    for (pmix_info_t &each : how) {
        PMIX_INFO_DESTRUCT(&each);
    }
    return PMIX_SUCCESS == rc || PMIX_OPERATION_SUCCEEDED == rc;
}

} // namespace

void log_to_opal()
{
    log_install(to_output,
                std::max(log_level::warn,
                         static_cast<log_level>(mca_btl_gpusm_component.cuda_ipc_verbose)));
}

void show_help(const char *topic, ...)
{
    const char *format = nullptr;
    for (const auto &each : gpusm_help_texts) {
        if (0 == std::strcmp(each.topic, topic)) {
            format = each.text;
        }
    }
    if (nullptr == format) {
        opal_output(0, "btl/gpusm: there is no help text \"%s\"", topic);
        return;
    }
    va_list arguments;
    va_start(arguments, topic);
    char text[4096];
    (void)std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    const char *host = nullptr == opal_process_info.nodename ? "?" : opal_process_info.nodename;
    const std::string message = std::string(rule) + "\n" + text + "\n  Local host: " + host +
                                "\n  Process:    " + std::to_string(getpid()) + "\n" + rule + "\n";
    if (!print_once_per_job(topic, message)) {
        (void)std::fputs(message.c_str(), stderr);
    }
}

} // namespace gpusm
