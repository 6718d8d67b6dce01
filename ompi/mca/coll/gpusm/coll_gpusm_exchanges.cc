// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_exchanges.cc: the collectives that move data and calculate nothing. The next
// component's functions send messages, which may be of device memory as well.
#include "ompi/mca/coll/gpusm/coll_gpusm_calls.h"

#include <algorithm>

namespace gpusm {

namespace {

using blocks = exchange_blocks;

std::uint64_t bytes_of(int count, const datatype *type)
{
    return elements(count) * type->super.size;
}

// For, or from, each rank the same, as many one after the other, or as the program says.
blocks same_blocks(std::size_t ranks, const exchange_block &each)
{
    blocks made{};
    std::fill_n(made.begin(), ranks, each);
    return made;
}

blocks even_blocks(std::size_t ranks, int count, const datatype *type)
{
    blocks made{};
    for (std::size_t i = 0; i < ranks; ++i) {
        const std::uint64_t bytes = bytes_of(count, type);
        made[i] = {static_cast<std::int64_t>(i * bytes), bytes};
    }
    return made;
}

blocks varied_blocks(std::size_t ranks, const int *counts, const int *places, const datatype *type)
{
    const std::ptrdiff_t extent = type->super.ub - type->super.lb;
    blocks made{};
    for (std::size_t i = 0; i < ranks; ++i) {
        made[i] = {places[i] * extent, bytes_of(counts[i], type)};
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
    static blocks one_block(std::size_t rank, int count, const datatype *type)
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

exchange_call of_allgather(const void *send, int count, const datatype *type, void *receive,
                           const datatype *receive_type, const blocks &from, call_maker call)
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

// In place every rank writes where others read, so it is left to the next component.
exchange_call of_alltoall(const void *send, const datatype *type, const blocks &to, void *receive,
                          const datatype *receive_type, const blocks &from, call_maker call)
{
    call.receive(receive, receive_type, from);
    if (MPI_IN_PLACE == send) {
        call.made.can_be = false;
    } else {
        call.send(send, type, to);
    }
    return call.made;
}

// `from`: of the root.
exchange_call of_gather(const void *send, int count, const datatype *type, void *receive,
                        const datatype *receive_type, const blocks &from, call_maker call)
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
exchange_call of_scatter(const void *send, const datatype *type, const blocks &to, void *receive,
                         int count, const datatype *receive_type, call_maker call)
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

// By kernels, if that can be. `make`: the call, with what this rank has.
template <typename Make>
bool is_exchanged(base_module *module, communicator *comm, Make make, int *rc)
{
    return static_cast<mca_coll_gpusm_module_t *>(module)->on_devices->exchange(comm, make, rc);
}

// The same where all ranks know that all blocks have as many bytes.
template <typename Make>
bool is_exchanged(base_module *module, communicator *comm, std::uint64_t bytes, Make make, int *rc)
{
    return 0 != bytes && bytes <= exchange_most_bytes && is_exchanged(module, comm, make, rc);
}

#define GPUSM_SENT const void *send, int send_count, datatype *send_type
#define GPUSM_RECEIVED void *receive, int receive_count, datatype *receive_type
#define GPUSM_SENT_BY_RANK                                                                         \
    const void *send, const int *send_counts, const int *send_places, datatype *send_type
#define GPUSM_RECEIVED_BY_RANK                                                                     \
    void *receive, const int *receive_counts, const int *receive_places, datatype *receive_type

// --- allgather -----------------------------------------------------------------------------------

extern "C" int coll_gpusm_allgather(GPUSM_SENT, GPUSM_RECEIVED, communicator *comm,
                                    base_module *module) noexcept
{
    const auto make = [&] {
        const call_maker call(exchange_kind::allgather, comm);
        return of_allgather(send, send_count, send_type, receive, receive_type,
                            even_blocks(call.ranks, receive_count, receive_type), call);
    };
    int rc = OMPI_SUCCESS;
    if (is_exchanged(module, comm, bytes_of(receive_count, receive_type), make, &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return next.coll_allgather(send, send_count, send_type, receive, receive_count, receive_type,
                               comm, next.coll_allgather_module);
}

extern "C" int coll_gpusm_allgatherv(GPUSM_SENT, GPUSM_RECEIVED_BY_RANK, communicator *comm,
                                     base_module *module) noexcept
{
    const auto make = [&] {
        const call_maker call(exchange_kind::allgather, comm);
        return of_allgather(send, send_count, send_type, receive, receive_type,
                            varied_blocks(call.ranks, receive_counts, receive_places, receive_type),
                            call);
    };
    int rc = OMPI_SUCCESS;
    if (is_exchanged(module, comm, make, &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return next.coll_allgatherv(send, send_count, send_type, receive, receive_counts,
                                receive_places, receive_type, comm, next.coll_allgatherv_module);
}

// --- alltoall ------------------------------------------------------------------------------------

extern "C" int coll_gpusm_alltoall(GPUSM_SENT, GPUSM_RECEIVED, communicator *comm,
                                   base_module *module) noexcept
{
    const auto make = [&] {
        const call_maker call(exchange_kind::alltoall, comm);
        return of_alltoall(
            send, send_type,
            MPI_IN_PLACE == send ? blocks{} : even_blocks(call.ranks, send_count, send_type),
            receive, receive_type, even_blocks(call.ranks, receive_count, receive_type), call);
    };
    int rc = OMPI_SUCCESS;
    if (is_exchanged(module, comm, bytes_of(receive_count, receive_type), make, &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return next.coll_alltoall(send, send_count, send_type, receive, receive_count, receive_type,
                              comm, next.coll_alltoall_module);
}

extern "C" int coll_gpusm_alltoallv(GPUSM_SENT_BY_RANK, GPUSM_RECEIVED_BY_RANK, communicator *comm,
                                    base_module *module) noexcept
{
    const auto make = [&] {
        const call_maker call(exchange_kind::alltoall, comm);
        return of_alltoall(
            send, send_type,
            MPI_IN_PLACE == send ? blocks{}
                                 : varied_blocks(call.ranks, send_counts, send_places, send_type),
            receive, receive_type,
            varied_blocks(call.ranks, receive_counts, receive_places, receive_type), call);
    };
    int rc = OMPI_SUCCESS;
    if (is_exchanged(module, comm, make, &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return next.coll_alltoallv(send, send_counts, send_places, send_type, receive, receive_counts,
                               receive_places, receive_type, comm, next.coll_alltoallv_module);
}

// --- gather --------------------------------------------------------------------------------------

extern "C" int coll_gpusm_gather(GPUSM_SENT, GPUSM_RECEIVED, int root, communicator *comm,
                                 base_module *module) noexcept
{
    const bool is_root = ompi_comm_rank(comm) == root;
    const auto make = [&] {
        const call_maker call(exchange_kind::gather, comm, root);
        return of_gather(send, send_count, send_type, receive, receive_type,
                         is_root ? even_blocks(call.ranks, receive_count, receive_type) : blocks{},
                         call);
    };
    int rc = OMPI_SUCCESS;
    const std::uint64_t bytes =
        is_root ? bytes_of(receive_count, receive_type) : bytes_of(send_count, send_type);
    if (!OMPI_COMM_IS_INTER(comm) && is_exchanged(module, comm, bytes, make, &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return next.coll_gather(send, send_count, send_type, receive, receive_count, receive_type, root,
                            comm, next.coll_gather_module);
}

extern "C" int coll_gpusm_gatherv(GPUSM_SENT, GPUSM_RECEIVED_BY_RANK, int root, communicator *comm,
                                  base_module *module) noexcept
{
    const auto make = [&] {
        const call_maker call(exchange_kind::gather, comm, root);
        return of_gather(send, send_count, send_type, receive, receive_type,
                         call.made.root == call.me ? varied_blocks(call.ranks, receive_counts,
                                                                   receive_places, receive_type)
                                                   : blocks{},
                         call);
    };
    int rc = OMPI_SUCCESS;
    if (is_exchanged(module, comm, make, &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return next.coll_gatherv(send, send_count, send_type, receive, receive_counts, receive_places,
                             receive_type, root, comm, next.coll_gatherv_module);
}

// --- scatter -------------------------------------------------------------------------------------

extern "C" int coll_gpusm_scatter(GPUSM_SENT, GPUSM_RECEIVED, int root, communicator *comm,
                                  base_module *module) noexcept
{
    const bool is_root = ompi_comm_rank(comm) == root;
    const auto make = [&] {
        const call_maker call(exchange_kind::scatter, comm, root);
        return of_scatter(send, send_type,
                          is_root ? even_blocks(call.ranks, send_count, send_type) : blocks{},
                          receive, receive_count, receive_type, call);
    };
    int rc = OMPI_SUCCESS;
    const std::uint64_t bytes =
        is_root ? bytes_of(send_count, send_type) : bytes_of(receive_count, receive_type);
    if (!OMPI_COMM_IS_INTER(comm) && is_exchanged(module, comm, bytes, make, &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return next.coll_scatter(send, send_count, send_type, receive, receive_count, receive_type,
                             root, comm, next.coll_scatter_module);
}

extern "C" int coll_gpusm_scatterv(GPUSM_SENT_BY_RANK, GPUSM_RECEIVED, int root, communicator *comm,
                                   base_module *module) noexcept
{
    const auto make = [&] {
        const call_maker call(exchange_kind::scatter, comm, root);
        return of_scatter(send, send_type,
                          call.made.root == call.me
                              ? varied_blocks(call.ranks, send_counts, send_places, send_type)
                              : blocks{},
                          receive, receive_count, receive_type, call);
    };
    int rc = OMPI_SUCCESS;
    if (is_exchanged(module, comm, make, &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return next.coll_scatterv(send, send_counts, send_places, send_type, receive, receive_count,
                              receive_type, root, comm, next.coll_scatterv_module);
}

} // namespace

void set_exchanges(mca_coll_gpusm_module_t &module)
{
    GPUSM_COLL_EXCHANGES(GPUSM_SET_FUNCTION)
}

} // namespace gpusm
