// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/c_entry.h: functions of ours that a library in C calls. No exception may leave them, as the
// frames around are of C: one of the C++ runtime, which has no memory, ends the process there, and
// says so.
#ifndef GPUSM_BASE_C_ENTRY_H
#define GPUSM_BASE_C_ENTRY_H

namespace gpusm {

// The type of such a function, from that of the pointer by which it is called.
template <typename Pointer> struct entry_of;
template <typename Result, typename... Arguments> struct entry_of<Result (*)(Arguments...)> {
    using type = Result(Arguments...) noexcept;
};
template <typename Pointer> using entry_type = typename entry_of<Pointer>::type;

// For the library's table. Takes no function that may throw.
template <typename Result, typename... Arguments>
constexpr auto entry(Result (*function)(Arguments...) noexcept) -> Result (*)(Arguments...)
{
    return function;
}

} // namespace gpusm

#endif
