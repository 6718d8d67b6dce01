// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_message_checks.h: has the buffers of messages checked (sync_check.h) before the PML
// gets them, also those of collectives that go by messages.
#ifndef GPUSM_COLL_MESSAGE_CHECKS_H
#define GPUSM_COLL_MESSAGE_CHECKS_H

#include "ompi/mca/coll/gpusm/coll_gpusm_ompi.h"

#include "opal/mca/common/gpusm/local_process.h"

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace gpusm {

// Functions in the place of those of the PML, and of those by which programs wait, from the time it
// is made. Any thread.
class message_checks {
  public:
    using look = std::optional<sync_check::look>;

    // Null: the user has not asked for it, or no btl/gpusm with pml/ob1 is there.
    static std::unique_ptr<message_checks> install();
    // Puts those functions back. No call of one of ours is under way.
    ~message_checks();
    message_checks(const message_checks &) = delete;
    message_checks &operator=(const message_checks &) = delete;

    sync_check &checks() { return *process_->sync_checks(); }
    const mca_pml_base_module_t &next() const { return next_; }
    const ompi_request_fns_t &next_waits() const { return next_waits_; }

    struct message {
        const void *buffer;
        std::size_t count;
        ompi_datatype_t *type;
        int peer;
        int tag;
        const ompi_communicator_t *comm = nullptr; // of a matched message
    };
    look first_look(const message &of);
    // Of a call that returns when the buffer has been used.
    void check_now(const message &of) { checks().second_look(first_look(of)); }
    // Of device memory in one piece.
    void check_now(const void *buffer, std::size_t len_bytes)
    {
        checks().second_look(checks().first_look({buffer, len_bytes}));
    }
    // Of one that has been started; a receive only until its message has come.
    void check_later(look &&at, const ompi_request_t *request, bool is_receive);
    void check_due() { checks().look_at_due(); }

    // What a persistent request names is looked at when it is started.
    void remember(ompi_request_t *request, const message &of, bool is_receive);
    void check_started(const ompi_request_t *request);

  private:
    struct persistent {
        message of; // its type is referenced
        bool is_receive;
    };

    explicit message_checks(local_process *process);

    local_process *process_; // acquired
    mca_pml_base_module_t next_;
    ompi_request_fns_t next_waits_;
    std::mutex lock_;
    // By request, also of those that have been freed, until their memory is used for another one.
    std::map<const ompi_request_t *, persistent> persistent_;
};

} // namespace gpusm

#endif
