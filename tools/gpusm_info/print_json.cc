// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// print_json.cc: facts as docs/gpusm_info.schema.json describes them.
#include "tools/gpusm_info/facts.h"
#include "tools/gpusm_info/json_writer.h"

#include <cstdio>

namespace gpusm::info {

namespace {

void print_versions(json_writer *out, const facts &all)
{
    out->begin_object("versions");
    out->text("gpusm", gpusm_version);
    out->text("built_for_openmpi", built_for_openmpi);
    out->text("built_with_cuda", built_with_cuda());
    out->text_or_null("kernel", all.host.kernel);
    out->text_or_null("glibc", all.host.glibc);
    out->text_or_null("cpu", all.host.cpu);
    out->number("processors", all.host.processors);
    out->end();
}

void print_openmpi(json_writer *out, const openmpi_facts &openmpi)
{
    out->begin_object("openmpi");
    out->text_or_null("ompi_info", openmpi.ompi_info);
    out->text_or_null("problem", openmpi.problem);
    out->text_or_null("version", openmpi.version);
    out->text_or_null("prefix", openmpi.prefix);
    out->text_or_null("package", openmpi.package);
    out->flag("built_with_cuda", openmpi.cuda);
    out->begin_array("components");
    for (const component &each : openmpi.components) {
        out->begin_object();
        out->text("framework", each.framework);
        out->text("name", each.name);
        out->text("version", each.version);
        out->end();
    }
    out->end();
    const auto print_weighed = [out](const char *name, const char *weight, const auto &list) {
        out->begin_array(name);
        for (const openmpi_facts::weighed &each : list) {
            out->begin_object();
            out->text("name", each.name);
            out->number(weight, each.value);
            out->end();
        }
        out->end();
    };
    print_weighed("btl_exclusivities", "exclusivity", openmpi.exclusivities);
    print_weighed("smsc_priorities", "priority", openmpi.smsc_priorities);
    out->begin_array("settings");
    for (const setting &each : openmpi.settings) {
        out->begin_object();
        out->text("name", each.name);
        out->text("value", each.value);
        out->text_or_null("source", each.source);
        out->end();
    }
    out->end();
    out->begin_array("messages");
    for (const std::string &each : openmpi.messages) {
        out->text({}, each);
    }
    out->end();
    out->end();
}

void print_driver(json_writer *out, const driver_facts &driver)
{
    out->begin_object("driver");
    out->flag("loaded", driver.loaded);
    out->text_or_null("problem", driver.problem);
    out->text_or_null("missing_function", driver.missing);
    out->text_or_null("cuda", driver.cuda_version ? cuda_text(*driver.cuda_version) : "");
    out->text_or_null("release", driver.release);
    out->text_or_null("kernel_module", driver.kernel_module);
    out->flag("batch_copies", driver.batch_copies);
    out->flag("context_flags", driver.context_flags);
    out->flag("nvml", driver.nvml);
    out->number("device_files", driver.device_files);
    out->text("mps_folder", driver.mps_folder);
    out->flag("mps_control", driver.mps_control);
    out->end();
}

void print_devices(json_writer *out, const facts &all)
{
    out->begin_array("devices");
    for (const device_facts &each : all.devices) {
        out->begin_object();
        out->number("ordinal", each.ordinal);
        out->text("name", each.name);
        out->text_or_null("uuid", each.uuid);
        out->text_or_null("gpu_uuid", each.gpu_uuid);
        out->text_or_null("pci", each.pci);
        out->number("memory_bytes", each.memory_bytes);
        out->text_or_null("compute_capability", each.compute_capability);
        out->text_or_null("compute_mode", each.compute_mode);
        out->flag("mps", each.mps);
        out->flag("mig", each.mig);
        out->flag("is_instance", each.is_instance());
        out->number("nvlinks", each.nvlinks);
        out->number("numa_node", each.numa_node);
        out->end();
    }
    out->end();
    out->begin_array("links");
    for (const link_facts &each : all.links) {
        out->begin_object();
        out->number("from", each.from);
        out->number("to", each.to);
        out->flag("access", each.access);
        out->flag("atomics", each.atomics);
        out->number("performance_rank", each.performance_rank);
        out->flag("nvlink", each.nvlink);
        out->text_or_null("path", each.path);
        out->end();
    }
    out->end();
}

void print_tries(json_writer *out, const facts &all)
{
    out->begin_object("tries");
    out->flag("wanted", all.tries.wanted);
    out->text_or_null("problem", all.tries.problem);
    out->text_or_null("begun", all.tries.begun);
    out->number("devices", all.tries.devices);
    out->flag("all_devices", all.tries.all_devices);
    out->begin_array("memory");
    for (const share_facts &each : all.shares) {
        out->begin_object();
        out->text("kind", each.kind);
        out->number("from", each.from);
        out->number("to", each.to);
        out->text("result", each.result);
        out->text_or_null("call", each.call);
        out->text_or_null("error", each.error);
        out->end();
    }
    out->end();
    out->end();
    const single_copy_facts &copies = all.single_copies;
    out->begin_object("single_copies");
    out->flag("tried", copies.tried);
    out->flag("works", copies.tried ? std::optional<bool>(copies.error.empty()) : std::nullopt);
    out->text_or_null("error", copies.error);
    out->flag("works_when_permitted",
              copies.tried ? std::optional<bool>(copies.permitted_error.empty()) : std::nullopt);
    out->text_or_null("error_when_permitted", copies.permitted_error);
    out->number("ptrace_scope", copies.ptrace_scope);
    out->number("seccomp", copies.seccomp);
    out->flag("xpmem", copies.xpmem);
    out->flag("knem", copies.knem);
    out->end();
}

void print_limits(json_writer *out, const limit_facts &limits)
{
    const auto print_limit = [out](const char *name, const limit &each) {
        out->begin_object(name);
        out->number("soft", each.soft);
        out->number("hard", each.hard);
        out->end();
    };
    out->begin_object("limits");
    print_limit("memlock_bytes", limits.memlock);
    print_limit("descriptors", limits.nofile);
    out->text("shared_folder", limits.shared_folder);
    out->number("shared_total_bytes", limits.shared_total_bytes);
    out->number("shared_free_bytes", limits.shared_free_bytes);
    out->number("cgroup_memory_bytes", limits.cgroup_memory_bytes);
    out->number("memory_bytes", limits.memory_bytes);
    out->flag("proc", limits.proc);
    out->flag("own_proc", limits.own_proc);
    out->number("huge_pages", limits.huge_pages);
    out->number("huge_pages_free", limits.huge_pages_free);
    out->number("huge_page_bytes", limits.huge_page_bytes);
    out->text_or_null("transparent_huge_pages", limits.transparent_huge_pages);
    out->text_or_null("transparent_huge_pages_shared", limits.transparent_huge_pages_shared);
    out->end();
}

void print_surroundings(json_writer *out, const facts &all)
{
    out->begin_object("namespaces");
    for (const namespace_facts::each &each : all.namespaces.all) {
        out->text_or_null(each.name, each.id);
    }
    out->flag("initial_user_map", all.namespaces.initial_user);
    out->begin_array("container_hints");
    for (const std::string &each : all.namespaces.container_hints) {
        out->text({}, each);
    }
    out->end();
    out->end();
    out->begin_object("job");
    out->number("rank", all.job.rank);
    out->number("size", all.job.size);
    out->number("local_rank", all.job.local_rank);
    out->number("local_size", all.job.local_size);
    out->end();
    out->begin_array("environment");
    for (const variable &each : all.environment) {
        out->begin_object();
        out->text("name", each.name);
        out->text("value", each.value);
        out->end();
    }
    out->end();
}

} // namespace

void print_json(const facts &all)
{
    json_writer out;
    out.begin_object();
    out.number("format", 1); // raised when a member changes its meaning or goes
    print_versions(&out, all);
    print_openmpi(&out, all.openmpi);
    print_driver(&out, all.driver);
    print_devices(&out, all);
    print_tries(&out, all);
    print_limits(&out, all.limits);
    print_surroundings(&out, all);
    out.begin_array("findings");
    for (const finding &each : all.findings) {
        out.begin_object();
        out.text("severity", severity_name(each.level));
        out.text("id", each.id);
        out.text("seen", each.seen);
        out.text("to_do", each.to_do);
        out.end();
    }
    out.end();
    out.end();
    (void)std::fputs(out.content().c_str(), stdout);
}

} // namespace gpusm::info
