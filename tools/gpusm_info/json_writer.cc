// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "tools/gpusm_info/json_writer.h"

#include "tools/gpusm_info/text.h"

namespace gpusm::info {

namespace {

// How many bytes the UTF-8 character that begins there has; 0: it is none (RFC 3629: neither longer
// than it must be, nor half of a surrogate pair, nor above U+10FFFF).
std::size_t length_of_character(std::string_view text)
{
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = byte(0);
    const std::size_t length = first < 0x80                    ? 1
                               : first >= 0xC2 && first < 0xE0 ? 2
                               : first >= 0xE0 && first < 0xF0 ? 3
                               : first >= 0xF0 && first < 0xF5 ? 4
                                                               : 0;
    if (length > text.size()) {
        return 0;
    }
    for (std::size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xC0) != 0x80) {
            return 0;
        }
    }
    const bool wrong =
        length > 1 && ((0xE0 == first && byte(1) < 0xA0) || (0xED == first && byte(1) >= 0xA0) ||
                       (0xF0 == first && byte(1) < 0x90) || (0xF4 == first && byte(1) >= 0x90));
    return wrong ? 0 : length;
}

} // namespace

void json_writer::quoted(std::string_view text)
{
    content_ += '"';
    while (!text.empty()) {
        const std::size_t length = length_of_character(text);
        if (0 == length) {
            content_ += "\\ufffd";
        } else if ('"' == text[0] || '\\' == text[0]) {
            content_ += {'\\', text[0]};
        } else if (1 == length && (static_cast<unsigned char>(text[0]) < 0x20 || 0x7f == text[0])) {
            content_ += format("\\u%04x", static_cast<unsigned>(text[0]));
        } else {
            content_ += text.substr(0, length);
        }
        text.remove_prefix(0 == length ? 1 : length);
    }
    content_ += '"';
}

void json_writer::new_line()
{
    content_ += '\n';
    content_.append(2 * levels_.size(), ' ');
}

void json_writer::begin_member(std::string_view name)
{
    if (!levels_.empty()) {
        content_ += levels_.back().empty ? "" : ",";
        levels_.back().empty = false;
        new_line();
    }
    if (!name.empty()) {
        quoted(name);
        content_ += ": ";
    }
}

void json_writer::begin(std::string_view name, char opening, char closing)
{
    begin_member(name);
    content_ += opening;
    levels_.push_back({closing, true});
}

void json_writer::end()
{
    const level ended = levels_.back();
    levels_.pop_back();
    if (!ended.empty) {
        new_line();
    }
    content_ += ended.closing;
    content_ += levels_.empty() ? "\n" : "";
}

void json_writer::text(std::string_view name, std::string_view value)
{
    begin_member(name);
    quoted(value);
}

void json_writer::text_or_null(std::string_view name, std::string_view value)
{
    if (value.empty()) {
        null(name);
    } else {
        text(name, value);
    }
}

void json_writer::number(std::string_view name, std::int64_t value)
{
    begin_member(name);
    content_ += std::to_string(value);
}

void json_writer::number(std::string_view name, const std::optional<std::int64_t> &value)
{
    if (value) {
        number(name, *value);
    } else {
        null(name);
    }
}

void json_writer::flag(std::string_view name, bool value)
{
    begin_member(name);
    content_ += value ? "true" : "false";
}

void json_writer::flag(std::string_view name, const std::optional<bool> &value)
{
    if (value) {
        flag(name, *value);
    } else {
        null(name);
    }
}

void json_writer::null(std::string_view name)
{
    begin_member(name);
    content_ += "null";
}

} // namespace gpusm::info
