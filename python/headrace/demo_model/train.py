# SPDX-License-Identifier: Apache-2.0
"""Trains the model and writes its weights, in bf16.

    python -m headrace.demo_model.train --corpus corpus.txt --device cuda --output out
    python -m headrace.demo_model.train --corpus corpus.txt --device cuda --output out --moe

`--moe` trains the model with experts. Its loss has a term that is least if all experts are chosen as often.

Needs only torch: it also runs as a script, without Headrace installed. On a CPU, fewer and smaller steps
(--steps, --batch, --length) show that the model learns. The folder of --output gets weights.safetensors, the
weights with the lowest held-out bits per byte, and training.json, the report of the run.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING or __package__:
    from . import corpus, weights
    from .model import LanguageModel
    from .shapes import SHAPES, Sizes
else:
    import corpus
    import weights
    from model import LanguageModel
    from shapes import SHAPES, Sizes

BETAS = (0.9, 0.95)
WARM_UP_SHARE = 0.05
LAST_RATE_SHARE = 0.02
GRADIENT_NORM = 1.0


def to_tokens(text: str, device: str) -> torch.Tensor:
    """Returns the bytes of the text; each byte is a token."""
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(device)


def imbalance(uses: Tensor) -> Tensor:
    """Returns 0 if the experts of each layer are chosen equally often; 0 without experts. Gradients flow
    through the probabilities alone, as choices have none.

    uses   [layers, 2, experts], as LanguageModel.run returns them
    """
    if uses.dim() == 1:
        return uses.sum()
    return (uses.prod(1).sum(-1) * uses.shape[-1] - 1).sum()


def autocast(device: str) -> torch.autocast:
    """Returns a context with bf16 arithmetic on a GPU. On a CPU bf16 is slower than f32."""
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=device != "cpu")


def batches_of(tokens: torch.Tensor, length: int, batch: int) -> list[torch.Tensor]:
    """Returns windows of `length` tokens and the one that follows; they do not overlap but for that one."""
    starts = range(0, len(tokens) - 1, length)
    windows = [tokens[start : start + length + 1].long() for start in starts]
    whole = [window for window in windows if len(window) == length + 1]
    batches = [torch.stack(whole[i : i + batch]) for i in range(0, len(whole), batch)]
    if len(windows) > len(whole):
        batches.append(windows[-1][None])
    return batches


@torch.no_grad()
def bits_per_byte(model: torch.nn.Module, tokens: torch.Tensor, length: int, batch: int) -> float:
    """Returns the bits per byte of all tokens but the first. Each token is predicted from those before it in
    its window of `length` tokens."""
    was_training = model.training
    model.eval()
    total = 0.0
    for windows_of_batch in batches_of(tokens, length, batch):
        logits = model(windows_of_batch[:, :-1]).float()
        total += functional.cross_entropy(
            logits.flatten(0, 1), windows_of_batch[:, 1:].flatten(), reduction="sum"
        ).item()
    model.train(was_training)
    return total / math.log(2) / (len(tokens) - 1)


@torch.no_grad()
def expert_shares(model: LanguageModel, tokens: torch.Tensor, length: int, batch: int) -> list[list[float]]:
    """Returns for each layer the share of the choices of all tokens that each expert has."""
    total = torch.zeros(model.sizes.layers, model.sizes.experts, device=tokens.device)
    count = 0
    for windows in batches_of(tokens, length, batch):
        inputs = windows[:, :-1]
        total += model.run(inputs)[1][:, 0] * inputs.numel()
        count += inputs.numel()
    return [[round(share, 4) for share in layer] for layer in (total / count).tolist()]


def rate_share(step: int, steps: int) -> float:
    """Returns the share of the highest learning rate: it rises linearly, then falls along a cosine."""
    warm_up = max(1, round(steps * WARM_UP_SHARE))
    if step < warm_up:
        return (step + 1) / warm_up
    progress = (step - warm_up) / max(1, steps - warm_up)
    return LAST_RATE_SHARE + (1 - LAST_RATE_SHARE) * 0.5 * (1 + math.cos(math.pi * progress))


def make_optimizer(model: LanguageModel, rate: float, decay: float) -> torch.optim.Optimizer:
    """Returns an AdamW optimizer without weight decay for the norms."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=BETAS, fused=matrices[0].is_cuda)


def rounded_to_bf16(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().to(torch.bfloat16) for name, tensor in state.items()}


def load(path: Path, device: str) -> LanguageModel:
    """Loads the model of a weights file, in f32."""
    tensors, metadata = weights.read(path)
    model = LanguageModel(Sizes(**json.loads(metadata["sizes"])))
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return model.to(device).eval()


