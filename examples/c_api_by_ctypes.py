#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The C API from a language without C++: Python's ctypes stands for it.

python examples/c_api_by_ctypes.py [path of libheadrace.so]

One agent reads two pages of another. Python programs use the package `headrace` itself; this shows the calls
that a binding for another language makes.
"""

import ctypes
import importlib.util
import sys
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_uint32, c_uint64, c_void_p, sizeof
from pathlib import Path

PAGE, CACHE_PAGES = 65536, 256
TEN_SECONDS = 10_000_000_000
UNIFORM, READ = 3, 0


def library():
    """The library that the package brings along, or the one that was named."""
    if len(sys.argv) > 1:
        return ctypes.CDLL(sys.argv[1])
    package = Path(importlib.util.find_spec("headrace").origin).parent
    return ctypes.CDLL(next((package / "lib").glob("libheadrace.so*")))


class Memory(ctypes.Structure):
    _fields_ = [("struct_size", c_uint64), ("kind", c_int32), ("device", c_int32), ("address", c_void_p)]
    _fields_ += [("length", c_uint64), ("path", c_char_p), ("file_descriptor", c_int32)]
    _fields_ += [("read_only", c_int32)]


class Column(ctypes.Structure):
    _fields_ = [("first", c_void_p), ("stride", c_int64)]


class PageSpec(ctypes.Structure):
    _fields_ = [("struct_size", c_uint64), ("form", c_int32), ("region", c_uint32), ("count", c_uint64)]
    _fields_ += [("rows", c_void_p), ("offsets", Column), ("lengths", Column), ("origin", c_uint64)]
    _fields_ += [("base", c_uint64), ("stride", c_uint64), ("page_bytes", c_uint64)]
    _fields_ += [("dimensions", c_uint32), ("reserved", c_uint32), ("item_bytes", c_uint64)]
    _fields_ += [("shape", c_int64 * 4), ("strides", c_int64 * 4)]


class Part(ctypes.Structure):
    _fields_ = [("struct_size", c_uint64), ("local", c_void_p), ("remote", c_void_p)]
    _fields_ += [("local_index", POINTER(c_uint32)), ("remote_index", POINTER(c_uint32)), ("count", c_uint64)]


hr = library()
for name in ("headrace_code_name", "headrace_error_message", "headrace_bytes_data"):
    getattr(hr, name).restype = c_char_p
hr.headrace_bytes_size.restype = c_uint64


def call(function, *arguments):
    """Calls a function that takes an error last, and raises what it reports."""
    error = c_void_p()
    code = function(*arguments, byref(error))
    if code:
        text = hr.headrace_error_message(error).decode()
        hr.headrace_error_free(error)
        raise RuntimeError(f"{hr.headrace_code_name(code).decode()}: {text}")


def made(function, *arguments):
    """The handle that a function writes to its last argument but the error."""
    handle = c_void_p()
    call(function, *arguments, byref(handle))
    return handle


def prepare(agent, peer, region, count):
    spec = PageSpec(sizeof(PageSpec), UNIFORM, region, count, page_bytes=PAGE)
    return made(hr.headrace_agent_prepare, agent, peer, byref(spec))


prefill = made(hr.headrace_agent_open, b"prefill", None)
decode = made(hr.headrace_agent_open, b"decode", None)

cache, memory = c_uint32(), c_void_p()
call(hr.headrace_agent_allocate, prefill, c_uint64(CACHE_PAGES * PAGE), None, byref(cache), byref(memory))
for page in range(CACHE_PAGES):
    ctypes.memset(memory.value + page * PAGE, page, PAGE)

slots = ctypes.create_string_buffer(4 * PAGE)
mine = c_uint32()
own = Memory(sizeof(Memory), address=ctypes.addressof(slots), length=len(slots))
call(hr.headrace_agent_register, decode, byref(own), c_uint64(1), None, byref(mine))

metadata = made(hr.headrace_agent_export_metadata, prefill, None)
size = c_uint64(hr.headrace_bytes_size(metadata))
hr.headrace_bytes_data.restype = c_void_p  # bytes that hold zeros
call(hr.headrace_agent_import_metadata, decode, c_void_p(hr.headrace_bytes_data(metadata)), size, None)
hr.headrace_bytes_free(metadata)

local, remote = prepare(decode, None, mine, 4), prepare(decode, b"prefill", cache, CACHE_PAGES)
part = Part(sizeof(Part), local, remote, (c_uint32 * 2)(0, 1), (c_uint32 * 2)(7, 3), 2)
request = made(hr.headrace_agent_make_request, decode, c_int32(READ), byref(part), c_uint64(1), None)
call(hr.headrace_request_post, request, None)
call(hr.headrace_request_wait, request, c_int64(TEN_SECONDS))
print(f"page 7 begins with {slots[0]}, page 3 with {slots[PAGE]}")

hr.headrace_request_free(request)
for handle in (local, remote):
    hr.headrace_page_list_free(handle)
for agent in (decode, prefill):
    hr.headrace_agent_close(agent)
