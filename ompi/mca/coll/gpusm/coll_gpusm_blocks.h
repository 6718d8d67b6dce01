// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_blocks.h: what each of the collectives that only move data sends and receives on this
// rank. Each has a function call_of_<name>, which takes the collective's arguments.
#ifndef GPUSM_COLL_BLOCKS_H
#define GPUSM_COLL_BLOCKS_H

#include "ompi/mca/coll/gpusm/coll_gpusm_calls.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gpusm {

using blocks = exchange_blocks;

inline std::uint64_t bytes_of(count_type count, const datatype *type)
{
    return elements(count) * type->super.size;
}

// For, or from, each rank the same, as many one after the other, or as the program says.
inline blocks same_blocks(std::size_t ranks, const exchange_block &each)
{
    blocks made{};
    std::fill_n(made.begin(), ranks, each);
    return made;
}

inline blocks even_blocks(std::size_t ranks, count_type count, const datatype *type)
{
    blocks made{};
    for (std::size_t i = 0; i < ranks; ++i) {
        const std::uint64_t bytes = bytes_of(count, type);
        made[i] = {static_cast<std::int64_t>(i * bytes), bytes};
    }
    return made;
}

inline blocks varied_blocks(std::size_t ranks, counts_type counts, places_type places,
                            const datatype *type)
{
    const std::ptrdiff_t extent = type->super.ub - type->super.lb;
    blocks made{};
    for (std::size_t i = 0; i < ranks; ++i) {
        made[i] = {place_at(places, i) * extent, count_at(counts, i) * type->super.size};
    }
    return made;
}

// Of one rank in one communicator.
struct call_maker {
    call_maker(exchange_kind kind, const communicator *comm, int root = 0)
        : ranks(elements(ompi_comm_size(comm))), me(elements(ompi_comm_rank(comm)))
    {
        made.kind = kind;
        made.root = static_cast<std::uint32_t>(root);
    }
    void send(const void *buffer, const datatype *type, const blocks &to)
    {
        made.send = buffer;
        made.sends = to;
        made.can_be = made.can_be && (is_plain(type) || !has_any(to));
    }
    void receive(void *buffer, const datatype *type, const blocks &from)
    {
        made.receive = buffer;
        made.receives = from;
        made.can_be = made.can_be && (is_plain(type) || !has_any(from));
    }
    // Only for, or from, that rank.
    static blocks one_block(std::size_t rank, count_type count, const datatype *type)
    {
        blocks only{};
        only[rank].bytes = bytes_of(count, type);
        return only;
    }
    blocks but_mine(blocks all) const
    {
        all[me] = {};
        return all;
    }

    exchange_call made{};
    const std::size_t ranks;
    const std::size_t me;
};

inline exchange_call allgathered(const void *send, count_type count, const datatype *type,
                                 void *receive, const datatype *receive_type, const blocks &from,
                                 call_maker call)
{
    if (MPI_IN_PLACE == send) {
        call.receive(receive, receive_type, call.but_mine(from));
        call.send(receive, receive_type, call.but_mine(same_blocks(call.ranks, from[call.me])));
    } else {
        call.receive(receive, receive_type, from);
        call.send(send, type, same_blocks(call.ranks, {0, bytes_of(count, type)}));
    }
    return call.made;
}

inline exchange_call exchanged_by_all(const void *send, const datatype *type, const blocks &to,
                                      void *receive, const datatype *receive_type,
                                      const blocks &from, call_maker call)
{
    call.made.in_place = MPI_IN_PLACE == send;
    if (call.made.in_place) {
        call.receive(receive, receive_type, call.but_mine(from));
        call.send(receive, receive_type, call.but_mine(from));
    } else {
        call.receive(receive, receive_type, from);
        call.send(send, type, to);
    }
    return call.made;
}

// `from`: of the root.
inline exchange_call gathered(const void *send, count_type count, const datatype *type,
                              void *receive, const datatype *receive_type, const blocks &from,
                              call_maker call)
{
    const bool is_in_place = MPI_IN_PLACE == send;
    if (call.made.root == call.me) {
        call.receive(receive, receive_type, is_in_place ? call.but_mine(from) : from);
    }
    if (!is_in_place) {
        call.send(send, type, call.one_block(call.made.root, count, type));
    }
    return call.made;
}

// `to`: of the root.
inline exchange_call scattered(const void *send, const datatype *type, const blocks &to,
                               void *receive, count_type count, const datatype *receive_type,
                               call_maker call)
{
    const bool is_in_place = MPI_IN_PLACE == receive;
    if (call.made.root == call.me) {
        call.send(send, type, is_in_place ? call.but_mine(to) : to);
    }
    if (!is_in_place) {
        call.receive(receive, receive_type, call.one_block(call.made.root, count, receive_type));
    }
    return call.made;
}

