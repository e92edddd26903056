# SPDX-License-Identifier: Apache-2.0
# backends: none
"""headrace.compat.pplx.utils: pplx-garden's utilities, on the CPU."""

import importlib.util
import io
import json
import logging
import random
import statistics

import pytest

from headrace.compat.pplx.utils import logging_utils, math

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

from headrace.compat.pplx.utils import torch as torch_utils


class Halver(torch.nn.Module):
    def forward(self, x):
        return x / 2


def model():
    return torch.nn.Sequential(torch.nn.Sequential(Halver()), torch.nn.ReLU())


# --- math


def test_rounding():
    assert [math.round_up(n, 8) for n in (0, 1, 8, 9)] == [0, 8, 8, 16]
    assert [math.ceil_div(n, 8) for n in (0, 1, 8, 9)] == [0, 1, 1, 2]
    assert [math.floor_div(n, 8) for n in (0, 7, 8)] == [0, 0, 1]


def test_statistics_of_samples():
    samples = [float(value) for value in range(1, 101)]
    random.shuffle(samples)
    found = math.Statistics.create(samples)
    assert (found.mean, found.min, found.max) == (50.5, 1, 100)
    assert found.stddev == pytest.approx(statistics.stdev(samples))
    # A place that is whole is a sample (counted from 0), one between two is the mean of both.
    assert (found.p25, found.p50, found.p75, found.p95) == (26, 51, 76, 96)
    assert (found.p01, found.p99) == (2, 100)
    assert math.Statistics.create([1.0, 2.0, 4.0]).p50 == 3
    assert str(math.Statistics.create([1.0, 3.0])).startswith("mean=2.0±1.4 μs, min=1.0 μs, p01=2.0 μs, p25=")


def test_statistics_of_few_samples():
    assert math.mean_and_stddev([]) == (0, 0) and math.mean_and_stddev([3.0]) == (3, 0)
    none, one = math.Statistics.create([]), math.Statistics.create([3.0])
    assert set(vars(none).values()) == {0} and set(vars(one).values()) == {3, 0}


# --- logging_utils


@pytest.fixture
def log(monkeypatch):
    """The text of a log that `setup` begins; the root logger is as before afterwards."""
    root, text = logging.getLogger(), io.StringIO()
    before = root.handlers[:], root.level
    monkeypatch.setattr(logging_utils, "_is_set_up", False)
    monkeypatch.delenv("DD_ENV", raising=False)
    yield text
    root.handlers[:], root.level = before


@pytest.mark.filterwarnings("default")
def test_lines_of_the_log_have_colours(log):
    handler = logging.StreamHandler(log)
    logging_utils.setup(handler=handler, level="DEBUG")
    logger = logging_utils.get_logger("some.part")
    logger.debug("%d pages", 3)
    try:
        raise KeyError("page")
    except KeyError:
        logger.exception("no page")
    lines = log.getvalue().splitlines()
    assert "\x1b[40;1mDEBUG   \x1b[0m \x1b[32msome.part\x1b[0m 3 pages" in lines[0]
    assert "\x1b[31mERROR   \x1b[0m" in lines[1]
    assert lines[2].startswith("\x1b[31mTraceback") and lines[-1].endswith("KeyError: 'page'\x1b[0m")
    logging_utils.setup(handler=logging.StreamHandler())
    assert logging.getLogger().handlers == [handler], "only the first call counts"


@pytest.mark.filterwarnings("default")
def test_lines_of_the_log_are_plain_where_the_environment_asks(log, monkeypatch):
    monkeypatch.setenv("DD_ENV", "prod")
    logging_utils.setup(handler=logging.StreamHandler(log))
    logging_utils.get_logger("part").debug("not said: the level is INFO")
    logging_utils.get_logger("part").warning("said")
    assert log.getvalue().endswith("WARNING  part said\n") and "\x1b" not in log.getvalue()
    assert log.getvalue().count("\n") == 1


# --- torch


