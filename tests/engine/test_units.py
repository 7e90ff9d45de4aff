"""What single units saw, compared with autograd's gradient of their pre-activations."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from support.small import RELUS, images, network
from torch.testing import assert_close

from pathx.engine.freeze import freeze
from pathx.engine.units import unit_maps


@st.composite
def units(draw: st.DrawFn) -> tuple[int, str, tuple[int, ...]]:
    name = draw(st.sampled_from(sorted(RELUS)))
    return draw(st.integers(0, 2)), name, tuple(draw(st.integers(0, size - 1)) for size in RELUS[name])


@given(st.lists(units(), min_size=1, max_size=6), st.integers(0, 20))
def test_the_maps_are_gradient_times_input(wanted: list[tuple[int, str, tuple[int, ...]]], seed: int) -> None:
    model, inputs = network(), images(3, seed)
    found = unit_maps(freeze(model, inputs), wanted)
    for (number, name, index), own in zip(wanted, found, strict=True):
        image = inputs[number : number + 1].clone().requires_grad_()
        before = model[: int(name)](image)
        (gradient,) = torch.autograd.grad(before[(0, *index)], image)
        assert_close(own, (gradient * image).detach()[0])
