// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_alltoallw.cc: alltoallw goes by messages, which pack and unpack by kernels. What a
// rank sends to itself Open MPI copies through a convertor, piece by piece. So that is copied here,
// in one launch, and the next component's function is called without it.
#include "ompi/mca/coll/gpusm/coll_gpusm_packed.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace gpusm {

namespace {

using types_type = datatype *const *;

// One end of what a rank sends to itself: in a view if it has gaps.
struct own_end {
    program_elements data;
    view_owner opened;
    void *address;
    bool on_device;
};

// Nothing: it cannot be copied here.
std::optional<own_end> own_end_of(const void *buffer, std::size_t count, datatype *type)
{
    const auto *first = static_cast<const unsigned char *>(buffer) + type->super.true_lb;
    const driver_api *driver = driver_load();
    own_end made{program_elements(buffer, count, type), nullptr, const_cast<unsigned char *>(first),
                 driver != nullptr && place_of(*driver, first).on_device};
    if (has_gaps(type, count)) {
        made.opened = made.data.open();
        if (nullptr == made.opened) {
            return std::nullopt;
        }
        made.address = reinterpret_cast<void *>(made.opened->address);
    }
    return made;
}

// A call without what the rank sends to itself.
class without_own final : public call_copies {
  public:
    // Null: it goes as it is.
    static std::unique_ptr<without_own> make(const void *send, counts_type *send_counts,
                                             places_type send_places, types_type send_types,
                                             void *receive, counts_type *receive_counts,
                                             places_type receive_places, types_type receive_types,
                                             const communicator *comm, bool is_persistent)
    {
        if (nullptr == mca_coll_gpusm_component.interposer || OMPI_COMM_IS_INTER(comm) ||
            MPI_IN_PLACE == send) {
            return nullptr;
        }
        const std::size_t me = elements(ompi_comm_rank(comm));
        const std::size_t sent = count_at(*send_counts, me);
        const std::size_t received = count_at(*receive_counts, me);
        const std::uint64_t bytes = sent * send_types[me]->super.size;
        if (0 == bytes || bytes != received * receive_types[me]->super.size) {
            return nullptr;
        }
        auto from = own_end_of(shifted(send, place_at(send_places, me)), sent, send_types[me]);
        auto to =
            own_end_of(shifted(receive, place_at(receive_places, me)), received, receive_types[me]);
        if (!from || !to || (!from->on_device && !to->on_device)) {
            return nullptr;
        }
        std::unique_ptr<without_own> made(new without_own(std::move(*from), std::move(*to), bytes));
        if (!is_persistent && OMPI_SUCCESS != made->copy_in()) {
            return nullptr;
        }
        made->send_counts_ = but_own(*send_counts, me, comm);
        made->receive_counts_ = but_own(*receive_counts, me, comm);
        *send_counts = as_counts(made->send_counts_.data());
        *receive_counts = as_counts(made->receive_counts_.data());
        return made;
    }

    int copy_in() override
    {
        from_.data.check();
        to_.data.check();
        gpu_side *side = mca_coll_gpusm_component.interposer->gpu();
        const bool copied =
            side != nullptr && status::ok == side->views.copy(to_.address, from_.address, bytes_);
        return copied ? OMPI_SUCCESS : OMPI_ERROR;
    }
    int copy_back() override { return OMPI_SUCCESS; }

  private:
    without_own(own_end &&from, own_end &&to, std::uint64_t bytes)
        : from_(std::move(from)), to_(std::move(to)), bytes_(bytes)
    {
    }

    static std::vector<count_element> but_own(counts_type of, std::size_t me,
                                              const communicator *comm)
    {
        std::vector<count_element> made;
        for (std::size_t i = 0; i < elements(ompi_comm_size(comm)); ++i) {
            made.push_back(i == me ? 0 : static_cast<count_element>(count_at(of, i)));
        }
        return made;
    }

    const own_end from_;
    const own_end to_;
    const std::uint64_t bytes_;
    // Of the others; the next component may look at them as long as the call runs.
    std::vector<count_element> send_counts_;
    std::vector<count_element> receive_counts_;
};

#define GPUSM_ALLTOALLW_ARGUMENTS                                                                  \
    const void *send, counts_type send_counts, places_type send_places, types_type send_types,     \
        void *receive, counts_type receive_counts, places_type receive_places,                     \
        types_type receive_types, communicator *comm
#define GPUSM_PASS_ALLTOALLW                                                                       \
    send, send_counts, send_places, send_types, receive, receive_counts, receive_places,           \
        receive_types, comm
#define GPUSM_WITHOUT_OWN(is_persistent)                                                           \
    without_own::make(send, &send_counts, send_places, send_types, receive, &receive_counts,       \
                      receive_places, receive_types, comm, is_persistent)

extern "C" int coll_gpusm_alltoallw(GPUSM_ALLTOALLW_ARGUMENTS, base_module *module) noexcept
{
    const auto rest = GPUSM_WITHOUT_OWN(false);
    const auto &next = next_of(module);
    return next.coll_alltoallw(GPUSM_PASS_ALLTOALLW, next.coll_alltoallw_module);
}

extern "C" int coll_gpusm_ialltoallw(GPUSM_ALLTOALLW_ARGUMENTS, ompi_request_t **request,
                                     base_module *module) noexcept
{
    auto rest = GPUSM_WITHOUT_OWN(false);
    const auto call_next = [&](ompi_request_t **inner) {
        const auto &next = next_of(module);
        return next.coll_ialltoallw(GPUSM_PASS_ALLTOALLW, inner, next.coll_ialltoallw_module);
    };
    return nullptr == rest ? call_next(request)
                           : start_around(std::move(rest), comm, request, call_next);
}

extern "C" int coll_gpusm_alltoallw_init(GPUSM_ALLTOALLW_ARGUMENTS, ompi_info_t *info,
                                         ompi_request_t **request, base_module *module) noexcept
{
    auto rest = GPUSM_WITHOUT_OWN(true);
    const auto call_next = [&](ompi_request_t **inner) {
        const auto &next = next_of(module);
        return next.coll_alltoallw_init(GPUSM_PASS_ALLTOALLW, info, inner,
                                        next.coll_alltoallw_init_module);
    };
    return nullptr == rest
               ? call_next(request)
               : init_around(std::move(rest), nullptr, nullptr, comm, request, call_next);
}

} // namespace

void set_alltoallw(mca_coll_gpusm_module_t &module)
{
    GPUSM_COLL_ALLTOALLW(GPUSM_SET_FUNCTION)
}

} // namespace gpusm
