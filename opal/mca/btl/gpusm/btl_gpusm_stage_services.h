// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_stage_services.h: what streams with a device at one end or both need of the GPU side:
// rings on devices, memory that is registered with the driver or mapped, and copies.
//
// Everything here is called under the GPU lock, if there is a GPU side; without one only what a
// sender of host memory needs.
#ifndef BTL_GPUSM_STAGE_SERVICES_H
#define BTL_GPUSM_STAGE_SERVICES_H

#include "opal/mca/btl/gpusm/btl_gpusm_device.h"
#include "opal/mca/btl/gpusm/btl_gpusm_rings.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace gpusm {

// Rings in host memory, and on each device, where they share staging_device_bytes.
inline constexpr std::uint32_t host_rings = 8;
inline constexpr std::uint32_t most_device_rings = 4;
// What a sender brings from its device into a receiver's host memory: each part is a copy of the
// device and a system call.
inline constexpr stream_parts shared_parts = {shared_part.least, shared_part.most, 3};
// Rings of so many bytes.
inline stream_pool pool_of(std::size_t ring_bytes, std::uint32_t most_rings, device *on = nullptr)
{
    const std::size_t lines = ring_bytes / most_stream_pieces / cache_line_bytes;
    return {static_cast<std::uint32_t>(lines * cache_line_bytes), most_stream_pieces, most_rings,
            on};
}

// What a range of ours needs while it is sent: until its copies are over.
struct sending {
    mode goes;
    exported *entry; // mode shared: referenced; else null, as it is a registration
    mca_btl_base_endpoint_t *to;
    device *on;      // copies it; null: the processor does
    mapping *mapped; // of the ring or the target; referenced, or null
    CUevent wait_for;
    bool for_kernel;
    std::uint32_t failures; // of writes to that peer, when it began
};

// A copy for a stream.
struct stage_copy {
    bounce job; // by the engine at once, or through registered memory
    stream_copy *of;
    const sending *part_of; // null: of what comes
    class stage_services *by;
};

class stage_services final : public stream_services {
  public:
    explicit stage_services(transport &of) : transport_(of) {}
    ~stage_services();
    stage_services(const stage_services &) = delete;
    stage_services &operator=(const stage_services &) = delete;

    status send(peer &to, const stream_message &message, const stream_memory *memory) override;
    void open(peer &to, const stream_message &message, const stream_memory *memory,
              stream_source *out) override;
    void close(const stream_source &source) override;
    void made_ring(const unsigned char *ring, std::size_t bytes) override;
    status make_slots(const stream_pool &pool, std::size_t bytes, std::uint64_t *slots,
                      stream_memory *memory) override;
    void name_slots(const stream_pool &pool, std::uint64_t slots, stream_memory *memory) override;
    void copy_in(const stream_source &source, stream_copy *copy) override;
    void copy_out(const stream_fetch &fetch, stream_copy *copy) override;
    void copy_back(const stream_fetch &fetch, stream_copy *copy) override;

    // A copy_part::stage has ended.
    void copied(copy_request *copy);
    // Rings on the device of a get; null: there are none, or the sender cannot map them.
    stream_pool *device_pool_for(const transfer *get);
    // That part of a peer's segment is about to be unmapped. False: not yet, as the driver would
    // wait for kernels that run, which cuMemHostUnregister does.
    bool forget_rings(const unsigned char *begin, std::size_t len_bytes);
    // What its rings may take of our segment.
    static std::size_t ring_bytes();

    stream_pool host_pool = pool_of(mca_btl_gpusm_component.staging_host_bytes, host_rings);
    stream_pool without_slots{cache_line_bytes, most_stream_pieces, host_rings};

  private:
    status map_target(sending *made, const stream_memory &target, std::uint64_t address);
    bool find_view(const stream_message &message, sending *found, stream_source *out) const;
    bool find_export(const stream_message &message, sending *found) const;
    void open_shared(mca_btl_base_endpoint_t *to, const stream_message &message,
                     const stream_memory &target, stream_source *out);
    bool open_pushed(sending *made, const stream_message &message, const stream_memory &target,
                     stream_source *out);
    bool open_device_ring(sending *made, const stream_message &message, const stream_memory &ring,
                          const registration &named, stream_source *out);
    void register_ring(const stream_source &source, std::size_t bytes, device *in);
    stage_copy *take_copy(stream_copy *of, const sending *part_of = nullptr);
    void bounce_copy(stage_copy *made, bounce_way way, device *on, mca_btl_base_endpoint_t *with,
                     std::uint64_t message_bytes);
    void end(stage_copy *over);

    // Where it is known that there is one.
    gpu_side &gpu() const { return *transport_.process.gpu_if_made(); }

    transport &transport_;

    recycled<sending> sendings_;
    recycled<stage_copy> copies_;
    device_rings device_rings_;
    // Peers' rings, with the driver, and in whose context; and those that the driver refuses.
    std::vector<std::pair<std::uint64_t, device *>> registered_;
    reach_table<std::uint64_t> registrations_;
};

// Would this process copy page-locked host memory into device memory that this peer names? Any
// thread.
bool pushes_to(const mca_btl_base_endpoint_t *reader);

} // namespace gpusm

#endif
