// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// limit.cc: the memory of the bare copies, and the limit of every size. The link is in link.cc.
#include "bench/gpusm_perf/limit.h"

#include <cstring>

namespace gpusm::bench {

namespace {

constexpr int latency_samples = 100;
constexpr int window_samples = 20;

} // namespace

limit_probe::limit_probe(run &r) : r_(r)
{
    memory_bytes_ = std::max(r.places_bytes(), has_link(r.opt) ? largest_link_copy(r) : 0) +
                    std::max(r.opt.source_offset, r.opt.destination_offset);
    if (r.opt.is_pairwise()) {
        error_ = agree_on_error(open_channel(true), MPI_COMM_WORLD);
        if (error_.empty() && !r.one_way()) {
            error_ = agree_on_error(open_channel(false), MPI_COMM_WORLD);
        }
    } else {
        error_ = agree_on_error(open_all_to_all(), MPI_COMM_WORLD);
    }
    int mine = 1;
    for (const auto *channel : {from_first_.get(), from_second_.get()}) {
        mine = nullptr == channel ? mine : std::max(mine, channel->variants());
    }
    (void)MPI_Allreduce(&mine, &variants_, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
}

std::string limit_probe::export_memory(copy_source *source)
{
    std::string why;
    if (nullptr == exported_) {
        exported_ = buffer::make(memory_kind::device, memory_bytes_, r_.gpu, &why);
        if (nullptr == exported_) {
            return why;
        }
    }
    source->mine = address_of(*exported_);
    CUresult result = r_.gpu->driver().ipc_get_mem_handle(&source->handle, source->mine);
    return CUDA_SUCCESS == result ? std::string()
                                  : driver_error(r_.gpu->driver(), "cuIpcGetMemHandle", result);
}

// The rank that copies is the receiver, unless only the sender has device memory.
std::string limit_probe::open_channel(bool from_first)
{
    const memory_kind from = from_first ? r_.opt.source : r_.opt.destination;
    const memory_kind to = from_first ? r_.opt.destination : r_.opt.source;
    const bool sender = r_.first == from_first;
    const bool across = is_gpu(from) && is_gpu(to);
    const bool receiver_copies = is_gpu(to) || !is_gpu(from);
    auto &channel = from_first ? from_first_ : from_second_;
    if (sender != receiver_copies) {
        channel = std::make_unique<copy_channel>(r_.gpu);
    }
    if (!across) {
        return nullptr == channel ? std::string() : channel->open_local(from, to, memory_bytes_);
    }
    // Crosses as bytes; an address of zero says that there is no handle.
    copy_source source;
    if (sender) {
        const std::string error = export_memory(&source);
        source.mine = error.empty() ? source.mine : 0;
        (void)MPI_Send(&source, sizeof(source), MPI_BYTE, r_.peer, data_tag, MPI_COMM_WORLD);
        return error;
    }
    (void)MPI_Recv(&source, sizeof(source), MPI_BYTE, r_.peer, data_tag, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE);
    if (0 == source.mine) {
        return {}; // the sender has the reason
    }
    source.mine = 0;
    return channel->open_sources({&source, 1}, memory_bytes_);
}

// Every rank copies what it receives: from all others' device memory, and from its own.
std::string limit_probe::open_all_to_all()
{
    from_first_ = std::make_unique<copy_channel>(r_.gpu);
    if (!is_gpu(r_.opt.source) || !is_gpu(r_.opt.destination)) {
        return from_first_->open_local(r_.opt.source, r_.opt.destination, memory_bytes_);
    }
    copy_source mine;
    std::string error = agree_on_error(export_memory(&mine), MPI_COMM_WORLD);
    if (!error.empty()) {
        return error;
    }
    std::vector<copy_source> all(static_cast<std::size_t>(r_.ranks));
    (void)MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, all.data(), sizeof(mine), MPI_BYTE,
                        MPI_COMM_WORLD);
    for (std::size_t i = 0; i < all.size(); ++i) {
        all[i].mine = i == static_cast<std::size_t>(r_.rank) ? mine.mine : 0;
    }
    return from_first_->open_sources(all, memory_bytes_);
}

void limit_probe::close()
{
    from_first_.reset();
    from_second_.reset();
    (void)MPI_Barrier(MPI_COMM_WORLD);
    exported_.reset();
}

limit_probe::pieces limit_probe::window_of(const placement &places, int copies) const
{
    pieces list;
    for (int i = 0; i < copies; ++i) {
        const std::size_t at = places.at(static_cast<std::size_t>(i));
        list.push_back({0, r_.opt.source_offset + at, r_.opt.destination_offset + at});
    }
    return list;
}

// What this rank receives in MPI_Alltoall, beginning with its own block so that not all ranks copy
// from the same one at once.
limit_probe::pieces limit_probe::blocks_of(const placement &places) const
{
    const bool across = is_gpu(r_.opt.source) && is_gpu(r_.opt.destination);
    const auto mine = static_cast<std::size_t>(r_.rank);
    pieces list;
    for (std::size_t i = 0; i < places.places; ++i) {
        const std::size_t other = (mine + i) % places.places;
        list.push_back({across ? other : 0, r_.opt.source_offset + places.at(across ? mine : other),
                        r_.opt.destination_offset + places.at(other)});
    }
    return list;
}

// Seconds from the first start() to the last finish(). Does nothing once this rank has failed.
double limit_probe::start_and_finish(std::span<copy_channel *const> channels, int variant,
                                     const pieces &list, std::size_t len_bytes)
{
    const auto start = clock_type::now();
    for (copy_channel *channel : channels) {
        if (nullptr != channel && failure_.empty()) {
            failure_ = channel->start(variant, list, len_bytes);
        }
    }
    for (copy_channel *channel : channels) {
        if (nullptr != channel && failure_.empty()) {
            failure_ = channel->finish();
        }
    }
    return seconds_since(start);
}

// The median of the slowest rank's times, in the better variant. nullptr: this rank only waits.
double limit_probe::median_us(copy_channel *channel, const pieces &list, std::size_t len_bytes)
{
    const int samples = std::min(r_.opt.iterations_for(len_bytes), latency_samples);
    double best_us = 0;
    for (int v = 0; v < variants_; ++v) {
        std::vector<double> mine_us;
        (void)start_and_finish({&channel, 1}, v, list, len_bytes); // not timed: first touch
        for (int i = 0; i < samples; ++i) {
            if (0 == i || !r_.opt.is_pairwise()) {
                (void)MPI_Barrier(MPI_COMM_WORLD);
            }
            const double taken_s = start_and_finish({&channel, 1}, v, list, len_bytes);
            mine_us.push_back(nullptr == channel ? 0 : taken_s * 1e6);
        }
        const double us = median_of(slowest_of(mine_us));
        best_us = 0 == v ? us : std::min(best_us, us);
    }
    return best_us;
}

double limit_probe::latency_us(std::size_t len_bytes)
{
    if (!error_.empty() || 0 == len_bytes) {
        return 0;
    }
    const placement places = r_.places_for(len_bytes);
    double us = 0;
    if (r_.opt.is_pairwise()) {
        const pieces one = window_of(places, 1);
        us = (median_us(from_first_.get(), one, len_bytes) +
              median_us(from_second_.get(), one, len_bytes)) /
             2;
    } else {
        us = median_us(from_first_.get(), blocks_of(places), len_bytes);
    }
    error_ = agree_on_error(failure_, MPI_COMM_WORLD);
    return error_.empty() ? us : 0;
}

double limit_probe::bytes_per_s(std::size_t len_bytes)
{
    if (!error_.empty() || 0 == len_bytes) {
        return 0;
    }
    copy_channel *const both[] = {from_first_.get(), from_second_.get()};
    const pieces window = window_of(r_.places_for(len_bytes), r_.opt.window);
    const int windows = std::min(r_.opt.iterations_for(len_bytes), window_samples);
    double best = 0;
    for (int v = 0; v < variants_; ++v) {
        (void)start_and_finish(both, v, window, len_bytes); // not timed: first touch
        (void)MPI_Barrier(MPI_COMM_WORLD);
        double mine_s = 0;
        for (int i = 0; i < windows; ++i) {
            mine_s += start_and_finish(both, v, window, len_bytes);
        }
        const double slowest_s = slowest_of({mine_s})[0];
        const double bytes = static_cast<double>(len_bytes) * windows * r_.opt.window * r_.pairs() *
                             (r_.one_way() ? 1 : 2);
        best = slowest_s > 0 ? std::max(best, bytes / slowest_s) : best;
    }
    error_ = agree_on_error(failure_, MPI_COMM_WORLD);
    return error_.empty() ? best : 0;
}

std::string describe_limit(const options &opt)
{
    if (perf_mode::allreduce == opt.mode) {
        return "none, because a reduction is more than copies";
    }
    if (!opt.limit) {
        return "not measured";
    }
    std::string text;
    if (is_gpu(opt.source) && is_gpu(opt.destination)) {
        text = opt.is_pairwise() ? "cuMemcpyAsync from the peer's memory opened by CUDA IPC"
                                 : "cuMemcpyAsync of every block from its sender's memory opened "
                                   "by CUDA IPC, all ranks at once";
    } else if (opt.uses_gpu()) {
        const bool locked =
            memory_kind::page_locked == opt.source || memory_kind::page_locked == opt.destination;
        text = std::string("cuMemcpyAsync between device and ") + (locked ? "registered " : "") +
               "host memory of one process";
    } else {
        return "memcpy in the receiver";
    }
    for (memory_kind kind : {opt.source, opt.destination}) {
        if (is_gpu(kind) && !is_legacy_ipc_capable(kind)) {
            return text + "; a D buffer stands in for " + describe(kind) + " memory";
        }
    }
    return text;
}

std::string agree_on_error(const std::string &mine, MPI_Comm communicator)
{
    int rank = 0;
    int ranks = 0;
    (void)MPI_Comm_rank(communicator, &rank);
    (void)MPI_Comm_size(communicator, &ranks);
    const int candidate = mine.empty() ? ranks : rank;
    int chosen = ranks;
    (void)MPI_Allreduce(&candidate, &chosen, 1, MPI_INT, MPI_MIN, communicator);
    if (ranks == chosen) {
        return {};
    }
    char text[512] = "";
    if (rank == chosen) {
        std::strncpy(text, mine.c_str(), sizeof(text) - 1);
    }
    (void)MPI_Bcast(text, sizeof(text), MPI_CHAR, chosen, communicator);
    return text;
}

} // namespace gpusm::bench
