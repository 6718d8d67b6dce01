// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/coll/gpusm/coll_gpusm_packed.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_accelerator.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace gpusm {

namespace {

interposer &views_of_process()
{
    return *mca_coll_gpusm_component.interposer;
}

// Elements that lie one after the other.
struct element_run {
    std::ptrdiff_t first;
    std::size_t count;
};

std::vector<element_run> runs_of(const buffer_argument &of)
{
    if (nullptr == of.counts) {
        return {{0, of.blocks * elements(*of.count)}};
    }
    std::vector<element_run> runs;
    for (std::size_t i = 0; i < of.blocks; ++i) {
        const element_run next{place_at(*of.places, i), count_at(*of.counts, i)};
        if (!runs.empty() &&
            runs.back().first + static_cast<std::ptrdiff_t>(runs.back().count) == next.first) {
            runs.back().count += next.count;
        } else if (0 != next.count) {
            runs.push_back(next);
        }
    }
    return runs;
}

std::uint64_t longest_block(const buffer_argument &of)
{
    std::uint64_t longest = 0;
    for (std::size_t i = 0; i < of.blocks; ++i) {
        longest = std::max<std::uint64_t>(longest, of.count_of(i) * (*of.type)->super.size);
    }
    return longest;
}

// Where its elements would begin if the datatype began with its data.
void *moved_address(const buffer_argument &of)
{
    return shifted(*of.buffer, (*of.type)->super.true_lb);
}

// Open MPI asks about the address that the program gives, which may be that of nothing
// (MPI_BOTTOM), and would take such data for host memory.
bool has_to_move(const buffer_argument &of)
{
    const std::vector<element_run> runs =
        of.begins_elsewhere() ? runs_of(of) : std::vector<element_run>();
    const opal_datatype_t &layout = (*of.type)->super;
    return !runs.empty() && is_device_memory(shifted(moved_address(of),
                                                     runs.front().first * (layout.ub - layout.lb)));
}

// One buffer of the program's, and the packed bytes that stand in for it.
class packed_buffer {
  public:
    packed_buffer() = default;
    ~packed_buffer();
    packed_buffer(const packed_buffer &) = delete;
    packed_buffer &operator=(const packed_buffer &) = delete;

    // Finds out whether it is device memory, and takes memory. False: it goes as it is.
    bool prepare(const buffer_argument &of);
    bool is_used() const { return block_.on != nullptr; }
    void *address() const { return reinterpret_cast<void *>(block_.address); }
    int pack() { return copy(true); }
    int unpack() { return copy(false); }

  private:
    struct run {
        program_elements of;
        view_owner opened;
    };

    bool open(const buffer_argument &of);
    bool take_memory();
    int copy(bool packs);

