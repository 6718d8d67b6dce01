// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/coll/gpusm/coll_gpusm_packed.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <climits>
#include <cstdint>
#include <limits>
#include <mutex>
#include <vector>

namespace gpusm {

namespace {

interposer &views_of_process()
{
    return *mca_coll_gpusm_component.interposer;
}

// As many elements that lie one after the other.
struct element_run {
    std::ptrdiff_t first;
    std::size_t count;
};

std::vector<element_run> runs_of(const buffer_argument &of)
{
    if (nullptr == of.places) {
        return {{0, of.blocks * elements(of.count)}};
    }
    std::vector<element_run> runs;
    for (std::size_t i = 0; i < of.blocks; ++i) {
        const element_run next{place_at(*of.places, i), count_at(of.counts, i)};
        if (!runs.empty() &&
            runs.back().first + static_cast<std::ptrdiff_t>(runs.back().count) == next.first) {
            runs.back().count += next.count;
        } else if (0 != next.count) {
            runs.push_back(next);
        }
    }
    return runs;
}

// One buffer of the program's, and the packed bytes that stand in for it.
class packed_buffer {
  public:
    packed_buffer() = default;
    ~packed_buffer();
    packed_buffer(const packed_buffer &) = delete;
    packed_buffer &operator=(const packed_buffer &) = delete;

    // Finds out whether it is device memory, and takes memory. False: it goes as it is.
    bool prepare(const buffer_argument &of, bool is_persistent);
    bool is_used() const { return block_.on != nullptr; }
    // The arguments are those of the packed bytes.
    void stand_in_for(const buffer_argument &of);
    int pack() { return copy(true); }
    int unpack() { return copy(false); }

  private:
    struct run {
        program_elements of;
        view_owner opened;
    };

    bool open(const buffer_argument &of, bool is_persistent);
    bool take_memory();
    int copy(bool packs);

    std::vector<run> runs_;
    std::vector<place_element> places_; // of the blocks there
    datatype *type_ = nullptr;          // an element there; owned
    packed_block block_;
};

packed_buffer::~packed_buffer()
{
    if (is_used()) {
        gpu_side &side = *views_of_process().gpu();
        const std::lock_guard guard(side.lock);
        side.views.give_packed(block_);
    }
    if (type_ != nullptr) {
        (void)ompi_datatype_destroy(&type_);
    }
}

bool packed_buffer::open(const buffer_argument &of, bool is_persistent)
{
    const opal_datatype_t &layout = (*of.type)->super;
    for (const element_run &each : runs_of(of)) {
        const auto *first =
            static_cast<const unsigned char *>(*of.buffer) + each.first * (layout.ub - layout.lb);
        program_elements data(first, each.count, *of.type);
        view_owner opened = data.open(is_persistent);
        if (nullptr == opened) {
            return false;
        }
        runs_.push_back({std::move(data), std::move(opened)});
    }
    return !runs_.empty();
}

bool packed_buffer::take_memory()
{
    std::uint64_t bytes = 0;
    for (const run &each : runs_) {
        bytes += each.opened->len_bytes;
    }
    gpu_side &side = *views_of_process().gpu();
    const std::lock_guard guard(side.lock);
    block_ = side.views.take_packed(*runs_.front().opened->on, bytes);
    if (!is_used()) {
        log_line(log_level::info,
                 "a collective of a datatype with gaps has no device memory for %llu packed bytes",
                 static_cast<unsigned long long>(bytes));
    }
    return is_used();
}

bool packed_buffer::prepare(const buffer_argument &of, bool is_persistent)
{
    const std::size_t element_bytes = (*of.type)->super.size;
    if (!of.has_gaps() || element_bytes > INT_MAX || !open(of, is_persistent) ||
        OMPI_SUCCESS != ompi_datatype_create_contiguous(static_cast<int>(element_bytes),
                                                        &ompi_mpi_byte.dt, &type_) ||
        OMPI_SUCCESS != ompi_datatype_commit(&type_)) {
        return false;
    }
    std::uint64_t place = 0;
    for (std::size_t i = 0; of.places != nullptr && i < of.blocks; ++i) {
        places_.push_back(static_cast<place_element>(place));
        place += count_at(of.counts, i);
    }
    return place <= static_cast<std::uint64_t>(std::numeric_limits<place_element>::max()) &&
           take_memory();
}

void packed_buffer::stand_in_for(const buffer_argument &of)
{
    *of.buffer = reinterpret_cast<void *>(block_.address);
    *of.type = type_;
    if (of.places != nullptr) {
        *of.places = as_places(places_.data());
    }
}

int packed_buffer::copy(bool packs)
{
    gpu_side &side = *views_of_process().gpu();
    std::uint64_t packed = block_.address;
    for (const run &each : runs_) {
        each.of.check();
        auto *program = reinterpret_cast<void *>(each.opened->address);
        auto *there = reinterpret_cast<void *>(packed);
        const status s = side.views.copy(packs ? there : program, packs ? program : there,
                                         each.opened->len_bytes);
        if (status::ok != s) {
            return OMPI_ERROR;
        }
        packed += each.opened->len_bytes;
    }
    return OMPI_SUCCESS;
}

class packed_call final : public stand_in {
  public:
    // False: both buffers go as they are.
    bool prepare(const buffer_argument &of_sent, const buffer_argument &of_received,
                 bool is_persistent)
    {
        const bool packs_sent = sent_.prepare(of_sent, is_persistent);
        const bool packs_received = received_.prepare(of_received, is_persistent);
        reads_received_ = of_sent.is_in_place();
        return packs_sent || packs_received;
    }
    void stand_in_for(const buffer_argument &of_sent, const buffer_argument &of_received)
    {
        if (sent_.is_used()) {
            sent_.stand_in_for(of_sent);
        }
        if (received_.is_used()) {
            received_.stand_in_for(of_received);
        }
    }

    int copy_in() override
    {
        mca_coll_gpusm_component.counted.packed_exchanges.fetch_add(1, std::memory_order_relaxed);
        int rc = sent_.is_used() ? sent_.pack() : OMPI_SUCCESS;
        if (OMPI_SUCCESS == rc && received_.is_used() && reads_received_) {
            rc = received_.pack();
        }
        return rc;
    }
    int copy_back() override { return received_.is_used() ? received_.unpack() : OMPI_SUCCESS; }

  private:
    packed_buffer sent_;
    packed_buffer received_;
    bool reads_received_ = false;
};

} // namespace

program_elements::program_elements(const void *first, std::size_t count, datatype *type)
    : first_(first), count_(count), type_(type)
{
    OBJ_RETAIN(type);
}

void program_elements::check() const
{
    message_checks *checks = mca_coll_gpusm_component.checks;
    if (checks != nullptr) [[unlikely]] {
        checks->check_now({first_, count_, type_.get(), MPI_ANY_SOURCE, MPI_ANY_TAG});
    }
}

view_owner program_elements::open(bool is_persistent) const
{
    return view_owner(views_of_process().open_view(first_, count_, type_.get(), is_persistent));
}

std::unique_ptr<stand_in> make_packed(const buffer_argument &sent, const buffer_argument &received,
                                      bool is_persistent)
{
    if (nullptr == mca_coll_gpusm_component.interposer) {
        return nullptr;
    }
    auto made = std::make_unique<packed_call>();
    if (!made->prepare(sent, received, is_persistent) ||
        (!is_persistent && OMPI_SUCCESS != made->copy_in())) {
        return nullptr;
    }
    made->stand_in_for(sent, received);
    return made;
}

} // namespace gpusm
