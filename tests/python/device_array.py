# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
"""device_array.py: arrays in GPU memory, by the CUDA driver and ctypes alone.

Any array that has __cuda_array_interface__ would do; these need no other package, and run on the
software driver of the tests, too.
"""
import ctypes


class Driver:
    """The CUDA driver, with the primary context of one device current in this thread."""

    def __init__(self, rank):
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        count = ctypes.c_int()
        self("cuDeviceGetCount", ctypes.byref(count))
        device = ctypes.c_int()
        self("cuDeviceGet", ctypes.byref(device), rank % count.value)
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)

    def __call__(self, name, *args):
        result = getattr(self.library, name)(*args)
        if result != 0:
            raise RuntimeError(f"{name} failed with {result}")


class DeviceArray:
    """nbytes of GPU memory, freed with the object; an array of bytes to whom it is given."""

    def __init__(self, driver, data):
        """data: bytes, which become the contents"""
        self.driver = driver
        self.nbytes = len(data)
        self.address = ctypes.c_ulonglong()
        driver("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(max(self.nbytes, 1)))
        self.write(data)

    @property
    def __cuda_array_interface__(self):
        return {"shape": (self.nbytes,), "typestr": "|u1", "strides": None, "version": 3,
                "data": (self.address.value, False)}

    def write(self, data):
        """The copy alone may return before the data is in the device, where MPI looks for it."""
        self.driver("cuMemcpyHtoD_v2", self.address, ctypes.c_char_p(bytes(data)),
                    ctypes.c_size_t(self.nbytes))
        self.driver("cuCtxSynchronize")

    def read(self):
        data = ctypes.create_string_buffer(max(self.nbytes, 1))
        self.driver("cuMemcpyDtoH_v2", data, self.address, ctypes.c_size_t(self.nbytes))
        return data.raw[:self.nbytes]

    def __del__(self):
        self.driver.library.cuMemFree_v2(self.address)
