// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_functions.cc: the collectives. What each of them reads and writes on this rank is said
// once, by the functions of_*; the blocking, the non-blocking and the persistent form share it.
#include "ompi/mca/coll/gpusm/coll_gpusm_calls.h"

#include <algorithm>
#include <cstdlib>
#include <type_traits>

namespace gpusm {

namespace {

// --- allreduce -----------------------------------------------------------------------------------

extern "C" int coll_gpusm_allreduce(const void *send, void *receive, count_type count,
                                    datatype *type, ompi_op_t *op, communicator *comm,
                                    base_module *module) noexcept
{
    int rc = OMPI_SUCCESS;
    if (is_reduced(
            module,
            [&] { return call_of(reduction_kind::allreduce, send, receive, elements(count)); },
            type, op, comm, &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return in_pieces(send, receive, count, type, comm, [&](auto *from, auto *to, count_type n) {
        return call_staged(pool(), of_allreduce(from, to, n), type, [&](auto *s, auto *r) {
            return next.coll_allreduce(s, r, n, type, op, comm, next.coll_allreduce_module);
        });
    });
}

extern "C" int coll_gpusm_iallreduce(const void *send, void *receive, count_type count,
                                     datatype *type, ompi_op_t *op, communicator *comm,
                                     ompi_request_t **request, base_module *module) noexcept
{
    const auto &next = next_of(module);
    int rc = OMPI_SUCCESS;
    reduction_call call = call_of(reduction_kind::allreduce, send, receive, elements(count));
    const auto otherwise = [=, &next](ompi_request_t **out) {
        return start_staged(pool(), of_allreduce(send, receive, count), type, comm, out,
                            [&](auto *s, auto *r, auto **inner) {
                                return next.coll_iallreduce(s, r, count, type, op, comm, inner,
                                                            next.coll_iallreduce_module);
                            });
    };
    if (is_started(
            module, call, of_allreduce(send, receive, count), type, op, comm,
            {next.coll_iallreduce_module, next.coll_allreduce_init_module}, request,
            [&](auto *s, auto *r, auto **inner) {
                return next.coll_allreduce_init(s, r, count, type, op, comm, MPI_INFO_NULL, inner,
                                                next.coll_allreduce_init_module);
            },
            otherwise, &rc)) {
        return rc;
    }
    return otherwise(request);
}

extern "C" int coll_gpusm_allreduce_init(const void *send, void *receive, count_type count,
                                         datatype *type, ompi_op_t *op, communicator *comm,
                                         ompi_info_t *info, ompi_request_t **request,
                                         base_module *module) noexcept
{
    const auto &next = next_of(module);
    return init_reduction(
        module, call_of(reduction_kind::allreduce, send, receive, elements(count)),
        of_allreduce(send, receive, count), type, op, comm, request,
        [&](auto *s, auto *r, auto **inner) {
            return next.coll_allreduce_init(s, r, count, type, op, comm, info, inner,
                                            next.coll_allreduce_init_module);
        });
}

// --- reduce --------------------------------------------------------------------------------------

extern "C" int coll_gpusm_reduce(const void *send, void *receive, count_type count, datatype *type,
                                 ompi_op_t *op, int root, communicator *comm,
                                 base_module *module) noexcept
{
    int rc = OMPI_SUCCESS;
    if (is_reduced(
            module, [&] { return reduce_call(send, receive, count, root); }, type, op, comm, &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return in_pieces(send, receive, count, type, comm, [&](auto *from, auto *to, count_type n) {
        return call_staged(pool(), of_reduce(from, to, n, root, comm), type, [&](auto *s, auto *r) {
            return next.coll_reduce(s, r, n, type, op, root, comm, next.coll_reduce_module);
        });
    });
}

extern "C" int coll_gpusm_ireduce(const void *send, void *receive, count_type count, datatype *type,
                                  ompi_op_t *op, int root, communicator *comm,
                                  ompi_request_t **request, base_module *module) noexcept
{
    const auto &next = next_of(module);
    int rc = OMPI_SUCCESS;
    const auto otherwise = [=, &next](ompi_request_t **out) {
        return start_staged(pool(), of_reduce(send, receive, count, root, comm), type, comm, out,
                            [&](auto *s, auto *r, auto **inner) {
                                return next.coll_ireduce(s, r, count, type, op, root, comm, inner,
                                                         next.coll_ireduce_module);
                            });
    };
    if (is_started(
            module, reduce_call(send, receive, count, root),
            of_reduce(send, receive, count, root, comm), type, op, comm,
            {next.coll_ireduce_module, next.coll_reduce_init_module}, request,
            [&](auto *s, auto *r, auto **inner) {
                return next.coll_reduce_init(s, r, count, type, op, root, comm, MPI_INFO_NULL,
                                             inner, next.coll_reduce_init_module);
            },
            otherwise, &rc)) {
        return rc;
    }
    return otherwise(request);
}

extern "C" int coll_gpusm_reduce_init(const void *send, void *receive, count_type count,
                                      datatype *type, ompi_op_t *op, int root, communicator *comm,
                                      ompi_info_t *info, ompi_request_t **request,
                                      base_module *module) noexcept
{
    const auto &next = next_of(module);
    return init_reduction(module, reduce_call(send, receive, count, root),
                          of_reduce(send, receive, count, root, comm), type, op, comm, request,
                          [&](auto *s, auto *r, auto **inner) {
                              return next.coll_reduce_init(s, r, count, type, op, root, comm, info,
                                                           inner, next.coll_reduce_init_module);
                          });
}

// --- scan and exscan -----------------------------------------------------------------------------

extern "C" int coll_gpusm_scan(const void *send, void *receive, count_type count, datatype *type,
                               ompi_op_t *op, communicator *comm, base_module *module) noexcept
{
    int rc = OMPI_SUCCESS;
    if (is_reduced(
            module, [&] { return call_of(reduction_kind::scan, send, receive, elements(count)); },
            type, op, comm, &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return in_pieces(send, receive, count, type, comm, [&](auto *from, auto *to, count_type n) {
        return call_staged(pool(), of_allreduce(from, to, n), type, [&](auto *s, auto *r) {
            return next.coll_scan(s, r, n, type, op, comm, next.coll_scan_module);
        });
    });
}

extern "C" int coll_gpusm_iscan(const void *send, void *receive, count_type count, datatype *type,
                                ompi_op_t *op, communicator *comm, ompi_request_t **request,
                                base_module *module) noexcept
{
    const auto &next = next_of(module);
    int rc = OMPI_SUCCESS;
    reduction_call call = call_of(reduction_kind::scan, send, receive, elements(count));
    const auto otherwise = [=, &next](ompi_request_t **out) {
        return start_staged(pool(), of_allreduce(send, receive, count), type, comm, out,
                            [&](auto *s, auto *r, auto **inner) {
                                return next.coll_iscan(s, r, count, type, op, comm, inner,
                                                       next.coll_iscan_module);
                            });
    };
    if (is_started(
            module, call, of_allreduce(send, receive, count), type, op, comm,
            {next.coll_iscan_module, next.coll_scan_init_module}, request,
            [&](auto *s, auto *r, auto **inner) {
                return next.coll_scan_init(s, r, count, type, op, comm, MPI_INFO_NULL, inner,
                                           next.coll_scan_init_module);
            },
            otherwise, &rc)) {
        return rc;
    }
    return otherwise(request);
}

extern "C" int coll_gpusm_scan_init(const void *send, void *receive, count_type count,
                                    datatype *type, ompi_op_t *op, communicator *comm,
                                    ompi_info_t *info, ompi_request_t **request,
                                    base_module *module) noexcept
{
    const auto &next = next_of(module);
    return init_reduction(module, call_of(reduction_kind::scan, send, receive, elements(count)),
                          of_allreduce(send, receive, count), type, op, comm, request,
                          [&](auto *s, auto *r, auto **inner) {
                              return next.coll_scan_init(s, r, count, type, op, comm, info, inner,
                                                         next.coll_scan_init_module);
                          });
}

extern "C" int coll_gpusm_exscan(const void *send, void *receive, count_type count, datatype *type,
                                 ompi_op_t *op, communicator *comm, base_module *module) noexcept
{
    int rc = OMPI_SUCCESS;
    if (is_reduced(
            module, [&] { return call_of(reduction_kind::exscan, send, receive, elements(count)); },
            type, op, comm, &rc)) {
        return rc;
    }
    const auto &next = next_of(module);
    return in_pieces(send, receive, count, type, comm, [&](auto *from, auto *to, count_type n) {
        return call_staged(pool(), of_exscan(from, to, n, comm), type, [&](auto *s, auto *r) {
            return next.coll_exscan(s, r, n, type, op, comm, next.coll_exscan_module);
        });
    });
}

extern "C" int coll_gpusm_iexscan(const void *send, void *receive, count_type count, datatype *type,
                                  ompi_op_t *op, communicator *comm, ompi_request_t **request,
                                  base_module *module) noexcept
{
    const auto &next = next_of(module);
    int rc = OMPI_SUCCESS;
    reduction_call call = call_of(reduction_kind::exscan, send, receive, elements(count));
    const auto otherwise = [=, &next](ompi_request_t **out) {
        return start_staged(pool(), of_exscan(send, receive, count, comm), type, comm, out,
                            [&](auto *s, auto *r, auto **inner) {
                                return next.coll_iexscan(s, r, count, type, op, comm, inner,
                                                         next.coll_iexscan_module);
                            });
    };
    if (is_started(
            module, call, of_exscan(send, receive, count, comm), type, op, comm,
            {next.coll_iexscan_module, next.coll_exscan_init_module}, request,
            [&](auto *s, auto *r, auto **inner) {
                return next.coll_exscan_init(s, r, count, type, op, comm, MPI_INFO_NULL, inner,
                                             next.coll_exscan_init_module);
            },
            otherwise, &rc)) {
        return rc;
    }
    return otherwise(request);
}

extern "C" int coll_gpusm_exscan_init(const void *send, void *receive, count_type count,
                                      datatype *type, ompi_op_t *op, communicator *comm,
                                      ompi_info_t *info, ompi_request_t **request,
                                      base_module *module) noexcept
{
    const auto &next = next_of(module);
    return init_reduction(module, call_of(reduction_kind::exscan, send, receive, elements(count)),
                          of_exscan(send, receive, count, comm), type, op, comm, request,
                          [&](auto *s, auto *r, auto **inner) {
                              return next.coll_exscan_init(s, r, count, type, op, comm, info, inner,
                                                           next.coll_exscan_init_module);
                          });
}

// --- reduce_local --------------------------------------------------------------------------------

// No other process takes part, so long buffers go in pieces that fit page-locked memory.
extern "C" int coll_gpusm_reduce_local(const void *in, void *inout, count_type count,
                                       datatype *type, ompi_op_t *op, base_module *module) noexcept
{
    const auto &next = next_of(module);
    const auto reduce = [&](const void *from, void *to, count_type n) {
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
    const auto piece = static_cast<count_type>(std::max<std::ptrdiff_t>(most, 1));
    int rc = OMPI_SUCCESS;
    for (count_type done = 0; done < count && OMPI_SUCCESS == rc;
         done += std::min(piece, count - done)) {
        const std::ptrdiff_t at = extent * static_cast<std::ptrdiff_t>(done);
        rc = reduce(static_cast<const char *>(in) + at, static_cast<char *>(inout) + at,
                    std::min(piece, count - done));
    }
    return rc;
}

} // namespace

void set_reductions(mca_coll_gpusm_module_t &module)
{
    GPUSM_COLL_REDUCTIONS(GPUSM_SET_FUNCTION)
}

} // namespace gpusm