    std::vector<run> runs_;
    packed_block block_;
};

packed_buffer::~packed_buffer()
{
    if (is_used()) {
        gpu_side &side = *views_of_process().gpu();
        const std::lock_guard guard(side.lock);
        side.views.give_packed(block_);
    }
}

bool packed_buffer::open(const buffer_argument &of)
{
    const opal_datatype_t &layout = (*of.type)->super;
    for (const element_run &each : runs_of(of)) {
        const void *first = shifted(*of.buffer, each.first * (layout.ub - layout.lb));
        program_elements data(first, each.count, *of.type);
        view_owner opened = data.open();
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

bool packed_buffer::prepare(const buffer_argument &of)
{
    return of.has_gaps() && open(of) && take_memory();
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

// A buffer argument of another datatype, without gaps.
class plain_blocks {
  public:
    // Blocks of packed bytes, one after the other; else those of the program's, which have no gaps.
    // `scale`: elements of the other datatype in one of the program's. False: a number would be too
    // large.
    bool prepare(const buffer_argument &of, std::size_t scale, bool are_packed)
    {
        std::uint64_t end = 0;
        for (std::size_t i = 0; i < of.blocks; ++i) {
            const std::uint64_t count = of.count_of(i) * scale;
            const std::ptrdiff_t place =
                are_packed || nullptr == of.places
                    ? static_cast<std::ptrdiff_t>(end)
                    : place_at(*of.places, i) * static_cast<std::ptrdiff_t>(scale);
            counts_.push_back(static_cast<count_element>(count));
            places_.push_back(static_cast<place_element>(place));
            end += count;
            if (std::cmp_not_equal(counts_.back(), count) ||
                std::cmp_not_equal(places_.back(), place)) {
                return false;
            }
        }
        return true;
    }
    void replace(const buffer_argument &of, datatype *type)
    {
        if (of.counts != nullptr) {
            *of.counts = as_counts(counts_.data());
            *of.places = as_places(places_.data());
        } else if (of.blocks != 0) {
            *of.count = static_cast<count_type>(counts_.front());
        }
        *of.type = type;
    }

  private:
    std::vector<count_element> counts_;
    std::vector<place_element> places_;
};

// One buffer argument of such a call.
class other_argument {
  public:
    other_argument() = default;
    ~other_argument()
    {
        if (element_ != nullptr) {
            (void)ompi_datatype_destroy(&element_);
        }
    }
    other_argument(const other_argument &) = delete;
    other_argument &operator=(const other_argument &) = delete;

    // Whether it has to change: packed bytes stand in for it, if that is needed and can be, or
    // another address.
    bool prepare(const buffer_argument &of)
    {
        moves_ = has_to_move(of);
        return packed_.prepare(of) || moves_;
    }
    bool can_change(const buffer_argument &of) const
    {
        return of.matters() && (is_packed() || moves_ || is_plain(*of.type));
    }
    // The new datatype, of which the other buffer's is taken if it has as long elements. False: it
    // stays as it is.
    bool choose_type(const buffer_argument &of, packed_unit unit, const other_argument *other);
    void replace(const buffer_argument &of)
    {
        if (type_ != nullptr) {
            *of.buffer = is_packed() ? packed_.address() : moves_ ? moved_address(of) : *of.buffer;
            blocks_.replace(of, type_);
        }
    }

    const datatype *type() const { return type_; }
    bool is_packed() const { return packed_.is_used(); }
    packed_buffer &packed() { return packed_; }

  private:
    packed_buffer packed_;
    plain_blocks blocks_;
    bool moves_ = false;
    datatype *type_ = nullptr;    // null: it stays as it is
    datatype *element_ = nullptr; // owned; null: there is none
};

bool other_argument::choose_type(const buffer_argument &of, packed_unit unit,
                                 const other_argument *other)
{
    if (!can_change(of)) {
        return false;
    }
    const std::size_t its_bytes = (*of.type)->super.size;
    datatype *made = &ompi_mpi_byte.dt;
    if (packed_unit::element == unit) {
        datatype *others = nullptr == other ? nullptr : other->type_;
        if (others != nullptr && others->super.size == its_bytes) {
            made = others;
        } else if (its_bytes > INT_MAX ||
                   OMPI_SUCCESS != ompi_datatype_create_contiguous(static_cast<int>(its_bytes),
                                                                   &ompi_mpi_byte.dt, &element_) ||
                   OMPI_SUCCESS != ompi_datatype_commit(&element_)) {
            return false;
        } else {
            made = element_;
        }
    }
    if (!blocks_.prepare(of, packed_unit::byte == unit ? its_bytes : 1, is_packed())) {
        return false;
    }
    type_ = made;
    return true;
}

class packed_call final : public call_copies {
  public:
    // False: the call goes as it is.
    bool prepare(const buffer_argument &of_sent, const buffer_argument &of_received,
                 packed_unit unit)
    {
        const bool changes_sent = sent_.prepare(of_sent);
        const bool changes_received = received_.prepare(of_received);
        const bool may_be_bytes = packed_unit::byte == unit && sent_.can_change(of_sent) &&
                                  received_.can_change(of_received) &&
                                  (*of_sent.type)->super.size != (*of_received.type)->super.size;
        unit = may_be_bytes ? unit : packed_unit::element;
        const bool has_sent = sent_.choose_type(of_sent, unit, nullptr);
        const bool has_received = received_.choose_type(of_received, unit, &sent_);
        reads_received_ = of_sent.is_in_place();
        if (changes_sent || changes_received) {
            return has_sent >= changes_sent && has_received >= changes_received;
        }
        return has_sent && has_received && sent_.type() == received_.type();
    }
    void replace(const buffer_argument &of_sent, const buffer_argument &of_received)
    {
        sent_.replace(of_sent);
        received_.replace(of_received);
    }

    int copy_in() override
    {
        if (!sent_.is_packed() && !received_.is_packed()) {
            return OMPI_SUCCESS;
        }
        mca_coll_gpusm_component.counted.packed_exchanges.fetch_add(1, std::memory_order_relaxed);
        int rc = sent_.is_packed() ? sent_.packed().pack() : OMPI_SUCCESS;
        if (OMPI_SUCCESS == rc && received_.is_packed() && reads_received_) {
            rc = received_.packed().pack();
        }
        return rc;
    }
    int copy_back() override
    {
        return received_.is_packed() ? received_.packed().unpack() : OMPI_SUCCESS;
    }

  private:
    other_argument sent_;
    other_argument received_;
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

view_owner program_elements::open() const
{
    return view_owner(views_of_process().open_view(first_, count_, type_.get()));
}

std::unique_ptr<call_copies> make_packed(const buffer_argument &sent,
                                         const buffer_argument &received, packed_unit unit,
                                         bool is_persistent)
{
    constexpr std::uint64_t piece_bytes = 64 << 10; // of Open MPI's copy between datatypes
    const bool has_gaps = sent.has_gaps() || received.has_gaps();
    const bool may_move = sent.begins_elsewhere() || received.begins_elsewhere();
    if ((has_gaps && nullptr == mca_coll_gpusm_component.interposer) ||
        (!has_gaps && !may_move && longest_block(sent) <= piece_bytes)) {
        return nullptr;
    }
    auto made = std::make_unique<packed_call>();
    if (!made->prepare(sent, received, unit) ||
        (!is_persistent && OMPI_SUCCESS != made->copy_in())) {
        return nullptr;
    }
    made->replace(sent, received);
    return made;
}

} // namespace gpusm
