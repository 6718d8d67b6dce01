# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# profile_rules.py: run by run_profile.sh with the folder of the modules under test: stacks and the
# part of the software that they belong to, and names of functions. Status 1: something is wrong.
import os
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import buckets  # noqa: E402
import elf_symbols  # noqa: E402

PROGRAM = "/somewhere/gpusm_perf"


def stack(*frames):
    """From "module:function", innermost first; a "!" before the function: it is exported."""
    made = []
    for frame in frames:
        module, _, function = frame.partition(":")
        name = function.lstrip("!") or None
        path = PROGRAM if module == "gpusm_perf" else "/lib/" + module
        made.append((buckets.kind_of(path, name, PROGRAM), module, name, function.startswith("!")))
    return tuple(made)


CUDA = "libcuda.so.1:"
GPUSM = "mca_btl_gpusm.so:"
ACCELERATOR = "mca_accelerator_cuda.so:"
MPI = "libmpi.so.40:"
PAL = "libopen-pal.so.80:"
C = "libc.so.6:"

EXPECTED = [
    # The driver, by its caller; what the driver calls is the driver's.
    (stack(CUDA, CUDA + "!cuPointerGetAttributes", ACCELERATOR + "accelerator_cuda_check_addr",
           PAL + "opal_convertor_prepare_for_send"), "Open MPI's pointer checks"),
    (stack(CUDA + "!cuCtxGetCurrent", ACCELERATOR + "opal_accelerator_cuda_delayed_init",
           ACCELERATOR + "accelerator_cuda_check_addr"), "Open MPI's pointer checks"),
    (stack(CUDA + "!cuPointerGetAttributes", GPUSM + "quick_check_addr", MPI + "mca_pml_ob1_isend"),
     "Open MPI's pointer checks"),
    (stack(CUDA + "!cuPointerGetAttributes", PAL + "accelerator_cuda_check_addr"),
     "Open MPI's pointer checks"),
    (stack(ACCELERATOR + "accelerator_cuda_check_addr", PAL + "opal_convertor_prepare_for_recv"),
     "Open MPI's pointer checks"),
    (stack(CUDA + "!cuMemcpy", ACCELERATOR + "accelerator_cuda_memcpy",
           PAL + "opal_convertor_pack"),
     "accelerator component: copies and others"),
    (stack(C + "ioctl", CUDA, CUDA + "!cuEventRecord", GPUSM + "gpusm::copy_engine::start"),
     "gpusm: submit"),
    (stack(CUDA + "!cuLaunchKernel", GPUSM + "gpusm::copy_engine::launch"), "gpusm: submit"),
    (stack(CUDA + "!cuMemcpyBatchAsync", GPUSM + "gpusm::copy_engine::start"), "gpusm: submit"),
    (stack(CUDA, CUDA + "!cuEventQuery", GPUSM + "gpusm::copy_engine::collect"), "gpusm: poll"),
    (stack(CUDA + "!cuPointerGetAttribute", GPUSM + "gpusm::gpu_desk::export_range"),
     "gpusm: validity checks"),
    (stack(CUDA + "!cuCtxPushCurrent", GPUSM + "gpusm::driver_scope::driver_scope"),
     "gpusm: entering contexts"),
    (stack(CUDA + "!cuIpcOpenMemHandle", GPUSM + "gpusm::open_memory"),
     "gpusm: other driver calls"),
    (stack(CUDA + "!cuMemAlloc", "gpusm_perf:main"), "driver, called by the program"),
    (stack(CUDA + "!cuMemcpyAsync", "mca_btl_smcuda.so:mca_btl_smcuda_get"),
     "driver, called by others"),
    (stack(CUDA), "driver, caller not known"),
    (stack(C + "ioctl", CUDA), "driver, caller not known"),
    # Code that is not the driver's.
    (stack(GPUSM + "component_progress", PAL + "opal_progress"), "gpusm code: FIFO and polling"),
    (stack(GPUSM + "gpusm::peer::post", GPUSM + "mca_btl_gpusm_sendi"),
     "gpusm code: FIFO and polling"),
    (stack(GPUSM + "mca_btl_gpusm_sendi", MPI + "mca_pml_ob1_fin"), "gpusm code: send"),
    (stack(GPUSM + "gpusm::mapping_cache::acquire", GPUSM + "mca_btl_gpusm_get"),
     "gpusm code: get, exports, mappings"),
    (stack(GPUSM + "gpusm::copy_engine::collect", GPUSM + "gpusm::progress_gets"),
     "gpusm code: copy engine"),
    (stack(GPUSM, GPUSM + "mca_btl_gpusm_get"), "gpusm code: others"),
    (stack(MPI + "ompi_request_free", MPI + "mca_pml_ob1_send_request_free", MPI + "MPI_Waitall"),
     "ob1"),
    (stack(MPI + "ompi_request_default_wait_all", MPI + "MPI_Waitall", "gpusm_perf:main"),
     "rest of libmpi"),
    # ob1 is there farther out, but it is not what called this.
    (stack(MPI + "ompi_request_default_wait_all", PAL + "opal_progress", MPI + "mca_pml_ob1_send"),
     "rest of libmpi"),
    (stack(PAL + "opal_convertor_pack", MPI + "mca_pml_ob1_isend"), "datatype engine"),
    (stack(PAL + "opal_progress", MPI + "ompi_request_default_wait_all"),
     "Open MPI's progress loop"),
    (stack(PAL + "opal_free_list_grow_st", MPI + "mca_pml_ob1_isend"), "rest of libopen-pal"),
    (stack("gpusm_perf:main"), "the program itself"),
    (stack(C + "memcpy", MPI + "mca_pml_ob1_recv_frag_callback_match"), "libc and kernel"),
    (stack("[vdso]:clock_gettime", "gpusm_perf:main"), "libc and kernel"),
    (stack("libsomething.so.1:f", "gpusm_perf:main"), "other modules"),
    (stack("?:"), "other modules"),
]

