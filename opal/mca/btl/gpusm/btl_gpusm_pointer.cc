// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_pointer.cc: a quicker answer to "is this device memory?".
//
// Open MPI asks its accelerator component that about the buffer of every send and every receive.
// accelerator/cuda of 5.0 takes some ten driver calls for device memory, more than two
// microseconds; later versions ask for the kind of memory first. This file does the same for 5.0:
// one driver call decides what the driver does not know and what it calls device memory, of
// whatever kind; the rest (registered host memory, memory of a host's NUMA node) goes to the
// component as before, and so does a thread without a context. No answer changes, but for the
// number of the device of pool memory that other devices may use, too: the component names the
// first of those.
//
// It takes the place of the component's function in the table through which Open MPI calls it.
#include "opal/mca/btl/gpusm/btl_gpusm.h"
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>

namespace gpusm {

namespace {

const driver_api *driver = nullptr;
decltype(opal_accelerator.check_addr) component_check = nullptr;

// The allocations that were seen last; a program has few that it sends and receives. None in
// programs with threads. No two of them overlap, so what is found is what was seen last.
known_memory seen[8];
unsigned next_seen = 0;

// The answer to the last question, for what else is asked about that buffer within the same call of
// the program. Nobody can free the memory in between; so there is nothing to ask the driver again.
struct {
    std::uint64_t address = 0; // 0: none
    known_memory memory = {};
    bool asked_again = false; // the next question is about it once more
    bool for_send = false;    // that question has come: a send of this very call
} last;

void remember(std::uint64_t address, const known_memory &found, bool on_device)
{
    for (known_memory &each : seen) {
        if ((each.start < found.end && found.start < each.end) || each.holds(address)) {
            each = {};
        }
    }
    if (on_device) {
        seen[next_seen++ % std::size(seen)] = found;
    }
}

void forget_all()
{
    std::fill(std::begin(seen), std::end(seen), known_memory{});
    last = {};
}

// The table is read by other threads while it changes.
void set_check(decltype(opal_accelerator.check_addr) function)
{
    std::atomic_ref(opal_accelerator.check_addr).store(function, std::memory_order_release);
}

// The answer by the contract of accelerator.h: 1 device memory, 0 (null) not, negative an error;
// *dev_id and *flags are set in each case.
int tell(const known_memory *found, int *dev_id, std::uint64_t *flags)
{
    *dev_id = nullptr == found ? MCA_ACCELERATOR_NO_DEVICE_ID : found->ordinal;
    *flags = found != nullptr && found->managed ? MCA_ACCELERATOR_FLAGS_UNIFIED_MEMORY : 0;
    return nullptr == found ? 0 : 1;
}

} // namespace

} // namespace gpusm

extern "C" {

static int quick_check_addr(const void *address, int *dev_id, uint64_t *flags)
{
    if (nullptr == address || nullptr == flags) {
        return gpusm::component_check(address, dev_id, flags);
    }
    auto &last = gpusm::last;
    const auto where = reinterpret_cast<std::uint64_t>(address);
    if (last.asked_again && last.address == where) {
        last.asked_again = false;
        last.for_send = true;
        return gpusm::tell(&last.memory, dev_id, flags);
    }
    // About the buffer id, which tells whether it is still the same allocation, the driver answers
    // in half the time that all the rest takes.
    const gpusm::known_memory *known = gpusm::known_allocation(where);
    unsigned long long buffer_id = 0;
    bool on_device = known != nullptr &&
                     CUDA_SUCCESS == gpusm::driver->pointer_get_attribute(
                                         &buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, where) &&
                     buffer_id == known->buffer_id;
    bool unknown_to_driver = false;
    gpusm::known_memory found{};
    if (on_device) {
        found = *known;
    } else {
        const gpusm::pointer_facts facts = gpusm::inspect_pointer(*gpusm::driver, where);
        on_device = facts.on_device && facts.ordinal >= 0;
        unknown_to_driver = facts.answered && !facts.known;
        found = {facts.start,     facts.start + facts.len_bytes,
                 facts.buffer_id, facts.context,
                 facts.ordinal,   facts.managed,
                 facts.plain(),   nullptr};
        if (!mca_btl_gpusm_component.threads) {
            gpusm::remember(where, found, on_device);
        }
    }
    // The component makes the memory's context current for a thread that has none, and sets itself
    // up when it is asked about the first device memory.
    CUcontext current = nullptr;
    on_device = on_device && mca_btl_gpusm_component.gpu != nullptr &&
                CUDA_SUCCESS == gpusm::driver->ctx_get_current(&current) && current != nullptr;
    if (!mca_btl_gpusm_component.threads) {
        last = {on_device ? where : 0, found, false, false};
    }
    return on_device || unknown_to_driver ? gpusm::tell(on_device ? &found : nullptr, dev_id, flags)
                                          : gpusm::component_check(address, dev_id, flags);
}

} // extern "C"

namespace gpusm {

known_memory *known_allocation(std::uint64_t address)
{
    for (known_memory &each : seen) {
        if (each.holds(address)) {
            return &each;
        }
    }
    return nullptr;
}

// In programs with threads there is no last question, and these three write nothing.

unsigned long long take_buffer_id(std::uint64_t address)
{
    // A persistent send asks when it is made, and its buffer may be another one when it is started.
    // Only a send that was declined by sendi has certainly asked in this call.
    const bool known = last.for_send && last.address == address;
    const unsigned long long buffer_id = known ? last.memory.buffer_id : 0;
    end_of_question();
    return buffer_id;
}

void will_ask_again(const void *address)
{
    if (last.address != 0) {
        last.asked_again = last.address == reinterpret_cast<std::uint64_t>(address);
    }
}

void end_of_question()
{
    if (last.address != 0) {
        last.address = 0;
        last.asked_again = last.for_send = false;
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
        set_check(quick_check_addr);
    }
#endif
}

void remove_pointer_check()
{
    forget_all(); // the devices that it names end
    // Somebody else may have put a function over ours; that one still needs it.
    if (component_check != nullptr && quick_check_addr == opal_accelerator.check_addr) {
        set_check(component_check);
        component_check = nullptr;
    }
}

} // namespace gpusm
