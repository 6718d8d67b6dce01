// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// json_writer.h: JSON, indented, member by member. The text is valid UTF-8 whatever is put in.
#ifndef GPUSM_INFO_JSON_WRITER_H
#define GPUSM_INFO_JSON_WRITER_H

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpusm::info {

// Members of an object have a name, those of an array and the outermost value an empty one.
class json_writer {
  public:
    void begin_object(std::string_view name = {}) { begin(name, '{', '}'); }
    void begin_array(std::string_view name) { begin(name, '[', ']'); }
    void end();

    void text(std::string_view name, std::string_view value);
    // null: an empty text.
    void text_or_null(std::string_view name, std::string_view value);
    void number(std::string_view name, std::int64_t value);
    void number(std::string_view name, const std::optional<std::int64_t> &value);
    void flag(std::string_view name, bool value);
    void flag(std::string_view name, const std::optional<bool> &value);
    void null(std::string_view name);

    // All of it, when each begin has had its end.
    const std::string &content() const { return content_; }

  private:
    struct level {
        char closing;
        bool empty;
    };
    void begin(std::string_view name, char opening, char closing);
    void begin_member(std::string_view name);
    void new_line();
    void quoted(std::string_view text);

    std::string content_;
    std::vector<level> levels_;
};

} // namespace gpusm::info

#endif
