# SPDX-License-Identifier: Apache-2.0
"""What `import headrace` provides, and the modules that it does not import."""

import copy
import inspect
import json
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace import _headrace, errors
from headrace.compat.nixl import _compiled as compat_compiled

PUBLIC = [getattr(headrace, name) for name in headrace.__all__]
CLASSES = [thing for thing in PUBLIC if inspect.isclass(thing)]


def test_the_import_loads_neither_numpy_nor_torch_nor_asyncio(run_script):
    code, out, err = run_script(
        "import sys, headrace; print([m for m in ('numpy', 'torch', 'asyncio') if m in sys.modules])"
    )
    assert (code, out.strip()) == (0, "[]"), err


def test_the_import_takes_less_than_150_ms(run_script):
    """Of the CPU: other programs may have it at any moment."""
    text = "import time; t = time.process_time(); import headrace; print(time.process_time() - t)"
    assert min(float(run_script(text)[1]) for _ in range(5)) < 0.15


def test_the_version_is_that_of_the_header():
    header = Path(__file__).resolve().parents[2] / "include" / "headrace" / "version.hpp"
    assert f'"{headrace.__version__}"' in header.read_text()


def test_every_public_name_has_a_docstring():
    missing = [thing.__name__ for thing in PUBLIC if not (thing.__doc__ or "").strip()]
    for cls in CLASSES:
        for name, member in vars(cls).items():
            public = not name.startswith("_") and (callable(member) or isinstance(member, property))
            if public and not (member.__doc__ or "").strip():
                missing.append(f"{cls.__name__}.{name}")
    assert missing == []


def test_every_code_has_one_exception_and_every_exception_one_code():
    classes = {cls.code for cls in errors.Error.__subclasses__()}
    assert classes == set(_headrace.codes) - {"ok"}


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (headrace.WouldBlock, BlockingIOError),
        (headrace.InvalidArgument, ValueError),
        (headrace.NotFound, LookupError),
        (headrace.NotSupported, NotImplementedError),
        (headrace.TimedOut, TimeoutError),
        (headrace.PeerLost, ConnectionError),
        (headrace.Exhausted, MemoryError),
    ],
)
def test_an_error_is_also_the_fitting_builtin(error, builtin):
    assert issubclass(error, builtin) and issubclass(error, headrace.Error)


def test_an_error_has_text_code_and_page_and_survives_pickling():
    with (
        headrace.Agent("a", backends=["shm"]) as agent,
        pytest.raises(headrace.InvalidArgument, match="range 1 is empty") as caught,
    ):
        agent.register([bytearray(1), bytearray(0)])
    error = caught.value
    assert (error.code, error.page) == ("invalid_argument", 1)
    assert "empty" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.page) == (type(error), str(error), 1)


def test_an_object_that_belongs_to_its_process_refuses_to_be_pickled_with_advice():
    with headrace.Agent("a", backends=["shm"]) as agent:
        memory = agent.allocate(4096)
        pages = agent.prepare([memory])
        far = agent.prepare([memory.region], peer="a")
        for thing, hint in [
            (agent, "export_metadata"),
            (memory, "agent of its own"),
            (memory.region, "metadata"),
            (pages, "made from"),
            (agent.make_request("read", pages, far), "make one in the other process"),
        ]:
            for attempt in (pickle.dumps, copy.deepcopy):
                with pytest.raises(TypeError, match=hint):
                    attempt(thing)


def test_uniform_pages_are_a_value_and_can_be_pickled():
    pages = headrace.UniformPages(3, 64, 4096, 1024, 7)
    again = pickle.loads(pickle.dumps(pages))
    assert (
        repr(again)
        == repr(pages)
        == "UniformPages(region=3, base_bytes=64, stride_bytes=4096, page_bytes=1024, count=7)"
    )
    assert len(pages) == 7


def test_the_package_is_typed():
    assert (Path(headrace.__file__).parent / "py.typed").exists()


def test_python_m_headrace_runs_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "headrace" in done.stdout and "bench" in done.stdout


