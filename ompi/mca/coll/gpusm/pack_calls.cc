// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// pack_calls.cc: libgpusm_pack.so. Both names of a function are taken: Fortran's and those of
// tools end in PMPI's.
#include "ompi/mca/coll/gpusm/pack_calls.h"

#include <cstdlib>
#include <memory>

#include <dlfcn.h>

namespace gpusm {

extern "C" __attribute__((visibility("default"))) pack_hooks gpusm_pack_hooks;
pack_hooks gpusm_pack_hooks{sizeof(pack_calls), nullptr};

namespace {

const pack_calls *served()
{
    return gpusm_pack_hooks.calls.load(std::memory_order_acquire);
}

// The function of the library behind this one.
template <typename Function> Function *next(const char *name)
{
    return reinterpret_cast<Function *>(dlsym(RTLD_NEXT, name));
}

// Host memory for packed bytes that are on a device while the buffer is not: Open MPI looks only at
// the buffer, and would touch them itself.
class host_bytes {
  public:
    host_bytes(const pack_calls *calls, const void *buffer, int count, MPI_Datatype type,
               const void *packed, MPI_Comm comm)
    {
        if (calls != nullptr && count > 0 && buffer != packed && calls->is_on_device(packed) &&
            !calls->is_on_device(buffer) &&
            MPI_SUCCESS == PMPI_Pack_size(count, type, comm, &len)) {
            memory_.reset(std::malloc(static_cast<std::size_t>(len)));
        }
    }
    // Null: they are not needed, or not to be had.
    void *at() const { return memory_.get(); }
    bool fit(int packed_bytes, const int *position) const
    {
        return at() != nullptr && position != nullptr && *position >= 0 &&
               len <= packed_bytes - *position;
    }

    int len = 0;

  private:
    struct freed {
        void operator()(void *memory) const { std::free(memory); }
    };
    std::unique_ptr<void, freed> memory_;
};

int pack(const void *buffer, int count, MPI_Datatype type, void *packed, int packed_bytes,
         int *position, MPI_Comm comm)
{
    static auto *const open_mpis = next<decltype(PMPI_Pack)>("PMPI_Pack");
    const pack_calls *calls = served();
    if (calls != nullptr && calls->pack(buffer, count, type, packed, packed_bytes, position)) {
        return MPI_SUCCESS;
    }
    const host_bytes between(calls, buffer, count, type, packed, comm);
    if (!between.fit(packed_bytes, position)) {
        return open_mpis(buffer, count, type, packed, packed_bytes, position, comm);
    }
    int done = 0;
    const int answer = open_mpis(buffer, count, type, between.at(), between.len, &done, comm);
    if (answer != MPI_SUCCESS) {
        return answer;
    }
    if (!calls->copy(static_cast<char *>(packed) + *position, between.at(),
                     static_cast<std::size_t>(done))) {
        (void)PMPI_Comm_call_errhandler(comm, MPI_ERR_OTHER);
        return MPI_ERR_OTHER;
    }
    *position += done;
    return MPI_SUCCESS;
}

int unpack(const void *packed, int packed_bytes, int *position, void *buffer, int count,
           MPI_Datatype type, MPI_Comm comm)
{
    static auto *const open_mpis = next<decltype(PMPI_Unpack)>("PMPI_Unpack");
    const pack_calls *calls = served();
    if (calls != nullptr && calls->unpack(packed, packed_bytes, position, buffer, count, type)) {
        return MPI_SUCCESS;
    }
    const host_bytes between(calls, buffer, count, type, packed, comm);
    if (!between.fit(packed_bytes, position)) {
        return open_mpis(packed, packed_bytes, position, buffer, count, type, comm);
    }
    if (!calls->copy(between.at(), static_cast<const char *>(packed) + *position,
                     static_cast<std::size_t>(between.len))) {
        (void)PMPI_Comm_call_errhandler(comm, MPI_ERR_OTHER);
        return MPI_ERR_OTHER;
    }
    int done = 0;
    const int answer = open_mpis(between.at(), between.len, &done, buffer, count, type, comm);
    *position += MPI_SUCCESS == answer ? done : 0;
    return answer;
}

// What is sent is a copy, so that the buffer can be received into at once. Errors of arguments are
// those of the two functions, which have the same.
int exchange(const packed_copy &copy, void *buffer, int count, MPI_Datatype type, int to,
             int send_tag, int from, int receive_tag, MPI_Comm comm, MPI_Status *status)
{
    MPI_Request request = MPI_REQUEST_NULL;
    const int received = PMPI_Irecv(buffer, count, type, from, receive_tag, comm, &request);
    if (received != MPI_SUCCESS) {
        return received;
    }
    const int sent =
        PMPI_Send(copy.address, static_cast<int>(copy.len_bytes), MPI_PACKED, to, send_tag, comm);
    if (sent != MPI_SUCCESS) {
        (void)PMPI_Cancel(&request);
        (void)PMPI_Request_free(&request);
        return sent;
    }
    return PMPI_Wait(&request, status);
}

int sendrecv_replace(void *buffer, int count, MPI_Datatype type, int to, int send_tag, int from,
                     int receive_tag, MPI_Comm comm, MPI_Status *status)
{
    static auto *const open_mpis = next<decltype(PMPI_Sendrecv_replace)>("PMPI_Sendrecv_replace");
    const pack_calls *calls = served();
    packed_copy copy;
    if (nullptr == calls || MPI_PROC_NULL == to || MPI_PROC_NULL == from ||
        !calls->take_copy(buffer, count, type, &copy)) {
        return open_mpis(buffer, count, type, to, send_tag, from, receive_tag, comm, status);
    }
    const int answer =
        exchange(copy, buffer, count, type, to, send_tag, from, receive_tag, comm, status);
    calls->give_copy(copy);
    return answer;
}

} // namespace

} // namespace gpusm

#define GPUSM_TAKEN extern "C" __attribute__((visibility("default"))) int

GPUSM_TAKEN PMPI_Pack(const void *buffer, int count, MPI_Datatype type, void *packed,
                      int packed_bytes, int *position, MPI_Comm comm)
{
    return gpusm::pack(buffer, count, type, packed, packed_bytes, position, comm);
}
GPUSM_TAKEN MPI_Pack(const void *, int, MPI_Datatype, void *, int, int *, MPI_Comm)
    __attribute__((alias("PMPI_Pack")));

GPUSM_TAKEN PMPI_Unpack(const void *packed, int packed_bytes, int *position, void *buffer,
                        int count, MPI_Datatype type, MPI_Comm comm)
{
    return gpusm::unpack(packed, packed_bytes, position, buffer, count, type, comm);
}
GPUSM_TAKEN MPI_Unpack(const void *, int, int *, void *, int, MPI_Datatype, MPI_Comm)
    __attribute__((alias("PMPI_Unpack")));

GPUSM_TAKEN PMPI_Sendrecv_replace(void *buffer, int count, MPI_Datatype type, int to, int send_tag,
                                  int from, int receive_tag, MPI_Comm comm, MPI_Status *status)
{
    return gpusm::sendrecv_replace(buffer, count, type, to, send_tag, from, receive_tag, comm,
                                   status);
}
GPUSM_TAKEN MPI_Sendrecv_replace(void *, int, MPI_Datatype, int, int, int, int, MPI_Comm,
                                 MPI_Status *) __attribute__((alias("PMPI_Sendrecv_replace")));
