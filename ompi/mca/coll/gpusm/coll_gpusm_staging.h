// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_staging.h: host memory that stands in for device memory while a collective runs.
//   staging_pool   blocks of host memory, of which some are kept page-locked
//   operands       the buffers of one call, as far as they matter on this rank
//   call_copies    what is copied before and after a call with other buffers than the program's
//   staged_call    the same buffers in host memory, and the copies there and back
#ifndef GPUSM_COLL_STAGING_H
#define GPUSM_COLL_STAGING_H

#include "ompi/mca/coll/gpusm/coll_gpusm_accelerator.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_ompi.h"

#include "opal/mca/common/gpusm/base/reach.h"

#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

namespace gpusm {

struct staging_block {
    char *base = nullptr;
    std::size_t len_bytes = 0;
    bool is_locked = false; // page-locked: kept for the next call
};

// Blocks of host memory. Page-locking takes longer than most copies, so page-locked blocks are
// kept, up to a bound; beyond it a block is ordinary memory, gone after its call. For any thread.
class staging_pool {
  public:
    // kept_bytes: the most that is page-locked at any time.
    explicit staging_pool(std::size_t kept_bytes) : kept_bytes_(kept_bytes) {}
    // Blocks that are page-locked stay as they are, for the process's end to take: no context need
    // be current any more.
    ~staging_pool() = default;
    staging_pool(const staging_pool &) = delete;
    staging_pool &operator=(const staging_pool &) = delete;

    // At least len_bytes; base is nullptr when there is no memory. A context is current.
    staging_block take(std::size_t len_bytes);
    void give_back(const staging_block &block);

  private:
    static staging_block lock_new(std::size_t len_bytes);
    static void free_locked(const staging_block &block);

    const std::size_t kept_bytes_;
    std::mutex mutex_;
    std::vector<staging_block> free_; // page-locked ones
    std::size_t locked_bytes_ = 0;    // of all page-locked ones, free or taken
    reach locking_;                   // by the driver
};

// The buffers of one call on this rank. Counts are in elements of the call's datatype; a buffer
// whose count is 0 is not significant here and passes as it is.
struct operands {
    const void *send = nullptr;
    std::size_t send_count = 0;
    void *receive = nullptr;
    std::size_t receive_count = 0; // what is read or written of it
    std::size_t written_count = 0; // what is written of it, from its beginning
    bool receive_is_read = false;  // it holds input, too
};

// Whether one of the significant buffers begins in device memory.
bool has_device_memory(const operands &of, const ompi_datatype_t *type);

// The performance variables of the component. MPI_T reads them as numbers.
struct collective_counters {
    using number = std::atomic<unsigned long long>;
    number device_reductions; // reductions on the devices
    number device_bytes;      // of this process's input to them
    number host_reductions;   // calls on host memory that stands in for device memory
    number device_exchanges;  // calls that only move data, by kernels
    number exchanged_bytes;   // that they brought this process
    number packed_exchanges;  // calls that only move data, of packed bytes in device memory
};
static_assert(sizeof(collective_counters::number) == sizeof(unsigned long long));

// Other memory that a call gets in the place of the program's. Errors are OMPI_* codes.
class call_copies {
  public:
    virtual ~call_copies() = default;
    call_copies &operator=(const call_copies &) = delete;

    // Before the call, and after it if it has worked.
    virtual int copy_in() = 0;
    virtual int copy_back() = 0;
    // Before either, in a thread that has not prepared the call: it may have no context.
    virtual void enter_context() const {}

  protected:
    call_copies() = default;
    call_copies(const call_copies &) = default;
};

// Buffers of a call, in host memory where the program's are device memory.
class staged_call final : public call_copies {
  public:
    explicit staged_call(staging_pool &pool) : pool_(&pool) {}
    staged_call(staged_call &&other) noexcept;
    ~staged_call() override;
    staged_call(const staged_call &) = delete;
    staged_call &operator=(const staged_call &) = delete;

    // Finds out what is device memory and takes host memory for it. Copies nothing.
    int prepare(const operands &of, const ompi_datatype_t *type);
    bool is_staged() const { return block_.base != nullptr; }
    // What to call the next component with: the program's own buffer where it is not staged.
    const void *send() const { return send_.staged(); }
    void *receive() const { return receive_.staged(); }

    int copy_in() override;
    int copy_back() override;
    // Asking about an address is how Open MPI's accelerator components give a thread the context of
    // the memory.
    void enter_context() const override;

  private:
    struct part {
        char *program = nullptr; // the argument of the call
        char *first = nullptr;   // first byte of its data; nullptr: not staged
        char *host = nullptr;    // stands for `first`
        std::size_t in_bytes = 0;
        std::size_t out_bytes = 0;
        std::ptrdiff_t out_offset = 0; // from `first`

        char *staged() const { return first == nullptr ? program : host - (first - program); }
    };

    void check() const;

    staging_pool *pool_;
    staging_block block_;
    bool has_gaps_ = false; // the datatype
    part send_;
    part receive_;
};

} // namespace gpusm

#endif
