"""What a unit looks for: the images and places where a channel matters most, gathered over a folder."""

import sys

from pathx import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
