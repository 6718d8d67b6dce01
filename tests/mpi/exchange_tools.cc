// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_tools.cc: see exchange_tools.h.
#include "tests/mpi/exchange_tools.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <unistd.h>

namespace gpusm::exchange {

namespace {

constexpr int tag = 91;

// Shorter messages that cannot be mapped are staged: staged_least_bytes of the component.
constexpr std::size_t ring_from_bytes = 16384;
// Messages from host memory up to btl_gpusm_eager_limit go at once, without a get: whoever starts a
// test that watches the ways of lengths between the two gives that parameter this value.
constexpr std::size_t eager_bytes = 6144;

// The longest that surely goes eagerly: up to 256 bytes ob1 does not look at the limit.
std::size_t surely_eager_bytes()
{
    const char *limit = std::getenv("OMPI_MCA_btl_gpusm_eager_limit");
    const bool low = limit != nullptr && std::strtoul(limit, nullptr, 10) < eager_bytes;
    return low ? 256 : eager_bytes;
}

} // namespace

own_context::own_context(const context &c)
{
    const CUresult made = softcuda_test::create_context(&context_, c.gpu->ordinal());
    if (CUDA_SUCCESS != made) {
        std::fprintf(stderr, "exchange: rank %d: no context: %s\n", c.rank,
                     bench::driver_error(c.gpu->driver(), "cuCtxCreate", made).c_str());
        std::exit(exit_wrong);
    }
}

bool own_context::make_current() const
{
    return CUDA_SUCCESS == CU(cuCtxSetCurrent)(context_);
}

bool own_context::destroy()
{
    return CUDA_SUCCESS == CU(cuCtxDestroy)(context_);
}

CUcontext current_context()
{
    CUcontext now = nullptr;
    return CUDA_SUCCESS == CU(cuCtxGetCurrent)(&now) ? now : nullptr;
}

void expect_no_context_elsewhere(context &c, const std::vector<int> &own)
{
    for (int ordinal = 0; ordinal < device_count(); ++ordinal) {
        unsigned flags = 0;
        int active = 0;
        if (own.end() == std::find(own.begin(), own.end(), ordinal)) {
            c.expect_true(CUDA_SUCCESS ==
                                  CU(cuDevicePrimaryCtxGetState)(ordinal, &flags, &active) &&
                              0 == active,
                          "no context was made on device " + std::to_string(ordinal));
        }
    }
}

namespace {

struct device_bytes {
    std::size_t free = 0;
    std::size_t total = 0;

