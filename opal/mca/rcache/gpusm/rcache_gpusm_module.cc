// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// rcache_gpusm_module.cc: the function table of rcache/gpusm over the export table: registrations
// of this process's device memory, with a handle that another process can open.
#include "opal/mca/rcache/gpusm/rcache_gpusm.h"

#include <cstdint>
#include <cstring>
#include <new>

#include <dlfcn.h>

#include "opal/mca/btl/gpusm/base/log.h"

namespace gpusm {

namespace {

static_assert(sizeof(CUipcMemHandle) == sizeof(mca_opal_cuda_reg_data_t::memHandle));

// The driver, as far as it is needed here. Looked up, never linked: a machine without libcuda
// loads this component without a complaint.
struct driver_table {
    decltype(&::cuPointerGetAttribute) pointer_get_attribute;
    decltype(&::cuPointerSetAttribute) pointer_set_attribute;
    decltype(&::cuMemGetAddressRange) mem_get_address_range;
    decltype(&::cuIpcGetMemHandle) ipc_get_mem_handle;
    decltype(&::cuCtxPushCurrent) ctx_push_current;
    decltype(&::cuCtxPopCurrent) ctx_pop_current;
    bool complete;
};

template <typename Function> bool look_up(void *library, const char *name, Function *function)
{
    *function = reinterpret_cast<Function>(::dlsym(library, name));
    return *function != nullptr;
}

driver_table load_driver()
{
    driver_table table{};
    // Not closed again: the driver keeps threads, and the program surely uses it too.
    void *library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        log_line(log_level::info, "no CUDA driver: %s", ::dlerror());
        return table;
    }
    table.complete = look_up(library, "cuPointerGetAttribute", &table.pointer_get_attribute) &&
                     look_up(library, "cuPointerSetAttribute", &table.pointer_set_attribute) &&
                     look_up(library, "cuMemGetAddressRange_v2", &table.mem_get_address_range) &&
                     look_up(library, "cuIpcGetMemHandle", &table.ipc_get_mem_handle) &&
                     look_up(library, "cuCtxPushCurrent_v2", &table.ctx_push_current) &&
                     look_up(library, "cuCtxPopCurrent_v2", &table.ctx_pop_current);
    if (!table.complete) {
        log_line(log_level::warn, "the CUDA driver lacks a function that is needed: %s",
                 ::dlerror());
    }
    return table;
}

// At the first device buffer, so that a program without any never loads the driver.
const driver_table &driver()
{
    static const driver_table table = load_driver();
    return table;
}

// The buffer's own context, current for as long as this lives: the thread may have another one, or
// none.
class context_of_buffer {
  public:
    explicit context_of_buffer(CUdeviceptr address) noexcept
    {
        CUcontext context = nullptr;
        pushed_ = driver().pointer_get_attribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address) ==
                      CUDA_SUCCESS &&
                  context != nullptr && driver().ctx_push_current(context) == CUDA_SUCCESS;
    }

    ~context_of_buffer()
    {
        if (pushed_) {
            CUcontext popped = nullptr;
            (void)driver().ctx_pop_current(&popped);
        }
    }

    context_of_buffer(const context_of_buffer &) = delete;
    context_of_buffer &operator=(const context_of_buffer &) = delete;

  private:
    bool pushed_;
};

// Says why a buffer has no handle. Host memory, and device memory that legacy handles cannot name,
// are everyday answers.
int refuse(const char *call, CUresult result, CUdeviceptr address)
{
    log_line(log_level::info, "%s answered %d for %#llx: not registered", call,
             static_cast<int>(result), static_cast<unsigned long long>(address));
    return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED
               ? OPAL_ERR_NOT_SUPPORTED
               : OPAL_ERROR;
}

// All that a registration says about the allocation that it lies in.
struct described {
    allocation memory;
    CUipcMemHandle handle;
};

// Asks the driver. Also switches the allocation to synchronous copies: a peer may read as soon as
// the message is there, so cuMemcpy into the buffer has to be over when it returns.
int describe(CUdeviceptr address, std::uint64_t buffer_id, described *out) noexcept
{
    const driver_table &cuda = driver();
    const context_of_buffer scope(address);
    CUmemorytype type{};
    CUresult result = cuda.pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    if (result != CUDA_SUCCESS || type != CU_MEMORYTYPE_DEVICE) {
        return refuse("cuPointerGetAttribute(MEMORY_TYPE)",
                      result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result, address);
    }
    CUdeviceptr base = 0;
    std::size_t len_bytes = 0;
    result = cuda.mem_get_address_range(&base, &len_bytes, address);
    if (result != CUDA_SUCCESS) {
        return refuse("cuMemGetAddressRange", result, address);
    }
    result = cuda.ipc_get_mem_handle(&out->handle, base);
    if (result != CUDA_SUCCESS) {
        return refuse("cuIpcGetMemHandle", result, address);
    }
    unsigned int on = 1;
    result = cuda.pointer_set_attribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, base);
    if (result != CUDA_SUCCESS) {
        return refuse("cuPointerSetAttribute(SYNC_MEMOPS)", result, address);
    }
    out->memory = {base, len_bytes, buffer_id};
    log_line(log_level::debug, "new handle for %#llx, %llu bytes, buffer id %llu",
             static_cast<unsigned long long>(base), static_cast<unsigned long long>(len_bytes),
             static_cast<unsigned long long>(buffer_id));
    return OPAL_SUCCESS;
}

