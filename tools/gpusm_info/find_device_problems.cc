// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// find_device_problems.cc: findings about the CUDA driver, devices and what they share.
#include "tools/gpusm_info/find_problems.h"

#include "tools/gpusm_info/text.h"

#include <algorithm>
#include <cstdlib>
#include <map>

namespace gpusm::info {

namespace {

// Of errors of cuInit, by the driver's manual.
std::string to_do_after(const std::string &error)
{
    static const std::map<std::string, std::string> known = {
        {"CUDA_ERROR_OPERATING_SYSTEM",
         "In a PID namespace mount a /proc of its own; in a container look whether the device "
         "files were passed on (--gpus all)."},
        {"CUDA_ERROR_SYSTEM_NOT_READY", "Start the fabric manager (systemctl start "
                                        "nvidia-fabricmanager), or wait until it is up."},
        {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
         "libcuda.so.1 and the kernel module are of different releases: restart the machine, or "
         "mount the host's library into the container."},
        {"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
         "Take CUDA's compatibility library out of LD_LIBRARY_PATH: this GPU does not support it."},
        {"CUDA_ERROR_MPS_CONNECTION_FAILED", "Stop MPS (echo quit | nvidia-cuda-mps-control) and "
                                             "start it again, or unset CUDA_MPS_PIPE_DIRECTORY."},
    };
    const auto found = known.find(error);
    return found != known.end()
               ? found->second
               : "Look into the kernel's log (dmesg | grep -i nvrm), and whether nvidia-smi works.";
}

bool is_software(const facts &all)
{
    return std::any_of(all.devices.begin(), all.devices.end(), [](const device_facts &each) {
        return std::string::npos != each.name.find("software");
    });
}

bool has_gpu(const facts &all)
{
    return all.driver.device_files.value_or(0) > 0 || !all.driver.kernel_module.empty();
}

bool has_mps(const facts &all)
{
    const bool known = std::any_of(all.devices.begin(), all.devices.end(),
                                   [](const device_facts &each) { return each.mps.has_value(); });
    return known ? std::any_of(all.devices.begin(), all.devices.end(),
                               [](const device_facts &each) { return each.mps.value_or(false); })
                 : all.driver.mps_control;
}

std::string visible_text()
{
    const char *name = "CUDA_VISIBLE_DEVICES";
    return nullptr == std::getenv(name)
               ? std::string(name) + " is not set"
               : std::string(name) + " is '" + environment_value(name) + "'";
}

void find_sharing_of_devices(facts *out)
{
    const auto visible = static_cast<std::int64_t>(out->devices.size());
    const std::int64_t ranks = out->job.local_size.value_or(1);
    const std::string cost = "without MPS a device takes some 150 us to change between processes, "
                             "so kernels of ranks that share one take up to three times as long";
    if (has_mps(*out)) {
        return;
    }
    if (ranks > visible) {
        add(out, severity::warning, "ranks-share-devices",
            std::to_string(ranks) + " ranks on this node, " + std::to_string(visible) +
                " visible devices and no MPS (" + visible_text() +
                "): ranks share a device, unless each one sees others; " + cost,
            "Start MPS before the job: nvidia-cuda-mps-control -d.");
    } else {
        add(out, severity::note, "no-mps",
            out->driver.mps_control ? "This process is not served by MPS, though " +
                                          out->driver.mps_folder + " has its control file"
                                    : "MPS does not run",
            "If ranks share a device start it (nvidia-cuda-mps-control -d): " + cost + ".");
    }
}

// "Device 0, 2" of those in that mode; empty: there is none.
std::string devices_in(const facts &all, const char *mode)
{
    std::vector<std::string> ordinals;
    for (const device_facts &each : all.devices) {
        if (each.compute_mode == mode) {
            ordinals.push_back(std::to_string(each.ordinal));
        }
    }
    return ordinals.empty()
               ? ""
               : "In compute mode " + std::string(mode) + " is device " + join(ordinals, ", ");
}

void find_modes(facts *out)
{
    const std::string exclusive = devices_in(*out, "exclusive process");
    if (!exclusive.empty() && !has_mps(*out)) {
        add(out, severity::warning, "compute-mode-exclusive",
            exclusive + ": one process at a time has it",
            "One rank for each device, or MPS, or the default mode: nvidia-smi -c DEFAULT.");
    }
    const std::string prohibited = devices_in(*out, "prohibited");
    if (!prohibited.empty()) {
        add(out, severity::error, "compute-mode-prohibited", prohibited + ": no process may use it",
            "nvidia-smi -c DEFAULT, or leave the device out by CUDA_VISIBLE_DEVICES.");
    }
    const auto instance = std::find_if(out->devices.begin(), out->devices.end(),
                                       [](const device_facts &each) { return each.is_instance(); });
    if (instance != out->devices.end()) {
        add(out, severity::warning, "mig",
            "Device " + std::to_string(instance->ordinal) + ", " + instance->uuid +
                ", is an instance of a GPU (MIG). A process cannot map memory of another instance",
            "Messages between instances go through host memory. Switch MIG off for jobs that "
            "exchange much: nvidia-smi -mig 0.");
    }
}

// What to do about memory that could not be opened.
std::string to_do_about(const std::string &kind, const share_facts &one)
{
    if ("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" == one.error ||
        "CUDA_ERROR_INVALID_DEVICE" == one.error) {
        return "These devices do not reach each other: messages go through host memory. See "
               "nvidia-smi topo -p2p r; on machines with an IOMMU, whether it is off or passes "
               "through.";
    }
    if ("CUDA_ERROR_DEVICE_UNAVAILABLE" == one.error) {
        return "Another process has the device: see its compute mode (nvidia-smi -q -d COMPUTE).";
    }
    if ("not offered" == one.result || "CUDA_ERROR_NOT_SUPPORTED" == one.error) {
        return "Nothing, where programs have no such memory; else a newer driver, or another "
               "device.";
    }
    if ("CUDA_ERROR_OUT_OF_MEMORY" == one.error) {
        return "Run it again when the device has memory left (nvidia-smi).";
    }
    if ("page_locked" == kind) {
        return "Copies between the device and shared memory take a processor; see the limit of "
               "locked memory, and whether the container may use it.";
    }
    return "Messages out of such memory go through host memory. Virtual machines and containers "
           "may not offer it; the kernel's log may say why (dmesg).";
}

} // namespace

void find_driver_problems(facts *out)
{
    const driver_facts &driver = out->driver;
    const bool asked = driver.loaded || !driver.problem.empty();
    if (!driver.loaded && asked) {
        add(out, has_gpu(*out) ? severity::error : severity::note, "no-driver",
            "There is no CUDA driver: " + driver.problem,
            has_gpu(*out)
                ? "There is a GPU: put the folder of libcuda.so.1 into LD_LIBRARY_PATH or "
                  "ld.so.conf; in containers, pass it on (--gpus all)."
                : "Without a GPU: nothing, host messages need none. Else install NVIDIA's driver.");
        return;
    }
    if (!driver.missing.empty()) {
        add(out, severity::error, "driver-too-old",
            "The driver has no " + driver.missing + ", so gpusm uses no device",
            "Install a driver for CUDA 11.8 or newer.");
    }
    if (!driver.failed_call.empty() && driver.failed_error != "CUDA_ERROR_NO_DEVICE") {
        add(out, severity::error, "driver-fails", "The driver does not start: " + driver.problem,
            to_do_after(driver.failed_error));
        return;
    }
    if (driver.loaded && out->devices.empty() && out->tries.problem.empty()) {
        add(out, has_gpu(*out) ? severity::error : severity::note, "no-device",
            "The driver has no device for this process (" + visible_text() + ")",
            has_gpu(*out) ? "Unset CUDA_VISIBLE_DEVICES or put it right; in containers pass "
                            "devices on (--gpus all)."
                          : "Without a GPU: nothing, host messages need none.");
    }
    if (driver.loaded && driver.missing.empty() && !driver.context_flags) {
        add(out, severity::note, "driver-before-12.1",
            "The driver has no cuCtxSetFlags (CUDA 12.1)",
            "Programs synchronize after short copies from pageable memory into VMM or pool memory, "
            "before they send that; or take a newer driver.");
    }
    if (driver.loaded && driver.missing.empty() && !driver.batch_copies) {
        add(out, severity::note, "driver-before-12.8",
            "The driver has no cuMemcpyBatchAsync (CUDA 12.8)",
            "Nothing: many copies at once go by a kernel or one by one. A newer driver has it.");
    }
}

void find_device_problems(facts *out)
{
    if (is_software(*out)) {
        add(out, severity::note, "software-driver",
            "libcuda.so.1 is the CUDA driver in software that belongs to gpusm's tests",
            "For a report about a GPU take its folder, tests/softcuda/lib, out of "
            "LD_LIBRARY_PATH.");
    }
    if (1 == out->devices.size()) {
        add(out, severity::note, "one-device", "One device is visible (" + visible_text() + ")",
            "For a report about messages between devices run it where all of them are visible.");
    }
    if (!out->devices.empty()) {
        find_sharing_of_devices(out);
    }
    find_modes(out);
}

void find_share_problems(facts *out)
{
    if (!out->tries.problem.empty()) {
        add(out, severity::error, "tries-ended",
            out->tries.problem +
                (out->tries.begun.empty() ? "" : "; begun was: " + out->tries.begun),
            "This may be what the report is about. --no-tries only lists the devices; --timeout "
            "waits longer; the kernel's log may say more (dmesg).");
    }
    // One finding for each kind and error, with all pairs that it is true of.
    std::vector<share_facts> ones;
    std::map<std::string, std::string> pairs;
    for (const share_facts &each : out->shares) {
        // Nobody maps managed memory of another process: that is no finding.
        if (each.good() || "managed" == each.kind) {
            continue;
        }
        std::string &list = pairs[each.kind + each.result + each.error];
        if (list.empty()) {
            ones.push_back(each);
        }
        list += " " + each.pair();
    }
    for (const share_facts &each : ones) {
        const bool wrong = "wrong bytes" == each.result;
        add(out, wrong ? severity::error : severity::warning,
            wrong ? "memory-wrong-bytes" : "memory-not-shared",
            each.kind + " memory of one process cannot be used by another one (" + each.call +
                ": " + each.error + "), " +
                pairs_text(*out, pairs[each.kind + each.result + each.error]),
            wrong ? "Do not trust this machine: run gpusm_perf check, and see the kernel's log."
                  : to_do_about(each.kind, each));
    }
}

} // namespace gpusm::info