    device_bytes() { (void)CU(cuMemGetInfo)(&free, &total); }
};

} // namespace

std::size_t taken_bytes()
{
    const device_bytes now;
    return now.total - now.free;
}

std::size_t kept_bytes()
{
    return device_bytes().total / 16;
}

int device_count()
{
    int count = 0;
    return CUDA_SUCCESS == CU(cuInit)(0) && CUDA_SUCCESS == CU(cuDeviceGetCount)(&count) ? count
                                                                                         : 0;
}

// What it is received into does not matter.
way expected_way(memory_kind source, std::size_t len_bytes)
{
    switch (source) {
    case memory_kind::device:     // CUDA IPC
    case memory_kind::vmm:        // through a descriptor
    case memory_kind::vmm_chunks: // through a descriptor per chunk
    case memory_kind::pool:       // through a descriptor of the pool
        return way::get;
    case memory_kind::vmm_private:  // cannot be exported
    case memory_kind::pool_private: // likewise
    case memory_kind::managed:      // likewise
        return len_bytes < ring_from_bytes ? way::staged : way::device_ring;
    case memory_kind::page_locked: // the sender's copy engine reads it
    case memory_kind::host:
        return len_bytes >= direct_from_bytes && memory_kind::page_locked == source ? way::direct
               : len_bytes > eager_bytes                                            ? way::host_ring
               : len_bytes > surely_eager_bytes()                                   ? way::get
                                                                                    : way::staged;
    }
    return way::staged;
}

unsigned long long sum_of(const bench::path_counts &counts, const counter_names &names)
{
    unsigned long long sum = 0;
    for (const std::string &name : names) {
        const auto found = counts.find(name);
        sum += counts.end() == found ? 0 : found->second;
    }
    return sum;
}

counter_names fetched(const char *what)
{
    counter_names names;
    for (const char *mode : {"mapped", "delegated", "bounced", "shared", "pushed", "pulled",
                             "device_ring", "staged_ring"}) {
        names.push_back(std::string(mode) + "_" + what);
    }
    return names;
}

way_watch::tally way_watch::read() const
{
    bench::path_counts counts = counters_.read();
    return {sum_of(counts, fetched("messages")), counts["device_ring_messages"],
            counts["pushed_messages"], counts["device_fragments_messages"]};
}

void way_watch::sent(memory_kind source, std::size_t len_bytes, int messages)
{
    if (bench::is_gpu(source) && way::staged == expected_way(source, len_bytes)) {
        expected_.staged += static_cast<unsigned>(messages);
    }
}

void way_watch::received(memory_kind source, std::size_t len_bytes, int messages, memory_kind into)
{
    const way goes = expected_way(source, len_bytes);
    const auto many = static_cast<unsigned>(messages);
    // Between host memories there is nothing to fetch.
    if (way::staged != goes && (bench::is_gpu(source) || bench::is_gpu(into))) {
        expected_.got += many;
        expected_.ring += way::device_ring == goes && bench::is_gpu(into) ? many : 0;
        expected_.direct += way::direct == goes ? many : 0;
    }
}

void way_watch::swapped(memory_kind source, std::size_t len_bytes, int messages, memory_kind into)
{
    sent(source, len_bytes, messages);
    received(source, len_bytes, messages, into);
}

void way_watch::check(context &c, const std::string &what) const
{
    if (nullptr != std::getenv("GPUSM_TEST_ANY_WAY")) { // where a few messages find out
        return;
    }
    if (!c.expect_true(counters_.available(), "the performance variables btl_gpusm_* are there")) {
        return;
    }
    const tally now = read();
    const auto compare = [&](unsigned long long tally::*which, const char *how) {
        const unsigned long long found = now.*which - before_.*which;
        c.expect(found == expected_.*which ? ""
                                           : std::to_string(found) + " instead of " +
                                                 std::to_string(expected_.*which) + how,
                 what);
    };
    compare(&tally::got, " received by get");
    compare(&tally::ring, " received by way of a ring");
    compare(&tally::direct, " written by the sender");
    compare(&tally::staged, " sent staged");
}

bool until_expected_way(context &c, memory_kind kind)
{
    constexpr std::size_t len = 65536;
    return way::staged == expected_way(kind, len) || !bench::is_gpu(kind) ||
           until_by_get(c, kind, len);
}

bool all_by_their_ways(context &c)
{
    return std::all_of(c.kinds.begin(), c.kinds.end(), [&](memory_kind kind) {
        return c.expect_true(until_expected_way(c, kind), "messages go the expected way at last");
    });
}

// Goes where a function leads, if there is one, for the message of that number if it asks.
template <typename Enter, typename... Message> static void go(const Enter &enter, Message... number)
{
    if (enter) {
        enter(number...);
    }
}

void swap_checked(context &c, buffer &out, buffer &in, const std::string &what,
                  const surroundings &around)
{
    const std::uint64_t seed = c.draw_seeds(2);
    const int peer = 1 - c.rank;
    at_step(what);
    go(around.enter_out);
    c.expect(out.fill(0, out.len_bytes(), seed + static_cast<std::uint64_t>(c.rank)), "fill");
    go(around.enter_in);
    c.expect(in.poison(), "poison");
    go(around.enter);
    const CUcontext before = nullptr == c.gpu ? nullptr : current_context();
    const bool arrived =
        c.send_receive(out.data(), out.len_bytes(), in.data(), in.len_bytes(), peer, tag);
    if (before != nullptr) { // for a thread without one, Open MPI makes one current
        c.expect_true(before == current_context(), what + ": the context is what it was");
    }
    if (arrived) {
        go(around.enter_in);
        c.expect(in.compare(0, in.len_bytes(), seed + static_cast<std::uint64_t>(peer)), what);
        go(around.enter);
        ++c.messages;
    }
}

void message_set::add(memory_kind from, memory_kind into, std::size_t len_bytes,
                      const device *from_on, const device *into_on)
{
    const device *const own = c_.gpu.get();
    go(enter_out, count());
    auto out = c_.make_on(nullptr == from_on ? own : from_on, from, len_bytes);
    go(enter_in, count());
    in_.push_back(c_.make_on(nullptr == into_on ? own : into_on, into, len_bytes));
    out_.push_back(std::move(out));
}

void message_set::prepare()
{
    seed_ = c_.draw_seeds(2 * count());
    for (std::size_t i = 0; i < count(); ++i) {
        go(enter_out, i);
        c_.expect(out_[i]->fill(0, length_of(i), seed_of(c_.rank, i)), "fill");
        go(enter_in, i);
        c_.expect(in_[i]->poison(), "poison");
    }
}

void message_set::exchange(std::size_t i) const
{
    c_.send_receive(out_[i]->data(), length_of(i), in_[i]->data(), length_of(i), 1 - c_.rank,
                    tag_of(i));
}

void message_set::exchange_at_once(const std::function<void()> &before_wait) const
{
    requests under_way(c_);
    for (std::size_t i = 0; i < count(); ++i) {
        go(enter, i);
        under_way.receive(in_[i]->data(), length_of(i), 1 - c_.rank, tag_of(i));
        under_way.send(out_[i]->data(), length_of(i), 1 - c_.rank, tag_of(i));
    }
    if (before_wait) {
        before_wait();
    }
    under_way.wait();
}

void message_set::compare(const std::string &what) const
{
    for (std::size_t i = 0; i < count(); ++i) {
        go(enter_in, i);
        c_.expect(in_[i]->compare(0, length_of(i), seed_of(1 - c_.rank, i)),
                  what + ", message " + std::to_string(i));
        ++c_.messages;
    }
}

void message_set::clear()
{
    for (std::size_t i = 0; i < count(); ++i) {
        go(enter_out, i);
        out_[i].reset();
        go(enter_in, i);
        in_[i].reset();
    }
}

void pause_ms(long ms)
{
    const std::timespec pause = {ms / 1000, ms % 1000 * 1000000};
    (void)nanosleep(&pause, nullptr);
}

void requests::send(const void *at, std::size_t len_bytes, int to, int tag)
{
    c_.mpi(MPI_Isend(at, static_cast<int>(len_bytes), MPI_BYTE, to, tag, MPI_COMM_WORLD,
                     &all_.emplace_back(MPI_REQUEST_NULL)),
           "MPI_Isend");
}

void requests::receive(void *at, std::size_t len_bytes, int from, int tag)
{
    c_.mpi(MPI_Irecv(at, static_cast<int>(len_bytes), MPI_BYTE, from, tag, MPI_COMM_WORLD,
                     &all_.emplace_back(MPI_REQUEST_NULL)),
           "MPI_Irecv");
}

bool requests::wait()
{
    return c_.mpi(MPI_Waitall(static_cast<int>(all_.size()), all_.data(), MPI_STATUSES_IGNORE),
                  "MPI_Waitall");
}

window side_by_side(std::size_t messages, std::size_t len_bytes, std::uint64_t first_seed)
{
    window made;
    for (std::size_t i = 0; i < messages; ++i) {
        made.push_back(
            {i * (len_bytes + bench::placement::guard_bytes), len_bytes, first_seed + i});
    }
    return made;
}

std::size_t end_of(const window &messages)
{
    return messages.empty()
               ? 0
               : messages.back().offset + messages.back().len_bytes + bench::placement::guard_bytes;
}

void swap_windows(context &c, buffer &out, const window &to_send, buffer &in,
                  const window &to_receive, int tag, const std::string &what)
{
    requests under_way(c);
    at_step(what);
    c.expect(fill_placed(out, end_of(to_send), to_send), "fill");
    c.expect(in.poison(0, end_of(to_receive)), "poison");
    for (const auto &each : to_receive) {
        under_way.receive(in.at(each.offset), each.len_bytes, 1 - c.rank, tag);
    }
    for (const auto &each : to_send) {
        under_way.send(out.at(each.offset), each.len_bytes, 1 - c.rank, tag);
    }
    if (under_way.wait()) {
        c.expect(compare_placed(in, end_of(to_receive), to_receive), what);
        c.messages += static_cast<long>(to_receive.size());
    }
}

void swap_side_by_side(context &c, buffer &out, buffer &in, std::size_t len_bytes,
                       std::size_t messages, int tag, const std::string &what)
{
    const std::uint64_t seed = c.draw_seeds(2 * messages);
    const auto from = [&](int rank) {
        return side_by_side(messages, len_bytes,
                            seed + messages * static_cast<std::uint64_t>(rank));
    };
    swap_windows(c, out, from(c.rank), in, from(1 - c.rank), tag, what);
}

filler::filler(const context &c)
    : path_(c.fill.empty() ? "" : c.fill + "/filler." + std::to_string(c.rank))
{
}

void filler::fill() const
{
    std::FILE *file = path_.empty() ? nullptr : std::fopen(path_.c_str(), "a");
    if (file != nullptr) {
        std::setbuf(file, nullptr);
        const std::string page(4096, 'x');
        while (page.size() == std::fwrite(page.data(), 1, page.size(), file)) {
        }
        (void)std::fclose(file);
    }
}

void filler::make_room() const
{
    (void)std::remove(path_.c_str());
}

sign::sign(context &c)
{
    if (1 == c.rank) {
        std::snprintf(path_.data(), path_.size(), "/tmp/gpusm-exchange-%d-XXXXXX",
                      static_cast<int>(getpid()));
        const int file = mkstemp(path_.data());
        c.expect_true(file >= 0, "a file for a sign can be made");
        (void)close(file);
        c.send(path_.data(), path_.size(), 0, tag);
    } else {
        c.receive(path_.data(), path_.size(), 1, tag);
    }
}

void sign::give() const
{
    (void)unlink(path_.data());
}

void sign::wait() const
{
    while (0 == access(path_.data(), F_OK)) {
        pause_ms(1);
    }
}

std::unique_ptr<device> second_device(context &c)
{
    const int mine = device_count();
    int peers = 0;
    MPI_Sendrecv(&mine, 1, MPI_INT, 1 - c.rank, 0, &peers, 1, MPI_INT, 1 - c.rank, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (mine < 2 || peers < 2) {
        c.skip_because = "needs two visible devices";
        return nullptr;
    }
    std::string why;
    auto found = device::open(bench::local_rank_from_environment() + 1, &why);
    if (nullptr == found) {
        std::fprintf(stderr, "exchange: rank %d: no second device: %s\n", c.rank, why.c_str());
        std::exit(exit_wrong);
    }
    return found;
}

} // namespace gpusm::exchange
