// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// table.cc: rows of text, aligned or in Markdown.
#include "bench/copy_bench/table.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace gpusm::copy_bench {

namespace {

std::string number_text(const char *pattern, double value)
{
    char text[48];
    std::snprintf(text, sizeof(text), pattern, value);
    return text;
}

} // namespace

table::table(bool markdown, const std::vector<std::string> &titles, std::size_t label_width)
    : markdown_(markdown), has_label_(label_width > 0)
{
    std::string rule = "|";
    for (const std::string &title : titles) {
        const bool is_label = has_label_ && widths_.empty();
        widths_.push_back(std::max(title.size(), is_label ? label_width : narrowest_column));
        rule += is_label ? " --- |" : " ---: |";
    }
    row(titles);
    if (markdown) {
        std::puts(rule.c_str());
    }
}

void table::row(const std::vector<std::string> &cells) const
{
    std::string line = markdown_ ? "|" : "";
    for (std::size_t i = 0; i < cells.size(); ++i) {
        if (markdown_) {
            line += " " + cells[i] + " |";
            continue;
        }
        const std::string blanks(widths_[i] - std::min(widths_[i], cells[i].size()), ' ');
        line += 0 == i ? "" : "  ";
        line += 0 == i && has_label_ ? cells[i] + blanks : blanks + cells[i];
    }
    std::puts(line.c_str());
    (void)std::fflush(stdout);
}

void print_title(bool markdown, const std::string &text)
{
    std::printf(markdown ? "\n### %s\n\n" : "\n# %s\n", text.c_str());
}

void print_remark(bool markdown, const std::string &text)
{
    std::printf(markdown ? "\n%s\n" : "# %s\n", text.c_str());
}

std::string us_text(double us)
{
    if (us < 0) {
        return "-";
    }
    return number_text(us < 100 ? "%.2f" : "%.1f", us);
}

std::string gb_per_s_text(double gb_per_s)
{
    return number_text(gb_per_s < 1 ? "%.4f" : gb_per_s < 100 ? "%.2f" : "%.0f", gb_per_s);
}

std::string size_text(std::size_t bytes)
{
    constexpr std::size_t kilo = 1024;
    for (const char *suffix : {"", "K", "M"}) {
        if (0 == bytes || bytes % kilo != 0) {
            return std::to_string(bytes) + suffix;
        }
        bytes /= kilo;
    }
    return std::to_string(bytes) + "G";
}

} // namespace gpusm::copy_bench
