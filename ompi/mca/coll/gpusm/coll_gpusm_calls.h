// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_calls.h: what the collectives have in common: what each of them reads and writes on
// this rank (of_*), and the ways that a call can go.
#ifndef GPUSM_COLL_CALLS_H
#define GPUSM_COLL_CALLS_H

#include "ompi/mca/coll/gpusm/coll_gpusm.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_elements.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_versions.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace gpusm {

using base_module = mca_coll_base_module_t;
using communicator = ompi_communicator_t;
using datatype = ompi_datatype_t;

inline mca_coll_base_comm_coll_t &next_of(base_module *module)
{
    return static_cast<mca_coll_gpusm_module_t *>(module)->next;
}

// Of the next component, for a collective: that which starts it, and that which makes a persistent
// request of it.
struct next_modules {
    base_module *starts;
    base_module *makes;

    bool are_one() const { return starts == makes; }
};

inline staging_pool &pool()
{
    return *mca_coll_gpusm_component.pool;
}

inline std::size_t elements(int count)
{
    return count < 0 ? 0 : static_cast<std::size_t>(count);
}

inline std::size_t elements(std::size_t count)
{
    return count;
}

inline std::size_t elements_of_all(counts_type counts, const communicator *comm)
{
    std::size_t all = 0;
    for (std::size_t rank = 0; rank < elements(ompi_comm_size(comm)); ++rank) {
        all += count_at(counts, rank);
    }
    return all;
}

// Every rank sends `sent` elements and gets `received`. In place, the input is in the buffer that
// the result goes to.
inline operands of_exchange(const void *send, std::size_t sent, void *receive, std::size_t received)
{
    if (MPI_IN_PLACE == send) {
        return {send, 0, receive, std::max(sent, received), received, true};
    }
    return {send, sent, receive, received, received, false};
}

inline operands of_allreduce(const void *send, void *receive, count_type count)
{
    return of_exchange(send, elements(count), receive, elements(count));
}

// Only the root has a receive buffer; between two groups it has nothing else, and the rest of its
// group has neither.
inline operands of_reduce(const void *send, void *receive, count_type count, int root,
                          communicator *comm)
{
    const bool is_inter = OMPI_COMM_IS_INTER(comm);
    const bool is_root = is_inter ? MPI_ROOT == root : ompi_comm_rank(comm) == root;
    const bool sends = !is_inter || (MPI_ROOT != root && MPI_PROC_NULL != root);
    return of_exchange(send, sends ? elements(count) : 0, receive, is_root ? elements(count) : 0);
}

inline operands of_reduce_scatter(const void *send, void *receive, counts_type counts,
                                  communicator *comm)
{
    return of_exchange(send, elements_of_all(counts, comm), receive,
                       count_at(counts, elements(ompi_comm_rank(comm))));
}

inline operands of_reduce_scatter_block(const void *send, void *receive, count_type count,
                                        communicator *comm)
{
    return of_exchange(send, elements(count) * elements(ompi_comm_size(comm)), receive,
                       elements(count));
}

// The first rank gets nothing. In place, its receive buffer is read all the same.
inline operands of_exscan(const void *send, void *receive, count_type count, communicator *comm)
{
    return of_exchange(send, elements(count), receive,
                       0 == ompi_comm_rank(comm) ? 0 : elements(count));
}

// Null is MPI_BOTTOM, from where the datatype says how far away the data is, or does not matter.
template <typename Address> Address shifted(Address buffer, std::ptrdiff_t bytes)
{
    const auto at = reinterpret_cast<std::uintptr_t>(buffer) + static_cast<std::uintptr_t>(bytes);
    return MPI_IN_PLACE == buffer ? buffer : reinterpret_cast<Address>(at);
}

constexpr std::size_t staged_piece_bytes = std::size_t{16} * 1024 * 1024;

// Calls `reduce(send, receive, count)` for one piece after the other.
template <typename Reduce>
[[gnu::noinline]] int in_several_pieces(const void *send, void *receive, count_type count,
                                        const datatype *type, Reduce reduce)
{
    const auto piece =
        static_cast<count_type>(std::max<std::size_t>(staged_piece_bytes / type->super.size, 1));
    const std::ptrdiff_t extent = type->super.ub - type->super.lb;
    int rc = OMPI_SUCCESS;
    for (count_type done = 0; done < count && OMPI_SUCCESS == rc;
         done += std::min(piece, count - done)) {
        const std::ptrdiff_t at = extent * static_cast<std::ptrdiff_t>(done);
        rc = reduce(shifted(send, at), shifted(receive, at), std::min(piece, count - done));
    }
    return rc;
}

