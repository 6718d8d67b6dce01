// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_view_hooks.h: functions of ours in the places through which Open MPI asks about
// addresses, copies and fetches, so that addresses in views (views.h) are known there.
#ifndef BTL_GPUSM_VIEW_HOOKS_H
#define BTL_GPUSM_VIEW_HOOKS_H

#include "opal/mca/btl/gpusm/btl_gpusm_opal.h"

#include "opal/mca/common/gpusm/base/replaced_function.h"

#include <atomic>
#include <map>
#include <type_traits>

namespace gpusm {

struct transport;

#define GPUSM_VIEW_HOOKS(X)                                                                        \
    X(mem_copy)                                                                                    \
    X(mem_copy_async)                                                                              \
    X(mem_move)                                                                                    \
    X(get_address_range)                                                                           \
    X(get_buffer_id)

// For as long as the component is loaded, as somebody may still call through us when the transport
// has ended.
struct view_hooks {
    std::atomic<transport *> serves{nullptr}; // null: there are no views
#define GPUSM_ENTRY(name)                                                                          \
    replaced_function<std::remove_pointer_t<decltype(opal_accelerator.name)>> name;
    GPUSM_VIEW_HOOKS(GPUSM_ENTRY)
#undef GPUSM_ENTRY
    // What btl_get is for the modules of other components. Written before `serves` is set.
    std::map<mca_btl_base_module_t *, mca_btl_base_module_get_fn_t> others;
};

// Under the transport's lock. Does nothing where they are in place.
void install_view_hooks(transport &of);
void remove_view_hooks();

} // namespace gpusm

#endif
