// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// accelerator_gpusm_module.cc: the table through which Open MPI calls its accelerator. Without a
// driver all memory is host memory.
#include "opal/mca/accelerator/gpusm/accelerator_gpusm.h"
#include "opal/mca/accelerator/gpusm/accelerator_gpusm_calls.h"
#include "opal/mca/accelerator/gpusm/accelerator_gpusm_versions.h"

#include <cstdint>
#include <cstring>

using gpusm::accelerator;
using gpusm::lazy;
using gpusm::status;
using gpusm::to_opal;

namespace gpusm {

accelerator *accelerator_here()
{
    std::atomic<accelerator *> &made = mca_accelerator_gpusm_component.made;
    accelerator *found = made.load(std::memory_order_acquire);
    const driver_api *driver = nullptr == found ? driver_load() : nullptr;
    if (driver != nullptr) {
        auto *mine = new accelerator(*driver);
        if (made.compare_exchange_strong(found, mine)) {
            return mine;
        }
        delete mine; // another thread was faster
    }
    return found;
}

int to_opal(status s)
{
    switch (s) {
    case status::ok:
        return OPAL_SUCCESS;
    case status::busy:
        return OPAL_ERR_RESOURCE_BUSY;
    case status::no_memory:
        return OPAL_ERR_OUT_OF_RESOURCE;
    case status::not_ready:
    case status::unsupported:
        return OPAL_ERR_NOT_AVAILABLE;
    case status::not_found:
        return OPAL_ERR_NOT_FOUND;
    case status::bad_argument:
        return OPAL_ERR_BAD_PARAM;
    case status::bad_peer:
    case status::cancelled:
    case status::peer_gone:
    case status::driver_failed:
    case status::system_failed:
        return OPAL_ERROR;
    }
    return OPAL_ERROR;
}

} // namespace gpusm

namespace {

// What `call` answers, given the accelerator, or why there is none.
template <typename Call> int with_driver(bool arguments_are_good, Call &&call)
{
    if (!arguments_are_good) {
        return OPAL_ERR_BAD_PARAM;
    }
    accelerator *driven = gpusm::accelerator_here();
    return nullptr == driven ? OPAL_ERR_NOT_AVAILABLE : to_opal(call(*driven));
}

} // namespace

