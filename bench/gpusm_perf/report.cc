// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// report.cc: header, table, each rank's view, and the JSON file.
#include "bench/gpusm_perf/gpusm_perf.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gpusm::bench {

namespace {

// "Open MPI v5.0.7, btl: gpusm,self"
std::string mpi_text()
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    (void)MPI_Get_library_version(text, &length);
    const std::string all = text;
    const char *btl = std::getenv("OMPI_MCA_btl");
    return all.substr(0, all.find(',')) + ", btl: " + (nullptr == btl ? "default" : btl);
}

std::string json_string(std::string text)
{
    for (char &c : text) {
        c = '"' == c || '\\' == c || static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return "\"" + text + "\"";
}

// A line of each rank, on rank 0.
std::vector<std::string> gather_texts(const run &r, const std::string &text)
{
    char mine[2048] = "";
    std::snprintf(mine, sizeof(mine), "%s", text.c_str());
    std::vector<char> all(sizeof(mine) * static_cast<std::size_t>(r.ranks));
    (void)MPI_Gather(mine, sizeof(mine), MPI_CHAR, all.data(), sizeof(mine), MPI_CHAR, 0,
                     MPI_COMM_WORLD);
    std::vector<std::string> texts;
    for (std::size_t at = 0; 0 == r.rank && at < all.size(); at += sizeof(mine)) {
        texts.emplace_back(all.data() + at);
    }
    return texts;
}

} // namespace

std::vector<std::string> gather_devices(const run &r)
{
    return gather_texts(r, nullptr == r.gpu ? "host memory only" : r.gpu->text());
}

std::vector<std::string> gather_paths(const run &r)
{
    std::string text;
    for (const auto &[name, value] : since(r.after_warmup, r.counters->read())) {
        if (0 != value) {
            text += (text.empty() ? "" : ", ") + json_string(name) + ": " + std::to_string(value);
        }
    }
    return gather_texts(r, "{" + text + "}");
}

row make_row(const run &r, std::size_t len_bytes, const rank_times &mine, double limit_us)
{
    row line;
    line.len_bytes = len_bytes;
    line.limit_us = limit_us;
    line.pairs = r.pairs();
    std::vector<rank_times> all(static_cast<std::size_t>(r.ranks));
    (void)MPI_Allgather(&mine, 2, MPI_DOUBLE, all.data(), 2, MPI_DOUBLE, MPI_COMM_WORLD);
    for (const rank_times &each : all) {
        line.mean_us.push_back(each.mean_us);
        line.slowest = each.mean_us > line.slowest.mean_us ? each : line.slowest;
    }
    return line;
}

void print_header(const run &r, const report &about)
{
    const options &opt = r.opt;
    std::printf("# gpusm_perf %s, %s -> %s", name_of(opt.mode), describe(opt.source),
                describe(opt.destination));
    if (perf_mode::latency != opt.mode) {
        std::printf(", window %d", opt.window);
    }
    if (opt.has_gaps()) {
        std::printf(", blocks of %zu -> %zu bytes", opt.source_block, opt.destination_block);
    }
    std::printf("%s\n# %s\n", opt.check ? ", every byte checked" : ", content not checked",
                mpi_text().c_str());
    for (std::size_t i = 0; i < about.devices.size(); ++i) {
        std::printf("# rank %zu: %s\n", i, about.devices[i].c_str());
    }
    std::printf("# limit: %s\n", about.limit.c_str());
    if (about.link_gb_per_s > 0) {
        std::printf("# link: %.4g GB/s%s\n", about.link_gb_per_s,
                    about.link_enforced ? "" : ", not held against a software driver");
    }
    std::printf("# %10s %11s %11s %10s %10s %12s %11s %8s\n", "bytes", "median us", "mean us",
                "GB/s", "Gbit/s", "messages/s", "limit us", "ratio");
}

void print_row(const row &line)
{
    // Two decimals say nothing about a small message that is copied in nanoseconds.
    const auto time = [](double us) { return us < 10 ? 4 : 2; };
    const double gb_per_s = line.gb_per_s();
    std::printf("%12zu %11.*f %11.*f %10.4g %10.4g %12.0f", line.len_bytes,
                time(line.slowest.median_us), line.slowest.median_us, time(line.slowest.mean_us),
                line.slowest.mean_us, gb_per_s, gb_per_s * 8, line.messages_per_s());
    if (line.limit_us > 0) {
        std::printf(" %11.*f %8.2f\n", time(line.limit_us), line.limit_us,
                    line.slowest.mean_us / line.limit_us);
    } else {
        std::printf(" %11s %8s\n", "-", "-");
    }
    (void)std::fflush(stdout);
}

void print_ranks(const report &about)
{
    for (std::size_t rank = 0; rank < about.paths.size(); ++rank) {
        std::printf("rank %zu: ", rank);
        for (const row &line : about.rows) {
            std::printf("%s %.4g us, ", size_text(line.len_bytes).c_str(), line.mean_us[rank]);
        }
        std::printf("path %s\n", about.paths[rank].c_str());
    }
}

std::string write_json(const run &r, const report &about)
{
    const options &opt = r.opt;
    std::FILE *file = std::fopen(opt.json_path.c_str(), "w");
    if (nullptr == file) {
        return "cannot write " + opt.json_path + ": " + std::strerror(errno);
    }
    std::fprintf(file,
                 "{\"mode\": %s, \"src\": \"%c\", \"dst\": \"%c\", \"window\": %d, \"offset\": "
                 "[%zu, %zu], \"blocks\": [%zu, %zu],\n \"checked\": %s, \"mpi\": %s,\n "
                 "\"limit\": %s, \"link_gb_per_s\": %.4f,\n \"ranks\": [",
                 json_string(name_of(opt.mode)).c_str(), letter_of(opt.source),
                 letter_of(opt.destination), opt.window, opt.source_offset, opt.destination_offset,
                 opt.source_block, opt.destination_block, opt.check ? "true" : "false",
                 json_string(mpi_text()).c_str(), json_string(about.limit).c_str(),
                 about.link_gb_per_s);
    for (std::size_t rank = 0; rank < about.devices.size(); ++rank) {
        std::fprintf(file, "%s\n  {\"device\": %s, \"path\": %s}", 0 == rank ? "" : ",",
                     json_string(about.devices[rank]).c_str(), about.paths[rank].c_str());
    }
    std::fprintf(file, "],\n \"rows\": [");
    for (const row &line : about.rows) {
        std::fprintf(file,
                     "%s\n  {\"bytes\": %zu, \"median_us\": %.4f, \"mean_us\": %.4f, \"gb_per_s\": "
                     "%.6f, \"messages_per_s\": %.1f, \"limit_us\": %.4f, \"rank_mean_us\": [",
                     &line == about.rows.data() ? "" : ",", line.len_bytes, line.slowest.median_us,
                     line.slowest.mean_us, line.gb_per_s(), line.messages_per_s(), line.limit_us);
        for (std::size_t rank = 0; rank < line.mean_us.size(); ++rank) {
            std::fprintf(file, "%s%.4f", 0 == rank ? "" : ", ", line.mean_us[rank]);
        }
        std::fprintf(file, "]}");
    }
    std::fprintf(file, "\n ]}\n");
    return 0 == std::fclose(file) ? std::string()
                                  : "cannot write " + opt.json_path + ": " + std::strerror(errno);
}

} // namespace gpusm::bench
