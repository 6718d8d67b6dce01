// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_exchanges.cc: the collectives that move data and calculate nothing. The next
// component's functions send messages, which may be of device memory as well.
#include "ompi/mca/coll/gpusm/coll_gpusm_blocks.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_packed.h"

namespace gpusm {

namespace {

device_calls &devices_of(base_module *module)
{
    return *static_cast<mca_coll_gpusm_module_t *>(module)->on_devices;
}

// coll/base's gather_intra_linear_sync cuts messages after so many elements, and coll/tuned chooses
// an allgatherv by how many are received and the type that is sent.
constexpr packed_unit unit_of_gather = packed_unit::element;
constexpr packed_unit unit_of_allgather = packed_unit::byte;
constexpr packed_unit unit_of_allgatherv = packed_unit::element;
constexpr packed_unit unit_of_alltoall = packed_unit::byte;
constexpr packed_unit unit_of_alltoallv = packed_unit::byte;
constexpr packed_unit unit_of_bcast = packed_unit::element; // none
constexpr packed_unit unit_of_gatherv = packed_unit::byte;
constexpr packed_unit unit_of_scatter = packed_unit::byte;
constexpr packed_unit unit_of_scatterv = packed_unit::byte;

// The blocking, the non-blocking and the persistent function. `may_be`: as far as all ranks know,
// and `may_start` of the non-blocking one.
// is_packed_<name>: the blocking one, if it goes by packed bytes. Apart, so that the arguments of
// those that do not stay in registers.
#define GPUSM_EXCHANGE(name, upper, may_be, may_start)                                             \
    extern "C" int coll_gpusm_##name(GPUSM_OF_##upper, base_module *module) noexcept;              \
                                                                                                   \
    [[gnu::noinline]] bool is_packed_##name(GPUSM_OF_##upper, base_module *module, int *rc)        \
    {                                                                                              \
        auto packed = make_packed(GPUSM_BUFFERS_##upper, unit_of_##name, false);                   \
        if (nullptr == packed) {                                                                   \
            return false;                                                                          \
        }                                                                                          \
        *rc = call_with(std::move(packed),                                                         \
                        [&] { return coll_gpusm_##name(GPUSM_PASS_##upper, module); });            \
        return true;                                                                               \
    }                                                                                              \
                                                                                                   \
    extern "C" int coll_gpusm_##name(GPUSM_OF_##upper, base_module *module) noexcept               \
    {                                                                                              \
        if (int done = OMPI_SUCCESS; may_be_packed(comm, GPUSM_BUFFERS_##upper) &&                 \
                                     is_packed_##name(GPUSM_PASS_##upper, module, &done)) {        \
            return done;                                                                           \
        }                                                                                          \
        const auto make = [&] { return call_of_##name(GPUSM_PASS_##upper); };                      \
        int rc = OMPI_SUCCESS;                                                                     \
        if ((may_be) && devices_of(module).exchange(comm, make, &rc)) {                            \
            return rc;                                                                             \
        }                                                                                          \
        const auto &next = next_of(module);                                                        \
        return next.coll_##name(GPUSM_PASS_##upper, next.coll_##name##_module);                    \
    }                                                                                              \
                                                                                                   \
    extern "C" int coll_gpusm_i##name(GPUSM_OF_##upper, ompi_request_t **request,                  \
                                      base_module *module) noexcept                                \
    {                                                                                              \
        if (auto packed = pack_gaps(comm, unit_of_##name, false, GPUSM_BUFFERS_##upper);           \
            packed != nullptr) {                                                                   \
            return start_around(std::move(packed), comm, request, [&](ompi_request_t **inner) {    \
                return coll_gpusm_i##name(GPUSM_PASS_##upper, inner, module);                      \
            });                                                                                    \
        }                                                                                          \
        const auto &next = next_of(module);                                                        \
        const auto otherwise = [=, &next](ompi_request_t **out) {                                  \
            return next.coll_i##name(GPUSM_PASS_##upper, out, next.coll_i##name##_module);         \
        };                                                                                         \
        if (next.coll_i##name##_module == next.coll_##name##_init_module && (may_be) &&            \
            (may_start) && devices_of(module).can_start(comm)) {                                   \
            if (can_start_later(next.coll_i##name##_module)) {                                     \
                return start_alone(devices_of(module), call_of_##name(GPUSM_PASS_##upper), comm,   \
                                   request, otherwise);                                            \
            }                                                                                      \
            return start_before(                                                                   \
                devices_of(module), call_of_##name(GPUSM_PASS_##upper), staged_call(pool()), comm, \
                request, [&](const void *, void *, ompi_request_t **inner) {                       \
                    return next.coll_##name##_init(GPUSM_PASS_##upper, MPI_INFO_NULL, inner,       \
                                                   next.coll_##name##_init_module);                \
                });                                                                                \
        }                                                                                          \
        return otherwise(request);                                                                 \
    }                                                                                              \
                                                                                                   \
    extern "C" int coll_gpusm_##name##_init(GPUSM_OF_##upper, ompi_info_t *info,                   \
                                            ompi_request_t **request,                              \
                                            base_module *module) noexcept                          \
    {                                                                                              \
        if (auto packed = pack_gaps(comm, unit_of_##name, true, GPUSM_BUFFERS_##upper);            \
            packed != nullptr) {                                                                   \
            return init_around(                                                                    \
                std::move(packed), nullptr, nullptr, comm, request, [&](ompi_request_t **inner) {  \
                    return coll_gpusm_##name##_init(GPUSM_PASS_##upper, info, inner, module);      \
                });                                                                                \
        }                                                                                          \
        const auto &next = next_of(module);                                                        \
        std::unique_ptr<persistent_call> on_devices;                                               \
        if ((may_be) && devices_of(module).has_group(comm)) {                                      \
            on_devices =                                                                           \
                devices_of(module).make_persistent(call_of_##name(GPUSM_PASS_##upper), comm);      \
        }                                                                                          \
        if (nullptr == on_devices) {                                                               \
            return next.coll_##name##_init(GPUSM_PASS_##upper, info, request,                      \
                                           next.coll_##name##_init_module);                        \
        }                                                                                          \
        return init_before(std::move(on_devices), staged_call(pool()), nullptr, nullptr, comm,     \
                           request, [&](const void *, void *, ompi_request_t **inner) {            \
                               return next.coll_##name##_init(GPUSM_PASS_##upper, info, inner,     \
                                                              next.coll_##name##_init_module);     \
                           });                                                                     \
    }

GPUSM_EXCHANGE(allgather, ALLGATHER, may_be_even(bytes_of(receive_count, receive_type)), true)
GPUSM_EXCHANGE(allgatherv, ALLGATHERV, true, true)
GPUSM_EXCHANGE(alltoall, ALLTOALL, may_be_even(bytes_of(receive_count, receive_type)), true)
GPUSM_EXCHANGE(alltoallv, ALLTOALLV, true, true)
GPUSM_EXCHANGE(gather, GATHER,
               !OMPI_COMM_IS_INTER(comm) &&
                   may_be_even(is_root(root, comm) ? bytes_of(receive_count, receive_type)
                                                   : bytes_of(send_count, send_type)),
               true)
GPUSM_EXCHANGE(gatherv, GATHERV, true, true)
GPUSM_EXCHANGE(scatter, SCATTER,
               !OMPI_COMM_IS_INTER(comm) &&
                   may_be_even(is_root(root, comm) ? bytes_of(send_count, send_type)
                                                   : bytes_of(receive_count, receive_type)),
               true)
GPUSM_EXCHANGE(scatterv, SCATTERV, true, true)

bool may_bcast(std::uint64_t bytes, const communicator *comm)
{
    return !OMPI_COMM_IS_INTER(comm) && !is_sent_directly(elements(ompi_comm_size(comm)), bytes) &&
           may_be_even(bytes);
}

GPUSM_EXCHANGE(bcast, BCAST, may_bcast(bytes_of(count, type), comm),
               !may_be_open_mpis_bcast(bytes_of(count, type)))

} // namespace

void set_exchanges(mca_coll_gpusm_module_t &module)
{
    GPUSM_COLL_EXCHANGES(GPUSM_SET_FUNCTION)
}

} // namespace gpusm
