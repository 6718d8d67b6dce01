// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// reductions.h: one reduction of the subtests in exchange_reductions.cc: elements of several types,
// buffers in host or device memory, the call in one of its three forms, and the result in host
// memory.
#ifndef GPUSM_TESTS_MPI_REDUCTIONS_H
#define GPUSM_TESTS_MPI_REDUCTIONS_H

#include "tests/mpi/basic_types.h"
#include "tests/mpi/collective_call.h"
#include "tests/mpi/exchange.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

namespace gpusm::reductions {

using namespace exchange;

inline constexpr std::size_t guard_bytes = 64;
inline context *job = nullptr; // this process's part of it

[[noreturn]] inline void fail(const std::string &why)
{
    job->expect(why, "reductions");
    std::_Exit(exit_wrong);
}
inline void need(const std::string &error)
{
    if (!error.empty()) {
        fail(error);
    }
}

// --- elements ------------------------------------------------------------------------------------

// All data of an element is in one piece, `size` bytes at `first` from where the element begins.
struct element {
    const char *name;
    MPI_Datatype type;
    std::size_t size = 0;
    MPI_Aint first = 0;
    MPI_Aint extent = 0;
    const basic_type *basic = nullptr; // null: a matrix
    std::size_t shift = 0;             // bytes of the buffers before the first one

    element(const char *text, MPI_Datatype mpi_type) : name(text), type(mpi_type)
    {
        MPI_Aint lower = 0;
        MPI_Aint true_extent = 0;
        MPI_Type_get_extent(type, &lower, &extent);
        MPI_Type_get_true_extent(type, &first, &true_extent);
        size = static_cast<std::size_t>(true_extent);
        const auto is_this = [mpi_type](const basic_type &each) { return mpi_type == each.type; };
        const auto found = std::find_if(basic_types().begin(), basic_types().end(), is_this);
        basic = basic_types().end() == found ? nullptr : &*found;
    }
    std::size_t lead() const
    {
        return guard_bytes + static_cast<std::size_t>(std::abs(first)) + shift;
    }
    std::size_t at(std::size_t i) const // in an image of them
    {
        return lead() + i * static_cast<std::size_t>(extent) + static_cast<std::size_t>(first);
    }
    std::size_t image_bytes(std::size_t n) const { return at(n) + lead(); }
};

// A 2 by 2 matrix of 32-bit numbers, `gap` bytes from where the element begins.
inline MPI_Datatype matrix(MPI_Aint gap, MPI_Aint extent)
{
    MPI_Datatype inner = MPI_DATATYPE_NULL;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    const int four = 4;
    MPI_Type_create_hindexed(1, &four, &gap, MPI_UINT32_T, &inner);
    MPI_Type_create_resized(inner, 0, extent, &type);
    MPI_Type_commit(&type);
    MPI_Type_free(&inner);
    return type;
}

inline void multiply(void *left, void *right, int *n, MPI_Datatype *type)
{
    const element e("", *type);
    for (int i = 0; i < *n; ++i) {
        std::uint32_t a[4];
        std::uint32_t b[4];
        char *to = static_cast<char *>(right) + i * e.extent + e.first;
        std::memcpy(a, static_cast<char *>(left) + i * e.extent + e.first, sizeof(a));
        std::memcpy(b, to, sizeof(b));
        const std::uint32_t product[4] = {a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3],
                                          a[2] * b[0] + a[3] * b[2], a[2] * b[1] + a[3] * b[3]};
        std::memcpy(to, product, sizeof(product));
    }
}

using image = std::vector<unsigned char>;

// What rank `of` brings: n elements.
inline image contribution(const element &e, std::size_t n, int of, int seed)
{
    image all(e.image_bytes(n), bench::poison_byte);
    for (std::size_t i = 0; i < n; ++i) {
        unsigned char *to = all.data() + e.at(i);
        const auto h = static_cast<unsigned>(i * 7 + i / 5) + static_cast<unsigned>(of * 5 + seed);
        const int v = 1 + static_cast<int>(h % 3);
        if (e.basic != nullptr) {
            e.basic->put(to, v, of);
        } else {
            const std::uint32_t four[] = {static_cast<std::uint32_t>(v), h % 5, h % 7,
                                          static_cast<std::uint32_t>(v + of)};
            std::memcpy(to, four, sizeof(four));
        }
    }
    return all;
}

// Elements of those ranks, combined in that order.
inline image combine(const element &e, MPI_Op op, std::size_t n, const std::vector<int> &ranks,
                     int seed)
{
    image sum = contribution(e, n, ranks.front(), seed);
    for (std::size_t k = 1; k < ranks.size(); ++k) {
        image next = contribution(e, n, ranks[k], seed);
        MPI_Reduce_local(sum.data() + e.lead(), next.data() + e.lead(), static_cast<int>(n), e.type,
                         op);
        sum.swap(next);
    }
    return sum;
}