def test_what_a_machine_without_gpus_says(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not (torch_utils.has_cuda() or torch_utils.has_fp8() or torch_utils.has_tp(1))
    assert torch_utils.get_mem_info(torch.device("cpu")) == (0, 0)
    assert torch_utils.get_available_mem(torch.device("cpu")) == 0
    assert torch_utils.cleanup(lambda x, y: x + y)(1, y=2) == 3
    with torch_utils.cleanup_context(), torch_utils.stream_context(torch.device("cpu")):
        pass
    with torch_utils.stream_context(None) as stream:
        assert isinstance(stream, torch_utils.stream_context)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert torch_utils.has_triton_interpreter()


def test_names_of_types():
    assert torch_utils.str_to_dtype("bfloat16") is torch.bfloat16
    assert torch_utils.type_to_str(torch.float8_e4m3fn) == "FP8"
    with pytest.raises(ValueError, match=r"torch\.int64 has no name here: give one of torch\.int8"):
        torch_utils.type_to_str(torch.int64)


def test_what_is_nearly_contiguous():
    whole = torch.zeros(4, 6)
    assert torch_utils.is_weak_contiguous(whole) and torch_utils.is_weak_contiguous(whole.t())
    assert torch_utils.is_weak_contiguous(whole[2:].t())
    assert not torch_utils.is_weak_contiguous(whole[:, :2])


def test_the_default_type_comes_back():
    with pytest.raises(KeyError), torch_utils.set_default_dtype(torch.float64):
        assert torch.zeros(1).dtype is torch.float64
        raise KeyError
    assert torch.zeros(1).dtype is torch.float32


def test_a_borrowed_module_is_no_child():
    owner, borrowed = model(), Halver()
    owner.borrowed = torch_utils.BorrowedModule(borrowed)
    assert owner.borrowed.module is borrowed and len(list(owner.children())) == 2


def test_a_trace_is_written_with_its_ranges(tmp_path):
    with torch_utils.capture_profile(None), torch_utils.profile_range("nothing"):
        pass
    with torch_utils.capture_profile(tmp_path / "trace.json"), torch_utils.profile_range("my range"):
        torch.zeros(3).sum()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert "my range" in {event.get("name") for event in events}


def test_nvtx_ranges_surround_the_layers(monkeypatch):
    said = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", said.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: said.append("end"))
    whole = model()
    torch_utils.add_nvtx(whole, "model")
    assert torch.equal(whole(torch.ones(2)), torch.full((2,), 0.5))
    assert said == ["model:Sequential", "0:Sequential", "0:Halver", "end", "end", "1:ReLU", "end", "end"]


def test_layers_log_what_they_get_and_give_once(caplog):
    whole = model()
    torch_utils.add_logger(whole, logging.getLogger("layers"), ["ReLU"])
    with caplog.at_level(logging.INFO, "layers"):
        whole(torch.ones(1))
    words = [message.partition(": ")[0] for message in caplog.messages]
    assert words == [
        "Sequential@ forward",
        "  Sequential@0 forward",
        "    Halver@0.0 forward",
        "    Halver@0.0 result",
        "  Sequential@0 result",
        "Sequential@ result",
    ]
    assert "tensor([1.])" in caplog.messages[0] and "tensor([0.5000])" in caplog.messages[-1]


def test_values_of_layers_are_kept():
    whole = model()
    kept, hooks = torch_utils.capture_layer_io(whole, ["Halver@0.0"])
    captured = torch_utils.capture_model_activations(whole, ["ReLU@1"])
    whole(torch.tensor([-2.0, 2.0]))
    assert list(kept) == ["Halver@0.0"] and torch.equal(
        kept["Halver@0.0"]["output"], torch.tensor([-1.0, 1.0])
    )
    assert captured.all_activated_layers == ["Sequential@", "Sequential@0", "Halver@0.0", "ReLU@1"]
    (given,), (got,) = captured.captured_layers["ReLU@1"].inputs, captured.captured_layers["ReLU@1"].outputs
    assert torch.equal(given, torch.tensor([-1.0, 1.0])) and torch.equal(got, torch.tensor([0.0, 1.0]))
    for hook in hooks:
        hook.remove()
    captured.cleanup()
    captured.captured_layers.clear()
    kept.clear()
    whole(torch.ones(1))
    assert not kept and not captured.captured_layers
    assert torch_utils.copy_layer_io("text") == [] and len(torch_utils.copy_layer_io([torch.ones(1), 3])) == 1


def test_the_line_that_compares_values():
    line = torch_utils.format_activations_diff(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5]), "layer")
    assert line.startswith("layer L2 Abs.Diff: 0.500000 L2 Rel.Diff: 0.092450 COS: 0.9985 SNR: 10.82 ")
    assert "ATOL: \x1b[91m50.0%\x1b[0m RTOL: \x1b[91m50.0%\x1b[0m Avg: 0.250000 Max: 0.500000" in line
    same = torch_utils.format_activations_diff(torch.ones(2, 3), torch.ones(1, 2, 3), "layer")
    assert "ATOL: 0.0% RTOL: 0.0%" in same
    for other, word in ((torch.ones(4), "SHAPE"), (torch.ones(2, 3, dtype=torch.float64), "DTYPE")):
        assert f"layer {word} MISMATCH" in torch_utils.format_activations_diff(
            torch.ones(2, 3), other, "layer"
        )
