// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// report.cc: header, table, path line and JSON file.
#include "bench/gpusm_perf/report.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gpusm::bench {

namespace {

constexpr double megabyte = 1e6;

template <typename... arguments> std::string format(const char *pattern, arguments... values)
{
    char text[512];
    std::snprintf(text, sizeof(text), pattern, values...);
    return text;
}

std::string first_part(const char *text)
{
    const std::string all = text;
    return all.substr(0, all.find(','));
}

std::string driver_text(const device &gpu)
{
    const std::string version =
        format("%d.%d", gpu.driver_version() / 1000, gpu.driver_version() % 1000 / 10);
    return "CUDA " + version + (gpu.is_software() ? " (software driver)" : "");
}

std::string json_string(const std::string &text)
{
    std::string quoted = "\"";
    for (char c : text) {
        if ('"' == c || '\\' == c) {
            quoted += '\\';
        }
        quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return quoted + "\"";
}

std::string counts_text(const path_counts &counts)
{
    return format(
        "get %llu, staged %llu, host path %llu, single copy %llu, direct %llu, streamed %llu",
        counts.get_messages, counts.staged_messages, counts.host_messages,
        counts.single_copy_messages, counts.direct_host_messages, counts.stream_messages);
}

} // namespace

run_facts gather_facts(const run &r)
{
    run_facts facts;
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    (void)MPI_Get_library_version(version, &length);
    facts.mpi_version = first_part(version);
    const char *btl = std::getenv("OMPI_MCA_btl");
    facts.transports = nullptr == btl ? "default" : btl;
    if (nullptr != r.nccl) {
        facts.transports += "; messages by " + r.nccl->version();
    }
    facts.driver = nullptr == r.gpu ? std::string() : driver_text(*r.gpu);
    facts.limit = describe_limit(r.opt);
    facts.link.text = r.opt.limit ? "none" : "not measured";

    char mine[160] = "host memory only";
    if (nullptr != r.gpu) {
        std::snprintf(mine, sizeof(mine), "device %d, %s, %s", r.gpu->ordinal(),
                      r.gpu->name().c_str(), r.gpu->uuid().c_str());
    }
    std::vector<char> all(sizeof(mine) * static_cast<std::size_t>(r.ranks));
    (void)MPI_Gather(mine, sizeof(mine), MPI_CHAR, all.data(), sizeof(mine), MPI_CHAR, 0,
                     MPI_COMM_WORLD);
    for (int i = 0; 0 == r.rank && i < r.ranks; ++i) {
        facts.rank_lines.emplace_back(all.data() + sizeof(mine) * static_cast<std::size_t>(i));
    }
    return facts;
}

std::vector<std::string> header_lines(const options &opt, const run_facts &facts)
{
    std::vector<std::string> lines;
    lines.push_back(format("# gpusm_perf %s, %s -> %s", name_of(opt.mode), describe(opt.source),
                           describe(opt.destination)));
    if (opt.is_bandwidth()) {
        lines.back() += format(", window %d", opt.window);
    }
    if (opt.block_bytes > 0) {
        lines.back() += format(", blocks of %d bytes", opt.block_bytes);
    }
    if (!opt.is_pairwise()) {
        lines.back() += format(", %zu ranks", facts.rank_lines.size());
    }
    if (0 != opt.source_offset || 0 != opt.destination_offset) {
        lines.back() += format(", offset %zu,%zu", opt.source_offset, opt.destination_offset);
    }
    lines.back() += opt.check ? ", every byte checked" : ", content not checked";
    lines.push_back("# " + facts.mpi_version + ", btl: " + facts.transports +
                    (facts.driver.empty() ? "" : ", driver: " + facts.driver));
    for (std::size_t i = 0; i < facts.rank_lines.size(); ++i) {
        lines.push_back(format("# rank %zu: %s", i, facts.rank_lines[i].c_str()));
    }
    lines.push_back("# limit: " + facts.limit);
    lines.push_back("# link: " + facts.link.text);
    return lines;
}

double row::ratio() const
{
    return limit > 0 ? value() / limit : 0;
}

row median_row(std::size_t len_bytes, const std::vector<measurement> &measured,
               const std::vector<double> &limits)
{
    auto median_over = [&](double measurement::*member) {
        std::vector<double> values;
        for (const measurement &m : measured) {
            values.push_back(m.*member);
        }
        return median_of(values);
    };
    row line;
    line.len_bytes = len_bytes;
    line.measured.latency_us = median_over(&measurement::latency_us);
    line.measured.latency_mean_us = median_over(&measurement::latency_mean_us);
    line.measured.bytes_per_s = median_over(&measurement::bytes_per_s);
    line.measured.messages_per_s = median_over(&measurement::messages_per_s);
    line.limit = median_of(limits);
    return line;
}

std::string table_head(const options &opt)
{
    return opt.is_bandwidth() ? format("# %10s %14s %14s %14s %8s", "bytes", "MB/s", "messages/s",
                                       "limit MB/s", "ratio")
                              : format("# %10s %14s %14s %14s %8s", "bytes", "median us", "mean us",
                                       "limit us", "ratio");
}

std::string table_line(const options &opt, const row &line)
{
    const std::string start =
        opt.is_bandwidth()
            ? format("%12zu %14.2f %14.0f", line.len_bytes, line.measured.bytes_per_s / megabyte,
                     line.measured.messages_per_s)
            : format("%12zu %14.2f %14.2f", line.len_bytes, line.measured.latency_us,
                     line.measured.latency_mean_us);
    if (line.limit <= 0) {
        return start + format(" %14s %8s", "-", "-");
    }
    // Two decimals say nothing about a small message that is memcpy'd in nanoseconds.
    const double limit = opt.is_bandwidth() ? line.limit / megabyte : line.limit;
    return start + format(limit < 1 ? " %14.4f" : " %14.2f", limit) +
           format(line.ratio() < 0.1 ? " %8.5f" : " %8.2f", line.ratio());
}

std::string path_line(bool available, const path_counts &warmup, const path_counts &measured)
{
    if (!available) {
        return "path: not reported by this transport (pvars btl_gpusm_* not found)";
    }
    std::string line = "path: " + counts_text(measured) + " messages";
    if (0 != warmup.get_messages + warmup.staged_messages + warmup.host_messages +
                 warmup.single_copy_messages) {
        line += " (warm-up: " + counts_text(warmup) + ")";
    }
    const auto add_bytes = [&](unsigned long long bytes, const char *what) {
        if (bytes > 0) {
            line += format("; %.1f MB %s", static_cast<double>(bytes) / megabyte, what);
        }
    };
    add_bytes(measured.pulled_host_bytes, "pulled");
    add_bytes(measured.pushed_host_bytes, "pushed");
    add_bytes(measured.joint_copy_bytes, "of the single copies by the sender");
    return line;
}

std::string write_json(const options &opt, const run_facts &facts, const std::vector<row> &rows,
                       bool have_paths, const path_counts &paths)
{
    std::FILE *file = std::fopen(opt.json_path.c_str(), "w");
    if (nullptr == file) {
        return "cannot write " + opt.json_path + ": " + std::strerror(errno);
    }
    std::fprintf(file,
                 "{\n  \"mode\": %s,\n  \"src\": \"%c\",\n  \"dst\": \"%c\",\n  \"window\": %d,\n"
                 "  \"mpi\": %s,\n  \"btl\": %s,\n  \"driver\": %s,\n  \"limit\": %s,\n",
                 json_string(name_of(opt.mode)).c_str(), letter_of(opt.source),
                 letter_of(opt.destination), opt.is_bandwidth() ? opt.window : 1,
                 json_string(facts.mpi_version).c_str(), json_string(facts.transports).c_str(),
                 json_string(facts.driver).c_str(), json_string(facts.limit).c_str());
    std::fprintf(file, "  \"offset\": [%zu, %zu],\n  \"checked\": %s,\n", opt.source_offset,
                 opt.destination_offset, opt.check ? "true" : "false");
    std::fprintf(file, "  \"link\": {\"bytes_per_s\": %.1f, \"text\": %s},\n",
                 facts.link.bytes_per_s, json_string(facts.link.text).c_str());
    if (have_paths) {
        std::fprintf(file,
                     "  \"path\": {\"get\": %llu, \"staged\": %llu, \"host\": %llu, "
                     "\"single_copy\": %llu, \"direct\": %llu, \"pulled_bytes\": %llu, "
                     "\"pushed_bytes\": %llu, \"joint_bytes\": %llu},\n",
                     paths.get_messages, paths.staged_messages, paths.host_messages,
                     paths.single_copy_messages, paths.direct_host_messages,
                     paths.pulled_host_bytes, paths.pushed_host_bytes, paths.joint_copy_bytes);
    }
    std::fprintf(file, "  \"ranks\": [");
    for (std::size_t i = 0; i < facts.rank_lines.size(); ++i) {
        std::fprintf(file, "%s%s", 0 == i ? "" : ", ", json_string(facts.rank_lines[i]).c_str());
    }
    std::fprintf(file, "],\n  \"rows\": [");
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const row &line = rows[i];
        std::fprintf(file,
                     "%s\n    {\"bytes\": %zu, \"latency_us\": %.4f, \"latency_mean_us\": %.4f, "
                     "\"bytes_per_s\": %.1f, \"messages_per_s\": %.1f, \"limit\": %.4f, "
                     "\"ratio\": %.5f}",
                     0 == i ? "" : ",", line.len_bytes, line.measured.latency_us,
                     line.measured.latency_mean_us, line.measured.bytes_per_s,
                     line.measured.messages_per_s, line.limit, line.ratio());
    }
    std::fprintf(file, "\n  ]\n}\n");
    return 0 == std::fclose(file) ? std::string()
                                  : "cannot write " + opt.json_path + ": " + std::strerror(errno);
}

} // namespace gpusm::bench
