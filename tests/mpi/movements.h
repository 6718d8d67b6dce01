// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// movements.h: one collective that moves data and calculates nothing. What is received is compared
// with what each rank knows the others to send, and so is what lies between.
#ifndef GPUSM_TESTS_MPI_MOVEMENTS_H
#define GPUSM_TESTS_MPI_MOVEMENTS_H

#include "tests/mpi/collective_call.h"
#include "tests/mpi/exchange.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace gpusm::movements {

using namespace exchange;

enum class kind { allgather, alltoall, alltoallw, bcast, gather, scatter };
inline constexpr const char *names[] = {"allgather", "alltoall", "alltoallw",
                                        "bcast",     "gather",   "scatter"};
inline constexpr kind all_kinds[] = {kind::allgather, kind::alltoall, kind::alltoallw,
                                     kind::bcast,     kind::gather,   kind::scatter};

// To each rank another block.
constexpr bool is_by_all_to_all(kind what)
{
    return kind::alltoall == what || kind::alltoallw == what;
}

constexpr bool has_root(kind what)
{
    return kind::bcast == what || kind::gather == what || kind::scatter == what;
}

// Which ranks have other memory than that of their device.
enum class mix { none, odd_ranks, receive_of_first, one_rank, all_ranks };
inline constexpr const char *mixes[] = {"", ", odd ranks on the host", ", the first receives there",
                                        ", one rank in other memory", ", all on the host"};

struct setup {
    kind what;
    bool varied;
    std::size_t n; // elements of a block, about as many where they vary
    int root;
    bool in_place;
    mix hosts;
    int stride;    // ints from one element to the next; odd ranks receive without gaps
    int alone = 0; // that one rank
    memory_kind its_kind = memory_kind::host;
    bool sends_whole = false; // where blocks do not vary, each as one element of another type
    bool absolute = false;    // the datatypes say where the buffers are, and these are MPI_BOTTOM
};

class movement final : public collective_call {
  public:
    movement(context &c, MPI_Comm comm, const setup &of) : c_(c), comm_(comm), of_(of)
    {
        MPI_Comm_rank(comm, &me_);
        MPI_Comm_size(comm, &ranks_);
        if (1 != of.stride) {
            MPI_Type_create_resized(MPI_INT, 0, of.stride * static_cast<int>(sizeof(int)),
                                    &gapped_);
            MPI_Type_commit(&gapped_);
        }
        receive_stride_ = 1 == me_ % 2 ? 1 : of.stride;
        const std::size_t bytes = empty().size() * sizeof(int);
        const bool first_receives = mix::receive_of_first == of_.hosts && 0 == me_;
        send_ = c_.make(kind_here(), bytes);
        receive_ = c_.make(first_receives ? memory_kind::host : kind_here(), bytes);
        send_type_ = type_of(*send_, of.stride);
        receive_type_ = type_of(*receive_, receive_stride_);
        MPI_Type_contiguous(static_cast<int>(of.n), 1 == of.stride ? MPI_INT : gapped_, &whole_);
        MPI_Type_commit(&whole_);
        for (int i = 0; i < ranks_; ++i) {
            const int furthest = 1 + static_cast<int>(2 * of.n); // longer than any block
            places_.push_back(of.varied ? (ranks_ - 1 - i) * furthest : i * count(0, 0));
            send_counts_.push_back(count(me_, i));
            receive_counts_.push_back(count(i, me_));
            const int place_bytes = places_.back() * static_cast<int>(sizeof(int));
            send_places_.push_back(place_bytes * of.stride);
            receive_places_.push_back(place_bytes * receive_stride_);
            send_types_.push_back(send_type_);
            receive_types_.push_back(receive_type_);
        }
    }
    ~movement() override
    {
        MPI_Type_free(&whole_);
        if (of_.absolute) {
            MPI_Type_free(&send_type_);
            MPI_Type_free(&receive_type_);
        }
        if (MPI_DATATYPE_NULL != gapped_) {
            MPI_Type_free(&gapped_);
        }
    }

