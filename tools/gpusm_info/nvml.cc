// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// nvml.cc: the few functions of libnvidia-ml.so.1 that are used, declared here because CUDA's
// headers are there without its own.
#include "tools/gpusm_info/devices.h"

#include <dlfcn.h>

namespace gpusm::info {

struct nvml::functions {
    using answer = int; // 0 is success
    answer (*init)() = nullptr;
    answer (*shutdown)() = nullptr;
    answer (*driver_version)(char *out, unsigned len) = nullptr;
    answer (*by_pci)(const char *address, void **device) = nullptr;
    answer (*mig_mode)(void *device, unsigned *now, unsigned *pending) = nullptr;
    answer (*link_state)(void *device, unsigned link, int *active) = nullptr;
    answer (*p2p_status)(void *from, void *to, int what, int *status) = nullptr;
    answer (*common_ancestor)(void *one, void *other, int *level) = nullptr;
};

nvml::nvml() : functions_(std::make_unique<functions>())
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (nullptr == library) {
        return;
    }
    const auto load = [library](auto *member, const char *symbol) {
        *member = reinterpret_cast<std::remove_pointer_t<decltype(member)>>(dlsym(library, symbol));
    };
    load(&functions_->init, "nvmlInit_v2");
    load(&functions_->shutdown, "nvmlShutdown");
    load(&functions_->driver_version, "nvmlSystemGetDriverVersion");
    load(&functions_->by_pci, "nvmlDeviceGetHandleByPciBusId_v2");
    load(&functions_->mig_mode, "nvmlDeviceGetMigMode");
    load(&functions_->link_state, "nvmlDeviceGetNvLinkState");
    load(&functions_->p2p_status, "nvmlDeviceGetP2PStatus");
    load(&functions_->common_ancestor, "nvmlDeviceGetTopologyCommonAncestor");
    started_ =
        functions_->init != nullptr && functions_->by_pci != nullptr && 0 == functions_->init();
}

nvml::~nvml()
{
    if (started_ && functions_->shutdown != nullptr) {
        (void)functions_->shutdown();
    }
}

void *nvml::find(const std::string &pci) const
{
    void *device = nullptr;
    return started_ && 0 == functions_->by_pci(pci.c_str(), &device) ? device : nullptr;
}

std::string nvml::driver_release() const
{
    char text[96] = "";
    return started_ && functions_->driver_version != nullptr &&
                   0 == functions_->driver_version(text, sizeof(text) - 1)
               ? text
               : "";
}

std::optional<bool> nvml::is_mig(const std::string &pci) const
{
    void *device = find(pci);
    unsigned now = 0;
    unsigned pending = 0;
    if (nullptr == device || nullptr == functions_->mig_mode ||
        0 != functions_->mig_mode(device, &now, &pending)) {
        return std::nullopt; // of a GPU that has no such mode, too
    }
    return 0 != now;
}

std::optional<int> nvml::links_up(const std::string &pci) const
{
    constexpr unsigned most_links = 18; // of an H100 and its successors
    void *device = find(pci);
    if (nullptr == device || nullptr == functions_->link_state) {
        return std::nullopt;
    }
    int up = 0;
    for (unsigned link = 0; link < most_links; ++link) {
        int active = 0;
        up += 0 == functions_->link_state(device, link, &active) && 1 == active ? 1 : 0;
    }
    return up;
}

std::optional<bool> nvml::has_nvlink(const std::string &from, const std::string &to) const
{
    constexpr int by_nvlink = 2; // NVML_P2P_CAPS_INDEX_NVLINK; the status 0 is "ok"
    void *one = find(from);
    void *other = find(to);
    int status = 0;
    if (nullptr == one || nullptr == other || nullptr == functions_->p2p_status ||
        0 != functions_->p2p_status(one, other, by_nvlink, &status)) {
        return std::nullopt;
    }
    return 0 == status;
}

std::string nvml::path_between(const std::string &from, const std::string &to) const
{
    void *one = find(from);
    void *other = find(to);
    int level = 0;
    if (nullptr == one || nullptr == other || nullptr == functions_->common_ancestor ||
        0 != functions_->common_ancestor(one, other, &level)) {
        return {};
    }
    switch (level) { // NVML_TOPOLOGY_...
    case 0:
        return "one board";
    case 10:
        return "one PCIe switch";
    case 20:
        return "several PCIe switches";
    case 30:
        return "a PCIe host bridge";
    case 40:
        return "one NUMA node";
    case 50:
        return "between NUMA nodes";
    default:
        return {};
    }
}

} // namespace gpusm::info
