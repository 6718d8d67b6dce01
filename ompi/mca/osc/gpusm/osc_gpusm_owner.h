// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// osc_gpusm_owner.h: memory that only its owner can read and write, as other processes read and
// write it: by messages to the owner, which answers them in any call of MPI. Right wherever
// messages are, and slow.
#ifndef GPUSM_OSC_OWNER_H
#define GPUSM_OSC_OWNER_H

#include "ompi/mca/osc/gpusm/osc_gpusm_ompi.h"

#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>

namespace gpusm {

// What others may be served from.
class owner_memory {
  public:
    virtual bool has(std::uint64_t address, std::uint64_t bytes) = 0;

  protected:
    ~owner_memory() = default;
};

class owner_service {
  public:
    explicit owner_service(owner_memory &memory) : memory_(memory) {}
    owner_service(const owner_service &) = delete;
    owner_service &operator=(const owner_service &) = delete;

    // Serves whoever asks over that communicator, from now on.
    int begin(ompi_communicator_t *comm);
    // Nobody asks any more.
    void end();
    bool is_serving() const { return is_serving_.load(std::memory_order_acquire); }
    // From progress. True: something has happened. Any thread.
    bool serve();

    // Asks that process to copy these bytes from or to its memory, and returns when that is done,
    // or the owner says that it cannot: of a get by a message without a byte. `local`: host or
    // device memory.
    int copy(bool is_put, int target, std::uint64_t address, void *local, std::uint64_t bytes);

  private:
    // What is asked for. Read as another process's word.
    struct question {
        std::uint64_t address;
        std::uint64_t bytes;
        std::uint32_t is_put;
        std::int32_t tag; // of what the owner sends; what it is sent has another one
    };
    struct job {
        question what;
        int from;
        std::int32_t answer = MPI_SUCCESS;
        enum class stage : std::uint8_t { answered, copied, over };
        stage at = stage::answered;
        ompi_request_t *request = MPI_REQUEST_NULL;
    };
    static constexpr int question_tag = 1;
    static constexpr int first_tag = 2;
    static constexpr std::int32_t tags = 8192; // for each direction; MPI_TAG_UB is at least 32767

    int listen();
    bool hear();
    bool go_on(job *of);
    int exchange(bool is_put, int target, std::uint64_t address, void *local, std::uint64_t bytes);

    owner_memory &memory_;
    ompi_communicator_t *comm_ = nullptr;
    std::atomic<bool> is_serving_{false};
    std::mutex mutex_; // of what follows
    question asked_{};
    ompi_request_t *asks_ = MPI_REQUEST_NULL;
    std::list<job> jobs_;
    std::atomic<std::uint32_t> next_tag_{0};
};

} // namespace gpusm

#endif
