// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_component.cc: what Open MPI sees first: the component, its parameters, and one module
// for each communicator.
#include "ompi/mca/coll/gpusm/coll_gpusm.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_counters.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_versions.h"

#include "opal/mca/common/gpusm/base/abi.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <dlfcn.h>

namespace gpusm {

namespace {

mca_coll_gpusm_component_t &component = mca_coll_gpusm_component;

extern "C" void module_construct(mca_coll_gpusm_module_t *module) noexcept
{
    std::memset(&module->next, 0, sizeof(module->next));
    module->on_devices = nullptr;
}

extern "C" void module_destruct(mca_coll_gpusm_module_t *module) noexcept
{
    delete module->on_devices;
#define GPUSM_RELEASE(name)                                                                        \
    if (nullptr != module->next.coll_##name##_module) {                                            \
        OBJ_RELEASE(module->next.coll_##name##_module);                                            \
    }
    GPUSM_COLL_FUNCTIONS(GPUSM_RELEASE)
#undef GPUSM_RELEASE
}

OBJ_CLASS_INSTANCE(mca_coll_gpusm_module_t, mca_coll_base_module_t, module_construct,
                   module_destruct);

// Modules are enabled from the lowest priority upwards: what the communicator has by now is the
// next component's.
extern "C" int module_enable(mca_coll_base_module_t *base, ompi_communicator_t *comm) noexcept
{
    auto *module = static_cast<mca_coll_gpusm_module_t *>(base);
    const mca_coll_base_comm_coll_t &now = *comm->c_coll;
#define GPUSM_KEEP(name)                                                                           \
    if (nullptr != now.coll_##name && nullptr != now.coll_##name##_module) {                       \
        module->next.coll_##name = now.coll_##name;                                                \
        module->next.coll_##name##_module = now.coll_##name##_module;                              \
        OBJ_RETAIN(now.coll_##name##_module);                                                      \
    }
    GPUSM_COLL_FUNCTIONS(GPUSM_KEEP)
#undef GPUSM_KEEP
    set_alltoallw(*module);
    set_exchanges(*module);
    set_reductions(*module);
    module->on_devices = new device_calls();
    if (modules_enter_functions) {
#define GPUSM_ENTER(name)                                                                          \
    if (nullptr != module->coll_##name) {                                                          \
        comm->c_coll->coll_##name = module->coll_##name;                                           \
        comm->c_coll->coll_##name##_module = module;                                               \
    }
        GPUSM_COLL_FUNCTIONS(GPUSM_ENTER)
#undef GPUSM_ENTER
    }
    return OMPI_SUCCESS;
}

// Modules are disabled from the highest priority downwards.
extern "C" int module_disable(mca_coll_base_module_t *base, ompi_communicator_t *comm) noexcept
{
    const auto *module = static_cast<mca_coll_gpusm_module_t *>(base);
#define GPUSM_TAKE_OUT(name)                                                                       \
    if (module == comm->c_coll->coll_##name##_module) {                                            \
        comm->c_coll->coll_##name = module->next.coll_##name;                                      \
        comm->c_coll->coll_##name##_module = module->next.coll_##name##_module;                    \
    }
    GPUSM_COLL_FUNCTIONS(GPUSM_TAKE_OUT)
#undef GPUSM_TAKE_OUT
    return OMPI_SUCCESS;
}

extern "C" mca_coll_base_module_t *comm_query(ompi_communicator_t *, int *priority) noexcept
{
    mca_coll_gpusm_module_t *module =
        component.priority < 0 ? nullptr : OBJ_NEW(mca_coll_gpusm_module_t);
    if (nullptr != module) {
        module->coll_module_enable = module_enable;
        if (modules_enter_functions) {
            module->coll_module_disable = module_disable;
        }
        *priority = component.priority;
    }
    return module;
}

constexpr int highest_priority = 100; // Open MPI takes higher ones for this

// The variable of a component's priority; nullptr where it has registered none. *is_set: the user
// has given it a value.
int *priority_of(const char *name, bool *is_set = nullptr)
{
    const int index = mca_base_var_find("ompi", "coll", name, "priority");
    int *priority = nullptr;
    mca_base_var_source_t source = MCA_BASE_VAR_SOURCE_DEFAULT;
    if (index < 0 || OPAL_SUCCESS != mca_base_var_get_value(index, &priority, &source, nullptr)) {
        return nullptr;
    }
    if (nullptr != is_set) {
        *is_set = MCA_BASE_VAR_SOURCE_DEFAULT != source;
    }
    return priority;
}

// The priorities of the components that have been opened and that read and write buffers with the
// processor: not of those that know device memory, or only pass calls on, which may be above us.
std::vector<int *> priorities_to_exceed()
{
    static constexpr std::string_view others[] = {"accelerator", "cuda", "gpusm", "hcoll",
                                                  "monitoring",  "sync", "ucc"};
    std::vector<int *> found;
    mca_base_component_list_item_t *each = nullptr;
    OPAL_LIST_FOREACH(each, &ompi_coll_base_framework.framework_components,
                      mca_base_component_list_item_t)
    {
        const char *name = each->cli_component->mca_component_name;
        int *priority = priority_of(name);
        if (nullptr != priority &&
            std::end(others) == std::find(std::begin(others), std::end(others), name)) {
            found.push_back(priority);
        }
    }
    return found;
}

// coll/cuda, coll/accelerator in Open MPI 6, would ask once more about each buffer, and finds none
// that is left for it: ours has all the functions that it has, and what the newer one does with
// host memory besides goes by messages. So it gets no communicators, unless the user has chosen its
// priority. (A negative priority ends Open MPI 5.0.)
extern "C" mca_coll_base_module_t *no_module(ompi_communicator_t *, int *) noexcept
{
    return nullptr;
}

void put_aside_stock()
{
    bool is_set = false;
    if (nullptr == priority_of(stock_component, &is_set) || is_set ||
        component.stock.component != nullptr) {
        return;
    }
    mca_base_component_list_item_t *each = nullptr;
    OPAL_LIST_FOREACH(each, &ompi_coll_base_framework.framework_components,
                      mca_base_component_list_item_t)
    {
        if (0 == std::strcmp(stock_component, each->cli_component->mca_component_name)) {
            auto *its = reinterpret_cast<mca_coll_base_component_t *>(
                const_cast<mca_base_component_t *>(each->cli_component));
            component.stock = {its, its->collm_comm_query};
            its->collm_comm_query = no_module;
        }
    }
}

// Unless it has been unloaded.
void put_back_stock()
{
    const put_aside was = std::exchange(component.stock, {});
    Dl_info object;
    if (was.component != nullptr && 0 != dladdr(was.component, &object)) {
        was.component->collm_comm_query = was.query;
    }
}

// A component above ours would be given device memory. So ours goes above all that are not made for
// it, unless the user has chosen its priority. Those that have the highest one there is get the
// next lower one, and if others have that, those too, so that their order stays.
void rise_above_the_others()
{
    bool is_set = false;
    if (nullptr == priority_of("gpusm", &is_set) || is_set) {
        return;
    }
    const std::vector<int *> others = priorities_to_exceed();
    const auto taken = [&](int priority) {
        return std::any_of(others.begin(), others.end(), [&](const int *each) {
            return std::min(*each, highest_priority) == priority;
        });
    };
    int nobodys = highest_priority;
    while (taken(nobodys)) {
        --nobodys;
    }
    for (int *each : others) {
        if (*each > nobodys) {
            *each = std::min(*each, highest_priority) - 1;
        }
    }
    for (const int *each : others) {
        component.priority = std::max(component.priority, *each + 1);
    }
}

// Else calls may not come to us, for which other processes would wait.
bool is_above_the_others()
{
    const std::vector<int *> others = priorities_to_exceed();
    return std::all_of(others.begin(), others.end(),
                       [](const int *each) { return *each < component.priority; });
}

// Before the PML and the BTLs end, and before attributes of datatypes do. What has been put above
// the other goes first.
extern "C" void end_interposers() noexcept
{
    delete std::exchange(component.checks, nullptr);
    delete std::exchange(component.interposer, nullptr);
}

void interpose()
{
    const bool are_none = nullptr == component.interposer && nullptr == component.checks;
    if (component.use_views && nullptr == component.interposer) {
        component.interposer = interposer::install().release();
    }
    if (nullptr == component.checks) {
        component.checks = message_checks::install().release();
    }
    if (are_none && (component.interposer != nullptr || component.checks != nullptr)) {
        opal_finalize_register_cleanup(end_interposers);
    }
}

// Without an accelerator there is no device memory, and nothing to say about it.
extern "C" int init_query(bool, bool) noexcept
{
    using namespace std::string_view_literals;
    if (opal_accelerator_base_selected_component.base_version.mca_component_name == "null"sv) {
        return OMPI_ERR_NOT_AVAILABLE;
    }
    interpose();
    component.tells_summary = is_set_for_btl("summary");
    if (component.priority < 0) {
        // Who is not available is unloaded.
        return nullptr == component.interposer && nullptr == component.checks
                   ? OMPI_ERR_NOT_AVAILABLE
                   : OMPI_SUCCESS;
    }
    put_aside_stock();
    rise_above_the_others();
    meet_others(component.use_devices && is_above_the_others());
    component.pool = new staging_pool(component.staging_bytes);
    component.requests = new request_list();
    component.started = new started_list();
    return OMPI_SUCCESS;
}

auto counter_variables()
{
    collective_counters &counted = component.counted;
    return std::to_array<counter_variable>({
        {"device_reductions", "Reductions that the devices of all processes carried out",
         counted.device_reductions},
        {"device_bytes", "Bytes of this process's input to those reductions", counted.device_bytes},
        {"host_reductions",
         "Reductions on host memory that stands in for this process's device memory, of a long "
         "reduction one for each piece",
         counted.host_reductions},
        {"device_exchanges", "Collectives that only move data, carried out by kernels",
         counted.device_exchanges},
        {"exchanged_bytes", "Bytes that those have brought this process", counted.exchanged_bytes},
        {"packed_exchanges",
         "Collectives that only move data, with packed bytes in device memory in the place of "
         "datatypes with gaps",
         counted.packed_exchanges},
    });
}

extern "C" int component_close() noexcept
{
    if (component.tells_summary) {
        print_counters("coll/gpusm", counter_variables());
    }
    put_back_stock();
    delete component.started;
    delete component.requests;
    delete component.pool;
    component.started = nullptr;
    component.requests = nullptr;
    component.pool = nullptr;
    return OMPI_SUCCESS;
}

extern "C" int component_register() noexcept
{
    const abi_part parts[] = {
        GPUSM_ABI_CLASS(mca_coll_base_module_t),
        GPUSM_ABI_CLASS(ompi_communicator_t),
        GPUSM_ABI_CLASS(ompi_datatype_t),
        GPUSM_ABI_CLASS(ompi_request_t),
        GPUSM_ABI_CLASS(opal_convertor_t),
        GPUSM_ABI_VARIABLE(opal_accelerator),
        nbc_request_part(),
    };
    const std::string why = GPUSM_ABI_DIFFERENCE(parts);
    if (!why.empty()) {
        opal_output(0, "coll/gpusm is not used: %s.", why.c_str());
        return OMPI_ERR_NOT_AVAILABLE;
    }
    // Above coll/cuda, which has 78 and knows fewer of these functions.
    component.priority = 79;
    (void)mca_base_component_var_register(
        &component.super.collm_version, "priority",
        "Priority of coll/gpusm, which carries out collectives on device memory, or has the "
        "components of lower priority do it; negative: it is not used. Unless it is "
        "set, it is raised above that of each component that only knows host memory",
        MCA_BASE_VAR_TYPE_INT, nullptr, 0, static_cast<mca_base_var_flag_t>(0), OPAL_INFO_LVL_6,
        MCA_BASE_VAR_SCOPE_READONLY, &component.priority);
    component.use_views = true;
    (void)mca_base_component_var_register(
        &component.super.collm_version, "use_views",
        "Read and write device buffers with gaps by kernels. Otherwise each block of a derived "
        "datatype is a copy of its own, as Open MPI makes them",
        MCA_BASE_VAR_TYPE_BOOL, nullptr, 0, static_cast<mca_base_var_flag_t>(0), OPAL_INFO_LVL_4,
        MCA_BASE_VAR_SCOPE_READONLY, &component.use_views);
    component.use_devices = true;
    (void)mca_base_component_var_register(
        &component.super.collm_version, "use_devices",
        "Carry out collectives on device memory by kernels that read and write it in all processes "
        "of a node. Otherwise, or where one process says no, reductions go through host memory, "
        "and "
        "the others by messages",
        MCA_BASE_VAR_TYPE_BOOL, nullptr, 0, static_cast<mca_base_var_flag_t>(0), OPAL_INFO_LVL_4,
        MCA_BASE_VAR_SCOPE_READONLY, &component.use_devices);
    component.staging_bytes = 64 * 1024 * 1024;
    (void)mca_base_component_var_register(
        &component.super.collm_version, "staging_bytes",
        "Most host memory in bytes that a process keeps page-locked for reductions on device "
        "memory; a buffer that finds no room in it goes through ordinary memory, which is slower",
        MCA_BASE_VAR_TYPE_SIZE_T, nullptr, 0, static_cast<mca_base_var_flag_t>(0), OPAL_INFO_LVL_5,
        MCA_BASE_VAR_SCOPE_READONLY, &component.staging_bytes);
    register_counters(component.super.collm_version, counter_variables());
    return OMPI_SUCCESS;
}

} // namespace

} // namespace gpusm

mca_coll_gpusm_component_t mca_coll_gpusm_component = {
    .super =
        {
            .collm_version =
                {
                    GPUSM_COLL_BASE_VERSION,
                    .mca_component_name = "gpusm",
                    MCA_BASE_MAKE_VERSION(component, OPAL_MAJOR_VERSION, OPAL_MINOR_VERSION,
                                          OPAL_RELEASE_VERSION),
                    .mca_close_component = gpusm::component_close,
                    .mca_register_component_params = gpusm::component_register,
                },
            .collm_data = {MCA_BASE_METADATA_PARAM_CHECKPOINT},
            .collm_init_query = gpusm::init_query,
            .collm_comm_query = gpusm::comm_query,
        },
};

extern "C" {
#ifdef MCA_BASE_COMPONENT_INIT // by which Open MPI 6 finds what is a part of its library
MCA_BASE_COMPONENT_INIT(ompi, coll, gpusm)
#endif
}
