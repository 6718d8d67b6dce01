# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# buckets.py: to whom the time of a stack belongs. The rules are the two tables; the first row that
# fits counts. A frame is (kind of module, module, function, exported), a stack is a tuple of
# frames, innermost first.
import os
import re

# Kind of a module, by the name of its file. The program itself is told by its path.
MODULES = [
    ("driver", r"^libcuda\.so|^libnvidia"),
    ("accelerator", r"^mca_accelerator_cuda\.so"),
    ("gpusm", r"^mca_btl_gpusm\.so"),
    ("mpi", r"^libmpi\.so|^mca_(pml|bml|coll|osc|part|topo)_"),
    ("pal", r"^libopen-pal\.so|^libevent|^libpmix|^libhwloc"),
    ("system", r"^(libc|libm|libpthread|librt|libdl|ld-linux.*|libgcc_s|libstdc\+\+)[-.]|^\[v"),
]

POINTER_CHECKS = "Open MPI's pointer checks"
OTHER_DRIVER = "driver, called by others"
LOST_DRIVER = "driver, caller not known"
OTHERS = "other modules"

# Time inside the driver, and in what the driver calls: by who called it.
# kind of the caller, functions of the caller, function of the driver, bucket
DRIVER_RULES = [
    ("accelerator|gpusm", r"check_addr", r"", POINTER_CHECKS),
    ("accelerator", r"", r"", "accelerator component: copies and others"),
    ("gpusm", r"", r"^cu(Memcpy|Launch|EventRecord|StreamWait|StreamWrite|StreamBatch)",
     "gpusm: submit"),
    ("gpusm", r"", r"^cu(EventQuery|StreamQuery)", "gpusm: poll"),
    ("gpusm", r"", r"^cu(PointerGetAttribute|MemGetAddressRange)", "gpusm: validity checks"),
    ("gpusm", r"", r"^cu(Ctx|ThreadExchange)", "gpusm: entering contexts"),
    ("gpusm", r"", r"", "gpusm: other driver calls"),
    ("program", r"", r"", "driver, called by the program"),
    ("", r"", r"", OTHER_DRIVER),
]

# Time in code that is not the driver's.
# kind of the innermost frame, function(s), bucket. `mpi` and `accelerator` look at the whole run of
# such frames at the top of the stack, because what ob1 calls there is ob1's; the others at the
# innermost function only.
CODE_RULES = [
    ("accelerator|gpusm", r"check_addr", POINTER_CHECKS),
    ("accelerator", r"", "accelerator component: copies and others"),
    ("gpusm", r"copy_engine|driver_scope|gather", "gpusm code: copy engine"),
    ("gpusm", r"component_progress|node::|peer::|peer_segment::|progress_sends"
              r"|endpoint_of|mark_active|reclaim_frags", "gpusm code: FIFO and polling"),
    ("gpusm", r"mca_btl_gpusm_(send|alloc)|prepare_src|free_descriptor|frag_|gpusm::post$|complete"
              r"|defer", "gpusm code: send"),
    ("gpusm", r"mca_btl_gpusm_|progress_gets|gpu_desk|export|mapping|import|device_table"
              r"|gpusm::gpu$|event_of|find_slot|find_base", "gpusm code: get, exports, mappings"),
    ("gpusm", r"", "gpusm code: others"),
    ("mpi", r"^mca_part_persist_progress|_libnbc_progress", "Open MPI's progress loop"),
    ("mpi", r"mca_(pml|bml)_", "ob1"),
    ("mpi", r"^(ompi|opal)_(datatype|convertor)|^MPI_.*[Tt]ype", "datatype engine"),
    ("mpi", r"", "rest of libmpi"),
    ("pal", r"^opal_(convertor|datatype|pack|unpack|generic|memcpy)|_pack_|_unpack_",
     "datatype engine"),
    ("pal", r"^opal_progress|^opal_timer|^event_|^epoll_|^evmap_|^opal_event|^ompi_sync",
     "Open MPI's progress loop"),
    ("pal", r"", "rest of libopen-pal"),
    ("program", r"", "the program itself"),
    ("system", r"", "libc and kernel"),
    ("", r"", OTHERS),
]

