// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// spoil_message.cc: a library for LD_PRELOAD in whose presence one call that receives, in host
// memory, ends with a wrong byte. What checks content has to notice.
//
//   GPUSM_TEST_SPOIL=CALL:OFFSET   the call, counted from 1, and the byte, counted from the first
//                                  of what was received; where that is none of it, it belongs to
//                                  what lies before or behind
//
//   GPUSM_TEST_SPOIL=alltoall      MPI_Alltoall does nothing
//
// Counted are MPI_Recv, and MPI_Waitall behind MPI_Irecv (the buffer is that of the last one).
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <mpi.h>

namespace {

void received_in(void *buffer)
{
    static const char *setting = std::getenv("GPUSM_TEST_SPOIL");
    static int calls = 0;
    int call = 0;
    long offset = 0;
    if (setting != nullptr && 2 == std::sscanf(setting, "%d:%ld", &call, &offset) &&
        ++calls == call) {
        static_cast<unsigned char *>(buffer)[offset] ^= 1;
    }
}

void *last_receive = nullptr; // not yet waited for

template <typename function> function real(const char *name)
{
    return reinterpret_cast<function>(dlsym(RTLD_NEXT, name));
}

} // namespace

extern "C" int MPI_Recv(void *buffer, int count, MPI_Datatype type, int source, int tag,
                        MPI_Comm communicator, MPI_Status *status)
{
    static const auto next = real<decltype(&MPI_Recv)>("MPI_Recv");
    const int result = next(buffer, count, type, source, tag, communicator, status);
    received_in(buffer);
    return result;
}

extern "C" int MPI_Irecv(void *buffer, int count, MPI_Datatype type, int source, int tag,
                         MPI_Comm communicator, MPI_Request *request)
{
    static const auto next = real<decltype(&MPI_Irecv)>("MPI_Irecv");
    last_receive = buffer;
    return next(buffer, count, type, source, tag, communicator, request);
}

extern "C" int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[])
{
    static const auto next = real<decltype(&MPI_Waitall)>("MPI_Waitall");
    const int result = next(count, requests, statuses);
    if (last_receive != nullptr) {
        received_in(last_receive);
        last_receive = nullptr;
    }
    return result;
}

extern "C" int MPI_Alltoall(const void *send, int send_count, MPI_Datatype send_type, void *receive,
                            int receive_count, MPI_Datatype receive_type, MPI_Comm communicator)
{
    static const auto next = real<decltype(&MPI_Alltoall)>("MPI_Alltoall");
    static const char *setting = std::getenv("GPUSM_TEST_SPOIL");
    return setting != nullptr && 0 == std::strcmp(setting, "alltoall")
               ? MPI_SUCCESS
               : next(send, send_count, send_type, receive, receive_count, receive_type,
                      communicator);
}