LABELS = [
    # Listed under what was called, not under where in the driver the time went.
    (stack(C + "ioctl", CUDA + "f", CUDA + "!cuEventRecord", GPUSM + "gpusm::copy_engine::start"),
     ("libcuda.so.1", "cuEventRecord")),
    (stack(CUDA, GPUSM + "gpusm::copy_engine::start"), ("libcuda.so.1", "(not exported)")),
    (stack(C + "memcpy", MPI + "mca_pml_ob1_isend"),
     ("libc.so.6", "memcpy, from mca_pml_ob1_isend")),
    (stack(GPUSM), ("mca_btl_gpusm.so", "(no symbol)")),
]

NAMES = [
    ("_ZN5gpusm4peer4postEPNS_8outgoingE", "gpusm::peer::post"),
    ("_ZN5gpusm4peer4postEPNS_8outgoingE.cold", "gpusm::peer::post.cold"),
    ("_ZNK5gpusm12export_table4findEmm", "gpusm::export_table::find"),
    ("_ZN5gpusmltERKNS_1aES2_", "gpusm::operator<"),
    ("_ZN1aclEi", "a::operator()"),
    ("mca_btl_gpusm_get", "mca_btl_gpusm_get"),
    ("_Znotmangled", "_Znotmangled"),
]


def main():
    wrong = []
    for frames, bucket in EXPECTED:
        if buckets.bucket_of(frames) != bucket:
            wrong.append(f"{frames} is in {buckets.bucket_of(frames)}, not in {bucket}")
    for frames, label in LABELS:
        if buckets.label_of(frames) != label:
            wrong.append(f"{frames} is listed as {buckets.label_of(frames)}, not as {label}")
    for name, plain in NAMES:
        if elf_symbols.demangled(name) != plain:
            wrong.append(f"{name} became {elf_symbols.demangled(name)}, not {plain}")
    # Files that are no ELF files, or broken ones, have no functions, and that is all.
    with tempfile.TemporaryDirectory() as folder:
        for content in (b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 100, b"#!/bin/sh\n"):
            path = os.path.join(folder, "file")
            with open(path, "wb") as file:
                file.write(content)
            if elf_symbols.Elf(path).function_at(4096) != (None, False):
                wrong.append(f"a function in {content!r}")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
