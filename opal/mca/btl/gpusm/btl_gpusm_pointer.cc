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

// The last question that was answered with one of those, for what else is asked about that buffer
// within the same call of the program. Nobody can free the memory in between; so there is nothing
// to ask the driver again.
enum class question : std::uint8_t {
    none,
    answered,
    will_come_again,
    came_again, // so it is about a send of this very call
};
struct {
    question state = question::none;
    std::uint64_t address = 0;
    const known_memory *memory = nullptr;
} last;

// What is known of that memory from now on; null if it is not device memory.
const known_memory *remember(std::uint64_t address, const known_memory &found)
{
    if (mca_btl_gpusm_component.threads) {
        return found.on_device ? &found : nullptr;
    }
    for (known_memory &each : seen) {
        if ((each.start < found.end() && found.start < each.end()) || each.holds(address)) {
            each = {};
        }
    }
    if (!found.on_device) {
        return nullptr;
    }
    known_memory &place = seen[next_seen++ % std::size(seen)];
    place = found;
    return &place;
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

extern "C" int quick_check_addr(const void *address, int *dev_id, std::uint64_t *flags)
{
    if (nullptr == address || nullptr == flags) {
        return component_check(address, dev_id, flags);
    }
    const auto where = reinterpret_cast<std::uint64_t>(address);
    if (question::will_come_again == last.state && last.address == where) {
        last.state = question::came_again;
        return tell(last.memory, dev_id, flags);
    }
    end_of_question();
    if (nullptr == mca_btl_gpusm_component.gpu) {
        // Before the first device message only memory that the driver does not know is answered.
        CUmemorytype kind{};
        CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        void *answer = &kind;
        const CUresult result = driver->pointer_get_attributes(1, &asked, &answer, where);
        return CUDA_ERROR_NOT_INITIALIZED == result ||
                       (CUDA_SUCCESS == result && CUmemorytype{} == kind)
                   ? tell(nullptr, dev_id, flags)
                   : component_check(address, dev_id, flags);
    }
    // About the buffer id, which tells whether it is still the same allocation, the driver answers
    // in half the time that all the rest takes.
    const known_memory *known = known_allocation(where);
    known_memory found;
    unsigned long long buffer_id = 0;
    if (nullptr == known ||
        CUDA_SUCCESS !=
            driver->pointer_get_attribute(&buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, where) ||
        buffer_id != known->buffer_id) {
        found = {inspect_pointer(*driver, where)};
        found.on_device = found.on_device && found.ordinal >= 0;
        known = remember(where, found);
    }
    // The component makes the memory's context current for a thread that has none, and sets itself
    // up when it is asked about the first device memory.
    CUcontext current = nullptr;
    if (nullptr == known || CUDA_SUCCESS != driver->ctx_get_current(&current) ||
        nullptr == current) {
        const bool unknown_to_driver = found.answered && !found.known;
        return unknown_to_driver ? tell(nullptr, dev_id, flags)
                                 : component_check(address, dev_id, flags);
    }
    if (!mca_btl_gpusm_component.threads) {
        last = {question::answered, where, known};
    }
    return tell(known, dev_id, flags);
}

} // namespace

known_memory *known_allocation(std::uint64_t address)
{
    const auto found = std::find_if(std::begin(seen), std::end(seen),
                                    [=](const known_memory &each) { return each.holds(address); });
    return found == std::end(seen) ? nullptr : found;
}

// In programs with threads there is no last question, and these three write nothing.

unsigned long long take_buffer_id(std::uint64_t address)
{
    // A persistent send asks when it is made, and its buffer may be another one when it is started.
    // Only a send that was declined by sendi has certainly asked in this call.
    const bool known = question::came_again == last.state && last.address == address;
    end_of_question();
    return known ? last.memory->buffer_id : 0;
}

void will_ask_again(const void *address)
{
    if (question::none != last.state) {
        last.state = last.address == reinterpret_cast<std::uint64_t>(address)
                         ? question::will_come_again
                         : question::none;
    }
}

void end_of_question()
{
    if (question::none != last.state) {
        last.state = question::none;
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
    end_of_question();
    std::fill(std::begin(seen), std::end(seen), known_memory{}); // the devices that it names end
    // Somebody else may have put a function over ours; that one still needs it.
    if (component_check != nullptr && quick_check_addr == opal_accelerator.check_addr) {
        set_check(component_check);
        component_check = nullptr;
    }
}

} // namespace gpusm
