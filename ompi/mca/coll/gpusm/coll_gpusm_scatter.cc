// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_scatter.cc: the reductions whose result is scattered, as coll_gpusm_functions.cc.
#include "ompi/mca/coll/gpusm/coll_gpusm_calls.h"

namespace gpusm {

// --- reduce_scatter ------------------------------------------------------------------------------

extern "C" int coll_gpusm_reduce_scatter(const void *send, void *receive, counts_type counts,
                                         datatype *type, ompi_op_t *op, communicator *comm,
                                         base_module *module) noexcept
{
    int rc = OMPI_SUCCESS;
    if (is_reduced(
            module, [&] { return scatter_call(send, receive, counts, comm); }, type, op, comm,
            &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return call_staged(pool(), of_reduce_scatter(send, receive, counts, comm), type,
                       [&](auto *s, auto *r) {
                           return next.coll_reduce_scatter(s, r, counts, type, op, comm,
                                                           next.coll_reduce_scatter_module);
                       });
}

extern "C" int coll_gpusm_ireduce_scatter(const void *send, void *receive, counts_type counts,
                                          datatype *type, ompi_op_t *op, communicator *comm,
                                          ompi_request_t **request, base_module *module) noexcept
{
    const auto &next = next_of(module);
    int rc = OMPI_SUCCESS;
    const reduction_call call = scatter_call(send, receive, counts, comm);
    const auto otherwise = [=, &next](ompi_request_t **out) {
        return start_staged(pool(), of_reduce_scatter(send, receive, counts, comm), type, comm, out,
                            [&](auto *s, auto *r, auto **inner) {
                                return next.coll_ireduce_scatter(s, r, counts, type, op, comm,
                                                                 inner,
                                                                 next.coll_ireduce_scatter_module);
                            });
    };
    if (is_started(
            module, call, of_reduce_scatter(send, receive, counts, comm), type, op, comm,
            {next.coll_ireduce_scatter_module, next.coll_reduce_scatter_init_module}, request,
            [&](auto *s, auto *r, auto **inner) {
                return next.coll_reduce_scatter_init(s, r, counts, type, op, comm, MPI_INFO_NULL,
                                                     inner, next.coll_reduce_scatter_init_module);
            },
            otherwise, &rc)) {
        return rc;
    }
    return otherwise(request);
}

extern "C" int coll_gpusm_reduce_scatter_init(const void *send, void *receive, counts_type counts,
                                              datatype *type, ompi_op_t *op, communicator *comm,
                                              ompi_info_t *info, ompi_request_t **request,
                                              base_module *module) noexcept
{
    const auto &next = next_of(module);
    return init_reduction(module, scatter_call(send, receive, counts, comm),
                          of_reduce_scatter(send, receive, counts, comm), type, op, comm, request,
                          [&](auto *s, auto *r, auto **inner) {
                              return next.coll_reduce_scatter_init(
                                  s, r, counts, type, op, comm, info, inner,
                                  next.coll_reduce_scatter_init_module);
                          });
}

// --- reduce_scatter_block ------------------------------------------------------------------------

extern "C" int coll_gpusm_reduce_scatter_block(const void *send, void *receive, count_type count,
                                               datatype *type, ompi_op_t *op, communicator *comm,
                                               base_module *module) noexcept
{
    int rc = OMPI_SUCCESS;
    if (is_reduced(
            module, [&] { return scatter_block_call(send, receive, count, comm); }, type, op, comm,
            &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return call_staged(pool(), of_reduce_scatter_block(send, receive, count, comm), type,
                       [&](auto *s, auto *r) {
                           return next.coll_reduce_scatter_block(
                               s, r, count, type, op, comm, next.coll_reduce_scatter_block_module);
                       });
}

extern "C" int coll_gpusm_ireduce_scatter_block(const void *send, void *receive, count_type count,
                                                datatype *type, ompi_op_t *op, communicator *comm,
                                                ompi_request_t **request,
                                                base_module *module) noexcept
{
    const auto &next = next_of(module);
    int rc = OMPI_SUCCESS;
    const reduction_call call = scatter_block_call(send, receive, count, comm);
    const auto otherwise = [=, &next](ompi_request_t **out) {
        return start_staged(pool(), of_reduce_scatter_block(send, receive, count, comm), type, comm,
                            out, [&](auto *s, auto *r, auto **inner) {
                                return next.coll_ireduce_scatter_block(
                                    s, r, count, type, op, comm, inner,
                                    next.coll_ireduce_scatter_block_module);
                            });
    };
    if (is_started(
            module, call, of_reduce_scatter_block(send, receive, count, comm), type, op, comm,
            {next.coll_ireduce_scatter_block_module, next.coll_reduce_scatter_block_init_module},
            request,
            [&](auto *s, auto *r, auto **inner) {
                return next.coll_reduce_scatter_block_init(
                    s, r, count, type, op, comm, MPI_INFO_NULL, inner,
                    next.coll_reduce_scatter_block_init_module);
            },
            otherwise, &rc)) {
        return rc;
    }
    return otherwise(request);
}

extern "C" int coll_gpusm_reduce_scatter_block_init(const void *send, void *receive,
                                                    count_type count, datatype *type, ompi_op_t *op,
                                                    communicator *comm, ompi_info_t *info,
                                                    ompi_request_t **request,
                                                    base_module *module) noexcept
{
    const auto &next = next_of(module);
    return init_reduction(module, scatter_block_call(send, receive, count, comm),
                          of_reduce_scatter_block(send, receive, count, comm), type, op, comm,
                          request, [&](auto *s, auto *r, auto **inner) {
                              return next.coll_reduce_scatter_block_init(
                                  s, r, count, type, op, comm, info, inner,
                                  next.coll_reduce_scatter_block_init_module);
                          });
}

} // namespace gpusm