class Training:
    """One run: its texts, the model, and the best weights so far."""

    def __init__(self, options: argparse.Namespace, text: str) -> None:
        self.options, self.text = options, text
        training, held_out = corpus.split(text)
        self.training, self.held_out = (
            to_tokens(training, options.device),
            to_tokens(held_out[: options.held_out_bytes], options.device),
        )
        torch.manual_seed(options.seed)
        self.generator = torch.Generator().manual_seed(options.seed)
        sizes = SHAPES["experts"].sizes if options.moe else Sizes()
        self.model = LanguageModel(sizes, options.dropout)
        self.model.initialize(options.seed)
        self.model.to(options.device)
        self.run = torch.compile(self.model.run) if options.compile else self.model.run
        self.optimizer = make_optimizer(self.model, options.rate, options.decay)
        self.best, self.best_step, self.best_state = math.inf, 0, copy.deepcopy(self.model.state_dict())
        self.curve: list[dict[str, float]] = []
        self.seconds = 0.0

    def learn(self) -> None:
        """Runs all steps, and evaluates on the held-out text every `look_every` steps."""
        options = self.options
        began = time.monotonic()
        recent = torch.zeros((), device=options.device)
        for step in range(options.steps):
            recent += self._step(step)
            done = step + 1
            if done % options.look_every == 0 or done == options.steps:
                since = (done - 1) % options.look_every + 1
                self._look(done, recent.item() / since, time.monotonic() - began)
                recent.zero_()
        self.seconds = time.monotonic() - began

    def _step(self, step: int) -> torch.Tensor:
        options = self.options
        for group in self.optimizer.param_groups:
            group["lr"] = options.rate * rate_share(step, options.steps)
        starts = torch.randint(
            len(self.training) - options.length, (options.batch, 1), generator=self.generator
        )
        windows = self.training[(starts + torch.arange(options.length + 1)).to(options.device)].long()
        with autocast(options.device):
            logits, uses = self.run(windows[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())
        (loss + options.balance * imbalance(uses)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), GRADIENT_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def _look(self, step: int, loss: float, seconds: float) -> None:
        with autocast(self.options.device):
            held_out = bits_per_byte(self.model, self.held_out, self.options.length, self.options.batch)
        if held_out < self.best:
            self.best, self.best_step, self.best_state = (
                held_out,
                step,
                copy.deepcopy(self.model.state_dict()),
            )
        self.curve.append(
            {"step": step, "loss": round(loss, 4), "held_out_bits_per_byte": round(held_out, 4)}
        )
        bytes_seen = step * self.options.batch * self.options.length
        print(
            f"step {step:5d}  loss {loss:.4f} ({loss / math.log(2):.3f} bits)  "
            f"held out {held_out:.4f} bits per byte  "
            f"{bytes_seen / 1e6:.0f} MB seen  {bytes_seen / seconds / 1e3:.0f} KB/s  {seconds:.0f} s",
            flush=True,
        )

    def save(self) -> None:
        """Writes weights and report. The held-out bits per byte are those of the weights in the file: rounded
        to bf16, run in f32."""
        options, path = self.options, self.options.output / "weights.safetensors"
        metadata = {"sizes": json.dumps(vars(self.model.sizes)), "corpus_sha256": corpus.digest(self.text)}
        weights.write(path, rounded_to_bf16(self.best_state), metadata)
        model = load(path, options.device)
        held_out = bits_per_byte(model, self.held_out, options.length, options.batch)
        report = {
            "command": corpus.command_line("train"),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if options.device != "cpu" else "cpu",
            "corpus_sha256": metadata["corpus_sha256"],
            "corpus_bytes": len(self.text),
            "training_bytes": len(self.training),
            "held_out_bytes": len(self.held_out),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "file_bytes": path.stat().st_size,
            "steps": options.steps,
            "bytes_a_step": options.batch * options.length,
            "best_step": self.best_step,
            "seconds": round(self.seconds, 1),
            "held_out_bits_per_byte": round(held_out, 4),
            "curve": self.curve,
        }
        if options.moe:
            shares = expert_shares(model, self.held_out, options.length, options.batch)
            report["expert_shares"] = shares
            for number, layer in enumerate(shares):
                print(f"layer {number}: shares of the experts {layer}")
            print(f"the least chosen expert of a layer has {min(map(min, shares)):.2%} of the choices")
        (options.output / "training.json").write_text(json.dumps(report, indent=1) + "\n")
        print(
            f"{path}: {report['parameters']} parameters, {report['file_bytes']} bytes, "
            f"best at step {self.best_step}, held out {held_out:.4f} bits per byte, {self.seconds:.0f} s"
        )


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.demo_model.train", description="Trains the demo's language model."
    )
    parser.add_argument("--corpus", type=Path, required=True, help="the text that corpus.py wrote")
    parser.add_argument(
        "--output", type=Path, required=True, help="folder for weights.safetensors and training.json"
    )
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu, cuda or cuda:N"
    )
    parser.add_argument("--steps", type=int, default=2500, help="steps of the optimizer")
    parser.add_argument("--batch", type=int, default=32, help="texts per step")
    parser.add_argument("--length", type=int, default=2048, help="bytes per text")
    parser.add_argument("--rate", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--decay", type=float, default=0.1, help="weight decay")
    parser.add_argument("--dropout", type=float, default=0.1, help="share of activations dropped")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--moe", action="store_true", help="train the model with experts")
    parser.add_argument(
        "--balance", type=float, default=0.02, help="weight of the experts' imbalance in the loss"
    )
    parser.add_argument(
        "--look-every", type=int, default=100, help="steps between evaluations on the held-out text"
    )
    parser.add_argument(
        "--held-out-bytes",
        type=int,
        default=None,
        help="bytes of the held-out text to evaluate on (default: all)",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the model first; faster on a GPU, needs a C++ compiler",
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    options.output.mkdir(parents=True, exist_ok=True)
    training = Training(options, options.corpus.read_text(encoding="ascii"))
    training.learn()
    training.save()


if __name__ == "__main__":
    main()
