# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
"""device_buffers.py: sends GPU memory with mpi4py, in every way, and checks what arrives.

mpirun -n 2 python device_buffers.py [messages|reductions]...
Prints "PASS: name" or "FAIL: name" for each kind of call; the status is 1 if one failed.
"""
import ctypes as ct
import sys

from mpi4py import MPI

from device_array import DeviceArray, Driver

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
right, left = (rank + 1) % size, (rank - 1) % size
driver = Driver(rank)
failures = 0


def report(name, problems):
    """Said by rank 0 for all; problems: of this rank."""
    global failures
    problems = [text for texts in comm.allgather(problems) for text in texts]
    failures += bool(problems)
    if rank == 0:
        for text in problems[:10]:
            print(f"    {text}")
        print(f"{'FAIL' if problems else 'PASS'}: device_buffers/{name} on {size}", flush=True)


# --- messages -------------------------------------------------------------------------------------
SIZES = (1, 1000, 4096, 5000, 40_000, 300_000, 3_000_000)


def filled(seed, nbytes):
    period = bytes((seed * 37 + i * 7 + (i >> 8)) % 251 for i in range(min(nbytes, 10_007)))
    return (period * (nbytes // len(period) + 1))[:nbytes]


class HostArray(bytearray):
    """Host memory with the words of DeviceArray."""

    def __new__(cls, _driver, data):
        return super().__new__(cls, data)

    def __init__(self, _driver, data):
        super().__init__(data)

    def read(self):
        return bytes(self)


def by_send(send, recv):
    if rank % 2 == 0:
        comm.Send(send, right, 1)
        comm.Recv(recv, left, 1)
    else:
        comm.Recv(recv, left, 1)
        comm.Send(send, right, 1)


def by_ssend(send, recv):
    request = comm.Irecv(recv, left, 2)
    comm.Ssend(send, right, 2)
    request.Wait()


def by_isend(send, recv):
    MPI.Request.Waitall([comm.Irecv(recv, left, 3), comm.Isend(send, right, 3)])


def by_sendrecv(send, recv):
    comm.Sendrecv(send, right, 4, recv, left, 4)


def by_persistent(send, recv):
    requests = [comm.Recv_init(recv, left, 5), comm.Send_init(send, right, 5)]
    for _ in range(2):
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
    for request in requests:
        request.Free()


def check_messages():
    for exchange in (by_send, by_ssend, by_isend, by_sendrecv, by_persistent):
        if exchange is by_send and size % 2 != 0:
            continue
        problems = []
        for here in (DeviceArray, HostArray):
            for there in (DeviceArray, HostArray):
                for nbytes in SIZES:
                    send = here(driver, filled(rank, nbytes))
                    recv = there(driver, bytes(nbytes))
                    exchange(send, recv)
                    if recv.read() != filled(left, nbytes):
                        problems.append(f"{nbytes} bytes, {here.__name__} to {there.__name__}")
        report(exchange.__name__[3:], problems)


def check_collectives():
    names = ("bcast", "allgather", "iallgather", "alltoall", "gather", "scatter", "in place")
    found = {name: [] for name in names}

    def check(name, array, expected):
        if array.read() != expected:
            found[name].append(f"rank {rank}: {nbytes} bytes")

    for nbytes in SIZES:
        every = [filled(r, nbytes) for r in range(size)]
        joined = b"".join(every)
        nothing = bytes(len(joined))
        buffer = DeviceArray(driver, every[rank])
        comm.Bcast(buffer, root=size - 1)
        check("bcast", buffer, every[size - 1])

        one, all_of_them = DeviceArray(driver, every[rank]), DeviceArray(driver, nothing)
        comm.Allgather(one, all_of_them)
        check("allgather", all_of_them, joined)
        all_of_them.write(nothing)
        comm.Iallgather(one, all_of_them).Wait()
        check("iallgather", all_of_them, joined)
        all_of_them.write(b"".join(every[r] if r == rank else bytes(nbytes) for r in range(size)))
        comm.Allgather(MPI.IN_PLACE, all_of_them)
        check("in place", all_of_them, joined)

        all_of_them.write(nothing)
        comm.Gather(one, all_of_them if rank == 0 else None, root=0)
        if rank == 0:
            check("gather", all_of_them, joined)
        one.write(bytes(nbytes))
        comm.Scatter(all_of_them if rank == 0 else None, one, root=0)
        check("scatter", one, every[rank])

        send = DeviceArray(driver, b"".join(filled(rank * size + r, nbytes) for r in range(size)))
        expected = b"".join(filled(r * size + rank, nbytes) for r in range(size))
        comm.Alltoall(send, all_of_them)
        check("alltoall", all_of_them, expected)
        comm.Alltoall(MPI.IN_PLACE, send)
        check("in place", send, expected)
    for name, problems in found.items():
        report(name, problems)


# --- reductions -----------------------------------------------------------------------------------
def pair_of(value):
    return type("Pair", (ct.Structure,), {"_fields_": [("value", value), ("index", ct.c_int)]})


INTEGERS = {
    "SIGNED_CHAR": ct.c_byte, "UNSIGNED_CHAR": ct.c_ubyte, "SHORT": ct.c_short,
    "UNSIGNED_SHORT": ct.c_ushort, "INT": ct.c_int, "UNSIGNED": ct.c_uint, "LONG": ct.c_long,
    "UNSIGNED_LONG": ct.c_ulong, "LONG_LONG": ct.c_longlong, "UNSIGNED_LONG_LONG": ct.c_ulonglong,
    "INT8_T": ct.c_int8, "UINT8_T": ct.c_uint8, "INT16_T": ct.c_int16, "UINT16_T": ct.c_uint16,
    "INT32_T": ct.c_int32, "UINT32_T": ct.c_uint32, "INT64_T": ct.c_int64, "UINT64_T": ct.c_uint64,
    "AINT": ct.c_ssize_t, "OFFSET": ct.c_longlong, "COUNT": ct.c_longlong}
FLOATS = {"FLOAT": ct.c_float, "DOUBLE": ct.c_double, "LONG_DOUBLE": ct.c_longdouble}
COMPLEX = {"C_FLOAT_COMPLEX": ct.c_float, "C_DOUBLE_COMPLEX": ct.c_double,
           "C_LONG_DOUBLE_COMPLEX": ct.c_longdouble}
PAIRS = {"FLOAT_INT": pair_of(ct.c_float), "DOUBLE_INT": pair_of(ct.c_double),
         "LONG_INT": pair_of(ct.c_long), "INT_INT": pair_of(ct.c_int),
         "SHORT_INT": pair_of(ct.c_short), "LONG_DOUBLE_INT": pair_of(ct.c_longdouble)}
# The kinds of types that MPI's standard lets each group of operations have.
GROUPS = [
    (("MAX", "MIN"), {**INTEGERS, **FLOATS}),
    (("SUM", "PROD"), {**INTEGERS, **FLOATS, **COMPLEX}),
    (("LAND", "LOR", "LXOR"), {**INTEGERS, "C_BOOL": ct.c_bool}),
    (("BAND", "BOR", "BXOR"), {**INTEGERS, "BYTE": ct.c_ubyte}),
    (("MAXLOC", "MINLOC"), PAIRS)]


class Values:
    """count elements of one of MPI's types, as C holds them."""

    def __init__(self, name, c_type, count):
        self.datatype = getattr(MPI, name)
        self.c_type = c_type
        self.length = count * (2 if name in COMPLEX else 1)
        self.count = count

    def of(self, seed):
        """Values of which no rounding comes: sums and products of any order are the same."""
        array = (self.c_type * self.length)()
        for i in range(self.length):
            number = (seed * 5 + i * 3) % 4
            array[i] = (number, seed) if issubclass(self.c_type, ct.Structure) else number
        return bytes(array)

    def read(self, data):
        array = (self.c_type * (len(data) // ct.sizeof(self.c_type))).from_buffer_copy(data)
        if issubclass(self.c_type, ct.Structure):
            return [(x.value, x.index) for x in array]
        return list(array)


def call_all(place, values, op, in_place):
    """Names and results of all reductions, from buffers that place() makes of bytes."""
    mine = values.of(rank)
    nothing = bytes(len(mine))
    parts = b"".join(values.of(rank + r) for r in range(size))
    whole = values.count * size

    def spec(array, count):
        return [array, count, values.datatype]

    def run(call, data, count):
        if in_place:
            recv = place(data)
            call(MPI.IN_PLACE, spec(recv, count))
        else:
            send, recv = place(data), place(nothing)
            call(spec(send, count), spec(recv, values.count))
            if send.read() != data:
                return b"the send buffer has changed"
        return recv.read()[:len(mine)]

    def reduce(call, send, recv):
        if rank == 0:
            call(send, recv, op, 0)
        else:
            call(recv if in_place else send, None, op, 0)

    def with_op(call, send, recv):
        call(send, recv, op)

    def with_counts(call, send, recv):
        call(send, recv, [values.count] * size, op)

    for name, arguments, data, count in (
            ("Allreduce", with_op, mine, values.count), ("Reduce", reduce, mine, values.count),
            ("Scan", with_op, mine, values.count), ("Exscan", with_op, mine, values.count),
            ("Reduce_scatter_block", with_op, parts, values.count),
            ("Reduce_scatter", with_counts, parts, whole)):
        for call_name in (name, f"I{name.lower()}"):
            method = getattr(comm, call_name)

            def call(*args):
                request = method(*args)
                if request is not None:
                    request.Wait()

            result = run(lambda send, recv: arguments(call, send, recv), data, count)
            # What MPI leaves undefined.
            if name == "Reduce" and rank != 0 or name == "Exscan" and rank == 0:
                result = nothing
            yield call_name.lower(), result
    if not in_place:
        send, recv = place(mine), place(values.of(rank + 1))
        op.Reduce_local(spec(send, values.count), spec(recv, values.count))
        yield "reduce_local", recv.read()


def check_reductions():
    found = {}
    for ops, types in GROUPS:
        for name, c_type in types.items():
            if getattr(MPI, name) == MPI.DATATYPE_NULL:
                continue
            for op_name in ops:
                for count in (3, 1000):
                    compare(found, op_name, name, c_type, count)
    for count in (20_000, 300_000):
        compare(found, "SUM", "DOUBLE", ct.c_double, count)
    for name, problems in found.items():
        report(name, problems)


def compare(found, op_name, name, c_type, count):
    """Device memory against host memory, which Open MPI reduces itself."""
    op, values = getattr(MPI, op_name), Values(name, c_type, count)
    for in_place in (False, True):
        on_host = call_all(lambda data: HostArray(driver, data), values, op, in_place)
        on_device = call_all(lambda data: DeviceArray(driver, data), values, op, in_place)
        for (call, expected), (_, got) in zip(on_host, on_device):
            problems = found.setdefault(call, [])
            if expected != got and values.read(expected) != values.read(got):
                problems.append(f"rank {rank}: {op_name} of {count} {name}"
                                f"{', in place' if in_place else ''}")


chosen = sys.argv[1:] or ["messages", "reductions"]
if "messages" in chosen:
    check_messages()
    check_collectives()
if "reductions" in chosen:
    check_reductions()
sys.exit(1 if failures else 0)
