// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// table.h: rows of text on standard output, aligned or in Markdown, printed as they come.
#ifndef GPUSM_COPY_BENCH_TABLE_H
#define GPUSM_COPY_BENCH_TABLE_H

#include <cstddef>
#include <string>
#include <vector>

namespace gpusm::copy_bench {

class table {
  public:
    // Prints the heading. A column is as wide as its title, at least narrowest_column. For
    // `label_width` above 0 the first one holds words: so wide, and aligned on the left.
    table(bool markdown, const std::vector<std::string> &titles, std::size_t label_width = 0);

    // One cell per column.
    void row(const std::vector<std::string> &cells) const;

  private:
    static constexpr std::size_t narrowest_column = 6;

    bool markdown_;
    bool has_label_;
    std::vector<std::size_t> widths_;
};

// A heading or a remark between tables.
void print_title(bool markdown, const std::string &text);
void print_remark(bool markdown, const std::string &text);

std::string us_text(double us);             // "7.12", "143.5"; "-" below 0: was not measured
std::string gb_per_s_text(double gb_per_s); // "0.004", "375"
std::string size_text(std::size_t bytes);   // "8", "64K", "16M"

} // namespace gpusm::copy_bench

#endif
