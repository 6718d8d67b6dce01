// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "tools/gpusm_info/shared_memory.h"

#include "tools/gpusm_info/text.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace gpusm::info {

namespace {

constexpr CUmemAllocationHandleType by_descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

void *as_pointer(int fd)
{
    return reinterpret_cast<void *>(static_cast<std::intptr_t>(fd));
}

CUmemLocation location_of(int device)
{
    CUmemLocation where{};
    where.type = CU_MEM_LOCATION_TYPE_DEVICE;
    where.id = device;
    return where;
}

CUmemAccessDesc access_by(int device)
{
    CUmemAccessDesc access{};
    access.location = location_of(device);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return access;
}

template <typename Handle> void give(share_request *out, const Handle &handle)
{
    static_assert(sizeof(Handle) == sizeof(out->handle));
    std::memcpy(out->handle, &handle, sizeof(handle));
}

template <typename Handle> Handle take(const share_request &request)
{
    Handle handle{};
    static_assert(sizeof(Handle) == sizeof(request.handle));
    std::memcpy(&handle, request.handle, sizeof(handle));
    return handle;
}

} // namespace

cleanup::~cleanup()
{
    for (; !all_.empty(); all_.pop_back()) {
        all_.back()();
    }
}

// --- in the owner
// -----------------------------------------------------------------------------------

bool shared_memory::make(calls *work, share_request *out, int *fd)
{
    out->kind = kind_;
    out->owner_device = device_;
    out->len_bytes = share_bytes;
    enter_context(work, device_);
    switch (kind_) {
    case share_kind::device:
    case share_kind::managed:
        make_device(work, out);
        break;
    case share_kind::vmm:
        make_vmm(work, out);
        break;
    case share_kind::pool:
        make_pool(work, out);
        break;
    case share_kind::page_locked:
        make_page_locked(work, out);
        break;
    case share_kind::host:
        break;
    }
    *fd = fd_.get();
    return work->good();
}

bool shared_memory::make_device(calls *work, share_request *out)
{
    const bool made = share_kind::managed == kind_
                          ? work->make("cuMemAllocManaged", driver_.mem_alloc_managed, &address_,
                                       share_bytes, unsigned{CU_MEM_ATTACH_GLOBAL})
                          : work->make("cuMemAlloc", driver_.mem_alloc, &address_, share_bytes);
    if (made) {
        cleanup_.add([this] { (void)driver_.mem_free(address_); });
    }
    CUipcMemHandle handle{};
    if (work->make("cuIpcGetMemHandle", driver_.ipc_get_mem_handle, &handle, address_)) {
        give(out, handle);
    }
    return work->good();
}

bool shared_memory::map_vmm(calls *work, CUmemGenericAllocationHandle handle, std::size_t len_bytes)
{
    if (work->make("cuMemAddressReserve", driver_.mem_address_reserve, &address_, len_bytes,
                   std::size_t{0}, CUdeviceptr{0}, 0ull)) {
        cleanup_.add([=, this] { (void)driver_.mem_address_free(address_, len_bytes); });
    }
    if (work->make("cuMemMap", driver_.mem_map, address_, len_bytes, std::size_t{0}, handle,
                   0ull)) {
        cleanup_.add([=, this] { (void)driver_.mem_unmap(address_, len_bytes); });
    }
    const CUmemAccessDesc access = access_by(device_);
    return work->make("cuMemSetAccess", driver_.mem_set_access, address_, len_bytes, &access,
                      std::size_t{1});
}

bool shared_memory::make_vmm(calls *work, share_request *out)
{
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = by_descriptor;
    properties.location = location_of(device_);
    std::size_t granularity = 0;
    CUmemGenericAllocationHandle handle = 0;
    if (!work->make("cuMemGetAllocationGranularity", driver_.mem_get_granularity, &granularity,
                    &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM)) {
        return false;
    }
    const std::size_t len_bytes = (share_bytes + granularity - 1) / granularity * granularity;
    out->len_bytes = len_bytes;
    if (work->make("cuMemCreate", driver_.mem_create, &handle, len_bytes, &properties, 0ull)) {
        cleanup_.add([=, this] { (void)driver_.mem_release(handle); });
        map_vmm(work, handle, len_bytes);
    }
    int fd = -1;
    if (work->make("cuMemExportToShareableHandle", driver_.mem_export, &fd, handle, by_descriptor,
                   0ull)) {
        fd_.reset(fd);
    }
    return work->good();
}

bool shared_memory::make_pool(calls *work, share_request *out)
{
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = by_descriptor;
    properties.location = location_of(device_);
    CUmemoryPool pool = nullptr;
    if (work->make("cuMemPoolCreate", driver_.pool_create, &pool, &properties)) {
        cleanup_.add([=, this] { (void)driver_.pool_destroy(pool); });
    }
    if (work->make("cuMemAllocFromPoolAsync", driver_.pool_alloc, &address_, share_bytes, pool,
                   CUstream{nullptr})) {
        cleanup_.add([this] {
            (void)driver_.pool_free(address_, nullptr);
            (void)driver_.ctx_synchronize();
        });
    }
    work->make("cuCtxSynchronize", driver_.ctx_synchronize);
    int fd = -1;
    if (work->make("cuMemPoolExportToShareableHandle", driver_.pool_export, &fd, pool,
                   by_descriptor, 0ull)) {
        fd_.reset(fd);
    }
    CUmemPoolPtrExportData data{};
    if (work->make("cuMemPoolExportPointer", driver_.pool_export_pointer, &data, address_)) {
        give(out, data);
    }
    return work->good();
}