// The same, or the whole where that is short. Every element is reduced for itself. So the host
// memory that stands in fits what is kept page-locked, however long the buffers are. All ranks have
// the same count and datatype, so all cut alike, those with host memory too: they do not know what
// the others have. Between two groups some have no count. Without a division, as host memory of
// eight bytes comes here, too.
template <typename Reduce>
int in_pieces(const void *send, void *receive, count_type count, const datatype *type,
              const communicator *comm, Reduce reduce)
{
    std::size_t bytes = 0;
    const bool is_long = __builtin_mul_overflow(elements(count), type->super.size, &bytes) ||
                         bytes > staged_piece_bytes;
    return is_long && !OMPI_COMM_IS_INTER(comm)
               ? in_several_pieces(send, receive, count, type, reduce)
               : reduce(send, receive, count);
}

// On the devices, if that can be. `make`: gives the call.
template <typename Make>
bool is_reduced(base_module *module, const Make &make, const datatype *type, const ompi_op_t *op,
                communicator *comm, int *rc)
{
    if (mca_coll_gpusm_component.checks != nullptr) [[unlikely]] {
        check_buffers(make(), type, comm, false);
    }
    return static_cast<mca_coll_gpusm_module_t *>(module)->on_devices->reduce(comm, type, op, make,
                                                                              rc);
}

inline reduction_call call_of(reduction_kind kind, const void *send, void *receive,
                              std::size_t count)
{
    reduction_call made{};
    made.kind = kind;
    made.in_place = MPI_IN_PLACE == send;
    made.elements = count;
    made.input = made.in_place ? receive : send;
    made.receive = receive;
    return made;
}

inline reduction_call reduce_call(const void *send, void *receive, count_type count, int root)
{
    reduction_call made = call_of(reduction_kind::reduce, send, receive, elements(count));
    made.root = static_cast<std::uint32_t>(root);
    return made;
}

inline reduction_call scatter_call(const void *send, void *receive, counts_type counts,
                                   const communicator *comm)
{
    reduction_call made =
        call_of(reduction_kind::reduce_scatter, send, receive, elements_of_all(counts, comm));
    const std::size_t ranks = std::min(elements(ompi_comm_size(comm)), made.parts.size());
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        made.parts[rank] = count_at(counts, rank);
    }
    made.has_parts = true;
    return made;
}

inline reduction_call scatter_block_call(const void *send, void *receive, count_type count,
                                         const communicator *comm)
{
    return call_of(reduction_kind::reduce_scatter, send, receive,
                   elements(count) * elements(ompi_comm_size(comm)));
}

// A non-blocking call that goes on the devices, for which can_start() was true, and perhaps the
// next component's way after that. Of libnbc all that the other way needs beforehand is the call's
// tag: its request, and the memory that this takes, are for those calls that do go there.
template <typename Call, typename Otherwise>
int start_alone(device_calls &on_devices, const Call &call, communicator *comm,
                ompi_request_t **request, Otherwise otherwise)
{
    staged_request *made = make_request(nullptr, comm);
    if (nullptr == made) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    precede_later(made, std::move(otherwise), request);
    on_devices.start(call, made, comm);
    return OMPI_SUCCESS;
}

// The same of any component. `make(send, receive, &request)` makes its persistent request, as other
// ranks may do, which would else not be in the same order everywhere. That is of the component that
// has the non-blocking one, too: other ranks may call that instead.
template <typename Call, typename Make>
int start_before(device_calls &on_devices, const Call &call, staged_call &&staged,
                 communicator *comm, ompi_request_t **request, Make make)
{
    const void *send = staged.send();
    void *receive = staged.receive();
    return with_inner(
        std::make_unique<staged_call>(std::move(staged)), comm,
        [&](ompi_request_t **inner) { return make(send, receive, inner); },
        [&](staged_request *made, ompi_request_t *inner) {
            precede(made, inner, request);
            on_devices.start(call, made, comm);
        });
}

