// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// devices.h: what the driver, NVML and the kernel say about devices, as records. In the owner.
#ifndef GPUSM_INFO_DEVICES_H
#define GPUSM_INFO_DEVICES_H

#include "tools/gpusm_info/driver.h"
#include "tools/gpusm_info/wire.h"

#include <memory>
#include <optional>

namespace gpusm::info {

// Writes a record where the one that prints reads it.
void put(const record &what);

// Loads the driver and describes it, its devices and their links. The number of devices; 0 where
// there are none or the driver fails, which a record says.
int look_at_devices(driver_table *driver);

// NVIDIA's management library, which asks about the machine and not about this process; opened if
// it is there.
class nvml {
  public:
    nvml();
    ~nvml();
    nvml(const nvml &) = delete;
    nvml &operator=(const nvml &) = delete;

    bool loaded() const { return started_; }
    std::string driver_release() const;
    // By the address that the driver gives: "0000:1B:00.0".
    std::optional<bool> is_mig(const std::string &pci) const;
    std::optional<int> links_up(const std::string &pci) const;
    std::optional<bool> has_nvlink(const std::string &from, const std::string &to) const;
    std::string path_between(const std::string &from, const std::string &to) const;

  private:
    struct functions;
    void *find(const std::string &pci) const; // its handle; null: it does not know it

    std::unique_ptr<functions> functions_;
    bool started_ = false;
};

} // namespace gpusm::info

#endif
