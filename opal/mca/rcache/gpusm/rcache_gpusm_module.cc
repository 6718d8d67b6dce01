// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// rcache_gpusm_module.cc: the function table of rcache/gpusm over the export table: registrations
// of this process's device memory, with a handle that another process can open.
#include "opal/mca/rcache/gpusm/rcache_gpusm.h"

#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>

#include "opal/mca/btl/gpusm/base/log.h"
#include "opal/mca/btl/gpusm/gpu/device.h"
#include "opal/mca/btl/gpusm/gpu/driver.h"

namespace gpusm {

namespace {

static_assert(sizeof(CUipcMemHandle) == sizeof(mca_opal_cuda_reg_data_t::memHandle));

status keep_handle(void *context, const exported &entry, const void *argument)
{
    auto &handles = static_cast<rcache_module *>(context)->handles;
    if (entry.slot >= handles.size()) {
        handles.resize(entry.slot + 1U);
    }
    handles[entry.slot] = *static_cast<const CUipcMemHandle *>(argument);
    return status::ok;
}

// No peer reads the handles from here, so there is nobody to tell.
void forget_handle(void *, const exported &)
{
}

// The driver's description of the allocation around `address`. `unsupported`: host memory, or
// device memory that no such handle can name, which are everyday answers.
status describe(const driver_api &driver, std::uint64_t address, exported_memory *out)
{
    const pointer_facts facts = inspect_pointer(driver, address);
    device of;
    of.context = facts.context;
    return facts.legacy_ipc && facts.context != nullptr ? export_memory(driver, of, address, out)
                                                        : status::unsupported;
}

// What is known of the allocation around the range, asked from the driver if it is not known or not
// that allocation any more; in *entry, referenced unless every slot of the table is in use, and in
// *out. Lock held.
status export_range(rcache_module &module, std::uint64_t address, std::uint64_t len_bytes,
                    exported_memory *out, exported **entry)
{
    const driver_api *driver = driver_load();
    unsigned long long buffer_id = 0;
    if (nullptr == driver ||
        CUDA_SUCCESS !=
            driver->pointer_get_attribute(&buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address)) {
        return status::unsupported;
    }
    exported *found = module.exports.find(address, len_bytes);
    if (found != nullptr && found->memory.buffer_id == buffer_id) {
        *out = {found->memory.base, found->memory.len_bytes, module.handles[found->slot]};
    } else {
        if (const status s = describe(*driver, address, out); status::ok != s) {
            return s;
        }
        const std::uint64_t offset = address - out->base;
        if (offset > out->len_bytes || len_bytes > out->len_bytes - offset) {
            return status::unsupported; // the range goes on in the next allocation
        }
        found = nullptr;
        // A full table keeps nothing; the registration is as good.
        (void)module.exports.insert({out->base, out->len_bytes, buffer_id}, &out->handle, &found);
    }
    if (found != nullptr) {
        module.exports.add_reference(found);
    }
    *entry = found;
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
    exported_memory found;
    exported *entry = nullptr;
    status s = status::ok;
    {
        const std::lock_guard guard(module.mutex);
        s = export_range(module, reinterpret_cast<std::uint64_t>(address), len_bytes, &found,
                         &entry);
    }
    if (status::ok != s) {
        log_line(log_level::info, "%p, %zu bytes, is not registered: %s", address, len_bytes,
                 to_string(s));
        opal_free_list_return(&module.registrations, item);
        return status::unsupported == s ? OPAL_ERR_NOT_SUPPORTED : OPAL_ERROR;
    }
    auto *registration = reinterpret_cast<mca_opal_cuda_reg_t *>(item);
    auto *base = reinterpret_cast<unsigned char *>(found.base);
    registration->base.rcache = base_module;
    registration->base.base = base;
    registration->base.bound = base + found.len_bytes - 1;
    registration->base.alloc_base = base;
    registration->base.ref_count = 1;
    registration->base.flags = flags;
    registration->base.rcache_context = entry;
    registration->base.gpu_bufID = entry == nullptr ? 0 : entry->memory.buffer_id;
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
    auto &module = static_cast<rcache_module &>(*base_module);
    if (OPAL_THREAD_ADD_FETCH32(&registration->ref_count, -1) > 0) {
        return OPAL_SUCCESS;
    }
    if (auto *entry = static_cast<exported *>(registration->rcache_context); entry != nullptr) {
        const std::lock_guard guard(module.mutex);
        module.exports.release(entry);
    }
    registration->rcache_context = nullptr;
    opal_free_list_return(&module.registrations, &registration->super);
    return OPAL_SUCCESS;
}

// No driver call: the program may have torn the driver down long before. Registrations that are
// still out die with the free list, which owns their memory.
extern "C" void rcache_gpusm_finalize(mca_rcache_base_module_t *base_module) noexcept
{
    delete static_cast<rcache_module *>(base_module);
}

} // namespace

rcache_module::rcache_module() noexcept
    : mca_rcache_base_module_t{}, mutex(opal_using_threads()),
      exports({this, keep_handle, forget_handle}, max_exports)
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

mca_rcache_base_module_t *create_rcache_module() noexcept
{
    constexpr int registrations_per_growth = 64;
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

} // namespace gpusm
