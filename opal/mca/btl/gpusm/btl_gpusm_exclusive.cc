// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_exclusive.cc: gpusm never shares a peer with another BTL. Open MPI's bml/r2 gives a
// peer to the BTLs of the highest exclusivity that reach it, and ob1 then sends the fragments of
// one message by all of those. They arrive in any order, which ob1's receiver cannot unpack where
// the datatype has gaps: it reads and writes at wrong places, waits for ever, or crashes. So no
// other module may have our exclusivity, whatever the user's settings say.
#include "opal/mca/btl/gpusm/btl_gpusm.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpusm {

namespace {

struct contender {
    const char *name;
    std::uint32_t exclusivity;
};

// btl/self reaches no other process.
bool is_contender(const mca_base_component_t &component)
{
    using namespace std::string_view_literals;
    return component.mca_component_name != "gpusm"sv && component.mca_component_name != "self"sv;
}

// The BTLs that have been opened, by their parameters: their modules may not have been made yet.
std::vector<contender> opened()
{
    std::vector<contender> found;
    mca_base_component_list_item_t *each = nullptr;
    OPAL_LIST_FOREACH(each, &opal_btl_base_framework.framework_components,
                      mca_base_component_list_item_t)
    {
        const mca_base_component_t &component = *each->cli_component;
        const unsigned *exclusivity = nullptr;
        const int index =
            mca_base_var_find("opal", "btl", component.mca_component_name, "exclusivity");
        if (is_contender(component) && index >= 0 &&
            OPAL_SUCCESS == mca_base_var_get_value(index, &exclusivity, nullptr, nullptr) &&
            exclusivity != nullptr) {
            found.push_back({component.mca_component_name, *exclusivity});
        }
    }
    return found;
}

// The modules that have been made.
std::vector<contender> initialized()
{
    std::vector<contender> found;
    mca_btl_base_selected_module_t *each = nullptr;
    OPAL_LIST_FOREACH(each, &mca_btl_base_modules_initialized, mca_btl_base_selected_module_t)
    {
        const mca_base_component_t &component = each->btl_component->btl_version;
        if (is_contender(component)) {
            found.push_back({component.mca_component_name, each->btl_module->btl_exclusivity});
        }
    }
    return found;
}

// One of them that has this exclusivity; null: none has.
const char *equal_to(std::uint32_t exclusivity, const std::vector<contender> &all)
{
    const auto found = std::find_if(all.begin(), all.end(), [&](const contender &each) {
        return exclusivity == each.exclusivity;
    });
    return found == all.end() ? nullptr : found->name;
}

void tell(const char *other, std::uint32_t exclusivity, const std::string &outcome)
{
    show_help("equal exclusivity", other, exclusivity, outcome.c_str(), other, other);
}

} // namespace

void raise_above_equals()
{
    std::uint32_t &ours = mca_btl_gpusm.super.btl_exclusivity;
    const std::uint32_t wanted = ours;
    const std::vector<contender> others = opened();
    const char *other = equal_to(wanted, others);
    while (ours < UINT32_MAX && equal_to(ours, others) != nullptr) {
        ++ours;
    }
    if (wanted != ours && nullptr == equal_to(ours, others)) {
        tell(other, wanted, "So gpusm takes the next free one, " + std::to_string(ours) + ".");
    }
}

bool has_peers_alone(transport &of)
{
    const std::uint32_t ours = mca_btl_gpusm.super.btl_exclusivity;
    const char *other = equal_to(ours, initialized());
    if (other != nullptr && !of.told_of_equal.exchange(true)) {
        tell(other, ours, std::string("So gpusm leaves the other processes to ") + other + ".");
    }
    return nullptr == other;
}

} // namespace gpusm
