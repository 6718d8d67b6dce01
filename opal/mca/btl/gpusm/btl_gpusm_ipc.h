// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_ipc.h: what the library needs of the component that carries messages.
#ifndef BTL_GPUSM_IPC_H
#define BTL_GPUSM_IPC_H

#include "opal/mca/btl/gpusm/btl_gpusm_device.h"
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"
#include "opal/mca/common/gpusm/message_services.h"

namespace gpusm {

class messenger final : public message_services {
  public:
    explicit messenger(transport &of) : transport_(of) {}

    bool send(peer &to, const ipc_message &message) override;
    bool send(peer &to, const delegated_copy &message) override;
    status read(peer &from, void *local, std::uint64_t remote, std::size_t bytes) override;
    status write(peer &to, const void *local, std::uint64_t remote, std::size_t bytes) override;
    void fetches(peer &by) override;
    bool serve_views() override;
    void refused(peer &by, refuse_reason reason) override;

  private:
    transport &transport_;
};

} // namespace gpusm

#endif
