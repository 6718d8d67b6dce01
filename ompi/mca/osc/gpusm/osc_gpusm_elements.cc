// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/osc/gpusm/osc_gpusm_elements.h"

#include "ompi/mca/coll/gpusm/coll_gpusm_type_walk.h"

#include <array>
#include <memory>
#include <utility>

namespace gpusm {

namespace {

// The packed bytes of one side, a part at a time.
class packer {
  public:
    enum class direction { out, in };

    packer(const elements &of, direction to) : to_(to)
    {
        OBJ_CONSTRUCT(&convertor_, opal_convertor_t);
        (void)(direction::out == to
                   ? opal_convertor_copy_and_prepare_for_send(
                         ompi_mpi_local_convertor, &of.type->super, of.count, of.at, 0, &convertor_)
                   : opal_convertor_copy_and_prepare_for_recv(ompi_mpi_local_convertor,
                                                              &of.type->super, of.count, of.at, 0,
                                                              &convertor_));
    }
    ~packer() { OBJ_DESTRUCT(&convertor_); }
    packer(const packer &) = delete;
    packer &operator=(const packer &) = delete;

    // How many of these bytes there were.
    std::size_t move(void *packed, std::size_t bytes)
    {
        iovec part{packed, bytes};
        std::uint32_t count = 1;
        std::size_t moved = bytes;
        (void)(direction::out == to_ ? opal_convertor_pack(&convertor_, &part, &count, &moved)
                                     : opal_convertor_unpack(&convertor_, &part, &count, &moved));
        return moved;
    }

  private:
    opal_convertor_t convertor_;
    const direction to_;
};

} // namespace

void pack_elements(const elements &from, void *packed)
{
    (void)packer(from, packer::direction::out).move(packed, from.bytes());
}

void unpack_elements(const elements &to, const void *packed, std::size_t bytes)
{
    (void)packer(to, packer::direction::in).move(const_cast<void *>(packed), bytes);
}

void copy_with_gaps(const elements &to, const elements &from)
{
    unsigned char *into = to.at + to.type->super.true_lb;
    unsigned char *out_of = from.at + from.type->super.true_lb;
    if (!to.has_gaps()) {
        pack_elements(from, into);
    } else if (!from.has_gaps()) {
        unpack_elements(to, out_of, from.bytes());
    } else {
        std::array<unsigned char, 16 * 1024> part;
        packer out(from, packer::direction::out);
        packer in(to, packer::direction::in);
        std::size_t left = from.bytes();
        while (left > 0) {
            const std::size_t moved = out.move(part.data(), std::min(left, part.size()));
            if (0 == moved || moved != in.move(part.data(), moved)) {
                return;
            }
            left -= moved;
        }
    }
}

int copy_device_elements(const elements &to, const elements &from)
{
    if (to.has_gaps() || from.has_gaps()) {
        copy_elements(to, from);
        return OMPI_SUCCESS;
    }
    return opal_accelerator.mem_copy(
        MCA_ACCELERATOR_NO_DEVICE_ID, MCA_ACCELERATOR_NO_DEVICE_ID, to.at + to.type->super.true_lb,
        from.at + from.type->super.true_lb, from.bytes(), MCA_ACCELERATOR_TRANSFER_UNSPEC);
}

ompi_datatype_t *basic_type_of(const ompi_datatype_t *type, std::size_t *in_each)
{
    auto *given = const_cast<ompi_datatype_t *>(type);
    ompi_datatype_t *basic = ompi_datatype_is_predefined(given)
                                 ? given
                                 : ompi_datatype_get_single_predefined_type_from_args(given);
    if (nullptr == basic || 0 == basic->super.size || 0 != type->super.size % basic->super.size) {
        return nullptr;
    }
    *in_each = type->super.size / basic->super.size;
    return basic;
}

plan_cache::~plan_cache()
{
    for (known &each : known_) {
        OBJ_RELEASE(each.type);
    }
}

shared_plan plan_cache::of(ompi_datatype_t *type)
{
    for (const known &each : known_) {
        if (each.type == type) {
            return each.plan;
        }
    }
    if (most == known_.size()) {
        OBJ_RELEASE(known_.front().type);
        known_.erase(known_.begin());
    }
    shared_plan plan = make_plan(*type);
    OBJ_RETAIN(type);
    known_.push_back({type, plan});
    return plan;
}

} // namespace gpusm
