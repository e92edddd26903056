# SPDX-License-Identifier: Apache-2.0
"""Registers the backend "headrace" with torch.distributed.

torch calls `register` through the entry points `torch.backends` and `torch.distributed.backends`. This
package lies beside `headrace`, so that nothing of Headrace is loaded before the first process group is made.
"""

from __future__ import annotations

from typing import Any

NAME = "headrace"
BINDINGS = ("compiled", "python")

_binding: str | None = None


def register(binding: str | None = None) -> None:
    """Makes `init_process_group("headrace")` known to torch. May be called again.

    binding: "compiled" or "python", for groups that are made later; None: compiled, if it was built for this
    Python and for torch's version.
    Errors: ValueError (another binding).
    """
    global _binding
    import torch
    import torch.distributed as dist

    if binding not in (None, *BINDINGS):
        raise ValueError(f"there is no binding {binding!r}: give one of {', '.join(BINDINGS)}, or None")
    _binding = binding
    if dist.is_available():
        devices = ["cpu", "cuda"] if torch.version.cuda else ["cpu"]
        dist.Backend.register_backend(NAME, _make_group, extended_api=True, devices=devices)


def _make_group(options: Any, group_options: Any) -> Any:
    """A compiled Backend, or a group or Backend written in Python."""
    from headrace._torch import compiled

    serves = _binding or ("compiled" if compiled.is_for_this_torch() else "python")
    make = compiled.new_backend if serves == "compiled" else _python_maker(options)
    group = make(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        name=options.group_id,
        hints=getattr(group_options, "hints", group_options),
        comm=getattr(group_options, "comm", None),  # headrace.distributed has made it already
    )
    group.options.global_ranks_in_group = list(options.global_ranks_in_group)
    return group


def _python_maker(options: Any) -> Any:
    import functools

    from headrace._torch.group import new_group

    return functools.partial(new_group, torchs_group=getattr(options, "process_group", None))
