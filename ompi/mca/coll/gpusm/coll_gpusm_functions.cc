// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_functions.cc: the collectives. What each of them reads and writes on this rank is said
// once, by the functions of_*; the blocking, the non-blocking and the persistent form share it.
#include "ompi/mca/coll/gpusm/coll_gpusm.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <type_traits>

namespace gpusm {

namespace {

using base_module = mca_coll_base_module_t;
using communicator = ompi_communicator_t;
using datatype = ompi_datatype_t;

mca_coll_base_comm_coll_t &next_of(base_module *module)
{
    return static_cast<mca_coll_gpusm_module_t *>(module)->next;
}

staging_pool &pool()
{
    return *mca_coll_gpusm_component.pool;
}

std::size_t elements(int count)
{
    return count < 0 ? 0 : static_cast<std::size_t>(count);
}

// Every rank sends `sent` elements and gets `received`. In place, the input is in the buffer that
// the result goes to.
operands of_exchange(const void *send, std::size_t sent, void *receive, std::size_t received)
{
    if (MPI_IN_PLACE == send) {
        return {send, 0, receive, std::max(sent, received), received, true};
    }
    return {send, sent, receive, received, received, false};
}

operands of_allreduce(const void *send, void *receive, int count)
{
    return of_exchange(send, elements(count), receive, elements(count));
}

// Only the root has a receive buffer; between two groups it has nothing else, and the rest of its
// group has neither.
operands of_reduce(const void *send, void *receive, int count, int root, communicator *comm)
{
    const bool is_inter = OMPI_COMM_IS_INTER(comm);
    const bool is_root = is_inter ? MPI_ROOT == root : ompi_comm_rank(comm) == root;
    const bool sends = !is_inter || (MPI_ROOT != root && MPI_PROC_NULL != root);
    return of_exchange(send, sends ? elements(count) : 0, receive, is_root ? elements(count) : 0);
}

operands of_reduce_scatter(const void *send, void *receive, const int *counts, communicator *comm)
{
    const int *end = counts + ompi_comm_size(comm);
    return of_exchange(send, std::accumulate(counts, end, std::size_t{0}), receive,
                       elements(counts[ompi_comm_rank(comm)]));
}

operands of_reduce_scatter_block(const void *send, void *receive, int count, communicator *comm)
{
    return of_exchange(send, elements(count) * elements(ompi_comm_size(comm)), receive,
                       elements(count));
}

// The first rank gets nothing. In place, its receive buffer is read all the same.
operands of_exscan(const void *send, void *receive, int count, communicator *comm)
{
    return of_exchange(send, elements(count), receive,
                       0 == ompi_comm_rank(comm) ? 0 : elements(count));
}

template <typename Address> Address shifted(Address buffer, std::ptrdiff_t bytes)
{
    using byte = std::conditional_t<std::is_same_v<Address, const void *>, const char, char>;
    return nullptr == buffer || MPI_IN_PLACE == buffer ? buffer
                                                       : static_cast<byte *>(buffer) + bytes;
}

// Calls `reduce(send, receive, count)` for one piece after the other, where every element is
// reduced for itself. So the host memory that stands in fits what is kept page-locked, however long
// the buffers are. All ranks have the same count and datatype, so all cut alike, those with host
// memory too: they do not know what the others have. Between two groups some have no count.
template <typename Reduce>
int in_pieces(const void *send, void *receive, int count, const datatype *type,
              const communicator *comm, Reduce reduce)
{
    constexpr std::size_t piece_bytes = std::size_t{16} * 1024 * 1024;
    const std::size_t most = piece_bytes / std::max<std::size_t>(type->super.size, 1);
    if (elements(count) <= most || OMPI_COMM_IS_INTER(comm)) {
        return reduce(send, receive, count);
    }
    const int piece = static_cast<int>(std::max<std::size_t>(most, 1));
    const std::ptrdiff_t extent = type->super.ub - type->super.lb;
    int rc = OMPI_SUCCESS;
    for (int done = 0; done < count && OMPI_SUCCESS == rc; done += std::min(piece, count - done)) {
        rc = reduce(shifted(send, extent * done), shifted(receive, extent * done),
                    std::min(piece, count - done));
    }
    return rc;
}

// On the devices, if that can be. `kind` and what follows it as for reduction_call.
bool is_reduced(base_module *module, const reduction_call &call, const datatype *type,
                const ompi_op_t *op, communicator *comm, int *rc)
{
    return static_cast<mca_coll_gpusm_module_t *>(module)->on_devices->reduce(call, type, op, comm,
                                                                              rc);
}

reduction_call call_of(reduction_kind kind, const void *send, void *receive, std::size_t count)
{
    reduction_call made{};
    made.kind = kind;
    made.in_place = MPI_IN_PLACE == send;
    made.elements = count;
    made.input = made.in_place ? receive : send;
    made.receive = receive;
    return made;
}

// --- allreduce -----------------------------------------------------------------------------------

extern "C" int coll_gpusm_allreduce(const void *send, void *receive, int count, datatype *type,
                                    ompi_op_t *op, communicator *comm, base_module *module) noexcept
{
    int rc = OMPI_SUCCESS;
    if (is_reduced(module, call_of(reduction_kind::allreduce, send, receive, elements(count)), type,
                   op, comm, &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return in_pieces(send, receive, count, type, comm, [&](auto *from, auto *to, int n) {
        return call_staged(pool(), of_allreduce(from, to, n), type, [&](auto *s, auto *r) {
            return next.coll_allreduce(s, r, n, type, op, comm, next.coll_allreduce_module);
        });
    });
}

extern "C" int coll_gpusm_iallreduce(const void *send, void *receive, int count, datatype *type,
                                     ompi_op_t *op, communicator *comm, ompi_request_t **request,
                                     base_module *module) noexcept
{
    const auto &next = next_of(module);
    return start_staged(pool(), of_allreduce(send, receive, count), type, comm, request,
                        [&](auto *s, auto *r, auto **inner) {
                            return next.coll_iallreduce(s, r, count, type, op, comm, inner,
                                                        next.coll_iallreduce_module);
                        });
}

extern "C" int coll_gpusm_allreduce_init(const void *send, void *receive, int count, datatype *type,
                                         ompi_op_t *op, communicator *comm, ompi_info_t *info,
                                         ompi_request_t **request, base_module *module) noexcept
{
    const auto &next = next_of(module);
    return init_staged(pool(), of_allreduce(send, receive, count), type, op, comm, request,
                       [&](auto *s, auto *r, auto **inner) {
                           return next.coll_allreduce_init(s, r, count, type, op, comm, info, inner,
                                                           next.coll_allreduce_init_module);
                       });
}

// --- reduce --------------------------------------------------------------------------------------

extern "C" int coll_gpusm_reduce(const void *send, void *receive, int count, datatype *type,
                                 ompi_op_t *op, int root, communicator *comm,
                                 base_module *module) noexcept
{
    reduction_call call = call_of(reduction_kind::reduce, send, receive, elements(count));
    call.root = static_cast<std::uint32_t>(root);
    int rc = OMPI_SUCCESS;
    if (is_reduced(module, call, type, op, comm, &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return in_pieces(send, receive, count, type, comm, [&](auto *from, auto *to, int n) {
        return call_staged(pool(), of_reduce(from, to, n, root, comm), type, [&](auto *s, auto *r) {
            return next.coll_reduce(s, r, n, type, op, root, comm, next.coll_reduce_module);
        });
    });
}

extern "C" int coll_gpusm_ireduce(const void *send, void *receive, int count, datatype *type,
                                  ompi_op_t *op, int root, communicator *comm,
                                  ompi_request_t **request, base_module *module) noexcept
{
    const auto &next = next_of(module);
    return start_staged(pool(), of_reduce(send, receive, count, root, comm), type, comm, request,
                        [&](auto *s, auto *r, auto **inner) {
                            return next.coll_ireduce(s, r, count, type, op, root, comm, inner,
                                                     next.coll_ireduce_module);
                        });
}

extern "C" int coll_gpusm_reduce_init(const void *send, void *receive, int count, datatype *type,
                                      ompi_op_t *op, int root, communicator *comm,
                                      ompi_info_t *info, ompi_request_t **request,
                                      base_module *module) noexcept
{
    const auto &next = next_of(module);
    return init_staged(pool(), of_reduce(send, receive, count, root, comm), type, op, comm, request,
                       [&](auto *s, auto *r, auto **inner) {
                           return next.coll_reduce_init(s, r, count, type, op, root, comm, info,
                                                        inner, next.coll_reduce_init_module);
                       });
}

// --- reduce_scatter ------------------------------------------------------------------------------

extern "C" int coll_gpusm_reduce_scatter(const void *send, void *receive, const int *counts,
                                         datatype *type, ompi_op_t *op, communicator *comm,
                                         base_module *module) noexcept
{
    reduction_call call =
        call_of(reduction_kind::reduce_scatter, send, receive,
                std::accumulate(counts, counts + ompi_comm_size(comm), std::size_t{0}));
    call.parts = counts;
    int rc = OMPI_SUCCESS;
    if (is_reduced(module, call, type, op, comm, &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return call_staged(pool(), of_reduce_scatter(send, receive, counts, comm), type,
                       [&](auto *s, auto *r) {
                           return next.coll_reduce_scatter(s, r, counts, type, op, comm,
                                                           next.coll_reduce_scatter_module);
                       });
}

extern "C" int coll_gpusm_ireduce_scatter(const void *send, void *receive, const int *counts,
                                          datatype *type, ompi_op_t *op, communicator *comm,
                                          ompi_request_t **request, base_module *module) noexcept
{
    const auto &next = next_of(module);
    return start_staged(pool(), of_reduce_scatter(send, receive, counts, comm), type, comm, request,
                        [&](auto *s, auto *r, auto **inner) {
                            return next.coll_ireduce_scatter(s, r, counts, type, op, comm, inner,
                                                             next.coll_ireduce_scatter_module);
                        });
}

extern "C" int coll_gpusm_reduce_scatter_init(const void *send, void *receive, const int *counts,
                                              datatype *type, ompi_op_t *op, communicator *comm,
                                              ompi_info_t *info, ompi_request_t **request,
                                              base_module *module) noexcept
{
    const auto &next = next_of(module);
    return init_staged(pool(), of_reduce_scatter(send, receive, counts, comm), type, op, comm,
                       request, [&](auto *s, auto *r, auto **inner) {
                           return next.coll_reduce_scatter_init(
                               s, r, counts, type, op, comm, info, inner,
                               next.coll_reduce_scatter_init_module);
                       });
}

// --- reduce_scatter_block ------------------------------------------------------------------------

extern "C" int coll_gpusm_reduce_scatter_block(const void *send, void *receive, int count,
                                               datatype *type, ompi_op_t *op, communicator *comm,
                                               base_module *module) noexcept
{
    int rc = OMPI_SUCCESS;
    if (is_reduced(module,
                   call_of(reduction_kind::reduce_scatter, send, receive,
                           elements(count) * elements(ompi_comm_size(comm))),
                   type, op, comm, &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return call_staged(pool(), of_reduce_scatter_block(send, receive, count, comm), type,
                       [&](auto *s, auto *r) {
                           return next.coll_reduce_scatter_block(
                               s, r, count, type, op, comm, next.coll_reduce_scatter_block_module);
                       });
}

extern "C" int coll_gpusm_ireduce_scatter_block(const void *send, void *receive, int count,
                                                datatype *type, ompi_op_t *op, communicator *comm,
                                                ompi_request_t **request,
                                                base_module *module) noexcept
{
    const auto &next = next_of(module);
    return start_staged(pool(), of_reduce_scatter_block(send, receive, count, comm), type, comm,
                        request, [&](auto *s, auto *r, auto **inner) {
                            return next.coll_ireduce_scatter_block(
                                s, r, count, type, op, comm, inner,
                                next.coll_ireduce_scatter_block_module);
                        });
}

extern "C" int coll_gpusm_reduce_scatter_block_init(const void *send, void *receive, int count,
                                                    datatype *type, ompi_op_t *op,
                                                    communicator *comm, ompi_info_t *info,
                                                    ompi_request_t **request,
                                                    base_module *module) noexcept
{
    const auto &next = next_of(module);
    return init_staged(pool(), of_reduce_scatter_block(send, receive, count, comm), type, op, comm,
                       request, [&](auto *s, auto *r, auto **inner) {
                           return next.coll_reduce_scatter_block_init(
                               s, r, count, type, op, comm, info, inner,
                               next.coll_reduce_scatter_block_init_module);
                       });
}

// --- scan and exscan -----------------------------------------------------------------------------

extern "C" int coll_gpusm_scan(const void *send, void *receive, int count, datatype *type,
                               ompi_op_t *op, communicator *comm, base_module *module) noexcept
{
    int rc = OMPI_SUCCESS;
    if (is_reduced(module, call_of(reduction_kind::scan, send, receive, elements(count)), type, op,
                   comm, &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return in_pieces(send, receive, count, type, comm, [&](auto *from, auto *to, int n) {
        return call_staged(pool(), of_allreduce(from, to, n), type, [&](auto *s, auto *r) {
            return next.coll_scan(s, r, n, type, op, comm, next.coll_scan_module);
        });
    });
}

extern "C" int coll_gpusm_iscan(const void *send, void *receive, int count, datatype *type,
                                ompi_op_t *op, communicator *comm, ompi_request_t **request,
                                base_module *module) noexcept
{
    const auto &next = next_of(module);
    return start_staged(pool(), of_allreduce(send, receive, count), type, comm, request,
                        [&](auto *s, auto *r, auto **inner) {
                            return next.coll_iscan(s, r, count, type, op, comm, inner,
                                                   next.coll_iscan_module);
                        });
}

extern "C" int coll_gpusm_scan_init(const void *send, void *receive, int count, datatype *type,
                                    ompi_op_t *op, communicator *comm, ompi_info_t *info,
                                    ompi_request_t **request, base_module *module) noexcept
{
    const auto &next = next_of(module);
    return init_staged(pool(), of_allreduce(send, receive, count), type, op, comm, request,
                       [&](auto *s, auto *r, auto **inner) {
                           return next.coll_scan_init(s, r, count, type, op, comm, info, inner,
                                                      next.coll_scan_init_module);
                       });
}

extern "C" int coll_gpusm_exscan(const void *send, void *receive, int count, datatype *type,
                                 ompi_op_t *op, communicator *comm, base_module *module) noexcept
{
    int rc = OMPI_SUCCESS;
    if (is_reduced(module, call_of(reduction_kind::exscan, send, receive, elements(count)), type,
                   op, comm, &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return in_pieces(send, receive, count, type, comm, [&](auto *from, auto *to, int n) {
        return call_staged(pool(), of_exscan(from, to, n, comm), type, [&](auto *s, auto *r) {
            return next.coll_exscan(s, r, n, type, op, comm, next.coll_exscan_module);
        });
    });
}

extern "C" int coll_gpusm_iexscan(const void *send, void *receive, int count, datatype *type,
                                  ompi_op_t *op, communicator *comm, ompi_request_t **request,
                                  base_module *module) noexcept
{
    const auto &next = next_of(module);
    return start_staged(pool(), of_exscan(send, receive, count, comm), type, comm, request,
                        [&](auto *s, auto *r, auto **inner) {
                            return next.coll_iexscan(s, r, count, type, op, comm, inner,
                                                     next.coll_iexscan_module);
                        });
}

extern "C" int coll_gpusm_exscan_init(const void *send, void *receive, int count, datatype *type,
                                      ompi_op_t *op, communicator *comm, ompi_info_t *info,
                                      ompi_request_t **request, base_module *module) noexcept
{
    const auto &next = next_of(module);
    return init_staged(pool(), of_exscan(send, receive, count, comm), type, op, comm, request,
                       [&](auto *s, auto *r, auto **inner) {
                           return next.coll_exscan_init(s, r, count, type, op, comm, info, inner,
                                                        next.coll_exscan_init_module);
                       });
}

// --- reduce_local --------------------------------------------------------------------------------

// No other process takes part, so long buffers go in pieces that fit page-locked memory.
extern "C" int coll_gpusm_reduce_local(const void *in, void *inout, int count, datatype *type,
                                       ompi_op_t *op, base_module *module) noexcept
{
    const auto &next = next_of(module);
    const auto reduce = [&](const void *from, void *to, int n) {
        const operands of{from, elements(n), to, elements(n), elements(n), true};
        return call_staged(pool(), of, type, [&](auto *s, auto *r) {
            return next.coll_reduce_local(s, r, n, type, op, next.coll_reduce_local_module);
        });
    };
    if (!has_device_memory({in, elements(count), inout, elements(count)}, type)) {
        return next.coll_reduce_local(in, inout, count, type, op, next.coll_reduce_local_module);
    }
    constexpr std::ptrdiff_t piece_bytes = 4 * 1024 * 1024;
    const std::ptrdiff_t extent = type->super.ub - type->super.lb;
    const std::ptrdiff_t most = piece_bytes / std::max<std::ptrdiff_t>(std::abs(extent), 1);
    const int piece = static_cast<int>(std::max<std::ptrdiff_t>(most, 1));
    int rc = OMPI_SUCCESS;
    for (int done = 0; done < count && OMPI_SUCCESS == rc; done += std::min(piece, count - done)) {
        const std::ptrdiff_t at = extent * done;
        rc = reduce(static_cast<const char *>(in) + at, static_cast<char *>(inout) + at,
                    std::min(piece, count - done));
    }
    return rc;
}

} // namespace

void set_functions(mca_coll_gpusm_module_t &module)
{
    // Not what the communicator has nothing for, such as a scan between two groups.
#define GPUSM_SET(name)                                                                            \
    module.coll_##name = nullptr == module.next.coll_##name ? nullptr : coll_gpusm_##name;
    GPUSM_COLL_FUNCTIONS(GPUSM_SET)
#undef GPUSM_SET
}

} // namespace gpusm
