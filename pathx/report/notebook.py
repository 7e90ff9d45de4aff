"""A report of an explanation that is at hand, rather than in files."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from PIL import Image

from pathx.drawing.render import Drawing
from pathx.drawing.view import Region, View, pixel_map
from pathx.engine.freeze import freeze
from pathx.errors import PathxError, shown
from pathx.explanation import Explanation
from pathx.images.read import UserImage
from pathx.report.explanation import explanation_data
from pathx.report.network import network_data
from pathx.report.page import is_page, page
from pathx.results.explanation import ResultSubject, path_document
from pathx.results.files import foreign, replace_file

_HEIGHT = 900  # of the page in a notebook's cell, in pixels


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """A page; notebooks show it by themselves.

    Args:
        html: the page, whole.
    """

    html: str

    def __repr__(self) -> str:
        return f"<Report of {len(self.html) / 1e6:.1f} MB>"

    def save(self, file: str | PathLike[str]) -> Path:
        """Write the page to a file, at once and whole. A file of others that is called the same stays."""
        path = Path(file)
        if os.path.isdir(path):
            raise PathxError(
                f"{shown(path)} is a folder: name a file, such as {shown(path / 'report.html')}", usage=True
            )
        if os.path.lexists(path) and not is_page(path):
            raise foreign(path)
        replace_file(path, self.html.encode())
        return path

    def _repr_html_(self) -> str:
        inside = html.escape(self.html, quote=True)
        return (
            f'<iframe srcdoc="{inside}" sandbox="allow-scripts" title="pathx report" width="100%" height="{_HEIGHT}" '
            'frameborder="0"></iframe>'
        )


def explanation_report(
    explanation: Explanation,
    photo: Image.Image | None = None,
    region: Region | None = None,
    *,
    label: str | None = None,
    name: str = "the image",
) -> Report:
    """The interactive page of an explanation.

    Args:
        photo, region, label: as for `Explanation.figure`.
        name: what the page calls the image.
    """
    view = View.of(explanation, photo, region, explanation.label if label is None else label)
    origin, classes = explanation.origin, explanation.logits.numel()
    about = {"name": "the model" if origin is None else type(origin.model).__name__, "weights": "none", "sha256": ""}
    labels = [f"class {index}" for index in range(classes)]
    labels[explanation.target] = view.label
    if explanation.against is not None:
        labels[explanation.against] = explanation.other_label
    device = str(explanation.attribution.device)
    subject = ResultSubject(UserImage(name, "", view.photo), view.region, {**about, "classes": classes}, labels, device)
    document = path_document(explanation, subject)
    network = None if origin is None else network_data(freeze(origin.model, origin.image[None]), explanation)
    data = explanation_data(document, view.photo, network, pixels=pixel_map(explanation.attribution, Drawing()))
    return Report(page("explanation.js", f"{data['whole']['label']}: {name}", data))
