/* SPDX-License-Identifier: BSD-3-Clause
 * Copyright (c) 2026 The gpusm authors
 *
 * two-btls.c: shows that pml/ob1 unpacks wrongly what two BTLs carry of one message; two-btls.md has
 * the explanation.
 *
 *   mpicc two-btls.c -o two-btls
 *   mpirun -n 2 --mca pml ob1 --mca btl tcp,sm,self --mca btl_tcp_exclusivity 65536 \
 *       --mca btl_tcp_bandwidth 40000 --mca btl_tcp_if_include lo ./two-btls
 *
 * Rank 1 prints how many messages had wrong bytes; it may also crash or hang, and then ends after a
 * minute. With --mca btl sm,self and with --mca btl tcp,self no message is wrong. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { elements = 1230, messages = 2000, shorts = 48, doubles = 8 };

/* 48 shorts and 8 doubles. The sender has them one behind the other, 224 bytes from one element to
 * the next. */
static MPI_Datatype sender_type(void)
{
    int lengths[2] = {shorts, doubles};
    MPI_Aint places[2] = {0, shorts * sizeof(short)};
    MPI_Datatype types[2] = {MPI_SHORT, MPI_DOUBLE}, packed, type;
    MPI_Type_create_struct(2, lengths, places, types, &packed);
    MPI_Type_create_resized(packed, 0, 224, &type);
    MPI_Type_commit(&type);
    MPI_Type_free(&packed);
    return type;
}

/* The receiver has the shorts behind the doubles, in four groups of six blocks each. */
enum { groups = 4, blocks = 6, group_bytes = 48 };
static const int block_lengths[blocks] = {3, 4, 1, 1, 2, 1};
static const int block_places[blocks] = {17, 11, 9, 6, 3, 0}; /* in shorts, within a group */
static const MPI_Aint shorts_at = 64, receiver_extent = 256;

static MPI_Datatype receiver_type(void)
{
    int lengths[2] = {groups, doubles};
    MPI_Aint places[2] = {shorts_at, 0};
    MPI_Datatype scattered, group, types[2], both, type;
    MPI_Type_indexed(blocks, block_lengths, block_places, MPI_SHORT, &scattered);
    MPI_Type_create_resized(scattered, 0, group_bytes, &group);
    types[0] = group;
    types[1] = MPI_DOUBLE;
    MPI_Type_create_struct(2, lengths, places, types, &both);
    MPI_Type_create_resized(both, 0, receiver_extent, &type);
    MPI_Type_commit(&type);
    MPI_Type_free(&scattered);
    MPI_Type_free(&group);
    MPI_Type_free(&both);
    return type;
}

/* Byte number `position` of the message, counted without gaps. */
static unsigned char value(int message, int position)
{
    return (unsigned char)(message * 31 + position * 7 + position / 256);
}

int main(int argc, char **argv)
{
    const int data_bytes = shorts * sizeof(short) + doubles * sizeof(double);
    unsigned char *buffer = malloc((size_t)elements * receiver_extent);
    MPI_Datatype type;
    int rank, wrong = 0;

    MPI_Init(&argc, &argv);
    alarm(60);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    type = 0 == rank ? sender_type() : receiver_type();
    for (int m = 0; m < messages; ++m) {
        if (0 == rank) {
            for (int e = 0; e < elements; ++e) {
                for (int i = 0; i < data_bytes; ++i) {
                    buffer[e * 224 + i] = value(m, e * data_bytes + i);
                }
            }
            MPI_Send(buffer, elements, type, 1, 0, MPI_COMM_WORLD);
        } else if (1 == rank) {
            int bad = 0, position = 0;
            memset(buffer, 0, (size_t)elements * receiver_extent);
            MPI_Recv(buffer, elements, type, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (int e = 0; e < elements; ++e) {
                const unsigned char *element = buffer + e * receiver_extent;
                for (int g = 0; g < groups; ++g) {
                    for (int b = 0; b < blocks; ++b) {
                        const unsigned char *block = element + shorts_at + g * group_bytes +
                                                     block_places[b] * (int)sizeof(short);
                        for (int i = 0; i < block_lengths[b] * (int)sizeof(short); ++i) {
                            bad += value(m, position++) != block[i];
                        }
                    }
                }
                for (int i = 0; i < doubles * (int)sizeof(double); ++i) {
                    bad += value(m, position++) != element[i];
                }
            }
            wrong += 0 != bad;
        }
    }
    if (1 == rank) {
        printf("%d of %d messages are wrong\n", wrong, messages);
    }
    MPI_Type_free(&type);
    free(buffer);
    MPI_Finalize();
    return 0 != wrong;
}
