// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// option_argument.h: an option and its value on a command line, "--name=value" or "--name value".
#ifndef GPUSM_BENCH_OPTION_ARGUMENT_H
#define GPUSM_BENCH_OPTION_ARGUMENT_H

#include <cstddef>
#include <string>

namespace gpusm::bench {

struct option_argument {
    std::string name;
    std::string value;
    bool joined = false; // the value stands behind a '='

    explicit option_argument(const std::string &argument)
    {
        const std::size_t equals = argument.find('=');
        joined = std::string::npos != equals;
        name = argument.substr(0, equals);
        value = joined ? argument.substr(equals + 1) : std::string();
    }

    // Takes the value from the argument behind number *i, and moves *i there, unless it is joined.
    // Returns what is wrong, or nothing.
    std::string complete(int argc, char *const *argv, int *i)
    {
        if (joined) {
            return {};
        }
        if (*i + 1 >= argc) {
            return name + " needs a value";
        }
        value = argv[++*i];
        return {};
    }
};

} // namespace gpusm::bench

#endif