// --- one operation -------------------------------------------------------------------------------

enum class kind { allreduce, reduce, reduce_scatter, reduce_scatter_block, scan, exscan };
inline constexpr const char *names[] = {
    "allreduce", "reduce", "reduce_scatter", "reduce_scatter_block", "scan", "exscan"};

struct group {
    MPI_Comm comm = MPI_COMM_NULL;
    int me = 0;               // in the local group
    int ranks = 1;            // of it
    std::vector<int> sources; // ranks of the world whose elements come together here
    bool is_inter = false;
    bool has_root = true; // between two groups: whether the root is in this one
};

struct setup {
    kind what;
    const element *e;
    MPI_Op op;
    std::size_t n;
    int placement; // 0: all on the device; 1, 2: the even ranks, the odd; 3, 4: send, receive; 5:
                   // none; 6: all but one rank's
    bool in_place;
    int alone = 0; // that rank of the world, and its memory
    memory_kind its_kind = memory_kind::host;
};

class operation final : public collective_call {
  public:
    operation(const group &in, const setup &s) : g_(in), s_(s)
    {
        const std::size_t n = s.n;
        const auto ranks = static_cast<std::size_t>(g_.ranks);
        counts_.resize(ranks);
        for (std::size_t i = 0; i < ranks; ++i) { // the first rank of several gets nothing
            counts_[i] = static_cast<int>(i + 1 < ranks ? n * i : 12 * n - n * i * (i - 1) / 2);
        }
        const auto me = static_cast<std::size_t>(g_.me);
        root_ = g_.ranks - 1;
        const bool is_root = g_.is_inter ? g_.has_root && g_.me == 0 : g_.me == root_;
        switch (s.what) {
        case kind::reduce:
            received_ = is_root ? n : 0;
            sent_ = g_.is_inter && g_.has_root ? 0 : n;
            break;
        case kind::reduce_scatter:
            sent_ = 12 * n;
            received_ = static_cast<std::size_t>(counts_[me]);
            offset_ = std::accumulate(counts_.begin(), counts_.begin() + g_.me, std::size_t{0});
            break;
        case kind::reduce_scatter_block:
            sent_ = 12 * n;
            received_ = 12 * n / ranks;
            offset_ = received_ * me;
            break;
        case kind::exscan:
            sent_ = n;
            received_ = 0 == g_.me ? 0 : n;
            break;
        case kind::allreduce:
        case kind::scan:
            sent_ = received_ = n;
        }
        // Only the root's input is in its receive buffer.
        in_place_ = s.in_place && (kind::reduce != s.what || is_root);
        send_ = make(in_place_ ? 0 : sent_, 3);
        receive_ = make(std::max(in_place_ ? sent_ : 0, received_), 4);
    }

    void fill(int seed) override
    {
        seed_ = seed;
        const image mine = contribution(*s_.e, sent_, job->rank, seed);
        if (send_ != nullptr) {
            need(send_->write(0, mine.data(), mine.size()));
        }
        if (receive_ != nullptr) {
            need(receive_->poison());
            if (in_place_) {
                need(receive_->write(0, mine.data(), mine.size()));
            }
        }
    }

    void begin(form f, MPI_Request *request)
    {
        if (const int rc = try_to_begin(f, request); MPI_SUCCESS != rc) {
            fail(describe() + ": error " + std::to_string(rc));
        }
    }
    int try_to_begin(form f, MPI_Request *request) override
    {
        int rc = MPI_SUCCESS;
        const void *s = in_place_ ? MPI_IN_PLACE : address(send_);
        void *r = address(receive_);
        const int n = static_cast<int>(s_.n);
        const int share = static_cast<int>(12 * s_.n / static_cast<std::size_t>(g_.ranks));
        const int in_other = g_.has_root ? 0 == g_.me ? MPI_ROOT : MPI_PROC_NULL : 0;
        const int root = g_.is_inter ? in_other : root_;
        const MPI_Datatype t = s_.e->type;
        const auto call = [&](auto... all) { rc = one_of(f, request, all...); };
        switch (s_.what) {
        case kind::allreduce:
            call(MPI_Allreduce, MPI_Iallreduce, MPI_Allreduce_init, s, r, n, t, s_.op, g_.comm);
            break;
        case kind::reduce:
            call(MPI_Reduce, MPI_Ireduce, MPI_Reduce_init, s, r, n, t, s_.op, root, g_.comm);
            break;
        case kind::reduce_scatter:
            call(MPI_Reduce_scatter, MPI_Ireduce_scatter, MPI_Reduce_scatter_init, s, r,
                 counts_.data(), t, s_.op, g_.comm);
            break;
        case kind::reduce_scatter_block:
            call(MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block, MPI_Reduce_scatter_block_init,
                 s, r, share, t, s_.op, g_.comm);
            break;
        case kind::scan:
            call(MPI_Scan, MPI_Iscan, MPI_Scan_init, s, r, n, t, s_.op, g_.comm);
            break;
        case kind::exscan:
            call(MPI_Exscan, MPI_Iexscan, MPI_Exscan_init, s, r, n, t, s_.op, g_.comm);
        }
        return rc;
    }