status keep_handle(void *context, const exported &entry, const void *argument)
{
    auto &module = *static_cast<rcache_module *>(context);
    try {
        if (entry.slot >= module.handles.size()) {
            module.handles.resize(entry.slot + 1U);
        }
    } catch (const std::bad_alloc &) {
        return status::no_memory;
    }
    module.handles[entry.slot] = *static_cast<const CUipcMemHandle *>(argument);
    return status::ok;
}

// No peer reads the handles from here, so there is nobody to tell.
void forget_handle(void *, const exported &)
{
}

class module_lock {
  public:
    explicit module_lock(rcache_module &module) noexcept : module_(module)
    {
        OPAL_THREAD_LOCK(&module_.lock);
    }
    ~module_lock() { OPAL_THREAD_UNLOCK(&module_.lock); }
    module_lock(const module_lock &) = delete;
    module_lock &operator=(const module_lock &) = delete;

  private:
    rcache_module &module_;
};

// The kept export that covers the range, if it is still that allocation, with a reference; what is
// not is retired. Lock held.
exported *find_kept(rcache_module &module, CUdeviceptr address, std::uint64_t len_bytes,
                    std::uint64_t buffer_id) noexcept
{
    exported *entry = module.exports.find(address, len_bytes);
    if (entry == nullptr) {
        return nullptr;
    }
    if (entry->memory.buffer_id != buffer_id) {
        module.exports.retire(entry);
        return nullptr;
    }
    module.exports.add_reference(entry);
    return entry;
}

// Writes *out, and *entry if the handle is kept. The validity of a kept handle costs one driver
// call, a new one four more and a change of context.
int export_range(rcache_module &module, CUdeviceptr address, std::uint64_t len_bytes, bool keep,
                 described *out, exported **entry) noexcept
{
    if (!driver().complete) {
        return OPAL_ERR_NOT_AVAILABLE;
    }
    unsigned long long buffer_id = 0;
    const CUresult result =
        driver().pointer_get_attribute(&buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
    if (result != CUDA_SUCCESS) {
        return refuse("cuPointerGetAttribute(BUFFER_ID)", result, address);
    }
    const auto take_kept = [&] {
        const module_lock guard(module);
        exported *kept = find_kept(module, address, len_bytes, buffer_id);
        if (kept != nullptr) {
            *out = {kept->memory, module.handles[kept->slot]};
            *entry = kept;
        }
        return kept != nullptr;
    };
    if (keep && take_kept()) {
        return OPAL_SUCCESS;
    }
    if (const int answer = describe(address, buffer_id, out); answer != OPAL_SUCCESS) {
        return answer;
    }
    const std::uint64_t offset = address - out->memory.base;
    if (offset > out->memory.len_bytes || len_bytes > out->memory.len_bytes - offset) {
        log_line(log_level::info, "%#llx, %llu bytes, does not lie in one allocation",
                 static_cast<unsigned long long>(address),
                 static_cast<unsigned long long>(len_bytes));
        return OPAL_ERR_NOT_SUPPORTED;
    }
    if (!keep || take_kept()) { // another thread may have been faster
        return OPAL_SUCCESS;
    }
    const module_lock guard(module);
    exported *added = nullptr;
    if (module.exports.insert(out->memory, &out->handle, &added) == status::ok) {
        module.exports.add_reference(added);
        *entry = added;
    }
    return OPAL_SUCCESS; // a full table keeps nothing; the registration is as good
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
    described found{};
    exported *entry = nullptr;
    const bool keep = (flags & MCA_RCACHE_FLAGS_CACHE_BYPASS) == 0;
    if (const int answer = export_range(module, reinterpret_cast<CUdeviceptr>(address), len_bytes,
                                        keep, &found, &entry);
        answer != OPAL_SUCCESS) {
        opal_free_list_return(&module.registrations, item);
        return answer;
    }
    auto *registration = reinterpret_cast<mca_opal_cuda_reg_t *>(item);
    auto *base = reinterpret_cast<unsigned char *>(found.memory.base);
    registration->base.rcache = base_module;
    registration->base.base = base;
    registration->base.bound = base + found.memory.len_bytes - 1;
    registration->base.alloc_base = base;
    registration->base.ref_count = 1;
    registration->base.flags = flags;
    registration->base.rcache_context = entry;
    registration->base.gpu_bufID = found.memory.buffer_id;
    registration->base.access_flags = access_flags;
    std::memset(&registration->data, 0, sizeof(registration->data));
    std::memcpy(registration->data.memHandle, &found.handle, sizeof(found.handle));
    registration->data.memh_seg_addr.pval = base;
    registration->data.memh_seg_len = found.memory.len_bytes;
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
        const module_lock guard(module);
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

rcache_module::rcache_module(int max_exports) noexcept
    : mca_rcache_base_module_t{},
      exports({this, keep_handle, forget_handle}, static_cast<std::uint32_t>(max_exports))
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

mca_rcache_base_module_t *create_rcache_module(const rcache_parameters &parameters) noexcept
{
    constexpr int registrations_per_growth = 64;
    auto *module = new (std::nothrow) rcache_module(parameters.max_exports);
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
