// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// openmpi.cc: what ompi_info says: the one beside this program, else the first in PATH.
#include "tools/gpusm_info/child.h"
#include "tools/gpusm_info/facts.h"
#include "tools/gpusm_info/text.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace gpusm::info {

namespace {

std::string find_ompi_info()
{
    std::vector<std::string> folders;
    char self[4096] = "";
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) > 0) {
        folders.push_back(std::string(self).substr(0, std::string(self).rfind('/')));
    }
    for (const std::string &each : split(environment_value("PATH"), ':')) {
        folders.push_back(each.empty() ? "." : each);
    }
    for (const std::string &each : folders) {
        if (const std::string path = each + "/ompi_info"; 0 == access(path.c_str(), X_OK)) {
            return path;
        }
    }
    return {};
}

// Words of a line of ompi_info --parsable, between colons. A text between quotation marks, and the
// last value, may have colons of its own.
struct parsed_line {
    explicit parsed_line(const std::string &line) : words(split(line, ':')) {}

    bool is(std::initializer_list<const char *> wanted) const
    {
        return words.size() > wanted.size() &&
               std::equal(
                   wanted.begin(), wanted.end(), words.begin(),
                   [](const char *a, const std::string &b) { return nullptr == a || b == a; });
    }
    // From that word on.
    std::string rest(std::size_t first) const
    {
        return unquote(
            join({words.begin() + static_cast<std::ptrdiff_t>(first), words.end()}, ":"));
    }

    std::vector<std::string> words;
};

// What is kept of parameters that select components.
constexpr const char *selections[] = {"accelerator", "btl", "coll", "osc", "pml", "smsc"};

void take_selection(const parsed_line &line, openmpi_facts *out)
{
    // mca:btl:base:param:btl:value:gpusm,self
    const std::string &name = line.words[4];
    if (line.words[1] != name ||
        std::find(std::begin(selections), std::end(selections), name) == std::end(selections)) {
        return;
    }
    auto known = std::find_if(out->settings.begin(), out->settings.end(),
                              [&](const setting &each) { return each.name == name; });
    if (out->settings.end() == known) {
        out->settings.push_back({name, "", ""});
        known = out->settings.end() - 1;
    }
    if ("value" == line.words[5]) {
        known->value = line.rest(6);
    } else if ("source" == line.words[5]) {
        known->source = line.rest(6);
    }
}

void take_parameter(const parsed_line &line, openmpi_facts *out)
{
    if (line.is({"mca", nullptr, "base", "param", nullptr, nullptr})) {
        take_selection(line, out);
    }
    if (!line.is({"mca", nullptr, nullptr, "param", nullptr, "value"})) {
        return;
    }
    const std::string &name = line.words[4];
    const std::string value = line.rest(6);
    const std::string prefix = line.words[1] + "_" + line.words[2] + "_"; // "btl_gpusm_"
    const number numeric = parse_number(value);
    if ("btl" == line.words[1] && prefix + "exclusivity" == name && numeric) {
        out->exclusivities.push_back({line.words[2], *numeric});
    } else if ("smsc" == line.words[1] && prefix + "priority" == name && numeric) {
        out->smsc_priorities.push_back({line.words[2], *numeric});
    } else if ("opal_built_with_cuda_support" == name || "mpi_built_with_cuda_support" == name) {
        out->cuda = "true" == value || "1" == value;
    } else if ("mca_base_component_path" == name || "btl_gpusm_backing_directory" == name) {
        out->settings.push_back({name, value, ""});
    }
}

void take_line(const parsed_line &line, openmpi_facts *out)
{
    constexpr const char *frameworks[] = {"accelerator", "btl",    "coll", "osc",
                                          "pml",         "rcache", "smsc"};
    if (line.is({"ompi", "version", "full"})) {
        out->version = line.rest(3);
    } else if (line.is({"path", "prefix"})) {
        out->prefix = line.rest(2);
    } else if (line.is({"package"})) {
        out->package = line.rest(1);
    } else if (line.is({"mca", nullptr, nullptr, "version", "\"component"}) &&
               std::find(std::begin(frameworks), std::end(frameworks), line.words[1]) !=
                   std::end(frameworks)) {
        std::string version = line.rest(5);
        version.resize(std::min(version.size(), version.find('"')));
        out->components.push_back({line.words[1], line.words[2], version});
    } else {
        take_parameter(line, out);
    }
}

} // namespace

bool openmpi_facts::has(const std::string &framework, const std::string &name) const
{
    return std::any_of(components.begin(), components.end(), [&](const component &each) {
        return each.framework == framework && each.name == name;
    });
}

const setting *openmpi_facts::find_setting(const std::string &name) const
{
    const auto found = std::find_if(settings.begin(), settings.end(),
                                    [&](const setting &each) { return each.name == name; });
    return settings.end() == found ? nullptr : &*found;
}

openmpi_facts ask_openmpi(int timeout_s)
{
    openmpi_facts found;
    found.ompi_info = find_ompi_info();
    if (found.ompi_info.empty()) {
        found.problem = "no ompi_info beside this program or in PATH";
        return found;
    }
    // So that it says why a component stays away.
    constexpr const char *verbose = "OMPI_MCA_mca_base_component_show_load_errors";
    const bool is_set = std::getenv(verbose) != nullptr;
    (void)setenv(verbose, "all", 0);
    const captured said = run({found.ompi_info, "--parsable", "--all", "--level", "9"},
                              now_ms() + std::int64_t{1000} * timeout_s);
    if (!is_set) {
        (void)unsetenv(verbose);
    }
    for (const std::string &line : split(said.output, '\n')) {
        take_line(parsed_line(line), &found);
    }
    constexpr std::size_t most_messages = 20;
    for (const std::string &line : split(said.errors, '\n')) {
        if (std::string::npos != line.find("gpusm") && found.messages.size() < most_messages) {
            found.messages.push_back(trim(line));
        }
    }
    if (said.start_error != 0) {
        found.problem = std::string("it cannot be started: ") + std::strerror(said.start_error);
    } else if (!said.end.well()) {
        found.problem = "it ended with " + said.end.text();
    } else if (found.version.empty()) {
        found.problem = "it does not say which version it is";
    }
    return found;
}

} // namespace gpusm::info