// --- the collectives -----------------------------------------------------------------------------

// Their arguments, as declared and as passed on.
#define GPUSM_SENT const void *send, count_type send_count, datatype *send_type
#define GPUSM_SENT_BY_RANK                                                                         \
    const void *send, counts_type send_counts, places_type send_places, datatype *send_type
#define GPUSM_RECEIVED void *receive, count_type receive_count, datatype *receive_type
#define GPUSM_RECEIVED_BY_RANK                                                                     \
    void *receive, counts_type receive_counts, places_type receive_places, datatype *receive_type

#define GPUSM_OF_ALLGATHER GPUSM_SENT, GPUSM_RECEIVED, communicator *comm
#define GPUSM_OF_ALLGATHERV GPUSM_SENT, GPUSM_RECEIVED_BY_RANK, communicator *comm
#define GPUSM_OF_ALLTOALL GPUSM_SENT, GPUSM_RECEIVED, communicator *comm
#define GPUSM_OF_ALLTOALLV GPUSM_SENT_BY_RANK, GPUSM_RECEIVED_BY_RANK, communicator *comm
#define GPUSM_OF_BCAST void *buffer, count_type count, datatype *type, int root, communicator *comm
#define GPUSM_OF_GATHER GPUSM_SENT, GPUSM_RECEIVED, int root, communicator *comm
#define GPUSM_OF_GATHERV GPUSM_SENT, GPUSM_RECEIVED_BY_RANK, int root, communicator *comm
#define GPUSM_OF_SCATTER GPUSM_SENT, GPUSM_RECEIVED, int root, communicator *comm
#define GPUSM_OF_SCATTERV GPUSM_SENT_BY_RANK, GPUSM_RECEIVED, int root, communicator *comm

#define GPUSM_PASS_SENT send, send_count, send_type
#define GPUSM_PASS_SENT_BY_RANK send, send_counts, send_places, send_type
#define GPUSM_PASS_RECEIVED receive, receive_count, receive_type
#define GPUSM_PASS_RECEIVED_BY_RANK receive, receive_counts, receive_places, receive_type

#define GPUSM_PASS_ALLGATHER GPUSM_PASS_SENT, GPUSM_PASS_RECEIVED, comm
#define GPUSM_PASS_ALLGATHERV GPUSM_PASS_SENT, GPUSM_PASS_RECEIVED_BY_RANK, comm
#define GPUSM_PASS_ALLTOALL GPUSM_PASS_SENT, GPUSM_PASS_RECEIVED, comm
#define GPUSM_PASS_ALLTOALLV GPUSM_PASS_SENT_BY_RANK, GPUSM_PASS_RECEIVED_BY_RANK, comm
#define GPUSM_PASS_BCAST buffer, count, type, root, comm
#define GPUSM_PASS_GATHER GPUSM_PASS_SENT, GPUSM_PASS_RECEIVED, root, comm
#define GPUSM_PASS_GATHERV GPUSM_PASS_SENT, GPUSM_PASS_RECEIVED_BY_RANK, root, comm
#define GPUSM_PASS_SCATTER GPUSM_PASS_SENT, GPUSM_PASS_RECEIVED, root, comm
#define GPUSM_PASS_SCATTERV GPUSM_PASS_SENT_BY_RANK, GPUSM_PASS_RECEIVED, root, comm

// The buffers of each, as far as they matter on this rank.
#define GPUSM_SENT_BUFFER(blocks) buffer_argument(&send, &send_count, &send_type, blocks)
#define GPUSM_SENT_BUFFER_BY_RANK(blocks)                                                          \
    buffer_argument(&send, &send_counts, &send_places, &send_type, blocks)
#define GPUSM_RECEIVED_BUFFER(blocks)                                                              \
    buffer_argument(&receive, &receive_count, &receive_type, blocks)
#define GPUSM_RECEIVED_BUFFER_BY_RANK(blocks)                                                      \
    buffer_argument(&receive, &receive_counts, &receive_places, &receive_type, blocks)

#define GPUSM_BUFFERS_ALLGATHER GPUSM_SENT_BUFFER(1), GPUSM_RECEIVED_BUFFER(of_all(comm))
#define GPUSM_BUFFERS_ALLGATHERV GPUSM_SENT_BUFFER(1), GPUSM_RECEIVED_BUFFER_BY_RANK(of_all(comm))
#define GPUSM_BUFFERS_ALLTOALL GPUSM_SENT_BUFFER(of_all(comm)), GPUSM_RECEIVED_BUFFER(of_all(comm))
#define GPUSM_BUFFERS_ALLTOALLV                                                                    \
    GPUSM_SENT_BUFFER_BY_RANK(of_all(comm)), GPUSM_RECEIVED_BUFFER_BY_RANK(of_all(comm))
