"""What goes wrong in the pods, as one tree.

    TrainerError
    ├── Refused            the configuration or the task cannot work; trying again cannot help (exit 86)
    ├── DeviceGone         a node lost its device between two generations; another try, or node, may help
    ├── CheckpointDamaged  a checkpoint is not what its manifest says; another node's copy or the one before is used
    ├── ReplicasDiffer     ranks hold different parameters
    └── Diverged           the loss is not finite any more

Why apart: launcher, bootstrap and loop speak of the same failures. Must not: import torch.
"""

from collections.abc import Sequence

from ddpjob_api.codec import dotted
from ddpjob_api.rules import OF_THE_NODE, Finding, Verdict


class TrainerError(Exception):
    """The root."""


class Refused(TrainerError):
    """What was asked cannot work. The message says what is wrong and where, what was expected, what to do."""


class DeviceGone(TrainerError):
    """A later generation does not find the device that the job asks for: this node's failure, and not the job's."""


def without_device(sentence: str, generation: int) -> TrainerError:
    """What it is that a device is not there: a refusal, unless the job has come as far as a later generation."""
    if generation <= 1:
        return Refused(sentence)
    return DeviceGone(
        f"{sentence}; after a restart this is taken for a fault of the node: look at its device and driver"
    )


def refusal(findings: Sequence[Finding], generation: int) -> TrainerError | None:
    """What the rows that refuse come to: a missing device only where nothing else is refused."""
    refused = [finding for finding in findings if finding.verdict is Verdict.REFUSE]
    if not refused:
        return None
    sentence = "; ".join(f"{dotted(finding.path)}: {finding.message}" for finding in refused)
    if all(finding.rule in OF_THE_NODE for finding in refused):
        return without_device(sentence, generation)
    return Refused(sentence)


class CheckpointDamaged(TrainerError):
    """The files of a checkpoint do not match its manifest; it was renamed and will not be used again."""


class ReplicasDiffer(TrainerError):
    """The ranks no longer hold the same parameters; the message names the ranks."""


class Diverged(TrainerError):
    """No step in a row was finite for so long that going on is a waste."""
