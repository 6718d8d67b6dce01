// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// devices.cc: the driver, its devices, and what lies between them.
#include "tools/gpusm_info/devices.h"

#include "opal/mca/common/gpusm/gpu/driver.h"
#include "tools/gpusm_info/text.h"

#include <dlfcn.h>

#include <algorithm>

namespace gpusm::info {

namespace {

// CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which headers before CUDA 12 lack.
constexpr auto mps_attribute = static_cast<CUdevice_attribute>(133);

std::string uuid_text(const CUuuid &uuid, const char *prefix)
{
    std::string text = prefix;
    for (int i = 0; i < 16; ++i) {
        text += format(4 == i || 6 == i || 8 == i || 10 == i ? "-%02x" : "%02x",
                       static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
    }
    return text;
}

std::string mode_text(int mode)
{
    switch (mode) {
    case CU_COMPUTEMODE_DEFAULT:
        return "default";
    case CU_COMPUTEMODE_PROHIBITED:
        return "prohibited";
    case CU_COMPUTEMODE_EXCLUSIVE_PROCESS:
        return "exclusive process";
    default:
        return format("%d", mode);
    }
}

// The kernel's name of a device: in lower case.
std::string sysfs_of(const std::string &pci)
{
    std::string name = pci;
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char each) { return static_cast<char>(std::tolower(each)); });
    return "/sys/bus/pci/devices/" + name;
}

class device_reader {
  public:
    device_reader(const driver_table &driver, CUdevice device) : driver_(driver), device_(device) {}

    std::optional<int> attribute(CUdevice_attribute what) const
    {
        int value = 0;
        return driver_.device_get_attribute != nullptr &&
                       CUDA_SUCCESS == driver_.device_get_attribute(&value, what, device_)
                   ? std::optional<int>(value)
                   : std::nullopt;
    }
    std::string name() const
    {
        char text[128] = "";
        return driver_.device_get_name != nullptr &&
                       CUDA_SUCCESS == driver_.device_get_name(text, sizeof(text) - 1, device_)
                   ? text
                   : "";
    }
    std::string pci() const
    {
        char text[32] = "";
        return driver_.device_get_pci_bus_id != nullptr &&
                       CUDA_SUCCESS ==
                           driver_.device_get_pci_bus_id(text, sizeof(text) - 1, device_)
                   ? text
                   : "";
    }
    void put_uuids(record *out) const
    {
        CUuuid gpu{};
        CUuuid own{};
        const bool has_gpu = driver_.device_get_gpu_uuid != nullptr &&
                             CUDA_SUCCESS == driver_.device_get_gpu_uuid(&gpu, device_);
        const bool has_own = driver_.device_get_instance_uuid != nullptr &&
                             CUDA_SUCCESS == driver_.device_get_instance_uuid(&own, device_);
        const bool instance =
            has_gpu && has_own && !std::equal(gpu.bytes, gpu.bytes + 16, own.bytes);
        if (has_gpu) {
            out->set("gpu_uuid", uuid_text(gpu, "GPU-"));
        }
        if (has_gpu || has_own) {
            out->set("uuid", uuid_text(has_own ? own : gpu, instance ? "MIG-" : "GPU-"));
        }
    }

  private:
    const driver_table &driver_;
    const CUdevice device_;
};

template <typename Value>
void set_if(record *out, const char *key, const std::optional<Value> &value)
{
    if (value) {
        out->set(key, static_cast<std::int64_t>(*value));
    }
}

void put_device(const driver_table &driver, const nvml &management, CUdevice device)
{
    const device_reader reader(driver, device);
    const std::string pci = reader.pci();
    record out("device");
    out.set("ordinal", device).set("name", reader.name()).set("pci", pci);
    reader.put_uuids(&out);
    std::size_t memory_bytes = 0;
    if (driver.device_total_mem != nullptr &&
        CUDA_SUCCESS == driver.device_total_mem(&memory_bytes, device)) {
        out.set("memory_bytes", static_cast<std::int64_t>(memory_bytes));
    }
    const auto major = reader.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    const auto minor = reader.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    if (major && minor) {
        out.set("compute_capability", format("%d.%d", *major, *minor));
    }
    if (const auto mode = reader.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE); mode) {
        out.set("compute_mode", mode_text(*mode));
    }
    set_if(&out, "mps", reader.attribute(mps_attribute));
    set_if(&out, "mig", management.is_mig(pci));
    set_if(&out, "nvlinks", management.links_up(pci));
    // -1 says that the machine has one node.
    const auto node = number_in(sysfs_of(pci) + "/numa_node");
    set_if(&out, "numa_node", node && *node >= 0 ? node : std::nullopt);
    put(out);
}