#define GPUSM_BUFFERS_BCAST buffer_argument(), buffer_argument() // copies nothing within a rank
#define GPUSM_BUFFERS_GATHER GPUSM_SENT_BUFFER(1), GPUSM_RECEIVED_BUFFER(of_root(root, comm))
#define GPUSM_BUFFERS_GATHERV                                                                      \
    GPUSM_SENT_BUFFER(1), GPUSM_RECEIVED_BUFFER_BY_RANK(of_root(root, comm))
#define GPUSM_BUFFERS_SCATTER GPUSM_SENT_BUFFER(of_root(root, comm)), GPUSM_RECEIVED_BUFFER(1)
#define GPUSM_BUFFERS_SCATTERV                                                                     \
    GPUSM_SENT_BUFFER_BY_RANK(of_root(root, comm)), GPUSM_RECEIVED_BUFFER(1)

// Can it be by kernels? Of blocks that all ranks know to have as many bytes.
constexpr bool may_be_even(std::uint64_t bytes)
{
    return 0 != bytes && bytes <= exchange_most_bytes;
}

inline bool is_root(int root, const communicator *comm)
{
    return ompi_comm_rank(comm) == root;
}

// Blocks, one for each rank; of the root, on others none.
inline std::size_t of_all(const communicator *comm)
{
    return elements(ompi_comm_size(comm));
}

inline std::size_t of_root(int root, const communicator *comm)
{
    return is_root(root, comm) ? of_all(comm) : 0;
}

inline exchange_call call_of_allgather(GPUSM_OF_ALLGATHER)
{
    const call_maker call(exchange_kind::allgather, comm);
    return allgathered(send, send_count, send_type, receive, receive_type,
                       even_blocks(call.ranks, receive_count, receive_type), call);
}

inline exchange_call call_of_allgatherv(GPUSM_OF_ALLGATHERV)
{
    const call_maker call(exchange_kind::allgather, comm);
    return allgathered(send, send_count, send_type, receive, receive_type,
                       varied_blocks(call.ranks, receive_counts, receive_places, receive_type),
                       call);
}

inline exchange_call call_of_alltoall(GPUSM_OF_ALLTOALL)
{
    const call_maker call(exchange_kind::alltoall, comm);
    return exchanged_by_all(
        send, send_type,
        MPI_IN_PLACE == send ? blocks{} : even_blocks(call.ranks, send_count, send_type), receive,
        receive_type, even_blocks(call.ranks, receive_count, receive_type), call);
}

inline exchange_call call_of_alltoallv(GPUSM_OF_ALLTOALLV)
{
    const call_maker call(exchange_kind::alltoall, comm);
    return exchanged_by_all(
        send, send_type,
        MPI_IN_PLACE == send ? blocks{}
                             : varied_blocks(call.ranks, send_counts, send_places, send_type),
        receive, receive_type,
        varied_blocks(call.ranks, receive_counts, receive_places, receive_type), call);
}

inline exchange_call call_of_bcast(GPUSM_OF_BCAST)
{
    call_maker call(exchange_kind::bcast, comm, root);
    if (is_root(root, comm)) {
        call.send(buffer, type, call.but_mine(same_blocks(call.ranks, {0, bytes_of(count, type)})));
    } else {
        call.receive(buffer, type, call.one_block(elements(root), count, type));
    }
    return call.made;
}

inline exchange_call call_of_gather(GPUSM_OF_GATHER)
{
    const call_maker call(exchange_kind::gather, comm, root);
    return gathered(send, send_count, send_type, receive, receive_type,
                    is_root(root, comm) ? even_blocks(call.ranks, receive_count, receive_type)
                                        : blocks{},
                    call);
}

inline exchange_call call_of_gatherv(GPUSM_OF_GATHERV)
{
    const call_maker call(exchange_kind::gather, comm, root);
    return gathered(send, send_count, send_type, receive, receive_type,
                    is_root(root, comm)
                        ? varied_blocks(call.ranks, receive_counts, receive_places, receive_type)
                        : blocks{},
                    call);
}

inline exchange_call call_of_scatter(GPUSM_OF_SCATTER)
{
    const call_maker call(exchange_kind::scatter, comm, root);
    return scattered(send, send_type,
                     is_root(root, comm) ? even_blocks(call.ranks, send_count, send_type)
                                         : blocks{},
                     receive, receive_count, receive_type, call);
}

inline exchange_call call_of_scatterv(GPUSM_OF_SCATTERV)
{
    const call_maker call(exchange_kind::scatter, comm, root);
    return scattered(send, send_type,
                     is_root(root, comm)
                         ? varied_blocks(call.ranks, send_counts, send_places, send_type)
                         : blocks{},
                     receive, receive_count, receive_type, call);
}

} // namespace gpusm

#endif
