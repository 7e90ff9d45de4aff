"""What people hold in their hands says itself: briefly as text, as figures in a notebook, with labels where there are any."""

from __future__ import annotations

import re
from threading import Barrier, Thread

import torch
from support.small import images, network

import pathx
from pathx.explanation import Explanations, PathLayer, Unit


def test_its_text_is_short_whatever_it_holds() -> None:
    (made,) = pathx.explain(network(), images(), target=1, depth="all", width="all")
    units = sum(len(layer.units) for layer in made.path)
    assert repr(made) == f"<Explanation of 'class 1': {units} units in 3 of 3 layers, score {made.score:.4g}>"
    (against,) = pathx.explain(network(), images(), target=1, against=0, depth=1)
    assert repr(against).startswith("<Explanation of 'class 1' against 'class 0': ")


def test_a_notebook_shows_the_figures_of_a_list() -> None:
    several = pathx.explain(network(), images().expand(12, -1, -1, -1), depth=1)
    assert isinstance(several, Explanations) and len(several) == 12
    page = several._repr_html_()
    assert page is not None and len(re.findall("<img ", page)) == Explanations.MOST_SHOWN and "and 2 more" in page
    assert Explanations()._repr_html_() is None
    flat = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    assert pathx.explain(flat, torch.rand(1, 4), depth=1)._repr_html_() is None  # type: ignore[attr-defined]


def test_a_layer_may_be_looked_at_by_several_threads_at_once() -> None:
    gate = Barrier(2)

    def slowly() -> tuple[Unit, ...]:
        gate.wait(5)  # both threads are inside before either is done
        return ()

    layer = PathLayer.later(1, False, (), units=slowly, edges=tuple)
    found: list[object] = []
    threads = [Thread(target=lambda: found.append(layer.units)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(), ()] and layer.units == ()
