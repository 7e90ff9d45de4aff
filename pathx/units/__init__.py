"""What a unit looks for: the images and places where a channel matters most, gathered over a folder."""

from pathx.callable import make_callable

make_callable(__name__, "pathx.units.units")
