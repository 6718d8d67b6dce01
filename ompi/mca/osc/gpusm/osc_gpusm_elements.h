// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// osc_gpusm_elements.h: elements of a datatype in memory, and their copies by processors.
#ifndef GPUSM_OSC_ELEMENTS_H
#define GPUSM_OSC_ELEMENTS_H

#include "ompi/mca/osc/gpusm/osc_gpusm_ompi.h"

#include "opal/mca/common/gpusm/gpu/layout.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace gpusm {

// The bytes [lowest, end) from an address on.
struct byte_span {
    std::ptrdiff_t lowest = 0;
    std::ptrdiff_t end = 0;
};

struct elements {
    unsigned char *at = nullptr; // null where only the owner has an address
    std::size_t count = 0;
    ompi_datatype_t *type = nullptr;

    std::size_t bytes() const { return count * type->super.size; }
    bool has_gaps() const
    {
        return 0 == opal_datatype_is_contiguous_memory_layout(&type->super, 1 == count ? 1 : 2);
    }
    // Of a type without gaps the bytes, else all from the first to the last. Not empty.
    byte_span span() const
    {
        const std::ptrdiff_t far =
            static_cast<std::ptrdiff_t>(count - 1) * (type->super.ub - type->super.lb);
        return {type->super.true_lb + std::min<std::ptrdiff_t>(far, 0),
                type->super.true_ub + std::max<std::ptrdiff_t>(far, 0)};
    }
};

inline elements elements_of(const void *at, std::size_t count, ompi_datatype_t *type)
{
    return {static_cast<unsigned char *>(const_cast<void *>(at)), count, type};
}

// All bytes of `from`; `to` has room for them. In host memory, and not overlapping.
void copy_with_gaps(const elements &to, const elements &from);
inline void copy_elements(const elements &to, const elements &from)
{
    if (to.has_gaps() || from.has_gaps()) {
        copy_with_gaps(to, from);
    } else {
        std::memcpy(to.at + to.type->super.true_lb, from.at + from.type->super.true_lb,
                    from.bytes());
    }
}
// The same where one is in device memory; Open MPI copies it, a block at a time.
int copy_device_elements(const elements &to, const elements &from);

// What one side has packed; `packed`, in host memory, has room for all, and fills the first `bytes`
// of `to`. `from` and `to` may be in device memory.
void pack_elements(const elements &from, void *packed);
void unpack_elements(const elements &to, const void *packed, std::size_t bytes);

// Elements of a predefined type, as they lie in memory one behind the other.
struct basic_elements {
    ompi_datatype_t *type = nullptr;
    std::size_t count = 0;

    std::size_t extent() const { return static_cast<std::size_t>(type->super.ub - type->super.lb); }
    std::size_t bytes() const { return count * extent(); }
};

// The predefined type that all elements are made of, and how many of it one element is; null where
// there is none, or more than one.
ompi_datatype_t *basic_type_of(const ompi_datatype_t *type, std::size_t *in_each);

// The plans of the datatypes used last. A datatype in here is not freed.
class plan_cache {
  public:
    plan_cache() = default;
    ~plan_cache();
    plan_cache(const plan_cache &) = delete;
    plan_cache &operator=(const plan_cache &) = delete;

    // Null: there is none.
    shared_plan of(ompi_datatype_t *type);

  private:
    static constexpr std::size_t most = 32;
    struct known {
        ompi_datatype_t *type;
        shared_plan plan;
    };
    std::vector<known> known_; // the newest last
};

} // namespace gpusm

#endif