void put_link(const driver_table &driver, const nvml &management, CUdevice from, CUdevice to)
{
    record out("link");
    out.set("from", from).set("to", to);
    int value = 0;
    const auto ask = [&](CUdevice_P2PAttribute what) {
        return driver.device_get_p2p_attribute != nullptr &&
               CUDA_SUCCESS == driver.device_get_p2p_attribute(&value, what, from, to);
    };
    if (ask(CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED) ||
        (driver.device_can_access_peer != nullptr &&
         CUDA_SUCCESS == driver.device_can_access_peer(&value, from, to))) {
        out.set("access", value != 0 ? 1 : 0);
    }
    if (ask(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)) {
        out.set("atomics", value != 0 ? 1 : 0);
    }
    if (ask(CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)) {
        out.set("performance_rank", value);
    }
    const std::string from_pci = device_reader(driver, from).pci();
    const std::string to_pci = device_reader(driver, to).pci();
    set_if(&out, "nvlink", management.has_nvlink(from_pci, to_pci));
    put(out.set("path", management.path_between(from_pci, to_pci)));
}

// What gpusm itself would do with that library.
void put_driver(void *library, const driver_table &driver, const nvml &management)
{
    record out("driver");
    out.set("loaded", 1).set("nvml", management.loaded() ? 1 : 0);
    gpusm::driver_api api;
    const char *missing = gpusm::driver_fill(&api, library, dlsym);
    out.set("missing", missing != nullptr ? missing : "");
    out.set("context_flags", api.ctx_set_flags != nullptr ? 1 : 0);
    // By their names: a build with older headers has no use for them.
    out.set("batch_copies", dlsym(library, "cuMemcpyBatchAsync_v2") != nullptr ||
                                    dlsym(library, "cuMemcpyBatchAsync") != nullptr
                                ? 1
                                : 0);
    int version = 0;
    if (driver.driver_get_version != nullptr &&
        CUDA_SUCCESS == driver.driver_get_version(&version)) {
        out.set("cuda_version", version);
    }
    put(out.set("release", management.driver_release()));
}

} // namespace

int look_at_devices(driver_table *driver)
{
    std::string why;
    put(record("begin").set("what", "loading libcuda.so.1"));
    void *library = open_driver(driver, &why);
    if (nullptr == library) {
        put(record("driver").set("problem", why));
        return 0;
    }
    put(record("begin").set("what", "starting NVML"));
    const nvml management;
    put_driver(library, *driver, management);
    put(record("begin").set("what", "cuInit"));
    calls work(*driver);
    int count = 0;
    work.make("cuInit", driver->init, 0u);
    work.make("cuDeviceGetCount", driver->device_get_count, &count);
    if (!work.good()) {
        put(record("driver_failed").set("call", work.failed()).set("error", work.error()));
        return 0;
    }
    put(record("begin").set("what", "describing devices"));
    for (CUdevice each = 0; each < count; ++each) {
        put_device(*driver, management, each);
    }
    for (CUdevice from = 0; from < count; ++from) {
        for (CUdevice to = 0; to < count; ++to) {
            if (from != to) {
                put_link(*driver, management, from, to);
            }
        }
    }
    return count;
}

} // namespace gpusm::info
