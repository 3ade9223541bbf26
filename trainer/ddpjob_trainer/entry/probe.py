"""Whether this Python can run the launcher and the program: 0 both, 3 the launcher (it has no torch), 4 too old."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - any Python may be asked
    sys.exit(4)
from importlib.util import find_spec

sys.exit(0 if find_spec("torch") else 3)
