// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// collective_call.h: what the tests of collectives do with one of them, whatever it is.
#ifndef GPUSM_TESTS_MPI_COLLECTIVE_CALL_H
#define GPUSM_TESTS_MPI_COLLECTIVE_CALL_H

#include <mpi.h>

#include <string>

namespace gpusm::exchange {

enum class form { blocking, started, persistent };

// This rank's part in one collective: its buffers, what it gives and what it is to get.
class collective_call {
  public:
    collective_call() = default;
    virtual ~collective_call() = default;
    collective_call(const collective_call &) = delete;
    collective_call &operator=(const collective_call &) = delete;

    // The buffers as they are before it; other contents for another seed.
    virtual void fill(int seed) = 0;
    // Returns what MPI's function does. A persistent one is made, and not started.
    virtual int try_to_begin(form f, MPI_Request *request) = 0;
    // The buffers after it.
    virtual void check() const = 0;
    // It is certain that kernels carry it out, where nothing fails and it is not persistent.
    virtual bool stays_on_devices() const = 0;
    virtual std::string describe() const = 0;

  protected:
    // In its form the one of MPI's three functions. Arguments: those that all three have.
    template <typename Blocking, typename Started, typename Persistent, typename... Arguments>
    static int one_of(form f, MPI_Request *request, Blocking blocking, Started started,
                      Persistent persistent, Arguments... arguments)
    {
        *request = MPI_REQUEST_NULL;
        return form::blocking == f  ? blocking(arguments...)
               : form::started == f ? started(arguments..., request)
                                    : persistent(arguments..., MPI_INFO_NULL, request);
    }
};

} // namespace gpusm::exchange

#endif