    void fill(int seed) override
    {
        seed_ = seed;
        const auto write = [&](buffer &to, const std::vector<int> &image) {
            c_.expect(to.write(0, image.data(), image.size() * sizeof(int)), "fill");
        };
        write(*send_, sent());
        write(*receive_, received(false));
    }
    int try_to_begin(form f, MPI_Request *request) override
    {
        const auto call = [&](auto... all) { return one_of(f, request, all...); };
        const bool roots_in_place = of_.in_place && is_root();
        const bool in_place =
            of_.in_place && (kind::allgather == of_.what || is_by_all_to_all(of_.what) ||
                             (kind::gather == of_.what && is_root()));
        void *const send = in_place ? MPI_IN_PLACE : given(*send_);
        void *const receive =
            kind::scatter == of_.what && roots_in_place ? MPI_IN_PLACE : given(*receive_);
        const int n = count(0, 0);
        const int mine = count(me_, of_.root);
        const int theirs = count(of_.root, me_);
        const int *sends = send_counts_.data();
        const int *receives = receive_counts_.data();
        const int *places = places_.data();
        const MPI_Datatype t = send_type_;
        const MPI_Datatype to = receive_type_;
        const MPI_Datatype each = of_.sends_whole ? whole_ : t;
        const int of_each = of_.sends_whole ? 1 : n;
        const int root = of_.root;
        switch (of_.what) {
        case kind::allgather:
            return of_.varied ? call(MPI_Allgatherv, MPI_Iallgatherv, MPI_Allgatherv_init, send,
                                     mine, t, receive, receives, places, to, comm_)
                              : call(MPI_Allgather, MPI_Iallgather, MPI_Allgather_init, send,
                                     of_each, each, receive, n, to, comm_);
        case kind::alltoall:
            return of_.varied ? call(MPI_Alltoallv, MPI_Ialltoallv, MPI_Alltoallv_init, send, sends,
                                     places, t, receive, receives, places, to, comm_)
                              : call(MPI_Alltoall, MPI_Ialltoall, MPI_Alltoall_init, send, of_each,
                                     each, receive, n, to, comm_);
        case kind::alltoallw:
            return call(MPI_Alltoallw, MPI_Ialltoallw, MPI_Alltoallw_init, send, sends,
                        send_places_.data(), send_types_.data(), receive, receives,
                        receive_places_.data(), receive_types_.data(), comm_);
        case kind::bcast:
            return call(MPI_Bcast, MPI_Ibcast, MPI_Bcast_init, is_root() ? send : receive, n,
                        is_root() ? t : to, root, comm_);
        case kind::gather:
            return of_.varied ? call(MPI_Gatherv, MPI_Igatherv, MPI_Gatherv_init, send, mine, t,
                                     receive, receives, places, to, root, comm_)
                              : call(MPI_Gather, MPI_Igather, MPI_Gather_init, send, of_each, each,
                                     receive, n, to, root, comm_);
        case kind::scatter:
            return of_.varied ? call(MPI_Scatterv, MPI_Iscatterv, MPI_Scatterv_init, send, sends,
                                     places, t, receive, theirs, to, root, comm_)
                              : call(MPI_Scatter, MPI_Iscatter, MPI_Scatter_init, send, of_each,
                                     each, receive, n, to, root, comm_);
        }
        return MPI_ERR_INTERN;
    }
    void check() const override
    {
        const std::vector<int> wanted = received(true);
        std::vector<int> found(wanted.size());
        c_.expect(receive_->read(0, found.data(), found.size() * sizeof(int)), "read");
        const auto wrong = std::mismatch(found.begin(), found.end(), wanted.begin()).first;
        const auto at = wrong - found.begin();
        c_.expect_true(
            found.end() == wrong,
            describe() + ": int " + std::to_string(at) + " of " + std::to_string(found.size()) +
                (found.end() == wrong ? ""
                                      : " is " + std::to_string(*wrong) + ", not " +
                                            std::to_string(wanted[static_cast<std::size_t>(at)])));
        ++c_.messages;
    }

    // Who has nothing in a call that varies does not count.
    bool is_known() const { return !of_.varied || mix::none == of_.hosts; }
    bool stays_on_devices() const override { return is_known() && stays(); }
    std::string describe() const override
    {
        return std::string(names[static_cast<int>(of_.what)]) + (of_.varied ? "v" : "") + " of " +
               std::to_string(of_.n) + (1 == of_.stride ? "" : " with gaps") +
               (of_.sends_whole ? " as one element" : "") +
               (of_.absolute ? " at an absolute address" : "") + ", root " +
               std::to_string(of_.root) + (of_.in_place ? ", in place" : "") +
               mixes[static_cast<int>(of_.hosts)];
    }

  private:
    // Ints before and behind all else. Of an even number of ints buffers are aligned to 16 bytes.
    std::size_t guard() const { return 0 == of_.n % 2 ? 4 : 3; }

