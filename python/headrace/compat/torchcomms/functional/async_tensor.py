# SPDX-License-Identifier: Apache-2.0
"""A tensor that an operation still writes: whoever uses it waits first."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only


class TorchCommsAsyncTensor(Tensor):
    """elem, which is whole when work has ended. Functions of torch get elem, after they have waited.

    work: an object with wait(); None: elem is whole.
    """

    elem: Tensor
    work: Any

    @staticmethod
    def __new__(cls, elem: Tensor, work: Any) -> TorchCommsAsyncTensor:
        made: TorchCommsAsyncTensor = Tensor._make_wrapper_subclass(
            cls,
            elem.size(),
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            layout=elem.layout,
            device=elem.device,
            requires_grad=elem.requires_grad,
        )
        made.elem, made.work = elem, work
        return made

    def wait(self) -> Tensor:
        """Waits for the operation. Returns the tensor itself."""
        work, self.work = self.work, None
        if work is not None:
            work.wait()
        return self.elem

    trigger_wait = wait

    # autograd sees elem alone

    @property
    def grad_fn(self) -> Any:  # type: ignore[override]
        return self.elem.grad_fn

    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        return self.elem.is_leaf

    @property
    def grad(self) -> Tensor | None:
        return self.elem.grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        self.elem.grad = value

    def backward(self, *arguments: Any, **more: Any) -> None:
        self.wait().backward(*arguments, **more)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"TorchCommsAsyncTensor({self.wait()})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*_waited(args), **_waited(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*_waited(args), **_waited(kwargs or {}))


def _waited(arguments: Any) -> Any:
    return tree_map_only(TorchCommsAsyncTensor, lambda tensor: tensor.wait(), arguments)


__all__ = ["TorchCommsAsyncTensor"]