# What a process does while it waits, too.
POLLING = {"gpusm code: FIFO and polling", "gpusm: poll", "Open MPI's progress loop"}


def kind_of(path, function, program):
    """The kind of a module; a component of Open MPI may be part of one of its libraries."""
    name = os.path.basename(path)
    if path == program:
        return "program"
    for kind, pattern in MODULES:
        if re.search(pattern, name):
            if kind == "pal" and (function or "").startswith("accelerator_cuda_"):
                return "accelerator"
            return kind
    return ""


def run_at(stack, start):
    """The frames from `start` on that are of one kind of module."""
    kind = stack[start][0]
    end = start
    while end < len(stack) and stack[end][0] == kind:
        end += 1
    return stack[start:end]


def driver_part(stack):
    """Where the driver's frames end, if the innermost are its own or its C library's; else 0."""
    first = 0
    while first < len(stack) and stack[first][0] == "system":
        first += 1
    if first == len(stack) or stack[first][0] != "driver":
        return 0
    end = first
    for i in range(first, len(stack)):  # it may call itself through the C library
        if stack[i][0] == "driver":
            end = i + 1
        elif stack[i][0] != "system":
            break
    return end


def driver_function(stack, end):
    """The driver's function that the caller called."""
    for frame in reversed(stack[:end]):
        if frame[0] == "driver":
            return frame[2] if frame[2] and frame[3] else "(not exported)"
    return "(not exported)"


def caller_run(stack, end):
    """The frames of the module that called the driver; empty when the walk did not get there."""
    while end < len(stack) and stack[end][0] == "system":
        end += 1
    return run_at(stack, end) if end < len(stack) else ()


def functions_in(frames):
    return [frame[2] for frame in frames if frame[2]] or [""]


def fits(pattern, names):
    return any(re.search(pattern, name) for name in names)


def bucket_of(stack):
    """The name of the bucket of a stack."""
    end = driver_part(stack)
    if end > 0:
        caller = caller_run(stack, end)
        if not caller:
            return LOST_DRIVER
        names = functions_in(caller)
        for kind, pattern, function, bucket in DRIVER_RULES:
            if (not kind or caller[0][0] in kind.split("|")) and fits(pattern, names) and \
                    re.search(function, driver_function(stack, end)):
                return bucket
        return OTHER_DRIVER
    kind = stack[0][0]
    run = functions_in(run_at(stack, 0))
    whole_run = kind in ("mpi", "accelerator") or fits(r"check_addr", run)
    names = run if whole_run else functions_in(stack[:1])
    for wanted, pattern, bucket in CODE_RULES:
        if (not wanted or kind in wanted.split("|")) and fits(pattern, names):
            return bucket
    return OTHERS


def is_driver(stack):
    return driver_part(stack) > 0


def label_of(stack):
    """(module, function) under which a stack is listed: the innermost frame, but for the driver the
    function that was called, and for the C library also who called it."""
    end = driver_part(stack)
    if end > 0:
        driver = next(frame for frame in stack if frame[0] == "driver")
        return driver[1], driver_function(stack, end)
    module, function = stack[0][1], stack[0][2] or "(no symbol)"
    if stack[0][0] == "system":
        caller = next((frame for frame in stack if frame[0] != "system"), None)
        if caller:
            function += f", from {caller[2] or caller[1]}"
    return module, function


def caller_of_driver(stack):
    """The function that called the driver, in words."""
    caller = caller_run(stack, driver_part(stack))
    if not caller:
        return "?"
    check = next((frame[2] for frame in caller if frame[2] and "check_addr" in frame[2]), None)
    return check or caller[0][2] or caller[0][1]
