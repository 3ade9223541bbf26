"""A real Kubernetes for tests: `Cluster` is what tests see, whatever provides it.

Providers, in this order: a context given by DDPJOB_TEST_CONTEXT, kind where an engine runs, else one built from Go
modules and Debian packages. `python -m tests.cluster.harness up` starts it by hand.
"""

from .cluster import Cluster, Images
from .errors import CannotRun, CommandFailed, HarnessError, TimedOut, Unhealthy
from .process import Process
from .waiting import eventually

__all__ = [
    "CannotRun",
    "Cluster",
    "CommandFailed",
    "HarnessError",
    "Images",
    "Process",
    "TimedOut",
    "Unhealthy",
    "eventually",
]
