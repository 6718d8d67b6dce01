// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_pointer.cc: a quicker answer to "is this device memory?".
//
// Open MPI asks its accelerator component that question about the buffer of every send and every
// receive. accelerator/cuda of 5.0 first tries whether the address belongs to a VMM allocation or
// to a memory pool, and only then what kind of memory it is: two or three driver calls for host
// memory, some ten for device memory, more than two microseconds, several times what the rest of a
// small message costs. Later versions ask for the kind first and are done when the answer is
// ordinary device memory. This file does the same for 5.0: one driver call decides what the driver
// does not know and what it calls device memory, of whatever kind; the rest (registered host
// memory, memory of a host's NUMA node) goes to the component as before, and so does a thread
// without a context. No answer changes, but for the number of the device of pool memory that other
// devices may use, too: the component names the first of those.
//
// It takes the place of the component's function in the table through which Open MPI calls it,
// from the first peer to the end of this component; the parameter quick_pointer_check switches
// that off. Until the first GPU message it answers for host memory only: about device memory the
// component is asked, which sets itself up by that.
#include "opal/mca/btl/gpusm/btl_gpusm.h"
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <atomic>
#include <cstring>
#include <iterator>
#include <utility>

namespace gpusm {

namespace {

const driver_api *driver = nullptr;
decltype(opal_accelerator.check_addr) component_check = nullptr;

// The allocations that were seen last; a program has few that it sends and receives.
known_memory seen[8];
unsigned next_seen = 0;

// The answer to the last question, for what else is asked about that buffer within the same call of
// the program. Nobody can free the memory in between; so there is nothing to ask the driver again.
struct {
    std::uint64_t address = 0; // 0: none
    unsigned long long buffer_id = 0;
    int ordinal = 0;
    bool managed = false;
    bool asked_again = false; // the next question is about it once more
    bool for_send = false;    // that question has come: a send of this very call
} last;

known_memory *find_seen(std::uint64_t address)
{
    for (known_memory &each : seen) {
        if (address >= each.start && address < each.end) {
            return &each;
        }
    }
    return nullptr;
}

// No two of them overlap, so what is found is what was seen last.
void remember(const known_memory &found, std::uint64_t address)
{
    known_memory *known = find_seen(address);
    if (nullptr == known || known->start != found.start || known->end != found.end) {
        for (known_memory &each : seen) {
            if (each.start < found.end && found.start < each.end) {
                each = {};
            }
        }
        known = &seen[next_seen++ % std::size(seen)];
    }
    *known = found;
}

void forget(std::uint64_t address)
{
    if (known_memory *known = find_seen(address); known != nullptr) {
        *known = {};
    }
}

// True: the address lies in an allocation that was seen before and still lives, as its buffer id
// tells, about which the driver answers in half the time that all the rest takes.
bool is_still(std::uint64_t address, known_memory *out)
{
    const known_memory *known = find_seen(address);
    unsigned long long buffer_id = 0;
    if (nullptr == known ||
        CUDA_SUCCESS !=
            driver->pointer_get_attribute(&buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address) ||
        buffer_id != known->buffer_id) {
        return false;
    }
    *out = *known;
    return true;
}

// What Open MPI is told besides.
std::uint64_t flags_of(bool managed)
{
    return managed ? MCA_ACCELERATOR_FLAGS_UNIFIED_MEMORY : 0;
}

// The table is read by other threads while it changes.
void set_check(decltype(opal_accelerator.check_addr) function)
{
    std::atomic_ref(opal_accelerator.check_addr).store(function, std::memory_order_release);
}

} // namespace

} // namespace gpusm

