"""The closed lists of condition types and reasons of `status.conditions`.

Why apart: people alert on these words; a reason that is not here cannot be written. Never `Stalled`: kstatus reads
it as failed.
"""

from enum import StrEnum


class Condition(StrEnum):
    ADMITTED = "Admitted"
    PODS_READY = "PodsReady"
    RENDEZVOUS_READY = "RendezvousReady"
    RUNNING = "Running"
    HUNG = "Hung"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Reason(StrEnum):
    """Why a condition is what it is. The comment names the conditions that carry it."""

    # Admitted
    ACCEPTED = "Accepted"
    # Admitted, Failed
    INVALID_SPEC = "InvalidSpec"
    # Admitted: an object of a child's name is not ours
    NAME_CONFLICT = "NameConflict"
    # PodsReady
    ALL_PODS_READY = "AllPodsReady"
    PODS_STARTING = "PodsStarting"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CONFIG_ERROR = "ContainerConfigError"
    VOLUME_NOT_READY = "VolumeNotReady"
    QUOTA_EXCEEDED = "QuotaExceeded"
    POD_REFUSED = "PodRefused"
    NODE_NOT_READY = "NodeNotReady"
    NODE_STORM = "NodeStorm"
    # PodsReady (between two attempts), Failed
    RENDEZVOUS_TIMEOUT = "RendezvousTimeout"
    # RendezvousReady
    ALL_RANKS_JOINED = "AllRanksJoined"
    WAITING_FOR_RANKS = "WaitingForRanks"
    # Running
    TRAINING = "Training"
    NOT_STARTED = "NotStarted"
    COORDINATOR_SILENT = "CoordinatorSilent"
    """It ran when its coordinator last answered, and nobody knows since (Running is Unknown)."""
    NOT_RESUMING = "NotResuming"
    """It trains, and began again at step 0 although `checkpoint` is set; the message says what to do."""
    CHECKPOINT_FAILED = "CheckpointFailed"
    """It trains, and its checkpoints cannot be written."""
    CHECKPOINT_DAMAGED = "CheckpointDamaged"
    """It trains, from an older checkpoint or another node's copy, because one was not what had been written."""
    # Restarting, and lastFailure.reason
    PROGRAM_FAILED = "ProgramFailed"
    OOM_KILLED = "OOMKilled"
    KILLED = "Killed"
    DISRUPTED = "Disrupted"
    NODE_LOST = "NodeLost"
    POD_LOST = "PodLost"
    # Hung, Restarting, and lastFailure.reason
    NO_PROGRESS = "NoProgress"
    # Suspended
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    # Complete
    ALL_RANKS_SUCCEEDED = "AllRanksSucceeded"
    # Failed
    MAX_RESTARTS_EXCEEDED = "MaxRestartsExceeded"
    REPEATED_FAILURE = "RepeatedFailure"
    MAX_DISRUPTIONS_EXCEEDED = "MaxDisruptionsExceeded"
    CONFIGURATION_REFUSED = "ConfigurationRefused"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    # any
    UNKNOWN = "Unknown"


ADVICE = frozenset({Reason.CHECKPOINT_FAILED, Reason.CHECKPOINT_DAMAGED, Reason.NOT_RESUMING})
"""Reasons of a job that runs and that somebody should do something about."""

WAITING = {
    "Unschedulable": Reason.UNSCHEDULABLE,
    "ErrImagePull": Reason.IMAGE_PULL_FAILED,
    "ImagePullBackOff": Reason.IMAGE_PULL_FAILED,
    "InvalidImageName": Reason.IMAGE_PULL_FAILED,
    "ErrImageNeverPull": Reason.IMAGE_PULL_FAILED,
    "RegistryUnavailable": Reason.IMAGE_PULL_FAILED,
    "SignatureValidationFailed": Reason.IMAGE_PULL_FAILED,
    "CreateContainerConfigError": Reason.CONTAINER_CONFIG_ERROR,
    "CreateContainerError": Reason.CONTAINER_CONFIG_ERROR,
    "RunContainerError": Reason.CONTAINER_CONFIG_ERROR,
    "FailedMount": Reason.VOLUME_NOT_READY,
    "FailedAttachVolume": Reason.VOLUME_NOT_READY,
    "FailedMapVolume": Reason.VOLUME_NOT_READY,
}
"""The kubelet's and the scheduler's words for what a pod waits for; others (ContainerCreating) are no trouble."""

FAILURES = (
    Reason.INVALID_SPEC, Reason.RENDEZVOUS_TIMEOUT, Reason.PROGRAM_FAILED, Reason.OOM_KILLED, Reason.KILLED,
    Reason.DISRUPTED, Reason.NODE_LOST, Reason.POD_LOST, Reason.NO_PROGRESS, Reason.MAX_RESTARTS_EXCEEDED,
    Reason.REPEATED_FAILURE, Reason.MAX_DISRUPTIONS_EXCEEDED, Reason.CONFIGURATION_REFUSED, Reason.DEADLINE_EXCEEDED,
    Reason.UNKNOWN,
)  # fmt: skip
"""Reasons with which Failed can be True."""