extern "C" {

// --- stream and event objects: nothing of the driver's before they are used

static void stream_construct(mca_accelerator_gpusm_stream_t *stream)
{
    stream->super.stream = nullptr;
    stream->lazy = {};
}

static void stream_destruct(mca_accelerator_gpusm_stream_t *stream)
{
    if (accelerator *made = mca_accelerator_gpusm_component.made; made != nullptr) {
        made->destroy(&stream->lazy);
    }
}

static void event_construct(mca_accelerator_gpusm_event_t *event)
{
    event->super.event = nullptr;
    event->lazy = {};
}

static void event_destruct(mca_accelerator_gpusm_event_t *event)
{
    if (accelerator *made = mca_accelerator_gpusm_component.made; made != nullptr) {
        made->destroy(&event->lazy);
    }
}

static OBJ_CLASS_INSTANCE(mca_accelerator_gpusm_stream_t, opal_accelerator_stream_t,
                          stream_construct, stream_destruct);
static OBJ_CLASS_INSTANCE(mca_accelerator_gpusm_event_t, opal_accelerator_event_t, event_construct,
                          event_destruct);

// Streams and events are of the context of the memory that they are used for, whatever device is
// named here.
static int create_stream(int, opal_accelerator_stream_t **stream)
{
    auto *made = OBJ_NEW(mca_accelerator_gpusm_stream_t);
    *stream = reinterpret_cast<opal_accelerator_stream_t *>(made);
    return nullptr == made ? OPAL_ERR_OUT_OF_RESOURCE : OPAL_SUCCESS;
}

static int create_event(GPUSM_ACCELERATOR_EVENT)
{
    auto *made = OBJ_NEW(mca_accelerator_gpusm_event_t);
    *event = reinterpret_cast<opal_accelerator_event_t *>(made);
    return nullptr == made ? OPAL_ERR_OUT_OF_RESOURCE : OPAL_SUCCESS;
}

static int record_event(int, opal_accelerator_event_t *event, opal_accelerator_stream_t *stream)
{
    if (nullptr == event || nullptr == stream) {
        return OPAL_ERR_BAD_PARAM;
    }
    accelerator *driven = gpusm::accelerator_here();
    return nullptr == driven ? OPAL_SUCCESS : to_opal(driven->record(lazy(event), lazy(stream)));
}

static int query_event(int, opal_accelerator_event_t *event)
{
    if (nullptr == event) {
        return OPAL_ERR_BAD_PARAM;
    }
    accelerator *driven = gpusm::accelerator_here();
    return nullptr == driven ? OPAL_SUCCESS : to_opal(driven->query(lazy(event)));
}

// --- is it device memory?

// Null is nobody's: an error would count as device memory in osc/rdma.
static int check_addr(const void *address, int *dev_id, std::uint64_t *flags)
{
    *dev_id = MCA_ACCELERATOR_NO_DEVICE_ID;
    if (nullptr == flags) {
        return OPAL_ERR_BAD_PARAM;
    }
    *flags = 0;
    const gpusm::driver_api *driver = nullptr == address ? nullptr : gpusm::driver_load();
    if (nullptr == driver) {
        return 0;
    }
    const gpusm::memory_place place = gpusm::place_of(*driver, address);
    if (!place.on_device) {
        return place.answered ? 0 : OPAL_ERROR;
    }
    *dev_id = place.ordinal;
    *flags = place.managed ? MCA_ACCELERATOR_FLAGS_UNIFIED_MEMORY : 0;
    return 1;
}

// --- copies -----------------------------------------------------------------------------------

// What is where is found out, whatever the caller says of devices and the kind of transfer.
static int mem_copy_async(int, int, void *to, const void *from, std::size_t len_bytes,
                          opal_accelerator_stream_t *stream, opal_accelerator_transfer_type_t)
{
    if (nullptr == to || nullptr == from || nullptr == stream) {
        return OPAL_ERR_BAD_PARAM;
    }
    accelerator *driven = 0 == len_bytes ? nullptr : gpusm::accelerator_here();
    if (nullptr == driven) {
        std::memcpy(to, from, len_bytes);
        return OPAL_SUCCESS;
    }
    return to_opal(driven->copy_async(to, from, len_bytes, lazy(stream)));
}

static int mem_copy(int, int, void *to, const void *from, std::size_t len_bytes,
                    opal_accelerator_transfer_type_t)
{
    if (nullptr == to || nullptr == from) {
        return OPAL_ERR_BAD_PARAM;
    }
    accelerator *driven = 0 == len_bytes ? nullptr : gpusm::accelerator_here();
    if (nullptr == driven) {
        std::memcpy(to, from, len_bytes);
        return OPAL_SUCCESS;
    }
    return to_opal(driven->copy(to, from, len_bytes));
}

static int mem_move(int, int, void *to, const void *from, std::size_t len_bytes,
                    opal_accelerator_transfer_type_t)
{
    if (nullptr == to || nullptr == from) {
        return OPAL_ERR_BAD_PARAM;
    }
    accelerator *driven = 0 == len_bytes ? nullptr : gpusm::accelerator_here();
    if (nullptr == driven) {
        std::memmove(to, from, len_bytes);
        return OPAL_SUCCESS;
    }
    return to_opal(driven->move(to, from, len_bytes));
}

// --- memory -----------------------------------------------------------------------------------

static int mem_alloc(int dev_id, void **out, std::size_t len_bytes)
{
    return with_driver(out != nullptr && len_bytes > 0, [=](accelerator &driven) {
        return driven.allocate(dev_id, len_bytes, out);
    });
}

static int mem_release(int, void *allocated)
{
    return nullptr == allocated
               ? OPAL_SUCCESS
               : with_driver(true, [=](accelerator &driven) { return driven.release(allocated); });
}

static int get_address_range(int, const void *address, void **base, std::size_t *len_bytes)
{
    return with_driver(
        address != nullptr && base != nullptr && len_bytes != nullptr,
        [=](accelerator &driven) { return driven.range_of(address, base, len_bytes); });
}

static int host_register(int dev_id, void *address, std::size_t len_bytes)
{
    return with_driver(address != nullptr, [=](accelerator &driven) {
        return driven.lock_host(dev_id, address, len_bytes);
    });
}

static int host_unregister(int dev_id, void *address)
{
    return nullptr == address ? OPAL_SUCCESS : with_driver(true, [=](accelerator &driven) {
        return driven.unlock_host(dev_id, address);
    });
}

static int get_buffer_id(int, const void *address, opal_accelerator_buffer_id_t *id)
{
    return with_driver(address != nullptr && id != nullptr, [=](accelerator &driven) {
        unsigned long long found = 0;
        const status s = driven.buffer_id(address, &found);
        *id = found;
        return s;
    });
}

// --- devices ----------------------------------------------------------------------------------

static int get_device(int *dev_id)
{
    if (nullptr == dev_id) {
        return OPAL_ERR_BAD_PARAM;
    }
    *dev_id = MCA_ACCELERATOR_NO_DEVICE_ID;
    return with_driver(true, [=](accelerator &driven) { return driven.current_device(dev_id); });
}

static int get_device_pci_attr(int dev_id, opal_accelerator_pci_attr_t *out)
{
    return with_driver(out != nullptr, [=](accelerator &driven) {
        accelerator::pci_place place{};
        const status s = driven.pci_of(dev_id, &place);
        *out = {.domain_id = static_cast<std::uint16_t>(place.domain),
                .bus_id = static_cast<std::uint8_t>(place.bus),
                .device_id = static_cast<std::uint8_t>(place.device),
                .function_id = 0};
        return s;
    });
}

static int device_can_access_peer(int *access, int dev1, int dev2)
{
    return with_driver(access != nullptr, [=](accelerator &driven) {
        bool yes = false;
        const status s = driven.can_access_peer(dev1, dev2, &yes);
        *access = yes ? 1 : 0;
        return s;
    });
}

opal_accelerator_base_module_t mca_accelerator_gpusm_module = {
    .check_addr = check_addr,
    .create_stream = create_stream,
    .create_event = create_event,
    .record_event = record_event,
    .query_event = query_event,
    .mem_copy_async = mem_copy_async,
    .mem_copy = mem_copy,
    .mem_move = mem_move,
    .mem_alloc = mem_alloc,
    .mem_release = mem_release,
    .get_address_range = get_address_range,
    .host_register = host_register,
    .host_unregister = host_unregister,
    .get_device = get_device,
    .get_device_pci_attr = get_device_pci_attr,
    .device_can_access_peer = device_can_access_peer,
    .get_buffer_id = get_buffer_id,
};

} // extern "C"
