// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// views.h: addresses that stand for the packed bytes of device memory with gaps. Open MPI's pml/ob1
// is given such an address, and as many bytes without gaps, in the place of a buffer, a count and a
// datatype: so its matching, its protocols and its requests are what they are for other device
// memory. Who copies from or to one asks here where the bytes are.
#ifndef GPUSM_VIEWS_H
#define GPUSM_VIEWS_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/device.h"
#include "opal/mca/common/gpusm/gpu/gaps.h"
#include "opal/mca/common/gpusm/gpu/layout.h"
#include "opal/mca/common/gpusm/gpu/strided_arguments.h"
#include "opal/mca/common/gpusm/packed_memory.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace gpusm {

class gpu_side;

// A view has a slot in the reserved range (gpu/gaps.h), of view_most_bytes.
inline constexpr unsigned view_offset_bits = 38;
inline constexpr std::uint32_t view_slots = 1U << 16;
inline constexpr std::uint64_t view_most_bytes = std::uint64_t{1} << view_offset_bits;

inline bool is_view_address(const void *address)
{
    return is_view_address(reinterpret_cast<std::uint64_t>(address));
}
// Packed bytes before that address.
constexpr std::uint64_t view_offset(std::uint64_t address)
{
    return address & (view_most_bytes - 1);
}

struct view {
    std::uint64_t address = 0;
    std::uint64_t len_bytes = 0;
    strided_side memory{};            // layout.blocks is an address for processors
    std::uint64_t list_on_device = 0; // the same list there; 0: none, or not there yet
    std::uint64_t word_bits = 0;      // strided_bits() of the layout
    std::uint64_t lowest = 0;         // of the program's memory
    std::uint64_t end = 0;
    shared_plan plan;                 // null: the memory is a peer's
    device *on = nullptr;             // in whose context the memory is used
    unsigned long long buffer_id = 0; // of the program's memory there; 0: the memory is a peer's
    bool kernel_touches = true;       // the memory, in that context

    bool holds(std::uint64_t at, std::uint64_t bytes) const
    {
        const std::uint64_t offset = view_offset(at);
        return offset <= len_bytes && bytes <= len_bytes - offset;
    }
};

class view_table final : public gap_services {
  public:
    view_table(gpu_side &side, const driver_api &driver)
        : side_(side), lists_memory_(driver, least_list_bytes), packed_(driver)
    {
    }
    ~view_table();
    view_table(const view_table &) = delete;
    view_table &operator=(const view_table &) = delete;

    // The view of `count` elements of that plan. Null: the memory is not a single allocation of
    // device or managed memory that kernels can touch, or there are too many views. Takes the GPU
    // lock.
    view *open(const void *buffer, std::uint64_t count, shared_plan plan);
    // The view of a peer's memory that is mapped here, in the context of `on`: blocks in loops,
    // which strided_stays_in() has looked at. Null: there are too many views.
    view *open_mapped(const strided_side &memory, std::uint64_t len_bytes, device &on,
                      bool kernel_touches);
    // The same for `count` elements of a plan, of which the caller knows that they lie in memory
    // that is mapped here.
    view *open_mapped(std::uint64_t address, std::uint64_t count, shared_plan plan, device &on,
                      bool kernel_touches);
    // Nobody uses it any more. Any thread.
    void close(view *given);
    // Null: that is no address in a view. Any thread, without a lock.
    view *find(std::uint64_t address) const
    {
        return is_view_address(address) ? look_up(address) : nullptr;
    }
    view *find(const void *address) const { return find(reinterpret_cast<std::uint64_t>(address)); }

    // Copies between addresses, in views or of memory without gaps of which one at least is on a
    // device, and returns when that is done: by one launch where a kernel touches both sides, or
    // one of them and page-locked memory on the way. Takes the GPU lock.
    status copy(void *to, const void *from, std::size_t len_bytes);

    // --- under the GPU lock

    // The same for addresses of which is known that they lie in their views. `is_programs`: the
    // program of this process writes the source, so its copies are waited for; else what is there
    // is complete, and a receiver must not wait for work that may wait for its message.
    status copy_locked(std::uint64_t to, std::uint64_t from, std::size_t len_bytes,
                       bool is_programs);

    // For the engine, of copies that it has been given.
    status describe(const copy_request &request, strided_copy *out) override;
    status copy_otherwise(const copy_request &request) override;

    // What a launch is told that copies between addresses, each in a view or in device memory
    // without gaps. Anything but `ok`: there is no memory for a list of blocks, or it cannot be
    // brought to the device, or nothing is there any more.
    status describe(std::uint64_t to, std::uint64_t from, std::uint64_t len_bytes,
                    strided_copy *out);
    // Packs what is from that address in the view on, and returns when that is done.
    status pack(view &from, std::uint64_t at, std::uint64_t to, std::size_t len_bytes,
                bool is_programs);
    // The program may have freed the memory between two uses of a view, and have other memory
    // there. False: it is nothing that a kernel can touch.
    bool is_there(view &of);
    // Gives back lists of plans that are gone.
    void sweep();

    // Memory for packed bytes. `on` is null: there is none.
    packed_block take_packed(device &on, std::size_t bytes) { return take(&packed_, on, bytes); }
    void give_packed(const packed_block &block) { packed_.give(block); }

  private:
    struct list {
        std::weak_ptr<const datatype_plan> plan;
        packed_block in;
    };

    static std::unique_ptr<view> make_view(std::uint64_t address, std::uint64_t count,
                                           shared_plan plan);
    view *look_up(std::uint64_t address) const;
    view *give_slot(std::unique_ptr<view> made);
    bool look_at_memory(view *of);
    status bring_list(view &of);
    packed_block take(packed_memory *from, device &on, std::size_t bytes);
    status side_at(std::uint64_t address, std::uint64_t len_bytes, strided_side *out,
                   std::uint64_t *word_bits);
    device *touches(std::uint64_t address, std::size_t len_bytes);
    device *owner_of(std::uint64_t address);
    bool reaches(device *by, std::uint64_t address, std::size_t len_bytes);
    CUevent event_before(device *reads, bool is_programs);
    status copy_at_once(std::uint64_t to, std::uint64_t from, std::size_t len_bytes,
                        bool is_programs);
    status copy_through_host(std::uint64_t to, std::uint64_t from, std::size_t len_bytes,
                             bool is_programs);
    status copy_piece(std::uint64_t to, std::uint64_t from, std::size_t len_bytes,
                      bool is_programs);
    status copy_by_driver(std::uint64_t to, std::uint64_t from, std::size_t len_bytes,
                          bool is_programs);
    status move(const device &on, std::uint64_t to, std::uint64_t from, std::size_t len_bytes);

    gpu_side &side_;
    std::mutex slots_lock_; // of the two below
    std::vector<std::uint32_t> free_slots_;
    std::uint32_t used_slots_ = 0;
    std::atomic<std::atomic<view *> *> table_{nullptr};  // view_slots of them; owned
    static constexpr std::size_t least_list_bytes = 512; // what the driver rounds up to
    std::vector<list> lists_;
    packed_memory lists_memory_; // taken from one list for the next without a call of the driver
    packed_memory packed_;
};

} // namespace gpusm

#endif
