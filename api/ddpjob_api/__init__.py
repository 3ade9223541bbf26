"""What operator, trainer and command line agree on: the resource, its rules, the environment, the wire, the page.

Why apart: the three sides are installed apart (an operator image, any training image, a laptop) and must mean the
same by the same word. Must not: import anything but the standard library (these files are copied into images that
have nothing else), do I/O, or know who calls it.
"""

from ddpjob_api.codec import Invalid, Problem, parse, render
from ddpjob_api.spec import DDPJob, Spec

__version__ = "0.1.0"

__all__ = ["DDPJob", "Invalid", "Problem", "Spec", "__version__", "parse", "render"]
