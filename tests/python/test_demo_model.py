# SPDX-License-Identifier: Apache-2.0
# backends: none
"""The demo's language model: weights and card, the three pieces against the whole model, sampling, training,
the packages."""

import json
import math
import os
import subprocess
import sys
import timeit
from pathlib import Path

import pytest

import headrace
from headrace.demo_model import corpus

torch = pytest.importorskip("torch", reason="torch is not installed")

from headrace.demo_model import export, generate, pieces, random_weights, train, weights  # noqa: E402  (they need torch)
from headrace.demo_model.generate import Cache, Pieces, Sampling, choose, mix, pages_for, run_chunk  # noqa: E402
from headrace.demo_model.model import Head, LanguageModel, Sizes, Store  # noqa: E402
from headrace.demo_model.shapes import SHAPES  # noqa: E402
from headrace.errors import Corrupt  # noqa: E402
from headrace.exporting import archive  # noqa: E402

torch.set_num_threads(1)  # threads that spin for one another take minutes where other work has the cores

FOLDER = Path(headrace.__file__).parent / "demo_model"
WEIGHTS = FOLDER / "weights.safetensors"
BUILD = Path(__file__).resolve().parents[2] / "build" / "demo_model"

# The beginning of a chapter that was held out, Genesis 20.
HELD_OUT = (
    b"And Abraham journeyed from thence toward the south country, and dwelled between Kadesh and Shur, and "
    b"sojourned in Gerar.\n"
    b"And Abraham said of Sarah his wife, She is my sister: and Abimelech king of Gerar sent, and took "
    b"Sarah.\n"
)


@pytest.fixture(scope="module")
def model():
    return generate.Weights.load(WEIGHTS)


@pytest.fixture(scope="module")
def whole():
    return train.load(WEIGHTS, "cpu")


@pytest.fixture(scope="module")
def packages():
    """The exported packages, kept in the build folder from run to run."""
    export.export_pieces(BUILD, cache=BUILD / "cache")
    return BUILD


def logits_of(parts, model, tokens, page=16, chunk=64, free=None):
    """Logits at every position, run chunk by chunk."""
    cache = Cache(model.sizes, page, free or pages_for(len(tokens), page))
    rows = [run_chunk(parts, model, cache, tokens[i : i + chunk]) for i in range(0, len(tokens), chunk)]
    return Head()(torch.cat(rows), model.norm, model.embedding)


# The file and its card


def test_the_model_is_small():
    tensors, metadata = weights.read(WEIGHTS)
    assert sum(tensor.numel() for tensor in tensors.values()) <= 4_500_000
    assert WEIGHTS.stat().st_size < 10_000_000
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert Sizes(**json.loads(metadata["sizes"])) == Sizes()


def test_every_tensor_lies_at_a_multiple_of_64_bytes():
    raw = WEIGHTS.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    offsets = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
    assert all((8 + length + begin) % 64 == 0 for begin, _ in offsets)
    assert max(end for _, end in offsets) == len(raw) - 8 - length


def test_the_card_tells_of_these_weights():
    card = (FOLDER / "card.md").read_text()
    tensors, metadata = weights.read(WEIGHTS)
    assert f"{sum(tensor.numel() for tensor in tensors.values()):,} parameters" in card
    assert f"{WEIGHTS.stat().st_size:,} bytes" in card
    assert metadata["corpus_sha256"] in card


def test_text_that_was_held_out_takes_less_than_two_bits_a_byte(whole):
    assert train.bits_per_byte(whole, train.to_tokens(HELD_OUT.decode(), "cpu"), 128, 2) < 2.0


