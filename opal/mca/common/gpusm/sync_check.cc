// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/sync_check.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include <dlfcn.h>
#include <execinfo.h>

namespace gpusm {

namespace {

constexpr std::size_t staging_bytes = std::size_t{4} << 20;
constexpr std::chrono::seconds patience{10};

// "MPI_Isend", if that is the call; null: not a function of MPI.
const char *mpi_function(const Dl_info &of)
{
    const std::string_view name = nullptr == of.dli_sname ? "" : of.dli_sname;
    if (name.starts_with("PMPI_")) {
        return of.dli_sname + 1;
    }
    return name.starts_with("MPI_") || name.starts_with("mpi_") ? of.dli_sname : nullptr;
}

} // namespace

// The staging memory is not page-locked: that takes so long that work that is late now would be
// done before the first look.
sync_check::sync_check(const driver_api &driver, std::uint32_t rank)
    : driver_(driver), rank_(rank), devices_(driver), rest_(driver), staging_(staging_bytes)
{
}

std::optional<sync_check::look> sync_check::first_look(const buffer_use &use,
                                                       const part_list &parts)
{
    look made{.use = use};
    if (0 == use.len_bytes) {
        return std::nullopt;
    }
    parts([&made](const void *at, std::size_t len_bytes) {
        if (0 != len_bytes) {
            made.parts.emplace_back(static_cast<const unsigned char *>(at), len_bytes);
        }
    });
    const memory_place place =
        made.parts.empty() ? memory_place() : place_of(driver_, made.parts.front().first);
    if (!place.known) {
        return std::nullopt; // pageable memory, which the driver writes while its caller waits
    }
    made.on_device = place.on_device;
    const std::lock_guard guard(lock_);
    if (use.message && excluded_.contains(use.message->comm)) {
        return std::nullopt;
    }
    const status s = nullptr == place.context && !place.on_device
                         ? devices_.for_host(&made.in)
                         : devices_.for_memory(place.context, place.ordinal, &made.in);
    if (status::ok != s || !read(made, &made.hash)) {
        log_line(log_level::info, "check_sync: a buffer at %p cannot be read", use.buffer);
        return std::nullopt;
    }
    std::array<void *, 64> frames{};
    const int depth = backtrace(frames.data(), static_cast<int>(frames.size()));
    made.frames.assign(frames.begin(), frames.begin() + depth);
    return made;
}

void sync_check::exclude(const void *comm)
{
    const std::lock_guard guard(lock_);
    excluded_.insert(comm);
}

void sync_check::include(const void *comm)
{
    const std::lock_guard guard(lock_);
    excluded_.erase(comm);
}

void sync_check::second_look_later(std::optional<look> &&at, const void *request,
                                   std::function<bool()> is_valid)
{
    const std::lock_guard guard(lock_);
    if (request != nullptr) {
        std::erase_if(due_, [&](const look &each) { return request == each.request; });
    }
    if (at) {
        at->request = request;
        at->is_valid = std::move(is_valid);
        due_.push_back(*std::move(at));
    }
    due_number_.store(due_.size(), std::memory_order_relaxed);
}

void sync_check::second_look(std::optional<look> &&at)
{
    const std::lock_guard guard(lock_);
    std::vector<look> all = std::exchange(due_, {});
    due_number_.store(0, std::memory_order_relaxed);
    if (at) {
        all.push_back(*std::move(at));
    }
    // A context that the program has destroyed must not be entered; its memory is gone with it.
    std::erase_if(all, [&](const look &each) { return !devices_.is_alive(*each.in); });
    const status s = all.empty() ? status::ok : wait_for_rest(all);
    if (status::ok != s) {
        const bool is_news = status::busy == s && !std::exchange(told_of_unrest_, true);
        log_line(is_news ? log_level::error : log_level::info,
                 "check_sync: rank %u: %zu buffers could not be checked: %s",
                 static_cast<unsigned>(rank_), all.size(),
                 status::busy == s ? "the device does not come to rest" : to_string(s));
        return;
    }
    for (const look &each : all) {
        // Asked before, as the memory may be gone with the operation, and after, as it may be
        // written.
        const auto is_valid = [&each] { return !each.is_valid || each.is_valid(); };
        std::size_t now = 0;
        if (!is_valid() || !is_there(each) || !read(each, &now) || !is_valid()) {
            continue;
        }
        looked_at_.fetch_add(1, std::memory_order_relaxed);
        if (now != each.hash) {
            found_.fetch_add(1, std::memory_order_relaxed);
            report(each);
        }
    }
}

// The program may have freed it, as it may after MPI_Request_free when it knows by other means that
// the operation is over; the driver takes addresses of none for those of host memory.
bool sync_check::is_there(const look &at) const
{
    return std::all_of(at.parts.begin(), at.parts.end(), [&](const auto &part) {
        const auto lies_there = [&](const unsigned char *byte) {
            const memory_place place = place_of(driver_, byte);
            return place.known && place.on_device == at.on_device;
        };
        return lies_there(part.first) && lies_there(part.first + part.second - 1);
    });
}

// --- the content, which goes through host memory, a piece at a time

bool sync_check::read(const look &at, std::size_t *hash)
{
    const driver_scope scope(driver_, at.in->context);
    if (!scope.entered()) {
        return false;
    }
    bool good = true;
    *hash = 0;
    for (auto [from, left] : at.parts) {
        while (good && 0 != left) {
            const std::size_t n = std::min(left, staging_bytes - staged_bytes_);
            good = add(at, from, n) && (staged_bytes_ < staging_bytes || flush(at, hash));
            from += n;
            left -= n;
        }
    }
    return flush(at, hash) && good;
}

bool sync_check::add(const look &at, const unsigned char *from, std::size_t len_bytes)
{
    unsigned char *to = staging_.data() + staged_bytes_;
    staged_bytes_ += len_bytes;
    if (!at.on_device) {
        std::memcpy(to, from, len_bytes);
        return true;
    }
    return CUDA_SUCCESS == driver_.memcpy_async(reinterpret_cast<CUdeviceptr>(to),
                                                reinterpret_cast<CUdeviceptr>(from), len_bytes,
                                                at.in->stream);
}

bool sync_check::flush(const look &at, std::size_t *hash)
{
    const bool good = !at.on_device || CUDA_SUCCESS == driver_.stream_synchronize(at.in->stream);
    const std::string_view text(reinterpret_cast<const char *>(staging_.data()),
                                std::exchange(staged_bytes_, 0));
    *hash = *hash * 31 + std::hash<std::string_view>()(text);
    return good;
}

// Also the context that the program uses in this thread: its kernels may write what lies on another
// device.
status sync_check::wait_for_rest(const std::vector<look> &of)
{
    std::set<CUcontext> contexts;
    if (device *current = nullptr; status::ok == devices_.for_host(&current)) {
        contexts.insert(current->context);
    }
    for (const look &each : of) {
        contexts.insert(each.in->context);
    }
    status s = status::ok;
    for (auto each = contexts.begin(); status::ok == s && each != contexts.end(); ++each) {
        s = rest_.wait(*each, patience);
    }
    return s;
}

void sync_check::report(const look &late)
{
    std::size_t call = 0; // the outermost function of MPI
    const char *name = "MPI";
    for (std::size_t i = 0; i < late.frames.size(); ++i) {
        Dl_info found{};
        if (0 != dladdr(late.frames[i], &found)) {
            if (const char *function = mpi_function(found); function != nullptr) {
                call = i;
                name = function;
            }
        }
    }
    const std::vector<void *> place(late.frames.begin() + static_cast<std::ptrdiff_t>(call),
                                    late.frames.end());
    if (!told_.insert(place).second) {
        return;
    }
    const buffer_use &use = late.use;
    const std::string with = use.message
                                 ? ", tag " + std::to_string(use.message->tag) + ", rank " +
                                       std::to_string(use.message->peer) + " of its communicator"
                                 : "";
    log_line(log_level::error,
             "check_sync: rank %u gave %s %s memory that the program's work on a device was still "
             "writing: %p, %zu bytes%s. It has to wait for that work first (cudaStreamSynchronize, "
             "cudaEventSynchronize); this is said once for each place:",
             static_cast<unsigned>(rank_), name, late.on_device ? "device" : "page-locked",
             use.buffer, use.len_bytes, with.c_str());
    char **const texts = backtrace_symbols(place.data(), static_cast<int>(place.size()));
    for (std::size_t i = 0; texts != nullptr && i < place.size(); ++i) {
        log_line(log_level::error, "check_sync:   %s", texts[i]);
    }
    std::free(texts);
}

} // namespace gpusm
