// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/coll/gpusm/coll_gpusm_interpose.h"
#include "ompi/mca/coll/gpusm/coll_gpusm.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_packing.h"

#include "opal/mca/common/gpusm/base/c_entry.h"
#include "opal/mca/common/gpusm/gpu/device.h"
#include "opal/mca/common/gpusm/gpu/driver.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

namespace gpusm {

// What ob1 is given as the datatype: bytes without gaps.
struct view_type {
    ompi_datatype_t bytes; // first, so that its references are ours
    view *stands_for;
};

namespace {

interposer &ours()
{
    return *mca_coll_gpusm_component.interposer;
}

// What Open MPI's end finds in requests that nobody has freed goes with the table of views.
extern "C" void end_view_type(view_type *over) noexcept
{
    if (mca_coll_gpusm_component.interposer != nullptr) {
        ours().close(over->stands_for);
    }
}

// Not freed as other datatypes are: it shares the description of bytes, and has no index.
OBJ_CLASS_INSTANCE(view_type, opal_object_t, nullptr, end_view_type);

view_type *make_type(view *of)
{
    view_type *made = OBJ_NEW(view_type);
    if (nullptr == made) {
        return nullptr;
    }
    constexpr std::size_t header = sizeof(opal_object_t);
    std::memcpy(reinterpret_cast<unsigned char *>(&made->bytes) + header,
                reinterpret_cast<const unsigned char *>(&ompi_mpi_byte.dt) + header,
                sizeof(made->bytes) - header);
    made->bytes.super.flags &= static_cast<std::uint16_t>(
        ~(OMPI_DATATYPE_FLAG_PREDEFINED | OPAL_DATATYPE_FLAG_PREDEFINED));
    made->bytes.d_keyhash = nullptr;
    made->bytes.pml_data = 0;
    made->stands_for = of;
    return made;
}

// ob1's functions, of which none throws: so a call at the end of one of ours is a jump.
template <typename Pointer> auto c_function(Pointer function)
{
    return reinterpret_cast<std::add_pointer_t<entry_type<Pointer>>>(function);
}

// Calls with the view, if there is to be one, else with what the program has given. Apart from the
// functions below, so that these cost a plain message next to nothing.
template <typename Pointer, typename Buffer, typename... Rest>
[[gnu::noinline]] int with_view(Pointer next, Buffer *buffer, std::size_t count,
                                ompi_datatype_t *type, Rest... rest)
{
    if (may_need_view(type, count)) {
        if (view_type *made = ours().open(buffer, count, type); made != nullptr) {
            const view &of = *made->stands_for;
            const int answer = next(reinterpret_cast<Buffer *>(of.address),
                                    static_cast<std::size_t>(of.len_bytes), &made->bytes, rest...);
            OBJ_RELEASE(made); // what ob1 has made of it has references of its own
            return answer;
        }
    }
    return next(buffer, count, type, rest...);
}

const mca_pml_base_module_t &next()
{
    return mca_coll_gpusm_component.next_pml;
}

extern "C" {

int view_isend_init(const void *buffer, std::size_t count, ompi_datatype_t *type, int to, int tag,
                    mca_pml_base_send_mode_t mode, ompi_communicator_t *comm,
                    ompi_request_t **request) noexcept
{
    const auto call = c_function(next().pml_isend_init);
    return is_plain(type) ? call(buffer, count, type, to, tag, mode, comm, request)
                          : with_view(call, buffer, count, type, to, tag, mode, comm, request);
}

int view_isend(const void *buffer, std::size_t count, ompi_datatype_t *type, int to, int tag,
               mca_pml_base_send_mode_t mode, ompi_communicator_t *comm,
               ompi_request_t **request) noexcept
{
    const auto call = c_function(next().pml_isend);
    return is_plain(type) ? call(buffer, count, type, to, tag, mode, comm, request)
                          : with_view(call, buffer, count, type, to, tag, mode, comm, request);
}

int view_send(const void *buffer, std::size_t count, ompi_datatype_t *type, int to, int tag,
              mca_pml_base_send_mode_t mode, ompi_communicator_t *comm) noexcept
{
    const auto call = c_function(next().pml_send);
    return is_plain(type) ? call(buffer, count, type, to, tag, mode, comm)
                          : with_view(call, buffer, count, type, to, tag, mode, comm);
}

int view_irecv_init(void *buffer, std::size_t count, ompi_datatype_t *type, int from, int tag,
                    ompi_communicator_t *comm, ompi_request_t **request) noexcept
{
    const auto call = c_function(next().pml_irecv_init);
    return is_plain(type) ? call(buffer, count, type, from, tag, comm, request)
                          : with_view(call, buffer, count, type, from, tag, comm, request);
}

int view_irecv(void *buffer, std::size_t count, ompi_datatype_t *type, int from, int tag,
               ompi_communicator_t *comm, ompi_request_t **request) noexcept
{
    const auto call = c_function(next().pml_irecv);
    return is_plain(type) ? call(buffer, count, type, from, tag, comm, request)
                          : with_view(call, buffer, count, type, from, tag, comm, request);
}

int view_recv(void *buffer, std::size_t count, ompi_datatype_t *type, int from, int tag,
              ompi_communicator_t *comm, ompi_status_public_t *status) noexcept
{
    const auto call = c_function(next().pml_recv);
    return is_plain(type) ? call(buffer, count, type, from, tag, comm, status)
                          : with_view(call, buffer, count, type, from, tag, comm, status);
}

int view_imrecv(void *buffer, std::size_t count, ompi_datatype_t *type, ompi_message_t **message,
                ompi_request_t **request) noexcept
{
    const auto call = c_function(next().pml_imrecv);
    return is_plain(type) ? call(buffer, count, type, message, request)
                          : with_view(call, buffer, count, type, message, request);
}

int view_mrecv(void *buffer, std::size_t count, ompi_datatype_t *type, ompi_message_t **message,
               ompi_status_public_t *status) noexcept
{
    const auto call = c_function(next().pml_mrecv);
    return is_plain(type) ? call(buffer, count, type, message, status)
                          : with_view(call, buffer, count, type, message, status);
}

} // extern "C"

} // namespace

#define GPUSM_INTERPOSED(X)                                                                        \
    X(isend_init) X(isend) X(send) X(irecv_init) X(irecv) X(recv) X(imrecv) X(mrecv)

std::unique_ptr<interposer> interposer::install()
{
    using namespace std::string_view_literals;
    // ob1 of other architectures' processes converts, which a kernel does not.
    if (0 != OPAL_ENABLE_HETEROGENEOUS_SUPPORT ||
        mca_pml_base_selected_component.pmlm_version.mca_component_name != "ob1"sv) {
        return nullptr;
    }
    local_process *process = local_process::acquire_if_made();
    if (nullptr == process) {
        return nullptr;
    }
    std::unique_ptr<type_plans> plans = type_plans::install();
    if (nullptr == plans) {
        process->release();
        return nullptr;
    }
    std::unique_ptr<interposer> made(new interposer(process, std::move(plans)));
    serve_packing(true);
    mca_coll_gpusm_component.next_pml = mca_pml;
#define GPUSM_PUT(name) mca_pml.pml_##name = entry(view_##name);
    GPUSM_INTERPOSED(GPUSM_PUT)
#undef GPUSM_PUT
    return made;
}

interposer::~interposer()
{
    serve_packing(false);
#define GPUSM_TAKE(name)                                                                           \
    if (mca_pml.pml_##name == entry(view_##name)) {                                                \
        mca_pml.pml_##name = next().pml_##name;                                                    \
    }
    GPUSM_INTERPOSED(GPUSM_TAKE)
#undef GPUSM_TAKE
    plans_.reset();
    process_->release();
}

bool interposer::is_served()
{
    if (!served_.load(std::memory_order_acquire)) {
        const std::lock_guard guard(lock_);
        message_services *messages = process_->messages();
        served_.store(messages != nullptr && messages->serve_views(), std::memory_order_release);
    }
    return served_.load(std::memory_order_relaxed);
}

view *interposer::open_view(const void *buffer, std::size_t count, ompi_datatype_t *type)
{
    const driver_api *driver = driver_load();
    const opal_datatype_t &layout = type->super;
    if (nullptr == driver || 0 == count || 0 == layout.size) {
        return nullptr;
    }
    // A buffer in host memory costs this one question. The first byte of one element of many is as
    // good as the lowest: they are to lie in one allocation.
    const auto *first = static_cast<const unsigned char *>(buffer) + layout.true_lb;
    if (!gpusm::place_of(*driver, first).on_device) {
        return nullptr;
    }
    gpu_side *side = gpu();
    type_plans::pointer plan = nullptr == side || !is_served() ? nullptr : plans_->of(type);
    return nullptr == plan ? nullptr : side->views.open(buffer, count, std::move(plan));
}

view_type *interposer::open(const void *buffer, std::size_t count, ompi_datatype_t *type)
{
    view *of = open_view(buffer, count, type);
    view_type *made = nullptr == of ? nullptr : make_type(of);
    if (nullptr == made && of != nullptr) {
        close(of);
    }
    return made;
}

void interposer::close(view *given)
{
    process_->gpu_if_made()->views.close(given);
}

void view_closer::operator()(view *opened) const
{
    ours().close(opened);
}

} // namespace gpusm
