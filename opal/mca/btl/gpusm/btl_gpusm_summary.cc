// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_summary.h"
#include "opal/mca/btl/gpusm/btl_gpusm_device.h"
#include "opal/mca/btl/gpusm/btl_gpusm_self.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <cstdio>
#include <utility>

namespace gpusm {

namespace {

template <typename... Values> void append(std::string *to, const char *format, Values... values)
{
    char line[256];
    (void)std::snprintf(line, sizeof(line), format, values...);
    *to += line;
}

// "mapped", where the counter of messages is followed by that of their bytes; else nothing.
std::string_view pair_at(std::size_t number)
{
    constexpr std::string_view ends = "_messages";
    const std::string_view name = counter_descriptions[number].name;
    return name.ends_with(ends) ? name.substr(0, name.size() - ends.size()) : std::string_view();
}

void append_peer(std::string *to, const std::string &who, peer_summary &of)
{
    for (std::size_t i = 0; i < message_counters; ++i) {
        const std::string_view way = pair_at(i);
        const unsigned long long messages = of.counted[i].load(std::memory_order_relaxed);
        if (!way.empty() && 0 != messages) {
            append(to, "  %-10s %-18.*s %12llu messages %20llu bytes\n", who.c_str(),
                   static_cast<int>(way.size()), way.data(), messages,
                   of.counted[i + 1].load(std::memory_order_relaxed));
        }
    }
    const std::lock_guard guard(of.lock);
    for (const auto &[why, how_often] : of.fallbacks) {
        append(to, "  %-10s fell back: %s: %llu messages, %llu bytes\n", who.c_str(), why.c_str(),
               static_cast<unsigned long long>(how_often.messages),
               static_cast<unsigned long long>(how_often.bytes));
    }
}

} // namespace

std::unique_ptr<peer_summary> new_peer_summary()
{
    return mca_btl_gpusm_component.summary ? std::make_unique<peer_summary>() : nullptr;
}

void peer_summary::fell_back(std::string reason, bool first, std::size_t bytes)
{
    const std::lock_guard guard(lock);
    amount &of = fallbacks[std::move(reason)];
    of.messages += first ? 1 : 0;
    of.bytes += bytes;
}

void peer_summary::went_in_fragments(ipc_state fetches, bool first, std::size_t bytes)
{
    if (!mca_btl_gpusm_component.use_cuda_ipc) {
        fell_back("btl_gpusm_use_cuda_ipc is 0", first, bytes);
        return;
    }
    switch (fetches) {
    case ipc_state::ready:
        break;
    case ipc_state::refused:
        fell_back("the peer has refused to fetch device memory", first, bytes);
        break;
    case ipc_state::idle:
    case ipc_state::asked:
        fell_back("the peer does not use a device yet", first, bytes);
        break;
    }
}

void fell_back(const mca_btl_base_endpoint_t *peer, std::string_view what, status why,
               std::size_t bytes)
{
    log_line(log_level::info, "%.*s: %s (%zu bytes)", static_cast<int>(what.size()), what.data(),
             to_string(why), bytes);
    if (peer->summary != nullptr) {
        peer->summary->fell_back(std::string(what) + ": " + to_string(why), true, bytes);
    }
}

void fell_back_to_fragments(const mca_btl_base_endpoint_t *peer, status why, std::size_t bytes)
{
    fell_back(peer,
              status::unsupported == why ? "memory that no peer can map goes in fragments"
                                         : "a message goes in fragments",
              why, bytes);
}

void print_summary(transport &of)
{
    if (gpu_side *side = of.process.gpu_if_made(); side != nullptr) {
        const std::lock_guard guard(side->lock);
        tell_counters(*side);
    }
    tell_checks(of);
    std::string text;
    append(&text, "btl/gpusm: summary of rank %u\n",
           static_cast<unsigned>(opal_process_info.my_name.vpid));
    const std::size_t header_bytes = text.size();
    for (std::size_t i = 0; mca_btl_base_endpoint_t *each = of.endpoint_at(i); ++i) {
        if (each->summary != nullptr) {
            append_peer(&text, "rank " + std::to_string(each->peer->identity().vpid),
                        *each->summary);
        }
    }
    if (of.self->endpoint.summary != nullptr) {
        append_peer(&text, "itself", *of.self->endpoint.summary);
    }
    if (header_bytes == text.size()) {
        text += "  no messages\n";
    }
    for (std::size_t i = message_counters; i < std::size(counter_descriptions); ++i) {
        const auto &counted = mca_btl_gpusm_component.counters[i];
        if (const auto number = counted.load(std::memory_order_relaxed); 0 != number) {
            append(&text, "  %-29s %12llu\n", counter_descriptions[i].name, number);
        }
    }
    opal_output(0, "%s", text.c_str());
}

} // namespace gpusm