bool shared_memory::make_page_locked(calls *work, share_request *out)
{
    fd_.reset(memfd_create("gpusm_info", MFD_CLOEXEC));
    if (fd_.get() < 0 || 0 != ftruncate(fd_.get(), static_cast<off_t>(out->len_bytes))) {
        work->fail("memfd_create", std::strerror(errno));
    }
    return register_pages(work, out->len_bytes);
}

// --- in the peer
// ------------------------------------------------------------------------------------

bool shared_memory::open(calls *work, const share_request &request, descriptor fd)
{
    fd_ = std::move(fd);
    enter_context(work, device_);
    switch (kind_) {
    case share_kind::device:
    case share_kind::managed:
        open_device(work, request);
        break;
    case share_kind::vmm:
        open_vmm(work, request);
        break;
    case share_kind::pool:
        open_pool(work, request);
        break;
    case share_kind::page_locked:
        return register_pages(work, request.len_bytes);
    case share_kind::host:
        break;
    }
    return make_scratch(work);
}

bool shared_memory::open_device(calls *work, const share_request &request)
{
    if (work->make("cuIpcOpenMemHandle", driver_.ipc_open_mem_handle, &address_,
                   take<CUipcMemHandle>(request), unsigned{CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS})) {
        cleanup_.add([this] { (void)driver_.ipc_close_mem_handle(address_); });
    }
    return work->good();
}

bool shared_memory::open_vmm(calls *work, const share_request &request)
{
    CUmemGenericAllocationHandle handle = 0;
    if (work->make("cuMemImportFromShareableHandle", driver_.mem_import, &handle,
                   as_pointer(fd_.get()), by_descriptor)) {
        cleanup_.add([=, this] { (void)driver_.mem_release(handle); });
        map_vmm(work, handle, request.len_bytes);
    }
    return work->good();
}

bool shared_memory::open_pool(calls *work, const share_request &request)
{
    CUmemoryPool pool = nullptr;
    if (work->make("cuMemPoolImportFromShareableHandle", driver_.pool_import, &pool,
                   as_pointer(fd_.get()), by_descriptor, 0ull)) {
        cleanup_.add([=, this] { (void)driver_.pool_destroy(pool); });
    }
    const CUmemAccessDesc access = access_by(device_);
    if (device_ != request.owner_device) { // where it lies it is reached anyway
        work->make("cuMemPoolSetAccess", driver_.pool_set_access, pool, &access, std::size_t{1});
    }
    auto data = take<CUmemPoolPtrExportData>(request);
    if (work->make("cuMemPoolImportPointer", driver_.pool_import_pointer, &address_, pool, &data)) {
        cleanup_.add([this] { (void)driver_.mem_free(address_); });
    }
    return work->good();
}

// --- in both
// ----------------------------------------------------------------------------------------

bool shared_memory::register_pages(calls *work, std::size_t len_bytes)
{
    if (!work->good()) {
        return false;
    }
    pages_ = mmap(nullptr, len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    if (MAP_FAILED == pages_) {
        work->fail("mmap", std::strerror(errno));
        return false;
    }
    cleanup_.add([=, this] { (void)munmap(pages_, len_bytes); });
    if (work->make("cuMemHostRegister", driver_.mem_host_register, pages_, len_bytes,
                   unsigned{CU_MEMHOSTREGISTER_PORTABLE})) {
        cleanup_.add([this] { (void)driver_.mem_host_unregister(pages_); });
    }
    return make_scratch(work);
}

bool shared_memory::make_scratch(calls *work)
{
    if (work->make("cuMemAlloc", driver_.mem_alloc, &scratch_, pattern_bytes)) {
        cleanup_.add([this] { (void)driver_.mem_free(scratch_); });
    }
    return work->good();
}

bool shared_memory::write(calls *work, std::uint32_t seed)
{
    std::vector<std::uint32_t> pattern;
    write_pattern(&pattern, seed);
    if (0 == scratch_) {
        return to_device(work, address_, pattern.data(), pattern_bytes);
    }
    to_device(work, scratch_, pattern.data(), pattern_bytes);
    return pages_ != nullptr ? from_device(work, pages_, scratch_, pattern_bytes)
                             : between(work, address_, scratch_, pattern_bytes);
}

bool shared_memory::check(calls *work, std::uint32_t seed)
{
    std::vector<std::uint32_t> got(pattern_bytes / sizeof(std::uint32_t));
    if (0 == scratch_) {
        from_device(work, got.data(), address_, pattern_bytes);
    } else {
        if (pages_ != nullptr) {
            to_device(work, scratch_, pages_, pattern_bytes);
        } else {
            between(work, scratch_, address_, pattern_bytes);
        }
        from_device(work, got.data(), scratch_, pattern_bytes);
    }
    if (const std::size_t wrong = work->good() ? count_wrong(got, seed) : 0; wrong > 0) {
        work->fail(reading_failed, format("%zu of %zu words are wrong", wrong, got.size()));
    }
    return work->good();
}

} // namespace gpusm::info
