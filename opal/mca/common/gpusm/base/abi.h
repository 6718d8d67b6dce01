// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/abi.h: is the Open MPI that has loaded a component the one that it was compiled for? Open
// MPI compares neither its version nor its layouts, and a struct that differs shows itself as a
// crash, or not at all. A component asks first of all, and stays away with the answer.
//
//     const abi_part parts[] = {GPUSM_ABI_CLASS(opal_free_list_t), ...};
//     std::string why = GPUSM_ABI_DIFFERENCE(parts);
#ifndef GPUSM_BASE_ABI_H
#define GPUSM_BASE_ABI_H

#include <cstddef>
#include <span>
#include <string>

namespace gpusm {

struct abi_library {
    const char *version; // "5.0.7", perhaps with a packager's words around it
    bool with_cuda;      // two layouts of one version
};

// A type of Open MPI's, as long as it was for the compiler and as the library that runs has it.
struct abi_part {
    const char *name;
    std::size_t here_bytes;
    std::size_t there_bytes; // 0: the library cannot be asked
};

// The length of a variable of a library, which its table of symbols tells; 0: it does not.
std::size_t length_of_variable(const void *address);
// The same for one that may not be there.
std::size_t length_of_variable(const char *name);

// Empty: they fit. Else what differs, for people to read. Any 5.0.x fits any other as far as the
// version goes.
std::string abi_difference(const abi_library &here, const abi_library &there,
                           std::span<const abi_part> parts);

template <typename Type> abi_part abi_of(const char *name, std::size_t there_bytes)
{
    return {name, sizeof(Type), there_bytes};
}

// Of components, which have Open MPI's headers. A class of its objects, which has a descriptor:
#define GPUSM_ABI_CLASS(type) ::gpusm::abi_of<type>(#type, OBJ_CLASS(type)->cls_sizeof)
// A type that a variable of Open MPI's has.
#define GPUSM_ABI_VARIABLE(variable)                                                               \
    ::gpusm::abi_of<decltype(variable)>(#variable, ::gpusm::length_of_variable(&(variable)))
// A type that a variable has which is there only where its component is part of the library.
#define GPUSM_ABI_OPTIONAL(type, variable)                                                         \
    ::gpusm::abi_of<type>(#type, ::gpusm::length_of_variable(variable))
// abi_difference() between the headers and the library that runs.
#define GPUSM_ABI_DIFFERENCE(parts)                                                                \
    ::gpusm::abi_difference({OPAL_VERSION, 0 != OPAL_CUDA_SUPPORT},                                \
                            {opal_version_string, opal_built_with_cuda_support}, parts)

} // namespace gpusm

#endif
