"""Models by name or file, with the preprocessing and the labels that belong to them."""

from pathx.callable import make_callable

make_callable(__name__, "pathx.models.catalogue")
