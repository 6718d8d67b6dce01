// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// rcache_gpusm_component.cc: the component rcache/gpusm: registrations of this process's device
// memory, with a handle that another process can open.
//
// Open MPI 5.0 ships a component of this name, which btl/smcuda creates by name and whose
// registrations it casts to mca_opal_cuda_reg_t. This one keeps that agreement, so it can stand in
// for the shipped one. btl/gpusm does not come here.
#include "opal/mca/rcache/gpusm/rcache_gpusm_opal.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>
#include <string>

#include "opal/mca/common/gpusm/base/abi.h"
#include "opal/mca/common/gpusm/base/lock.h"
#include "opal/mca/common/gpusm/gpu/device.h"
#include "opal/mca/common/gpusm/gpu/driver.h"
#include "opal/mca/common/gpusm/ipc/legacy.h"

extern "C" OPAL_DECLSPEC mca_rcache_base_component_t mca_rcache_gpusm_component;

namespace gpusm {

namespace {

// A module hands out registrations of this process's device memory: one object of the free list
// per call, with the handle, base and length of the whole allocation. What the driver has said
// about an allocation is kept by its buffer id, which the driver gives to no other one.
struct rcache_module : mca_rcache_base_module_t {
    rcache_module() noexcept;
    ~rcache_module();