    // The elements, what lies between them, and what lies around.
    void check() const override
    {
        ++job->messages;
        if (nullptr == receive_) {
            return;
        }
        const element &e = *s_.e;
        std::vector<int> from = g_.sources;
        if (kind::scan == s_.what || kind::exscan == s_.what) {
            from.resize(static_cast<std::size_t>(g_.me) + (kind::scan == s_.what ? 1 : 0));
        }
        image found(receive_->len_bytes());
        need(receive_->read(0, found.data(), found.size()));
        image wanted(found.size(), bench::poison_byte);
        // In place, what is behind the result is the library's business.
        const std::size_t input = in_place_ ? sent_ : 0;
        std::copy(found.begin() + static_cast<std::ptrdiff_t>(e.at(std::min(received_, input))),
                  found.begin() + static_cast<std::ptrdiff_t>(e.at(input)),
                  wanted.begin() + static_cast<std::ptrdiff_t>(e.at(std::min(received_, input))));
        if (0 != received_) {
            const image all = combine(e, s_.op, sent_of_all(), from, seed_);
            for (std::size_t i = 0; i < received_; ++i) {
                std::memcpy(wanted.data() + e.at(i), all.data() + e.at(offset_ + i), e.size);
                if (MPI_SHORT_INT == e.type) { // between the two there is nothing that counts
                    constexpr std::size_t gap = 2;
                    std::memcpy(wanted.data() + e.at(i) + gap, found.data() + e.at(i) + gap, gap);
                }
            }
        }
        const auto [a, b] = std::mismatch(found.begin(), found.end(), wanted.begin());
        if (a != found.end()) {
            fail(describe() + ": byte " + std::to_string(a - found.begin()) + " of " +
                 std::to_string(found.size()) + " is " + std::to_string(*a) + ", not " +
                 std::to_string(*b));
        }
    }

    bool stays_on_devices() const override
    {
        return 0 == s_.placement && s_.e->basic != nullptr && g_.ranks > 1;
    }

    std::string describe() const override
    {
        return std::string(names[static_cast<int>(s_.what)]) + " of " + std::to_string(s_.n) + " " +
               s_.e->name + ", placement " + std::to_string(s_.placement) +
               (6 == s_.placement ? std::string(1, bench::letter_of(s_.its_kind)) : "") +
               (s_.in_place ? ", in place" : "") + (g_.is_inter ? ", two groups" : "");
    }

  private:
    // 3: the send buffer, 4: the receive buffer
    std::unique_ptr<buffer> make(std::size_t n, int which) const
    {
        if (0 == n) {
            return nullptr;
        }
        const int p = s_.placement;
        const bool is_alone = 6 == p && s_.alone == job->rank;
        const bool on_device = 0 == p || 6 == p || p == which || (p < 3 && p == 1 + job->rank % 2);
        return job->make(is_alone    ? s_.its_kind
                         : on_device ? memory_kind::device
                                     : memory_kind::host,
                         s_.e->image_bytes(n));
    }
    // A buffer that is not significant may be anything.
    void *address(const std::unique_ptr<buffer> &of) const
    {
        return nullptr == of ? reinterpret_cast<void *>(4096) : of->at(s_.e->lead());
    }
    std::size_t sent_of_all() const
    {
        const bool scatters =
            kind::reduce_scatter == s_.what || kind::reduce_scatter_block == s_.what;
        return s_.n * (scatters ? 12 : 1);
    }

    const group g_;
    const setup s_;
    std::vector<int> counts_;
    int root_ = 0;
    int seed_ = 0;
    bool in_place_ = false;
    std::size_t sent_ = 0;
    std::size_t received_ = 0;
    std::size_t offset_ = 0; // of this rank's part of the result
    std::unique_ptr<buffer> send_;
    std::unique_ptr<buffer> receive_;
};

} // namespace gpusm::reductions

#endif