// Contract of accelerator.h: 1 device memory, 0 not, negative an error; *dev_id and *flags are
// set in each case.
extern "C" {

// As long as there has been no GPU message.
static int host_check_addr(const void *address, int *dev_id, uint64_t *flags)
{
    if (address != nullptr && flags != nullptr) {
        // The question that the component believes, too: this form answers 0 about what the driver
        // does not know.
        CUmemorytype type{};
        CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
        void *values[] = {&type};
        const CUresult result = gpusm::driver->pointer_get_attributes(
            1, attributes, values, reinterpret_cast<std::uint64_t>(address));
        // Not initialised: the program does without devices, or has not come to them yet.
        if (CUDA_ERROR_NOT_INITIALIZED == result ||
            (CUDA_SUCCESS == result && 0 == static_cast<unsigned>(type))) {
            *dev_id = MCA_ACCELERATOR_NO_DEVICE_ID;
            *flags = 0;
            return 0;
        }
    }
    return gpusm::component_check(address, dev_id, flags);
}

static int quick_check_addr(const void *address, int *dev_id, uint64_t *flags)
{
    if (nullptr == address || nullptr == flags) {
        return gpusm::component_check(address, dev_id, flags);
    }
    const auto where = reinterpret_cast<std::uint64_t>(address);
    const bool threads = mca_btl_gpusm_component.threads;
    if (!threads && std::exchange(gpusm::last.asked_again, false) && gpusm::last.address == where) {
        gpusm::last.for_send = true;
        *dev_id = gpusm::last.ordinal;
        *flags = gpusm::flags_of(gpusm::last.managed);
        return 1;
    }
    gpusm::known_memory found{};
    bool unknown_to_driver = false;
    bool on_device = !threads && gpusm::is_still(where, &found);
    if (!on_device) {
        const gpusm::pointer_facts facts = gpusm::inspect_pointer(*gpusm::driver, where);
        on_device = facts.on_device && facts.ordinal >= 0;
        unknown_to_driver = facts.answered && !facts.known;
        found = {facts.start,     facts.start + facts.len_bytes,
                 facts.buffer_id, facts.context,
                 facts.ordinal,   facts.managed,
                 facts.plain(),   nullptr};
        if (!threads) {
            on_device ? gpusm::remember(found, where) : gpusm::forget(where);
        }
    }
    // The component makes the memory's context current for a thread that has none.
    CUcontext current = nullptr;
    on_device =
        on_device && CUDA_SUCCESS == gpusm::driver->ctx_get_current(&current) && current != nullptr;
    if (!threads) {
        gpusm::last = {on_device ? where : 0, found.buffer_id, found.ordinal,
                       found.managed,         false,           false};
    }
    if (on_device || unknown_to_driver) {
        *dev_id = on_device ? found.ordinal : MCA_ACCELERATOR_NO_DEVICE_ID;
        *flags = on_device ? gpusm::flags_of(found.managed) : 0;
        return on_device ? 1 : 0;
    }
    return gpusm::component_check(address, dev_id, flags);
}

} // extern "C"

namespace gpusm {

known_memory *known_allocation(std::uint64_t address)
{
    return find_seen(address);
}

unsigned long long take_buffer_id(std::uint64_t address)
{
    if (mca_btl_gpusm_component.threads) {
        return 0;
    }
    // A persistent send asks when it is made, and its buffer may be another one when it is started.
    // Only a send that was declined by sendi has certainly asked in this call.
    const unsigned long long known = last.for_send && last.address == address ? last.buffer_id : 0;
    last = {};
    return known;
}

void will_ask_again(const void *address)
{
    if (!mca_btl_gpusm_component.threads) {
        last.asked_again = last.address == reinterpret_cast<std::uint64_t>(address);
    }
}

void end_of_question()
{
    if (!mca_btl_gpusm_component.threads) {
        last = {};
    }
}

void install_pointer_check()
{
#if 5 == OPAL_MAJOR_VERSION // later, accelerator/cuda does it itself
    const char *selected = opal_accelerator_base_selected_component.base_version.mca_component_name;
    if (!mca_btl_gpusm_component.quick_pointer_check || component_check != nullptr ||
        0 != std::strcmp("cuda", selected)) {
        return;
    }
    driver = driver_load();
    if (driver != nullptr) {
        component_check = opal_accelerator.check_addr;
        set_check(host_check_addr);
    }
#endif
}

void extend_pointer_check()
{
    if (component_check != nullptr && host_check_addr == opal_accelerator.check_addr) {
        set_check(quick_check_addr);
        log_line(log_level::info, "buffers are looked at with one driver call");
    }
}

void remove_pointer_check()
{
    // Somebody else may have put a function over ours; that one still needs it.
    if (component_check != nullptr && (host_check_addr == opal_accelerator.check_addr ||
                                       quick_check_addr == opal_accelerator.check_addr)) {
        set_check(component_check);
        component_check = nullptr;
    }
}

} // namespace gpusm
