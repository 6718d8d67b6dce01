# SPDX-License-Identifier: BSD-3-Clause
# Copyright (c) 2026 The gpusm authors
#
# elf_symbols.py: which function an address belongs to: the modules of a process as /proc/self/maps
# lists them, and the symbol tables in their files.
import bisect
import ctypes
import functools
import os
import struct

STT_NOTYPE, STT_FUNC, STT_GNU_IFUNC = 0, 2, 10
SHT_SYMTAB, SHT_DYNSYM = 2, 11
SHF_EXECINSTR = 4
PT_LOAD = 1


class Elf:
    """The functions of one 64-bit little-endian ELF file. A file that is none has no functions."""

    def __init__(self, path):
        self.has_local_symbols = False  # .symtab is there, so that all functions have names
        self._segments = []  # (offset in the file, its end, address) of what is loaded
        self._code = []  # (address, its end, name) of sections
        self._functions = {}  # start -> (size, name, exported)
        try:
            with open(path, "rb") as file:
                data = file.read()
            if data[:6] == b"\x7fELF\x02\x01":
                self._read(data)
        except (OSError, struct.error, ValueError, IndexError, OverflowError):
            pass  # what has been read so far is of use
        self._starts = sorted(self._functions)

    def _read(self, data):
        phoff, shoff = struct.unpack_from("<QQ", data, 32)
        phentsize, phnum, shentsize, shnum, shstrndx = struct.unpack_from("<HHHHH", data, 54)
        for i in range(phnum):
            kind, _, offset, vaddr, _, filesz = struct.unpack_from("<IIQQQQ", data,
                                                                   phoff + i * phentsize)
            if kind == PT_LOAD:
                self._segments.append((offset, offset + filesz, vaddr))
        sections = [struct.unpack_from("<IIQQQQII", data, shoff + i * shentsize)
                    for i in range(shnum)]
        for name_at, kind, flags, address, offset, size, link, _ in sections:
            if flags & SHF_EXECINSTR:
                name = text_at(data, sections[shstrndx][4] + name_at)
                self._code.append((address, address + size, name))
            if kind in (SHT_SYMTAB, SHT_DYNSYM):
                self.has_local_symbols |= kind == SHT_SYMTAB
                self._read_symbols(data[offset:offset + size // 24 * 24], data,
                                   sections[link][4], kind == SHT_DYNSYM)

    def _read_symbols(self, table, data, names, exported):
        for name_at, info, _, section, value, size in struct.iter_unpack("<IBBHQQ", table):
            if section == 0 or (info & 15) not in (STT_NOTYPE, STT_FUNC, STT_GNU_IFUNC):
                continue
            if value == 0 or ((info & 15) == STT_NOTYPE and info >> 4 == 0 and not exported):
                continue  # labels
            name = text_at(data, names + name_at)
            known = self._functions.get(value)
            # Of several names the shortest exported one: cuMemcpyAsync, not a version of it.
            if not name or (known and (known[2], -len(known[1]), known[0]) >=
                            (exported, -len(name), size)):
                continue
            self._functions[value] = (size, name, exported)

    def address_of_offset(self, offset):
        """The address, as the file counts them, of a place in the file; None: not loaded."""
        for start, end, vaddr in self._segments:
            if start <= offset < end:
                return offset - start + vaddr
        return None

    def function_at(self, address):
        """(name, exported) of the function that holds the address, or (None, False). The jumps
        through which a module calls others are one function of their own."""
        first, end, section = next((part for part in self._code if part[0] <= address < part[1]),
                                   (0, float("inf"), ""))
        at = bisect.bisect_right(self._starts, address) - 1
        if at >= 0 and self._starts[at] >= first:
            size, name, exported = self._functions[self._starts[at]]
            if address < (self._starts[at] + size if size else end):
                return name, exported
        return ("(calls into other modules)" if section.startswith(".plt") else None), False


def text_at(data, start):
    return data[start:data.index(b"\0", start)].decode("ascii", "replace")


class Modules:
    """A process's address space."""

    def __init__(self):
        self._ranges = []  # (start, end, offset in the file, path) of code
        self._files = {}  # path -> Elf

    def add(self, line):
        """A line of /proc/self/maps."""
        fields = line.split(None, 5)
        if len(fields) == 6 and "x" in fields[1]:
            start, end = (int(number, 16) for number in fields[0].split("-"))
            self._ranges.append((start, end, int(fields[2], 16), fields[5].rstrip("\n")))
            self._ranges.sort()

    def resolve(self, address):
        """(path of the module, name of the function or None, exported). Path "?": none there."""
        at = bisect.bisect_right(self._ranges, (address, float("inf"), 0, "")) - 1
        if at < 0 or address >= self._ranges[at][1]:
            return "?", None, False
        start, _, offset, path = self._ranges[at]
        if path not in self._files:
            self._files[path] = Elf(path)
        elf = self._files[path]
        vaddr = elf.address_of_offset(address - start + offset)
        name, exported = elf.function_at(vaddr) if vaddr is not None else (None, False)
        return path, demangled(name) if name else None, exported

    def without_local_symbols(self):
        """Files that have been asked for names and hold those of exported functions only."""
        return sorted(path for path, elf in self._files.items()
                      if os.path.isfile(path) and not elf.has_local_symbols)


@functools.lru_cache(maxsize=None)
def _demangler():
    try:
        function = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    return function


@functools.lru_cache(maxsize=None)
def demangled(name):
    """A C++ name without its parameters; any other name as it is."""
    plain, _, suffix = name.partition(".")  # .cold, .part.0
    if not plain.startswith("_Z") or _demangler() is None:
        return name
    status = ctypes.c_int()
    text = _demangler()(plain.encode(), None, None, ctypes.byref(status))
    if not text:
        return name
    full = ctypes.cast(text, ctypes.c_char_p).value.decode("utf-8", "replace")
    ctypes.CDLL(None)["free"](ctypes.c_void_p(text))
    return without_parameters(full) + ("." + suffix if suffix else "")


def without_parameters(full):
    """a::b(int)::{lambda(c)#1}::operator()(d) const -> a::b::{lambda}::operator()"""
    full = full.replace("(anonymous namespace)::", "").replace("operator()", "operator@")
    kept, depth = [], 0
    for i, char in enumerate(full):
        opens, closes = char in "(<", char in ")>"
        if opens or closes:
            if full[:i].endswith("operator") or full[:i].endswith("operator" + char):
                kept.append(char)  # operator<, operator>>
                continue
            depth += 1 if opens else -1
        elif depth == 0:
            kept.append(char)
    text = "".join(kept).replace(" const", "").replace("operator@", "operator()")
    head, _, tail = text.rpartition(" ")  # a template's result type comes first
    return tail if head and not tail.startswith("operator") else text
