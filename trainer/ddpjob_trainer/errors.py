"""What goes wrong in the pods, as one tree.

    TrainerError
    ├── Refused            the configuration or the task cannot work; trying again cannot help (exit 86)
    ├── CheckpointDamaged  a checkpoint is not what its manifest says; another node's copy or the one before is used
    ├── ReplicasDiffer     ranks hold different parameters
    └── Diverged           the loss is not finite any more

Why apart: launcher, bootstrap and loop speak of the same failures. Must not: import torch.
"""


class TrainerError(Exception):
    """The root."""


class Refused(TrainerError):
    """What was asked cannot work. The message says what is wrong and where, what was expected, what to do."""


class CheckpointDamaged(TrainerError):
    """The files of a checkpoint do not match its manifest; it was renamed and will not be used again."""


class ReplicasDiffer(TrainerError):
    """The ranks no longer hold the same parameters; the message names the ranks."""


class Diverged(TrainerError):
    """No step in a row was finite for so long that going on is a waste."""
