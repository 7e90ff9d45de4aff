"""Models by name or file, with the preprocessing and the labels that belong to them."""

import sys

from pathx import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
