// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_self.h: messages of a process to itself: a second module of the component, in the place
// of btl/self, which copies device memory through the host.
//
// What is sent is delivered inside the call, as btl/self does it. Longer messages and device memory
// ob1 offers (RGET), and the get is one copy: by the processor between host memories, else by the
// copy engine.
#ifndef BTL_GPUSM_SELF_H
#define BTL_GPUSM_SELF_H

#include "opal/mca/btl/gpusm/btl_gpusm.h"

#include <atomic>
#include <cstddef>

extern "C" mca_btl_gpusm_t mca_btl_gpusm_self;

namespace gpusm {

// Limits of the module, with ob1's header. Those of host memory are btl/self's order of magnitude.
inline constexpr std::size_t self_eager_bytes = 2048 + 256;
inline constexpr std::size_t self_fragment_bytes = std::size_t{16} * 1024;
// Device memory up to that many bytes is packed, so that MPI_Send to oneself returns before the
// program receives, as it does over btl/self.
inline constexpr std::size_t self_device_eager_bytes = 1024;

// A descriptor of the module's and its payload: packed data, or ob1's header and the user's memory
// in a second segment.
struct self_frag {
    mca_btl_base_descriptor_t base;
    mca_btl_base_segment_t segments[2];
    mca_btl_gpusm_frag_t *registered; // the payload lies there; null: behind this
    bool is_short;
};
template <std::size_t payload_bytes> struct self_frag_of {
    self_frag frag;
    unsigned char payload[payload_bytes];
};

// What the module keeps between init and finalize. Any thread.
class self_side {
  public:
    explicit self_side(transport &of);
    self_side(const self_side &) = delete;
    self_side &operator=(const self_side &) = delete;

    // Null: `bytes` is more than a fragment holds, or there is no memory. `of_device`: the payload
    // lies in memory that is registered with the driver, if there is some, as device memory is
    // packed into it in less time.
    self_frag *take(std::size_t bytes, bool of_device = false);
    void give(self_frag *back);

    // Tells ob1 that it may offer device memory to this process.
    void enable_get();
    // Device memory has been seen: Open MPI's questions about addresses are answered here from now
    // on (install_pointer_check). Programs without do without.
    void answer_pointer_checks();
    // This process, as ob1 knows it; null: not any more.
    void serve(opal_proc_t *self);

    mca_btl_base_endpoint_t endpoint{}; // the only one; has no peer
    // All host memory has the first one; the second: device memory in which no context is known.
    // ob1 would register the buffer of a receive without a handle again, as host memory.
    registration host{};
    registration unusable{};

  private:
    // ob1's headers, which carry a handle; the payload is sent in place.
    static constexpr std::size_t short_bytes = 256;

    transport &transport_;
    opal_proc_t *self_ = nullptr;
    bool told_ = false; // ob1, of device memory
    std::atomic<bool> answers_pointer_checks_{false};
    free_list<self_frag_of<short_bytes>> short_;
    free_list<self_frag_of<self_fragment_bytes>> long_;
};

// The process itself is at the other end.
inline bool is_self(const mca_btl_base_endpoint_t *endpoint)
{
    return nullptr == endpoint->peer;
}

} // namespace gpusm

#endif
