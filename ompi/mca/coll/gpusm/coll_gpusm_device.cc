// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/coll/gpusm/coll_gpusm_device.h"

#include "ompi/mca/coll/gpusm/coll_gpusm.h"

#include "opal/mca/common/gpusm/common_gpusm_modex.h"
#include "opal/mca/common/gpusm/local_process.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <vector>

namespace gpusm {

namespace {

std::optional<reduce_op> operation_of(const ompi_op_t *op)
{
    const struct {
        MPI_Op named;
        reduce_op is;
    } operations[] = {
        {MPI_SUM, reduce_op::sum},       {MPI_MAX, reduce_op::max},
        {MPI_MIN, reduce_op::min},       {MPI_PROD, reduce_op::prod},
        {MPI_LAND, reduce_op::land},     {MPI_BAND, reduce_op::band},
        {MPI_LOR, reduce_op::lor},       {MPI_BOR, reduce_op::bor},
        {MPI_LXOR, reduce_op::lxor},     {MPI_BXOR, reduce_op::bxor},
        {MPI_MAXLOC, reduce_op::maxloc}, {MPI_MINLOC, reduce_op::minloc},
    };
    for (const auto &each : operations) {
        if (op == each.named) {
            return each.is;
        }
    }
    return std::nullopt; // of the program's own
}

// Pairs of a value and an index, as MPI names them.
std::optional<reduce_type> pair_of(const ompi_datatype_t *type)
{
    const struct {
        MPI_Datatype named;
        reduce_type is;
    } pairs[] = {
        {MPI_FLOAT_INT, reduce_type::float_int},
        {MPI_DOUBLE_INT, reduce_type::double_int},
        {MPI_LONG_INT, sizeof(long) == 8 ? reduce_type::int64_int : reduce_type::int_int},
        {MPI_2INT, reduce_type::int_int},
        {MPI_SHORT_INT, reduce_type::int16_int},
        {MPI_2INTEGER, reduce_type::int_int},
        {MPI_2REAL, reduce_type::float_float},
        {MPI_2DOUBLE_PRECISION, reduce_type::double_double},
    };
    for (const auto &each : pairs) {
        if (type == each.named &&
            type->super.ub - type->super.lb == std::ptrdiff_t{element_bytes(each.is)}) {
            return each.is;
        }
    }
    return std::nullopt;
}

std::optional<reduce_type> integer_of(bool has_sign, std::size_t bytes)
{
    switch (bytes) {
    case 1:
        return has_sign ? reduce_type::int8 : reduce_type::uint8;
    case 2:
        return has_sign ? reduce_type::int16 : reduce_type::uint16;
    case 4:
        return has_sign ? reduce_type::int32 : reduce_type::uint32;
    case 8:
        return has_sign ? reduce_type::int64 : reduce_type::uint64;
    default:
        return std::nullopt;
    }
}

// Predefined types, whatever the language that they are of.
std::optional<reduce_type> element_of(const ompi_datatype_t *type)
{
    if (!ompi_datatype_is_predefined(type)) {
        return std::nullopt;
    }
    const auto is_one_of = [type](std::initializer_list<const opal_datatype_t *> basic) {
        return std::any_of(basic.begin(), basic.end(), [type](const opal_datatype_t *each) {
            return each->id == type->super.id;
        });
    };
    if (is_one_of({&opal_datatype_int1, &opal_datatype_int2, &opal_datatype_int4,
                   &opal_datatype_int8, &opal_datatype_long})) {
        return integer_of(true, type->super.size);
    }
    if (is_one_of({&opal_datatype_uint1, &opal_datatype_uint2, &opal_datatype_uint4,
                   &opal_datatype_uint8, &opal_datatype_unsigned_long, &opal_datatype_bool})) {
        return integer_of(false, type->super.size);
    }
    if (is_one_of({&opal_datatype_float4})) {
        return reduce_type::float32;
    }
    if (is_one_of({&opal_datatype_float8})) {
        return reduce_type::float64;
    }
    if (is_one_of({&opal_datatype_float2}) && 2 == type->super.size) { // where compilers have it
        return reduce_type::float16;
    }
    if (is_one_of({&opal_datatype_float_complex})) {
        return reduce_type::complex32;
    }
    if (is_one_of({&opal_datatype_double_complex})) {
        return reduce_type::complex64;
    }
    return pair_of(type);
}

// The process of that rank, if it can be reached from here.
peer *find_peer(local_process &process, ompi_communicator_t *comm, int rank)
{
    const ompi_proc_t *proc = ompi_comm_peer_lookup(comm, rank);
    const opal_process_name_t name = proc->super.proc_name;
    for (std::size_t i = 0; peer *each = process.own_node().live_peer_at(i); ++i) {
        if (each->identity().jobid == name.jobid && each->identity().vpid == name.vpid &&
            !each->closed()) {
            return each;
        }
    }
    segment_place place;
    return find_segment(proc->super, &place)
               ? process.own_node().add_peer(place.identity, place.directory)
               : nullptr;
}

bool is_revoked(ompi_communicator_t *comm)
{
#if OPAL_ENABLE_FT_MPI
    return ompi_comm_coll_revoked(comm);
#else
    (void)comm;
    return false;
#endif
}

int answer_of(status outcome)
{
    switch (outcome) {
    case status::ok:
        return MPI_SUCCESS;
    case status::peer_gone:
        return MPI_ERR_PROC_FAILED;
    case status::no_memory:
        return OMPI_ERR_OUT_OF_RESOURCE;
    default:
        return OMPI_ERROR;
    }
}

} // namespace

device_calls::device_calls() : process_(local_process::acquire_if_made())
{
}

device_calls::~device_calls()
{
    group_.reset();
    if (process_ != nullptr) {
        process_->release();
    }
}

bool device_calls::has_group(ompi_communicator_t *comm)
{
    if (!has_looked_) {
        has_looked_ = true;
        const int size = ompi_comm_size(comm);
        if (process_ != nullptr && process_->meets() && !OMPI_COMM_IS_INTER(comm) && size > 1 &&
            size <= reduce_most_ranks) {
            std::vector<peer *> members;
            for (int i = 0; i < size; ++i) {
                members.push_back(i == ompi_comm_rank(comm) ? nullptr
                                                            : find_peer(*process_, comm, i));
            }
            const ompi_comm_extended_cid_t id = comm->c_contextid;
            group_ = process_group::make(process_->boards(), {id.cid_base, id.cid_sub.u64}, members,
                                         static_cast<std::size_t>(ompi_comm_rank(comm)));
        }
    }
    return group_ != nullptr;
}

bool device_calls::reduce(reduction_call of, const ompi_datatype_t *type, const ompi_op_t *op,
                          ompi_communicator_t *comm, int *rc)
{
    const std::optional<reduce_op> operation = operation_of(op);
    const std::optional<reduce_type> element = element_of(type);
    if (!operation || !element) {
        return false;
    }
    of.op = *operation;
    of.type = *element;
    const auto ranks = static_cast<std::size_t>(ompi_comm_size(comm));
    if (!can_reduce(of, ranks) || !has_group(comm) || !schedule_.is_due()) {
        return false;
    }
    of.receive = receives(of, group_->rank(), ranks) ? of.receive : nullptr;
    of.on_device =
        is_device_memory(of.input) && (nullptr == of.receive || is_device_memory(of.receive));
    group_reduction call(*process_, *group_, of);
    constexpr int steps_between_progress = 64; // Open MPI's progress takes longer than a step
    bool revoked = false;
    status s = status::busy;
    for (int steps = 1; status::busy == (s = call.step()); ++steps) {
        if (0 == steps % steps_between_progress) {
            opal_progress();
            if (is_revoked(comm) && call.cancel()) {
                revoked = true;
            }
        }
    }
    if (status::unsupported != s && status::ok != s) {
        *rc = revoked ? MPI_ERR_REVOKED : answer_of(s);
        return true;
    }
    schedule_.met(call.anyone_on_device());
    *rc = MPI_SUCCESS;
    if (status::ok != s) {
        return false;
    }
    reduction_counters &counted = mca_coll_gpusm_component.counted;
    counted.device_reductions.fetch_add(1, std::memory_order_relaxed);
    counted.device_bytes.fetch_add(of.elements * element_bytes(of.type), std::memory_order_relaxed);
    return true;
}

void meet_others(bool meets)
{
    if (local_process *process = local_process::acquire_if_made(); process != nullptr) {
        process->decide_to_meet(meets);
        process->release();
    }
}

} // namespace gpusm
