"""What pathx needs of torch and torch offers under private names only, and what happens where a release has no such thing."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor


@cache
def is_composite(op: Any) -> bool:
    """Whether an operation is made of others on every device. Where torch does not tell, it is taken for whole."""
    has_kernel = getattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", None)
    return bool(has_kernel and has_kernel(op.name(), "CompositeImplicitAutograd"))


def reset_version(tensor: Tensor, version: int) -> None:
    """Set the count of changes that autograd keeps of a tensor. Where torch cannot, the count stays as it is."""
    reset = getattr(getattr(torch._C, "_autograd", None), "_unsafe_set_version_counter", None)
    if reset is not None:
        reset((tensor,), (version,))
