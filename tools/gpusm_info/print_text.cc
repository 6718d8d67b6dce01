// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// print_text.cc: facts as a page to read and to paste. Findings come last, where a terminal shows
// them.
#include "tools/gpusm_info/facts.h"
#include "tools/gpusm_info/text.h"

#include <cstdio>
#include <map>

namespace gpusm::info {

namespace {

constexpr int key_columns = 18;
constexpr std::size_t columns = 100;

void section(const char *name)
{
    std::printf("\n%s\n", name);
}

// Words of a long text go on in further lines, below its first word.
void print_wrapped(std::size_t indent, const std::string &text)
{
    std::size_t column = indent;
    for (const std::string &word : split(text, ' ')) {
        if (column > indent && column + 1 + word.size() > columns) {
            std::printf("\n%*s", static_cast<int>(indent), "");
            column = indent;
        }
        std::printf(column > indent ? " %s" : "%s", word.c_str());
        column += word.size() + (column > indent ? 1 : 0);
    }
    std::printf("\n");
}

// Control characters of a value must not reach the terminal.
std::string printable(std::string text)
{
    for (char &each : text) {
        each = static_cast<unsigned char>(each) < 0x20 || 0x7f == each ? '?' : each;
    }
    return text;
}

void line(const std::string &key, const std::string &value)
{
    std::printf("  %-*s", key_columns - 2, key.c_str());
    print_wrapped(key_columns, value.empty() ? "not known" : printable(value));
}

std::string yes_or_no(const std::optional<bool> &value)
{
    return value ? (*value ? "yes" : "no") : "not known";
}

std::string limit_text(const limit &each, bool bytes)
{
    const auto one = [bytes](const number &value) {
        return !value ? std::string("unlimited")
                      : (bytes ? bytes_text(*value) : std::to_string(*value));
    };
    return one(each.soft) + ", at most " + one(each.hard);
}

std::string count_text(const number &value)
{
    return value ? std::to_string(*value) : "not known";
}

std::string size_text(const number &bytes)
{
    return bytes ? bytes_text(*bytes) : "not known";
}

void print_versions(const facts &all)
{
    line("gpusm", std::string(gpusm_version) + ", built for Open MPI " + built_for_openmpi +
                      " with CUDA " + built_with_cuda());
    line("kernel", all.host.kernel);
    line("glibc", all.host.glibc);
    line("processors", std::to_string(all.host.processors) + ", " + all.host.cpu);
}

std::string components_of(const openmpi_facts &openmpi, const char *framework)
{
    std::vector<std::string> names;
    for (const component &each : openmpi.components) {
        if (each.framework == framework) {
            names.push_back(each.name);
        }
    }
    return names.empty() ? "none" : join(names, ", ");
}

void print_openmpi(const openmpi_facts &openmpi)
{
    section("Open MPI");
    line("ompi_info", openmpi.ompi_info.empty() ? "not found" : openmpi.ompi_info);
    if (!openmpi.problem.empty()) {
        line("problem", openmpi.problem);
    }
    if (openmpi.version.empty()) {
        return;
    }
    line("version", openmpi.version + ", " + openmpi.package);
    line("prefix", openmpi.prefix);
    line("with CUDA", yes_or_no(openmpi.cuda));
    for (const char *framework : {"accelerator", "btl", "coll", "osc", "pml", "rcache", "smsc"}) {
        line(framework, components_of(openmpi, framework));
    }
    std::vector<std::string> weights;
    for (const openmpi_facts::weighed &each : openmpi.exclusivities) {
        weights.push_back(each.name + " " + std::to_string(each.value));
    }
    line("exclusivity", join(weights, ", "));
    for (const setting &each : openmpi.settings) {
        if (!each.value.empty()) {
            line("setting", each.name + " = " + each.value +
                                (each.source.empty() ? "" : " (" + each.source + ")"));
        }
    }
    for (const std::string &each : openmpi.messages) {
        line("says", each);
    }
}

void print_driver(const driver_facts &driver)
{
    section("CUDA driver");
    line("driver", driver.loaded ? "CUDA " +
                                       (driver.cuda_version ? cuda_text(*driver.cuda_version)
                                                            : std::string("of unknown version")) +
                                       (driver.release.empty() ? "" : ", " + driver.release)
                                 : "none");
    if (!driver.problem.empty()) {
        line("problem", driver.problem);
    }
    line("kernel module", driver.kernel_module.empty() ? "none" : driver.kernel_module);
    if (driver.device_files) {
        line("device files", std::to_string(*driver.device_files));
    }
    line("NVML", driver.nvml ? "yes" : "no");
    line("MPS",
         driver.mps_folder + (driver.mps_control ? " has a control file" : " has no control file"));
}

void print_devices(const facts &all)
{
    for (const device_facts &each : all.devices) {
        std::string about = each.name + ", " + each.uuid;
        about += each.is_instance() ? " of " + each.gpu_uuid : "";
        about += ", PCI " + each.pci + ", " + size_text(each.memory_bytes);
        about += ", capability " + each.compute_capability + ", mode " + each.compute_mode;
        about += ", MPS " + yes_or_no(each.mps) + ", MIG " + yes_or_no(each.mig);
        about += each.nvlinks ? ", " + std::to_string(*each.nvlinks) + " NVLinks up" : "";
        about += each.numa_node ? ", NUMA node " + std::to_string(*each.numa_node) : "";
        line("device " + std::to_string(each.ordinal), about);
    }
    for (const link_facts &each : all.links) {
        std::string about = "access " + yes_or_no(each.access);
        about += ", atomics " + yes_or_no(each.atomics);
        about += each.performance_rank ? ", rank " + std::to_string(*each.performance_rank) : "";
        about += each.nvlink ? (*each.nvlink ? ", NVLink" : ", no NVLink") : "";
        about += each.path.empty() ? "" : ", " + each.path;
        line(std::to_string(each.from) + " -> " + std::to_string(each.to), about);
    }
}

void print_shares(const facts &all)
{
    section("Memory of one process, used by another one (tried)");
    if (!all.tries.wanted) {
        line("tried", "nothing: --no-tries");
        return;
    }
    const single_copy_facts &copies = all.single_copies;
    line("host", !copies.tried          ? std::string("not tried")
                 : copies.error.empty() ? "single copies work"
                 : copies.permitted_error.empty()
                     ? "single copies work when their owner permits them, as Open MPI does (" +
                           copies.error + ")"
                     : "single copies are refused (" + copies.permitted_error + ")");
    // Pairs of devices with the same result are one line.
    std::vector<std::string> order;
    std::map<std::string, std::string> pairs;
    for (const share_facts &each : all.shares) {
        std::string result = each.kind + "\t" + each.result;
        result += each.good() ? "" : ", " + each.call + ": " + each.error;
        if (pairs[result].empty()) {
            order.push_back(result);
        }
        pairs[result] += " " + each.pair();
    }
    for (const std::string &each : order) {
        const std::vector<std::string> parts = split(each, '\t');
        line(parts[0], parts[1] + ": " + pairs_text(all, pairs[each]));
    }
    if (!all.tries.all_devices) {
        line("devices", "only the first " + std::to_string(all.tries.devices) + " were tried");
    }
    if (!all.tries.problem.empty()) {
        line("problem", all.tries.problem + "; begun: " + all.tries.begun);
    }
    line("ptrace_scope", copies.ptrace_scope ? std::to_string(*copies.ptrace_scope)
                                             : "the kernel has no such restriction");
    line("seccomp", copies.seccomp ? std::to_string(*copies.seccomp) : "");
    line("xpmem, knem", yes_or_no(copies.xpmem) + ", " + yes_or_no(copies.knem));
}

void print_limits(const limit_facts &limits)
{
    section("Limits");
    line("locked memory", limit_text(limits.memlock, true));
    line("descriptors", limit_text(limits.nofile, false));
    line("shared memory", limits.shared_folder + ": " + size_text(limits.shared_total_bytes) +
                              ", " + size_text(limits.shared_free_bytes) + " free");
    line("memory", size_text(limits.memory_bytes) + ", limit of the control group: " +
                       (limits.cgroup_memory_bytes ? bytes_text(*limits.cgroup_memory_bytes)
                                                   : std::string("none")));
    line("/proc", !limits.proc      ? "cannot be read"
                  : limits.own_proc ? "yes"
                                    : "of another PID namespace");
    line("huge pages", count_text(limits.huge_pages) + " of " + size_text(limits.huge_page_bytes) +
                           ", " + count_text(limits.huge_pages_free) +
                           " free; transparent: " + limits.transparent_huge_pages +
                           ", in shared memory: " + limits.transparent_huge_pages_shared);
}

// Images of containers list every driver that they run on in one variable.
std::string shortened(const std::string &value)
{
    constexpr std::size_t most = 300;
    return value.size() <= most ? printable(value)
                                : printable(value.substr(0, most)) + " ... (" +
                                      count_text(value.size()) + " bytes, all of them by --json)";
}

void print_surroundings(const facts &all)
{
    section("Namespaces and job");
    std::vector<std::string> ids;
    for (const namespace_facts::each &each : all.namespaces.all) {
        ids.push_back(each.id.empty() ? each.name + ":unknown" : each.id);
    }
    line("namespaces", join(ids, " "));
    line("container", all.namespaces.container_hints.empty()
                          ? "no sign of one"
                          : join(all.namespaces.container_hints, ", "));
    line("job", all.job.rank
                    ? "rank " + count_text(all.job.rank) + " of " + count_text(all.job.size) +
                          ", " + count_text(all.job.local_size) + " on this node"
                    : "this is no process of a job");
    section("Environment");
    for (const variable &each : all.environment) {
        std::printf("  %s=%s\n", each.name.c_str(), shortened(each.value).c_str());
    }
    if (all.environment.empty()) {
        std::printf("  nothing that matters is set\n");
    }
}

} // namespace

void print_text(const facts &all)
{
    std::printf("gpusm_info: a page for a bug report (--json for programs)\n\n");
    print_versions(all);
    print_openmpi(all.openmpi);
    print_driver(all.driver);
    print_devices(all);
    print_shares(all);
    print_limits(all.limits);
    print_surroundings(all);
    section("Findings");
    for (const finding &each : all.findings) {
        std::printf("  %s %s\n    ", severity_name(each.level), each.id.c_str());
        print_wrapped(4, printable(each.seen));
        std::printf("    -> ");
        print_wrapped(7, printable(each.to_do));
    }
    if (all.findings.empty()) {
        std::printf("  none\n");
    }
}

} // namespace gpusm::info