    // Where it is known: do kernels carry it out?
    bool stays() const
    {
        const bool receives = kind::gather == of_.what    ? 0 == of_.root
                              : kind::bcast == of_.what   ? 0 != of_.root
                              : kind::scatter == of_.what ? 0 != of_.root || !of_.in_place
                                                          : true;
        const bool all_on_device =
            mix::none == of_.hosts || (mix::receive_of_first == of_.hosts && !receives);
        const std::size_t bytes = of_.n * sizeof(int);
        const std::size_t direct_end = (3 == ranks_ ? 4 : 1) << 20;
        const bool direct = bytes >= 8 << 10 && bytes < direct_end;
        if (kind::bcast == of_.what && (ranks_ < 3 || direct || 1 != of_.stride || of_.absolute)) {
            return false;
        }
        return ranks_ > 1 && all_on_device && kind::alltoallw != of_.what;
    }
    memory_kind kind_here() const
    {
        const bool on_host =
            mix::all_ranks == of_.hosts || (mix::odd_ranks == of_.hosts && 1 == me_ % 2);
        return mix::one_rank == of_.hosts && of_.alone == me_ ? of_.its_kind
               : on_host                                      ? memory_kind::host
                                                              : memory_kind::device;
    }
    MPI_Datatype type_of(const buffer &of, int stride) const
    {
        const MPI_Datatype element = 1 == stride ? MPI_INT : gapped_;
        if (!of_.absolute) {
            return element;
        }
        MPI_Aint address = 0;
        MPI_Get_address(at(of), &address);
        MPI_Datatype there = MPI_DATATYPE_NULL;
        MPI_Datatype made = MPI_DATATYPE_NULL;
        MPI_Type_create_hindexed_block(1, 1, &address, element, &there);
        MPI_Type_create_resized(there, 0, stride * static_cast<int>(sizeof(int)), &made);
        MPI_Type_commit(&made);
        MPI_Type_free(&there);
        return made;
    }
    bool is_root() const { return me_ == of_.root; }
    bool has_one_for_all() const { return kind::allgather == of_.what || kind::bcast == of_.what; }
    // The same both ways, as alltoallv in place asks for. One block for all has its sender's.
    int count(int from, int to) const
    {
        if (!of_.varied) {
            return static_cast<int>(of_.n);
        }
        to = has_one_for_all() ? 0 : to;
        return (from * to + from + to) % 3 * static_cast<int>(of_.n + 1) / 2;
    }
    int value(int from, int to, int i) const
    {
        to = has_one_for_all() ? 0 : to;
        const auto which = static_cast<unsigned>(seed_ * 31 + from);
        return static_cast<int>((which * 1000003U + static_cast<unsigned>(to * 10007 + i)) >> 1);
    }
    void put(std::vector<int> *image, int stride, int place, int from, int to) const
    {
        for (int i = 0; i < count(from, to); ++i) {
            (*image)[guard() + static_cast<std::size_t>((place + i) * stride)] = value(from, to, i);
        }
    }
    std::vector<int> empty() const
    {
        const auto blocks = static_cast<std::size_t>(ranks_) * (2 * of_.n + 1);
        return std::vector<int>(blocks * static_cast<std::size_t>(of_.stride) + 2 * guard(), -1);
    }
    std::vector<int> sent() const
    {
        std::vector<int> image = empty();
        const bool by_rank = is_by_all_to_all(of_.what) || kind::scatter == of_.what;
        for (int i = 0; i < ranks_ && by_rank; ++i) {
            put(&image, of_.stride, places_[static_cast<std::size_t>(i)], me_, i);
        }
        if (!by_rank) {
            put(&image, of_.stride, 0, me_, of_.root);
        }
        return image;
    }
    // The receive buffer before and after the call.
    std::vector<int> received(bool after) const
    {
        std::vector<int> image = empty();
        const auto place = [&](int i) { return places_[static_cast<std::size_t>(i)]; };
        switch (of_.what) {
        case kind::allgather:
        case kind::gather:
            for (int i = 0; i < ranks_; ++i) {
                const bool is_there =
                    of_.in_place && i == me_ && (kind::allgather == of_.what || is_root());
                const bool comes = after && (kind::allgather == of_.what || is_root());
                if (is_there || comes) {
                    put(&image, receive_stride_, place(i), i, of_.root);
                }
            }
            break;
        case kind::alltoall:
        case kind::alltoallw:
            for (int i = 0; i < ranks_; ++i) {
                if (after) {
                    put(&image, receive_stride_, place(i), i, me_);
                } else if (of_.in_place) {
                    put(&image, receive_stride_, place(i), me_, i);
                }
            }
            break;
        case kind::bcast:
            if (after && !is_root()) {
                put(&image, receive_stride_, 0, of_.root, me_);
            }
            break;
        case kind::scatter:
            if (after && !(of_.in_place && is_root())) {
                put(&image, receive_stride_, 0, of_.root, me_);
            }
            break;
        }
        return image;
    }
    void *given(const buffer &of) const { return of_.absolute ? MPI_BOTTOM : at(of); }
    unsigned char *at(const buffer &of) const
    {
        return static_cast<unsigned char *>(of.data()) + guard() * sizeof(int);
    }

    context &c_;
    const MPI_Comm comm_;
    const setup of_;
    int me_ = 0;
    int ranks_ = 0;
    int seed_ = 0;
    int receive_stride_ = 1;
    MPI_Datatype gapped_ = MPI_DATATYPE_NULL; // null: there are no gaps
    MPI_Datatype send_type_ = MPI_DATATYPE_NULL;
    MPI_Datatype receive_type_ = MPI_DATATYPE_NULL;
    MPI_Datatype whole_ = MPI_DATATYPE_NULL; // a block
    std::vector<int> places_;
    std::vector<int> send_counts_;
    std::vector<int> receive_counts_;
    // Of alltoallw, in bytes.
    std::vector<int> send_places_;
    std::vector<int> receive_places_;
    std::vector<MPI_Datatype> send_types_;
    std::vector<MPI_Datatype> receive_types_;
    std::unique_ptr<buffer> send_;
    std::unique_ptr<buffer> receive_;
};

} // namespace gpusm::movements

#endif
