"""Interactive reports: results as pages that open with a double click, offline."""

import sys

from pathx import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