// Open MPI agrees about a new communicator by non-blocking calls on the old one, of one MPI_INT,
// and makes them within its progress: where they stand among the program's calls differs from rank
// to rank. So ranks do not meet for such calls. All decide alike: of a reduction operation and
// elements are the same everywhere, though not their type's handle, of a bcast the bytes.
inline bool may_be_open_mpis(std::uint64_t elements, const datatype *type, const ompi_op_t *op)
{
    return 1 == elements && (MPI_MAX == op || MPI_MIN == op) &&
           reduce_type::int32 == element_of(type);
}
inline bool may_be_open_mpis_bcast(std::uint64_t bytes)
{
    return sizeof(int) == bytes;
}

// As is_reduced of a non-blocking one: started, or it has failed. `next_has`: the next component's
// modules for the non-blocking and the persistent call. `otherwise(&request)` starts the
// non-blocking one.
template <typename Make, typename Otherwise>
bool is_started(base_module *module, reduction_call call, const operands &of, datatype *type,
                ompi_op_t *op, communicator *comm, next_modules next_has, ompi_request_t **request,
                Make make, Otherwise otherwise, int *rc)
{
    check_buffers(call, type, comm, true);
    device_calls &on_devices = *static_cast<mca_coll_gpusm_module_t *>(module)->on_devices;
    if (!next_has.are_one() || may_be_open_mpis(call.elements, type, op) ||
        !on_devices.can_start(&call, type, op, comm)) {
        return false;
    }
    if (can_start_later(next_has.starts)) {
        *rc = start_alone(on_devices, call, comm, request, otherwise);
        return true;
    }
    staged_call staged(pool());
    *rc = staged.prepare(of, type);
    if (OMPI_SUCCESS == *rc) {
        *rc = start_before(on_devices, call, std::move(staged), comm, request, make);
    }
    return true;
}

// Makes a persistent call that stands before the next component's.
template <typename Make>
int init_before(std::unique_ptr<persistent_call> on_devices, staged_call &&staged, ompi_op_t *op,
                datatype *type, communicator *comm, ompi_request_t **request, Make make)
{
    const void *send = staged.send();
    void *receive = staged.receive();
    return with_inner(
        std::make_unique<staged_call>(std::move(staged)), comm,
        [&](ompi_request_t **inner) { return make(send, receive, inner); },
        [&](staged_request *made, ompi_request_t *inner) {
            precede_persistent(made, std::move(on_devices), inner, op, type, request);
        });
}

// A persistent reduction.
template <typename Make>
int init_reduction(base_module *module, const reduction_call &call, const operands &of,
                   datatype *type, ompi_op_t *op, communicator *comm, ompi_request_t **request,
                   Make make)
{
    device_calls &calls = *static_cast<mca_coll_gpusm_module_t *>(module)->on_devices;
    std::unique_ptr<persistent_call> on_devices = calls.make_persistent(call, type, op, comm);
    if (nullptr == on_devices) {
        return init_staged(pool(), of, type, op, comm, request, make);
    }
    staged_call staged(pool());
    const int rc = staged.prepare(of, type);
    return OMPI_SUCCESS == rc ? init_before(std::move(on_devices), std::move(staged), op, type,
                                            comm, request, make)
                              : rc;
}

// In files of their own.
#define GPUSM_SCATTER_ARGUMENTS(counts)                                                            \
    const void *send, void *receive, counts, datatype *type, ompi_op_t *op, communicator *comm
extern "C" {
int coll_gpusm_reduce_scatter(GPUSM_SCATTER_ARGUMENTS(counts_type counts),
                              base_module *module) noexcept;
int coll_gpusm_ireduce_scatter(GPUSM_SCATTER_ARGUMENTS(counts_type counts),
                               ompi_request_t **request, base_module *module) noexcept;
int coll_gpusm_reduce_scatter_init(GPUSM_SCATTER_ARGUMENTS(counts_type counts), ompi_info_t *info,
                                   ompi_request_t **request, base_module *module) noexcept;
int coll_gpusm_reduce_scatter_block(GPUSM_SCATTER_ARGUMENTS(count_type count),
                                    base_module *module) noexcept;
int coll_gpusm_ireduce_scatter_block(GPUSM_SCATTER_ARGUMENTS(count_type count),
                                     ompi_request_t **request, base_module *module) noexcept;
int coll_gpusm_reduce_scatter_block_init(GPUSM_SCATTER_ARGUMENTS(count_type count),
                                         ompi_info_t *info, ompi_request_t **request,
                                         base_module *module) noexcept;
}
#undef GPUSM_SCATTER_ARGUMENTS

} // namespace gpusm

#endif
