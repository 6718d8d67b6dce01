// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_packed.h: collectives that move data, of datatypes with gaps on device memory. What
// Open MPI's algorithms copy within a rank they copy element by element, with calls of the driver
// for each. So such a call is given packed bytes in device memory, which a kernel packs before it
// and unpacks after it, and a datatype without gaps whose elements have as many bytes: so each rank
// decides this for itself, and all choose the same algorithm as before.
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
    view_owner open(bool is_persistent) const;

  private:
    struct release {
        void operator()(datatype *type) const { OBJ_RELEASE(type); }
    };

    const void *first_;
    std::size_t count_;
    std::unique_ptr<datatype, release> type_;
};

// One buffer among the arguments of a collective, which it can be told to change.
struct buffer_argument {
    buffer_argument() = default; // none that matters on this rank
    // `blocks` of as many elements, one after the other.
    template <typename Buffer>
    buffer_argument(Buffer **at, count_type elements_each, datatype **its, std::size_t number)
        : buffer(const_cast<void **>(at)), type(its), blocks(number), count(elements_each)
    {
    }
    // So many that each have a count and a place.
    template <typename Buffer>
    buffer_argument(Buffer **at, counts_type by_block, places_type *places_of, datatype **its,
                    std::size_t number)
        : buffer(const_cast<void **>(at)), type(its), blocks(number), counts(by_block),
          places(places_of)
    {
    }

    bool is_in_place() const { return blocks != 0 && MPI_IN_PLACE == *buffer; }
    // Does it take more than a copy in one piece?
    bool has_gaps() const
    {
        return blocks != 0 && MPI_IN_PLACE != *buffer &&
               0 == ((*type)->super.flags & OPAL_DATATYPE_FLAG_NO_GAPS) &&
               gpusm::has_gaps(*type, 1 == blocks && nullptr == places ? elements(count) : 2);
    }

    void **buffer = nullptr;
    datatype **type = nullptr;
    std::size_t blocks = 0;
    count_type count{};
    counts_type counts{};
    places_type *places = nullptr; // null: the blocks lie one after the other
};

// Null: the call goes as it is. Else the arguments are those of the call on packed bytes, and the
// input is packed, but not that of a persistent one: that is to be done at each start.
std::unique_ptr<stand_in> make_packed(const buffer_argument &sent, const buffer_argument &received,
                                      bool is_persistent);

inline std::unique_ptr<stand_in> pack_gaps(const communicator *comm, bool is_persistent,
                                           const buffer_argument &sent,
                                           const buffer_argument &received)
{
    if (OMPI_COMM_IS_INTER(comm) || (!sent.has_gaps() && !received.has_gaps())) [[likely]] {
        return nullptr;
    }
    return make_packed(sent, received, is_persistent);
}

// The three forms of a call with another one's buffers: `inner(&request)` makes that.
template <typename Inner>
int start_with(std::unique_ptr<stand_in> of, communicator *comm, ompi_request_t **request,
               Inner inner)
{
    staged_request *made = make_request(std::move(of), comm);
    if (nullptr == made) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    ompi_request_t *its = nullptr;
    const int rc = inner(&its);
    if (OMPI_SUCCESS == rc) {
        follow(made, its, request);
    } else {
        drop_request(made);
    }
    return rc;
}

template <typename Inner>
int init_with(std::unique_ptr<stand_in> of, communicator *comm, ompi_request_t **request,
              Inner inner)
{
    staged_request *made = make_request(std::move(of), comm);
    if (nullptr == made) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    ompi_request_t *its = nullptr;
    const int rc = inner(&its);
    if (OMPI_SUCCESS == rc) {
        follow_persistent(made, its, nullptr, nullptr, request);
    } else {
        drop_request(made);
    }
    return rc;
}

template <typename Inner> int call_with(std::unique_ptr<stand_in> of, Inner inner)
{
    const int rc = inner();
    return OMPI_SUCCESS == rc ? of->copy_back() : rc;
}

} // namespace gpusm

#endif