    struct known_allocation {
        unsigned long long buffer_id = 0; // 0: none
        exported_memory memory;
    };
    optional_mutex mutex;
    opal_free_list_t registrations;
    std::array<known_allocation, 1024> known; // by the lower bits of the id; guarded by the mutex
};

static_assert(sizeof(CUipcMemHandle) == sizeof(mca_opal_cuda_reg_data_t::memHandle));

// The allocation around the range; asked from the driver if it is not known. Lock held.
// `unsupported`: host memory, or device memory that no such handle can name: everyday answers.
status describe(rcache_module &module, std::uint64_t address, std::uint64_t len_bytes,
                rcache_module::known_allocation *out)
{
    const driver_api *driver = driver_load();
    unsigned long long buffer_id = 0;
    if (nullptr == driver ||
        CUDA_SUCCESS !=
            driver->pointer_get_attribute(&buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address)) {
        return status::unsupported;
    }
    rcache_module::known_allocation &place = module.known[buffer_id % module.known.size()];
    if (place.buffer_id != buffer_id) {
        const pointer_facts facts = inspect_pointer(*driver, address);
        device of;
        of.context = facts.context;
        exported_memory memory;
        status s = facts.legacy_ipc && facts.context != nullptr
                       ? export_memory(*driver, of, address, &memory)
                       : status::unsupported;
        s = status::ok == s ? wait_for_earlier_copies(*driver, of, memory.mark) : s;
        if (status::ok != s) {
            return s;
        }
        // Where the wait is still to come, this is looked up again with the next message.
        place = {of.marks.waited_for >= memory.mark ? buffer_id : 0, memory};
    }
    const std::uint64_t offset = address - place.memory.base;
    if (offset > place.memory.len_bytes || len_bytes > place.memory.len_bytes - offset) {
        return status::unsupported; // the range goes on in the next allocation
    }
    *out = {buffer_id, place.memory};
    return status::ok;
}

extern "C" int rcache_gpusm_register_memory(mca_rcache_base_module_t *base_module, void *address,
                                            std::size_t len_bytes, std::uint32_t flags,
                                            std::int32_t access_flags,
                                            mca_rcache_base_registration_t **out) noexcept
{
    auto &module = static_cast<rcache_module &>(*base_module);
    *out = nullptr; // btl/smcuda looks at this, not at the answer
    opal_free_list_item_t *item = opal_free_list_get(&module.registrations);
    if (item == nullptr) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    rcache_module::known_allocation known;
    status s = status::ok;
    {
        const std::lock_guard guard(module.mutex);
        s = describe(module, reinterpret_cast<std::uint64_t>(address), len_bytes, &known);
    }
    if (status::ok != s) {
        opal_free_list_return(&module.registrations, item);
        return status::unsupported == s ? OPAL_ERR_NOT_SUPPORTED : OPAL_ERROR;
    }
    const exported_memory &found = known.memory;
    auto *registration = reinterpret_cast<mca_opal_cuda_reg_t *>(item);
    auto *base = reinterpret_cast<unsigned char *>(found.base);
    registration->base.rcache = base_module;
    registration->base.base = base;
    registration->base.bound = base + found.len_bytes - 1;
    registration->base.alloc_base = base;
    registration->base.ref_count = 1;
    registration->base.flags = flags;
    registration->base.gpu_bufID = known.buffer_id;
    registration->base.access_flags = access_flags;
    std::memset(&registration->data, 0, sizeof(registration->data));
    std::memcpy(registration->data.memHandle, &found.handle, sizeof(found.handle));
    registration->data.memh_seg_addr.pval = base;
    registration->data.memh_seg_len = found.len_bytes;
    *out = &registration->base;
    return OPAL_SUCCESS;
}

// A registration is made anew in any case, so finding one is the same.
extern "C" int rcache_gpusm_find(mca_rcache_base_module_t *base_module, void *address,
                                 std::size_t len_bytes,
                                 mca_rcache_base_registration_t **out) noexcept
{
    return rcache_gpusm_register_memory(base_module, address, len_bytes, 0, 0, out);
}

extern "C" int rcache_gpusm_deregister(mca_rcache_base_module_t *base_module,
                                       mca_rcache_base_registration_t *registration) noexcept
{
    if (OPAL_THREAD_ADD_FETCH32(&registration->ref_count, -1) <= 0) {
        opal_free_list_return(&static_cast<rcache_module *>(base_module)->registrations,
                              &registration->super);
    }
    return OPAL_SUCCESS;
}

// No driver call: the program may have torn the driver down long before. Registrations that are
// still out die with the free list, which owns their memory.
extern "C" void rcache_gpusm_finalize(mca_rcache_base_module_t *base_module) noexcept
{
    delete static_cast<rcache_module *>(base_module);
}

rcache_module::rcache_module() noexcept : mca_rcache_base_module_t{}
{
    mca_rcache_base_module_init(this);
    rcache_component = &mca_rcache_gpusm_component;
    rcache_register = rcache_gpusm_register_memory;
    rcache_deregister = rcache_gpusm_deregister;
    rcache_find = rcache_gpusm_find;
    rcache_finalize = rcache_gpusm_finalize;
    OBJ_CONSTRUCT(&registrations, opal_free_list_t);
}

rcache_module::~rcache_module()
{
    OBJ_DESTRUCT(&registrations);
    mca_rcache_base_module_fini(this);
}

// The resources are not looked at: btl/smcuda passes a struct that it never filled in. No driver is
// touched.
extern "C" mca_rcache_base_module_t *rcache_gpusm_init(mca_rcache_base_resources_t *) noexcept
{
    constexpr int registrations_per_growth = 64;
    watch_threads(&opal_uses_threads);
    auto *module = new (std::nothrow) rcache_module();
    if (module == nullptr) {
        return nullptr;
    }
    const auto alignment = static_cast<std::size_t>(opal_cache_line_size);
    if (opal_free_list_init(&module->registrations, sizeof(mca_opal_cuda_reg_t), alignment,
                            OBJ_CLASS(mca_rcache_base_registration_t), 0, alignment, 0, -1,
                            registrations_per_growth, nullptr, 0, nullptr, nullptr,
                            nullptr) != OPAL_SUCCESS) {
        delete module;
        return nullptr;
    }
    return module;
}

extern "C" int rcache_gpusm_register() noexcept
{
    const abi_part parts[] = {
        GPUSM_ABI_CLASS(mca_rcache_base_registration_t),
        GPUSM_ABI_CLASS(opal_free_list_item_t),
        GPUSM_ABI_CLASS(opal_free_list_t),
    };
    const std::string why = GPUSM_ABI_DIFFERENCE(parts);
    if (!why.empty()) {
        opal_output(0, "rcache/gpusm is not used: %s.", why.c_str());
    }
    return why.empty() ? OPAL_SUCCESS : OPAL_ERR_NOT_AVAILABLE;
}

} // namespace

} // namespace gpusm

mca_rcache_base_component_t mca_rcache_gpusm_component = {
    .rcache_version =
        {
            MCA_RCACHE_BASE_VERSION_3_0_0,
            .mca_component_name = "gpusm",
            MCA_BASE_MAKE_VERSION(component, OPAL_MAJOR_VERSION, OPAL_MINOR_VERSION,
                                  OPAL_RELEASE_VERSION),
            .mca_register_component_params = gpusm::rcache_gpusm_register,
        },
    .rcache_data = {MCA_BASE_METADATA_PARAM_CHECKPOINT},
    .rcache_init = gpusm::rcache_gpusm_init,
};
