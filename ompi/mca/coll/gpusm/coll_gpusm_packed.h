// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_packed.h: collectives that move data, with other arguments than the program's.
//
// Of datatypes with gaps on device memory Open MPI's algorithms copy what stays on a rank element
// by element, with calls of the driver for each. So such a call is given packed bytes in device
// memory, which a kernel packs before it and unpacks after it. Between different datatypes without
// gaps they copy it through host memory, in pieces of 64 KiB. So those become the same one. Each
// rank decides for itself: so nothing may change by which an algorithm is chosen.
#ifndef GPUSM_COLL_PACKED_H
#define GPUSM_COLL_PACKED_H

#include "ompi/mca/coll/gpusm/coll_gpusm_calls.h"

#include <cstddef>
#include <memory>
#include <utility>

namespace gpusm {

// Elements in memory of the program's, of which it may free the datatype meanwhile.
class program_elements {
  public:
    program_elements(const void *first, std::size_t count, datatype *type);

    // They are read or written now.
    void check() const;
    // Null: they are no device memory, or there is none.
    view_owner open() const;

  private:
    struct release {
        void operator()(datatype *type) const { OBJ_RELEASE(type); }
    };

    const void *first_;
    std::size_t count_;
    std::unique_ptr<datatype, release> type_;
};

// The new datatype: with as many bytes as the old one, or, between two that have not as many,
// MPI_BYTE where that may be.
enum class packed_unit { element, byte };

// One buffer among the arguments of a collective, which can be changed.
struct buffer_argument {
    buffer_argument() = default; // none that matters on this rank
    // `number` blocks of as many elements, one after the other.
    template <typename Buffer>
    buffer_argument(Buffer **at, count_type *elements_each, datatype **its, std::size_t number)
        : buffer(const_cast<void **>(at)), type(its), blocks(number), count(elements_each)
    {
    }
    // So many that each have a count and a place.
    template <typename Buffer>
    buffer_argument(Buffer **at, counts_type *by_block, places_type *places_of, datatype **its,
                    std::size_t number)
        : buffer(const_cast<void **>(at)), type(its), blocks(number), counts(by_block),
          places(places_of)
    {
    }

    bool is_in_place() const { return blocks != 0 && MPI_IN_PLACE == *buffer; }
    bool matters() const { return blocks != 0 && MPI_IN_PLACE != *buffer; }
    // Does it take more than a copy in one piece?
    bool has_gaps() const
    {
        return matters() && 0 == ((*type)->super.flags & OPAL_DATATYPE_FLAG_NO_GAPS) &&
               gpusm::has_gaps(*type, 1 == blocks && nullptr == counts ? elements(*count) : 2);
    }
    // Does it lie in one piece, but not where the address is?
    bool begins_elsewhere() const
    {
        return matters() && 0 != (*type)->super.true_lb && !has_gaps();
    }
    std::size_t count_of(std::size_t block) const
    {
        return nullptr == counts ? elements(*count) : count_at(*counts, block);
    }

    void **buffer = nullptr;
    datatype **type = nullptr;
    std::size_t blocks = 0;
    count_type *count = nullptr;   // or
    counts_type *counts = nullptr; // with places
    places_type *places = nullptr;
};

// Null: the call goes as it is. Else the arguments are other ones, and the input is packed, but not
// that of a persistent call: that is to be done at each start.
std::unique_ptr<call_copies> make_packed(const buffer_argument &sent,
                                         const buffer_argument &received, packed_unit unit,
                                         bool is_persistent);

// Is make_packed() to be asked?
[[gnu::always_inline]] inline bool may_be_packed(const communicator *comm,
                                                 const buffer_argument &sent,
                                                 const buffer_argument &received)
{
    if (OMPI_COMM_IS_INTER(comm)) {
        return false; // arguments that do not matter there may be anything
    }
    const bool differ = sent.matters() && received.matters() && *sent.type != *received.type;
    return differ || sent.has_gaps() || received.has_gaps() || sent.begins_elsewhere() ||
           received.begins_elsewhere();
}

inline std::unique_ptr<call_copies> pack_gaps(const communicator *comm, packed_unit unit,
                                              bool is_persistent, const buffer_argument &sent,
                                              const buffer_argument &received)
{
    return may_be_packed(comm, sent, received) ? make_packed(sent, received, unit, is_persistent)
                                               : nullptr;
}

// A blocking call around `inner()`.
template <typename Inner> int call_with(std::unique_ptr<call_copies> of, Inner inner)
{
    const int rc = inner();
    return OMPI_SUCCESS == rc ? of->copy_back() : rc;
}

} // namespace gpusm

#endif