def test_weights_files_are_read_as_they_were_written(tmp_path):
    tensors = {"a": torch.randn(3, 5).to(torch.bfloat16), "b": torch.arange(7), "c": torch.zeros(0, 4)}
    weights.write(tmp_path / "x.safetensors", tensors, {"key": "value"})
    read, metadata = weights.read(tmp_path / "x.safetensors")
    assert metadata == {"key": "value"} and list(read) == list(tensors)
    assert all(
        torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype
        for name, tensor in tensors.items()
    )
    (tmp_path / "x.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ValueError, match="is not a safetensors file"):
        weights.read(tmp_path / "x.safetensors")


# The three pieces


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_the_pieces_give_what_the_whole_model_gives(model, whole, chunk):
    tokens = list(HELD_OUT[:150])
    with torch.no_grad():
        expected = whole(torch.tensor(tokens)[None])[0]
    assert (logits_of(Pieces.eager(), model, tokens, chunk=chunk) - expected).abs().max() < 1e-3


def test_logits_depend_neither_on_page_size_nor_on_the_order_of_pages(model):
    tokens = list(HELD_OUT[:100])
    first = logits_of(Pieces.eager(), model, tokens, page=1)
    for page in (1, 16, 64):
        free = [7 + i * 3 for i in pages_for(100, page)][::-1]
        assert torch.equal(logits_of(Pieces.eager(), model, tokens, page=page, free=free), first)


def test_keys_and_values_are_stored_where_the_layer_looks_for_them():
    sizes = Sizes()
    cached = torch.randn(2, 50, sizes.kv_heads, sizes.head_width)
    for page in (1, 16, 64):
        expected, slots = pieces.lay_out(cached, page, order=-1)
        kv = torch.full_like(expected, torch.nan)
        Store()(kv, slots, *cached)
        assert torch.equal(kv.nan_to_num(), expected.nan_to_num()) and torch.equal(
            kv.isnan(), expected.isnan()
        )


# Random weights


def test_random_weights_are_spread_evenly_and_differ_by_seed_and_tensor():
    def numbers(seed, number, dtype=torch.float32):
        return random_weights.even_numbers(torch.tensor([seed]), number, (1000, 1000), 0.02, dtype)

    first = numbers(5, 0)
    assert first.mean().abs() < 1e-4 and first.std() == pytest.approx(0.02, rel=0.01)
    assert first.abs().max() <= 0.02 * math.sqrt(3) and len(first.unique()) > 900_000
    assert torch.equal(first, numbers(5, 0)) and torch.equal(
        first.to(torch.bfloat16), numbers(5, 0, torch.bfloat16)
    )
    for other in (numbers(6, 0), numbers(5, 1)):
        assert torch.corrcoef(torch.stack((first.flatten(), other.flatten())))[0, 1].abs() < 0.01
    neighbours = torch.stack((first.flatten()[:-1], first.flatten()[1:]))
    assert torch.corrcoef(neighbours)[0, 1].abs() < 0.01


def test_the_large_shape_is_that_of_eight_billion_parameters():
    sizes = SHAPES["8b"].sizes
    assert (sizes.layers, sizes.width, sizes.heads, sizes.kv_heads, sizes.head_width, sizes.hidden) == (
        32,
        4096,
        32,
        8,
        128,
        14336,
    )
    count = (
        sizes.layers * sum(math.prod(shape) for shape in sizes.layer_shapes().values())
        + sizes.vocabulary * sizes.width
    )
    assert 7.4e9 < count < 8.1e9 and SHAPES["8b"].dtype == "bfloat16"
    assert (
        max(map(math.prod, sizes.layer_shapes().values())) < 2**31 > sizes.vocabulary * sizes.width
    )  # what the numbers are made of


@pytest.fixture(scope="module")
def small():
    folder = BUILD.parent / "demo_small"
    export.export_pieces(folder, cache=BUILD / "cache", target=export.Target("small"))
    return folder


@pytest.mark.slow
def test_a_shape_without_a_weights_file_tells_its_sizes(small):
    assert json.loads((small / "sizes.json").read_text()) == {
        **vars(SHAPES["small"].sizes),
        "dtype": "bfloat16",
    }


@pytest.mark.slow
def test_packages_make_the_weights_that_pytorch_makes(small):
    shape = SHAPES["small"]
    pieces.check_random(small / "random_layer.pt2", shape, "cpu")
    pieces.check_random(small / "random_ends.pt2", shape, "cpu")
    made = torch._inductor.aoti_load_package(str(small / "random_layer.pt2"))(torch.tensor([3]))
    assert [tuple(weight.shape) for weight in made] == list(shape.sizes.layer_shapes().values())
    assert {weight.dtype for weight in made} == {torch.bfloat16}


@pytest.mark.slow
def test_embeddings_in_bfloat16_are_passed_on_to_the_head(small):
    sizes = SHAPES["small"].sizes
    embedding, norm = (
        torch.randn(sizes.vocabulary, sizes.width, dtype=torch.bfloat16),
        torch.ones(sizes.width, dtype=torch.bfloat16),
    )
    (x,) = headrace.Model(small / "embed.pt2")(torch.tensor([5, 7]), embedding)
    head = headrace.Model(small / "head.pt2")
    (one,), (other,) = head(x, norm, embedding), head(torch.from_dlpack(x), norm, embedding)
    assert torch.equal(torch.from_dlpack(one), torch.from_dlpack(other)) and one.dtype == "bfloat16"


def test_random_weights_are_accepted_up_to_their_last_bit_and_others_are_noticed(monkeypatch):
    shape = SHAPES["small"]
    module = pieces.request("random_ends", shape).module

    def open_with(error):
        run = lambda seeds: [weight + error for weight in module(*seeds)]  # noqa: E731
        monkeypatch.setattr(pieces, "open_package", lambda path, device: run)

    open_with(0.0)
    pieces.check_random(Path("random_ends.pt2"), shape, "cpu")
    open_with(0.002)
    with pytest.raises(Corrupt, match="differs from PyTorch for seed 1"):
        pieces.check_random(Path("random_ends.pt2"), shape, "cpu")


def test_storing_takes_no_longer_where_there_are_more_pages(packages):
    """It writes in place: a compiler that copies the whole cache takes a thousand times as long for the
    larger one."""
    store = torch._inductor.aoti_load_package(str(packages / "store.pt2"))
    sizes = Sizes()
    key = torch.randn(4, sizes.kv_heads, sizes.head_width)

    def seconds(pages):
        kv = torch.zeros(pages, 2, 16, sizes.kv_heads, sizes.head_width)
        return min(
            timeit.repeat(lambda: store(kv, torch.tensor([1, 5, 70, 9]), key, key), number=5, repeat=5)
        )

    assert seconds(20_000) < 50 * seconds(20)


def test_a_gpu_that_is_not_there_is_said_before_anything_is_compiled(tmp_path, monkeypatch):
    def no_driver(name):
        raise OSError(f"{name}: no such file")

    monkeypatch.setattr(export.ctypes, "CDLL", no_driver)
    with pytest.raises(headrace.NotSupported, match="this machine has no GPU"):
        export.export_pieces(tmp_path, target=export.Target("8b", "cuda"))
    assert not list(tmp_path.iterdir())


# Sampling


def test_random_bits_are_those_of_splitmix64():
    assert [mix(0, n) for n in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert mix(2**64 - 1, 5) == mix(-1, 5)


def test_temperature_zero_takes_the_first_of_the_likeliest():
    assert choose([0.0, 3.0, -1.0, 3.0], Sampling(0), 0) == 1


def test_tokens_come_as_often_as_their_weight_says():
    logits = [math.log(share) for share in (0.1, 0.2, 0.3, 0.4)]
    counts = [0] * 4
    for position in range(20000):
        counts[choose(logits, Sampling(1.0, seed=3), position)] += 1
    assert [count / 20000 for count in counts] == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.015)


def test_temperature_sharpens_and_flattens():
    logits = [0.0, 1.0]
    share = {
        t: sum(choose(logits, Sampling(t, seed=1), n) for n in range(5000)) / 5000 for t in (0.25, 1.0, 4.0)
    }
    for temperature, found in share.items():
        assert found == pytest.approx(1 / (1 + math.exp(-1 / temperature)), abs=0.025)


def test_top_p_keeps_the_likeliest_and_lower_tokens_first_among_equals():
    assert generate.keep_likeliest([1.0, 4.0, 4.0, 1.0], 0.4) == [0.0, 4.0, 0.0, 0.0]
    assert generate.keep_likeliest([1.0, 4.0, 4.0, 1.0], 0.75) == [0.0, 4.0, 4.0, 0.0]
    assert generate.keep_likeliest([1.0, 4.0, 4.0, 1.0], 0.9) == [1.0, 4.0, 4.0, 0.0]
    logits = [0.0, 2.0, 2.0, -50.0]
    assert {choose(logits, Sampling(1.0, 0.3, seed=1), n) for n in range(200)} == {1}


def test_the_same_seed_gives_the_same_text_and_another_another(model):
    def text(seed):
        cache = Cache(model.sizes, 16, pages_for(60, 16))
        return list(generate.generate(Pieces.eager(), model, cache, b"And", 40, Sampling(0.8, seed=seed)))

    assert text(1) == text(1) != text(2)


# Text and training


def test_every_twentieth_chapter_is_held_out():
    chapters = [f"chapter {i}" for i in range(45)]
    training, held_out = corpus.split("\n\n".join(chapters))
    assert held_out.split("\n\n") == ["chapter 19", "chapter 39"]
    assert training.split("\n\n") == [
        chapter for chapter in chapters if chapter not in ("chapter 19", "chapter 39")
    ]


def test_verses_lose_their_references_and_chapters_are_set_apart():
    printed = "Ge1:1 In the  beginning.\nGe1:2 And the earth.\n1Ki2:1 Now the days.\n"
    assert corpus.clean(printed) == "In the beginning.\nAnd the earth.\n\nNow the days.\n"
    with pytest.raises(ValueError, match="is not a verse"):
        corpus.clean("Genesis 1\n")
    assert corpus.words("Milcah's sons, and THEY") == ["milcah's", "sons", "and", "they"]


@pytest.mark.slow
def test_training_learns_and_writes_weights_and_a_report_without_headrace(tmp_path):
    """As on a machine that has torch alone: the script is run by its path, without this package's folder."""
    chapters = ["In the beginning was the word, and the word was good.\n" * 8] * 40
    (tmp_path / "corpus.txt").write_text("\n\n".join(chapters))
    arguments = [
        "--corpus",
        "corpus.txt",
        "--output",
        "out",
        "--device",
        "cpu",
        "--steps",
        "12",
        "--batch",
        "2",
        "--length",
        "64",
    ]
    command = [
        sys.executable,
        str(FOLDER / "train.py"),
        *arguments,
        "--look-every",
        "6",
        "--held-out-bytes",
        "400",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # as above
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=100)
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    assert [look["step"] for look in report["curve"]] == [6, 12]
    assert report["held_out_bits_per_byte"] < 7.0 and report["steps"] == 12
    tensors, metadata = weights.read(tmp_path / "out" / "weights.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert metadata["corpus_sha256"] == corpus.digest((tmp_path / "corpus.txt").read_text())


def test_bits_per_byte_of_a_model_that_knows_nothing_are_eight():
    class Even(torch.nn.Module):
        def forward(self, tokens):
            return torch.zeros(*tokens.shape, 256)

    assert train.bits_per_byte(Even(), train.to_tokens("x" * 100, "cpu"), 16, 4) == pytest.approx(8.0)


def test_initial_weights_follow_from_the_seed():
    first, second = LanguageModel(), LanguageModel()
    first.initialize(3)
    second.initialize(3)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


# The packages


def test_packages_give_what_pytorch_gives(packages, model):
    tokens = list(HELD_OUT[:100])
    compiled = logits_of(Pieces.packages(packages), model, tokens, chunk=33)
    assert (compiled - logits_of(Pieces.eager(), model, tokens, chunk=33)).abs().max() < 1e-3


def test_packages_give_the_same_bits_for_every_page_size_and_order(packages, model):
    tokens = list(HELD_OUT[:100])
    parts = Pieces.packages(packages)
    first = logits_of(parts, model, tokens, page=1, chunk=40)
    for page in (1, 16, 64):
        free = [5 + i * 2 for i in pages_for(100, page)][::-1]
        assert torch.equal(logits_of(parts, model, tokens, page=page, chunk=40, free=free), first)


def test_packages_run_up_to_the_end_of_the_context(packages, model):
    sizes = model.sizes
    cached = torch.randn(2, sizes.context - 1, sizes.kv_heads, sizes.head_width)
    arguments = (torch.randn(1, sizes.width), *pieces.lay_out(cached, 64), *model.layers[0])
    results = (which.layer(*arguments) for which in (Pieces.packages(packages), Pieces.eager()))
    for compiled, eager in zip(*results, strict=True):
        assert (compiled - eager).abs().max() < 1e-3


def test_the_layers_spec_names_what_varies(packages):
    spec = archive.read_spec(packages / "layer.pt2")
    shapes = {entry["name"]: entry["shape"] for entry in spec["inputs"]}
    chunk, before = {"name": "chunk", "min": 1, "max": 2048}, {"name": "before", "min": 0, "max": 2048}
    pages, page = ({"name": name, "min": 1, "max": None} for name in ("pages", "page"))
    assert (
        shapes["x"] == [chunk, 256]
        and shapes["slots"] == [before]
        and shapes["kv"] == [pages, 2, page, 2, 32]
    )
    assert list(shapes)[3:] == list(Sizes().layer_shapes())
    assert [entry["name"] for entry in spec["outputs"]] == ["x", "key", "value"] and spec["mutated"] == []


def test_pages_that_matter_are_noticed(packages, monkeypatch):
    def wrong(tensors):
        x, kv, *_ = tensors
        return x + kv.shape[2], x, x

    monkeypatch.setattr(pieces, "open_package", lambda path, device: wrong)
    with pytest.raises(Corrupt, match="page size"):
        pieces.check_pages(packages / "layer.pt2")


def test_what_is_up_to_date_is_left_alone_without_torch(packages, run_script):
    before = {path.name: path.stat().st_mtime_ns for path in packages.glob("*.pt2")}
    text = (
        "import sys; from headrace.demo_model import export; code = export.main(); print(code, 'torch' "
        "in sys.modules)"
    )
    code, out, err = run_script(f"import sys; sys.argv[1:] = ['--output', {str(packages)!r}]; {text}")
    assert (code, out.splitlines()) == (0, [str(packages), "0 False"]), err
    assert "up to date" in err
    assert {path.name: path.stat().st_mtime_ns for path in packages.glob("*.pt2")} == before


def test_what_is_up_to_date_needs_no_lock(packages, monkeypatch):
    monkeypatch.setattr(export, "_one_at_a_time", None)  # a folder that is not ours to write
    assert [path.name for path in export.export_pieces(packages)] == [
        "embed.pt2",
        "layer.pt2",
        "head.pt2",
        "store.pt2",
    ]


def test_what_a_killed_export_left_is_removed_by_the_next(tmp_path, monkeypatch):
    (tmp_path / ".layer-x1").mkdir()
    (tmp_path / ".layer-x1" / "part").touch()
    (tmp_path / ".embed-x2").touch()
    (tmp_path / "other").touch()
    monkeypatch.setattr(export, "_export_all", lambda pieces, output, cache, target: None)
    export.export_pieces(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "other"]


# A process of a piece that fails


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """Call it with what the process of each piece does after it has written its step; says what the export
    raises."""

    def export_with(ends, explanation="Bare torch dies too"):
        descriptor = "int(sys.argv[sys.argv.index('--steps-to') + 1])"
        text = f"import os, sys; os.write({descriptor}, b'trace\\ncompile\\n'); "
        monkeypatch.setattr(
            export, "_piece_command", lambda piece, *_: [sys.executable, "-c", text + ends.get(piece, "pass")]
        )
        monkeypatch.setattr(export, "explain_crash", lambda device: f"{explanation} on {device}")
        with pytest.raises(headrace.BackendFailed) as raised:
            export._export_all(["embed", "layer", "head"], tmp_path, None, export.Target(device="cuda"))
        return str(raised.value)

    return export_with


def test_a_piece_whose_process_a_signal_ends_is_told_with_step_and_signal_and_whether_torch_dies_too(failing):
    said = failing({"layer": "os.kill(os.getpid(), 11)"})
    assert said == (
        "exporting failed: layer ended by signal 11 (SIGSEGV) in step compile. Bare torch dies too on cuda"
    )


def test_a_piece_on_which_a_runner_crashed_asks_whether_torch_dies_too(failing):
    said = failing({"embed": f"sys.exit({export.CRASHED})", "head": "os.kill(os.getpid(), 6)"})
    assert (
        "embed ended with exit code 70 in step compile; head ended by signal 6 (SIGABRT) in step compile"
        in said
    )
    assert "The reason is printed above. Bare torch dies too" in said


def test_a_piece_that_fails_in_words_or_is_ended_from_outside_starts_nothing_more(failing):
    assert failing({"head": "sys.exit(1)"}) == (
        "exporting failed: head ended with exit code 1 in step compile. The reason is printed above"
    )
    assert failing({"head": "os.kill(os.getpid(), 9)"}) == (
        "exporting failed: head ended by signal 9 (SIGKILL) in step compile"
    )


def test_each_step_of_a_piece_is_written_to_the_process_that_exports_all(tmp_path, monkeypatch):
    def export_package(request, output, progress, **_):
        progress("trace")
        progress("compile")

    monkeypatch.setattr(export, "export_package", export_package)
    monkeypatch.setattr(
        export.signal, "signal", lambda *_: None
    )  # it is a program's own process that SIGTERM is to end
    read_end, write_end = os.pipe()
    monkeypatch.setattr(
        sys, "argv", ["export", "--output", str(tmp_path), "--piece", "head", "--steps-to", str(write_end)]
    )
    assert export.main() == 0
    assert os.read(read_end, 100) == b"trace\ncompile\n" and not os.get_inheritable(write_end)
    os.close(read_end), os.close(write_end)


@pytest.mark.parametrize("changed", ["torch", "processor", "source", "shape", "device"])
def test_a_package_of_another_torch_processor_source_shape_or_device_is_outdated(packages, changed):
    key = export.current_key()
    assert export.is_current(packages / "layer.pt2", key)
    assert not export.is_current(packages / "layer.pt2", {**key, changed: "other"})


def test_what_is_no_package_is_outdated(tmp_path):
    assert not export.is_current(tmp_path / "missing.pt2", {})
    (tmp_path / "text.pt2").write_text("text")
    assert not export.is_current(tmp_path / "text.pt2", {})
