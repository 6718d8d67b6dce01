// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_limits.cc: up to which length host messages go in two copies, through a fragment
// (btl_eager_limit): what is chosen at start, and what the messages themselves teach.
#include "opal/mca/btl/gpusm/btl_gpusm_limits.h"
#include "opal/mca/btl/gpusm/btl_gpusm_smsc.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>

namespace gpusm {

namespace {

constexpr std::size_t kibi = 1024;

mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
mca_btl_base_module_t &module = mca_btl_gpusm.super;

std::size_t told_bytes = 0; // the limit that a reader of the log knows of

// Has nobody set that parameter?
bool is_default(const char *name)
{
    const int found = mca_base_var_find("opal", "btl", "gpusm", name);
    mca_base_var_source_t source = MCA_BASE_VAR_SOURCE_DEFAULT;
    return found >= 0 && OPAL_SUCCESS == mca_base_var_get_value(found, nullptr, &source, nullptr) &&
           MCA_BASE_VAR_SOURCE_DEFAULT == source;
}

// One of what is watched has another limit now.
void follow_limits()
{
    const two_copies &watched = component.two_copies;
    const message_rows &rows = component.message_rows;
    const written_messages &written = component.written_messages;
    const device_samples &samples = component.device_samples;
    std::size_t limit = watched.limit();
    // Where two copies are slow, they are so in rows, too, and whoever has written what.
    if (rows.in_rows() && !watched.are_slow()) {
        limit = std::max(limit, rows.most_bytes());
    }
    if (written.are_written() && !watched.are_slow()) {
        limit = std::max(limit, written.most_bytes());
    }
    if (component.device_rows.in_rows()) {
        limit = std::min(limit, component.device_rows.limit_bytes());
    }
    if (samples.is_sampling()) {
        limit = std::min(limit, samples.beyond_bytes());
    }
    // Other threads may be reading it.
    std::atomic_ref(module.btl_eager_limit).store(limit, std::memory_order_relaxed);
    // Attempts and samples come again and again, and are not worth a line.
    if (!watched.is_trying() && !samples.is_sampling() && limit != told_bytes) {
        told_bytes = limit;
        log_line(log_level::info, "from now on host messages of up to %zu bytes go in two copies",
                 told_bytes);
    }
}

} // namespace

bool watch_offer(const void *data, std::size_t len_bytes, bool single)
{
    const std::lock_guard guard(*component.watching);
    const std::size_t bytes = len_bytes + header_bytes;
    const std::uint32_t others = component.host_offers.load(std::memory_order_relaxed);
    const bool are_slow = component.two_copies.are_slow();
    const bool was_sample = component.device_samples.offered(bytes);
    const bool other_limit =
        single ? component.two_copies.went_singly(bytes) : component.two_copies.stop();
    host_messages &all = component.host_messages;
    const bool longer = single && all.offered(bytes, others);
    if (longer) {
        (void)component.two_copies.up_to(all.to_bytes());
        component.message_rows.up_to(all.to_bytes());
    }
    const bool in_rows = single && component.message_rows.offered(bytes, others);
    const bool written = single && component.written_messages.offered(bytes, data, len_bytes);
    const bool out_of_rows = component.device_rows.offered(bytes, others);
    if (was_sample || other_limit || longer || in_rows || written || out_of_rows) {
        follow_limits();
    }
    return are_slow;
}

void watch_device(std::uint64_t len_bytes)
{
    const std::lock_guard guard(*component.watching);
    const std::uint64_t bytes = len_bytes + header_bytes;
    bool other_limit = false;
    if (component.device_rows.concerns(bytes)) {
        other_limit = component.device_rows.went_to_device(bytes);
    } else {
        component.host_messages.stop();
        two_copies &watched = component.two_copies;
        const bool is_lower = watched.at_most(eager_frag_bytes);
        const bool out_of_rows = component.message_rows.went_to_device(watched.most());
        const bool unwritten = component.written_messages.went_to_device(bytes);
        other_limit = is_lower || out_of_rows || unwritten;
    }
    if (other_limit) {
        follow_limits();
    }
}

bool watch_copies(std::size_t bytes, const void *data, std::size_t len_bytes)
{
    const std::lock_guard guard(*component.watching);
    const bool unwritten = component.written_messages.sent(bytes, data, len_bytes);
    const bool samples = component.device_samples.sent(bytes);
    if (samples || unwritten) {
        follow_limits();
    }
    return component.two_copies.is_due(bytes);
}

void watch_timed(std::size_t bytes, std::uint64_t ns)
{
    const std::lock_guard guard(*component.watching);
    if (component.two_copies.timed(bytes, ns)) {
        follow_limits();
    }
}

void watch_row(const mca_btl_base_endpoint_t *endpoint)
{
    const std::lock_guard guard(*component.watching);
    if (component.message_rows.sent(!endpoint->peer->is_in_row())) {
        follow_limits();
    }
}

void choose_limits(bool threads)
{
    // What messages to all peers at once, as in an all-to-all, may take of the segment.
    constexpr std::size_t most_bytes = 192 * kibi;
    const std::size_t peers = std::max<std::size_t>(1, opal_process_info.num_local_peers);
    std::size_t fitting_bytes = std::max(6 * kibi, most_bytes / peers);
    if (!is_default("max_send_size")) {
        fitting_bytes = std::min(fitting_bytes, module.btl_max_send_size);
    }
    const bool choose = is_default("eager_limit");
    std::size_t in_rows_bytes = component.eager_limit_in_rows;
    std::uint64_t call_ns = 0;
    if (choose) {
        call_ns = smsc_call_ns();
        const two_copies_worth worth = two_copies_worth::beside(call_ns);
        const std::size_t worth_bytes =
            std::max(least_eager_limit, std::min(worth.alone_bytes, fitting_bytes));
        module.btl_eager_limit = std::min(worth_bytes, unshared_bytes);
        if (is_default("eager_limit_in_rows")) {
            in_rows_bytes = std::min(in_rows_bytes, worth.in_rows_bytes);
        }
        if (worth_bytes > module.btl_eager_limit) {
            component.host_messages = host_messages(module.btl_eager_limit, worth_bytes);
        }
        log_line(log_level::info, "messages between host memories go in two copies up to %zu bytes",
                 module.btl_eager_limit);
    }
    if (is_default("max_send_size")) {
        module.btl_max_send_size = std::max(
            {module.btl_max_send_size, module.btl_eager_limit, component.host_messages.to_bytes()});
    }
    told_bytes = module.btl_eager_limit;
    component.two_copies = 0 == call_ns ? two_copies(module.btl_eager_limit)
                                        : two_copies(module.btl_eager_limit, call_ns);
    // What the user has set is not lowered, for a sample neither.
    std::size_t samples_beyond = choose ? eager_frag_bytes : module.btl_eager_limit;
    const std::size_t in_device_rows = component.eager_limit_in_device_rows;
    const std::size_t lone_bytes = std::min(module.btl_eager_limit, eager_frag_bytes);
    if ((choose || !is_default("eager_limit_in_device_rows")) && in_device_rows < lone_bytes) {
        component.device_rows = device_rows(in_device_rows, lone_bytes);
        samples_beyond = in_device_rows;
    }
    component.device_samples = device_samples(samples_beyond);
    // What is longer may go in one copy when it comes alone, as two_copies finds out.
    const std::size_t from_bytes = choose ? lone_bytes : module.btl_eager_limit;
    fitting_bytes = std::min(fitting_bytes, module.btl_max_send_size);
    if (!threads && (choose || !is_default("eager_limit_in_rows"))) {
        component.message_rows = message_rows(from_bytes, std::min(in_rows_bytes, fitting_bytes));
    }
    const std::size_t written_bytes = std::min(component.eager_limit_if_written, fitting_bytes);
    if (written_bytes > module.btl_eager_limit &&
        (choose || !is_default("eager_limit_if_written"))) {
        component.written_messages = written_messages(from_bytes, written_bytes);
    }
    if (is_default("rndv_eager_limit")) {
        module.btl_rndv_eager_limit = std::min(module.btl_rndv_eager_limit, module.btl_eager_limit);
    }
}

} // namespace gpusm