def test_a_package_without_its_command_is_reported_with_advice(tmp_path):
    main = tmp_path / "__main__.py"
    main.write_text((Path(headrace.__file__).parent / "__main__.py").read_text())
    done = subprocess.run(
        [sys.executable, str(main)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and "cannot be run" in done.stderr and "reinstall the package" in done.stderr


def test_the_library_is_installed_once_and_has_its_major_version_in_its_name():
    folder = Path(headrace.__file__).parent / "lib"
    major = headrace.__version__.split(".")[0]
    assert [file.name for file in folder.glob("libheadrace.so*")] == [f"libheadrace.so.{major}"]


def shown_symbols(path):
    """The names that a shared object of this machine's architecture exports, read from its ELF tables."""
    data = Path(path).read_bytes()
    sections, size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    tables = [struct.unpack_from("<IIQQQQIIQQ", data, sections + i * size) for i in range(count)]
    for _, kind, _, _, at, length, strings, _, _, _ in tables:
        if kind == 11:  # the dynamic symbols
            texts = tables[strings][4]
            for entry in range(at, at + length, 24):
                name, _, _, section = struct.unpack_from("<IBBH", data, entry)
                if section:
                    yield data[texts + name : data.index(b"\0", texts + name)].decode()


def test_the_extensions_export_no_symbol_but_their_entry_point():
    assert set(shown_symbols(headrace._headrace.__file__)) == {"PyInit__headrace"}
    assert set(shown_symbols(compat_compiled.__file__)) == {"PyInit__compiled"}


def test_backends_and_options_are_listed_with_their_meaning():
    backends = {info.name: info for info in headrace.list_backends()}
    for name in ("shm", "tcp"):
        assert backends[name].loaded, backends[name].refusal
        assert "dram" in backends[name].kinds and backends[name].remote and backends[name].notifications
        assert all(
            option.sentence and option.name.startswith(name + ".") for option in backends[name].options
        )
    assert backends["shm"].mapping and not backends["tcp"].mapping
    options = {option.name: option for option in headrace.list_options({"check": True})}
    assert (options["check"].value, options["check"].source) == ("true", "caller")
    assert options["inbox_capacity"].source == "default"


def test_the_fake_backend_is_listed_only_if_an_option_names_it():
    def shown(options):
        return {info.name: info for info in headrace.list_backends(options)}, {
            o.name for o in headrace.list_options(options)
        }

    backends, options = shown({})
    assert (
        "fake" not in backends
        and not any(name.startswith("fake.") for name in options)
        and not backends["shm"].query
    )
    for asked in ({"backends": "tcp, fake"}, {"fake.queue_depth": 2}):
        backends, options = shown(asked)
        assert (
            backends["fake"].loaded
            and backends["fake"].query
            and "shm" in backends
            and "fake.queue_depth" in options
        )
    with pytest.raises(headrace.BackendFailed, match="there is no backend `pigeon`") as refused:
        headrace.Agent("a", ["pigeon"])
    assert "shm, tcp" in str(refused.value) and "fake" not in str(refused.value)


def test_an_option_that_is_unknown_or_has_an_invalid_value_is_refused():
    with pytest.raises(headrace.InvalidArgument, match="no_such_option"):
        headrace.list_options({"no_such_option": 1})
    with pytest.raises(headrace.InvalidArgument, match="no_such_option"):
        headrace.list_backends({"no_such_option": 1})
    with pytest.raises(headrace.InvalidArgument, match=r"option 'check' is \[\]"):
        headrace.Agent("a", options={"check": []})
    with pytest.raises(headrace.InvalidArgument, match="an option's name must be a str"):
        headrace.Agent("a", options={1: 1})


def test_telemetry_counts_the_moved_bytes():
    with headrace.Agent("a", backends=["shm"]) as agent:
        memory = agent.allocate(8192)
        agent.read("a", [(memory.region.id, 0, 4096)], [(memory.region.id, 4096, 4096)], timeout=10)
        snapshot = agent.telemetry()
        assert snapshot.counters["requests.read_bytes"] == 4096
        durations = snapshot.histograms["requests.duration_ns"]
        assert len(durations.buckets) == 65 and sum(durations.buckets) == durations.count
        assert json.loads(snapshot.json())["counters"] == snapshot.counters


HALF = "kv\udc80"  # the text that os.fsdecode makes of a byte that is no UTF-8


@pytest.mark.parametrize(
    "call",
    [
        lambda agent: headrace.Agent(HALF),
        lambda agent: headrace.Agent("other", backends=[HALF]),
        lambda agent: headrace.Agent("other", options={HALF: 1}),
        lambda agent: headrace.Agent("other", options={"tcp.sockets": HALF}),
        lambda agent: headrace.Agent("other", store="memory:" + HALF),
        lambda agent: headrace.set_log_level(HALF),
        lambda agent: agent.register(bytearray(1), name=HALF),
        lambda agent: agent.register(bytearray(1), backends=["shm", HALF]),
        lambda agent: agent.allocate(1, kind=HALF),
        lambda agent: agent.peer_region("peer", HALF),
        lambda agent: agent.fetch_metadata(HALF),
        lambda agent: agent.find(HALF),
        lambda agent: agent.forget(HALF),
        lambda agent: agent.notify(HALF, b""),
        lambda agent: agent.prepare([(1, 0, 1)], peer=HALF),
        lambda agent: agent.read(HALF, [(1, 0, 1)], [(1, 0, 1)]),
        lambda agent: headrace.MemoryRange("file", path=HALF),
    ],
)
def test_text_that_utf8_cannot_encode_is_refused_with_advice(call):
    with headrace.Agent("surrogates", backends=["shm"]) as agent:
        with pytest.raises(headrace.InvalidArgument, match=r"udc80' contains a lone surrogate .* 'replace'"):
            call(agent)
        with pytest.raises(TypeError, match=r"^forget\(\): incompatible function arguments"):
            agent.forget(b"peer")
        with pytest.raises(TypeError, match=r"^register\(\): incompatible function arguments"):
            agent.register(bytearray(1), backends=[b"shm"])
