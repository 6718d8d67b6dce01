// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fd_services.h: what the passing of descriptors needs of the layer above, in tests of it alone.
#ifndef GPUSM_TESTS_FD_SERVICES_H
#define GPUSM_TESTS_FD_SERVICES_H

#include "opal/mca/common/gpusm/ipc/fd_passing.h"

namespace gpusm_test {

// All numbers are those of one peer, or of none; every message is taken.
struct fd_services final : gpusm::fd_passing_services {
    explicit fd_services(gpusm::peer *known) : known_(known) {}
    bool send(std::uint32_t, const gpusm::ipc_message &said) override
    {
        refused += gpusm::ipc_operation::descriptors_not_sent == said.operation ? 1 : 0;
        return true;
    }
    gpusm::peer *peer_at(std::uint32_t) override { return known_; }

    int refused = 0; // answers without descriptors

  private:
    gpusm::peer *known_;
};

} // namespace gpusm_test

#endif
