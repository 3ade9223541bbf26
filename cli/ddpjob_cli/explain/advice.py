"""What to do about words that Kubernetes, Python and torch say: patterns and advice, one table for each place.

Why apart: this is knowledge, not logic; a row is added when somebody met a case. Must not: decide what applies where.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpjob_api.conditions import Reason


@dataclass(frozen=True)
class Row:
    """Words that are met, and what helps; `{0}` … are the pattern's groups."""

    pattern: str
    advice: str


Known = tuple[Sequence[Row], str]
"""The rows of a reason, and what helps where none of them applies."""

SCHEDULER = (
    Row(
        r"Insufficient ([\w./-]+?)[.,;]? *(?:$|[.,;] | preempt)",
        "no node has enough free {0}: lower resourcesPerNode ({0}) or nodes, end other work, or add nodes that have it "
        "(kubectl describe nodes shows what is allocated)",
    ),
    Row(
        r'persistentvolumeclaim "([^"]+)" not found',
        "create the claim {0} in this namespace, or name one that is there (kubectl get pvc)",
    ),
    Row(
        r"unbound immediate PersistentVolumeClaims",
        "the claim has no volume yet: kubectl describe pvc says why (storage class, size, access mode)",
    ),
    Row(
        r"volume node affinity conflict",
        "the claim's volume is in another zone than the nodes: use a ReadWriteMany class, or placement: Pack",
    ),
    Row(
        r"untolerated taint[s]? ?\{?([^}:, ]*)",
        "nodes are tainted ({0}): add a toleration under template.spec.tolerations, or take the taint off",
    ),
    Row(
        r"didn't match Pod's node affinity/selector",
        "no node has the labels that template.spec.nodeSelector or affinity ask for: kubectl get nodes --show-labels",
    ),
    Row(
        r"anti-affinity rules",
        "placement: Require wants one pod per node and there are fewer nodes than pods: use Spread, or fewer nodes",
    ),
    Row(r"unschedulable", "nodes are cordoned: kubectl get nodes, then kubectl uncordon"),
    Row(r"Too many pods", "the nodes are full of pods: add nodes"),
)
IMAGE = (
    Row(
        r"(?i)unauthorized|authentication required|denied|no basic auth",
        "the registry wants a login: put one into a Secret (kubectl create secret docker-registry) and name it in "
        "imagePullSecrets",
    ),
    Row(
        r"(?i)not found|manifest unknown|does not exist",
        "the name or tag is wrong, or the image was not pushed: check spec.image",
    ),
    Row(
        r"(?i)connection refused|no such host|i/o timeout|timed out|dial tcp",
        "the node does not reach the registry: check the registry's name in spec.image, and the node's network",
    ),
    Row(r"(?i)InvalidImageName|couldn't parse", "spec.image is no image name: REGISTRY/NAME:TAG"),
    Row(r"(?i)no space left|DiskPressure", "the node's disk is full: free it, or use another node"),
)
CONTAINER = (
    Row(
        r'configmap "([^"]+)" not found',
        "create the ConfigMap {0} in this namespace (kubectl create configmap), or correct its name",
    ),
    Row(
        r'secret "([^"]+)" not found',
        "create the Secret {0} in this namespace (kubectl create secret), or correct its name",
    ),
    Row(r"couldn't find key (\S+)", "the key {0} is not in the object that env names: correct one of them"),
    Row(
        r"runAsNonRoot|non-numeric user",
        "the image's user is root or has no number: give it a numeric USER, or set "
        "template.spec.securityContext.runAsUser",
    ),
    Row(
        r"(?i)executable file not found|no such file",
        "the image has no Python with ddpjob_trainer: build it from the trainer image, or leave spec.image out",
    ),
)
VOLUME = (
    *CONTAINER[:2],
    Row(
        r"(?i)multi-attach|already exclusively attached",
        "the claim is ReadWriteOnce and another node has it: use a ReadWriteMany claim, or nodes: 1",
    ),
    Row(
        r"(?i)timed out|timeout",
        "the storage does not answer: kubectl describe pod, and the storage driver's pods",
    ),
)
REFUSED = (
    Row(
        r"exceeded quota: ([\w.-]+)",
        "the quota {0} is used up: ask for more, ask for less, or end other work (kubectl describe quota)",
    ),
    Row(
        r"violates PodSecurity",
        "the namespace's Pod Security level forbids what template asks for: take it out, or use another namespace",
    ),
    Row(
        r'failed calling webhook "([^"]+)"',
        "the webhook {0} does not answer, and without it no pod is made: start what serves it, or take it out "
        "(kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations)",
    ),
    Row(r'admission webhook "([^"]+)"', "the webhook {0} refuses the pod: its words say what it wants"),
    Row(r"must specify limits|minimum|maximum", "a LimitRange of the namespace wants other resourcesPerNode"),
)
HELD: Mapping[str, Known] = {
    Reason.UNSCHEDULABLE: (SCHEDULER, "kubectl describe pod shows the scheduler's words in full"),
    Reason.IMAGE_PULL_FAILED: (IMAGE, "check spec.image and imagePullSecrets"),
    Reason.CONTAINER_CONFIG_ERROR: (CONTAINER, "check env, envFrom and template"),
    Reason.VOLUME_NOT_READY: (VOLUME, "kubectl describe pod has the storage's words"),
    Reason.QUOTA_EXCEEDED: (REFUSED, "ask for less, or for a larger quota"),
    Reason.POD_REFUSED: (REFUSED, "the words are the API server's; change what they name"),
    Reason.NODE_NOT_READY: ((), "kubectl describe node says why"),
    Reason.NODE_STORM: (
        (),
        "so many nodes at once are the network's or the control plane's trouble: kubectl get nodes",
    ),
}
"""Of a pod that is not ready, by the reason of PodsReady."""
BY_ITSELF: Mapping[str, Sequence[Row]] = {
    Reason.NODE_NOT_READY: (Row(r"", "the pod is replaced after recovery.nodeLostTimeoutSeconds by itself"),),
    Reason.NODE_STORM: (Row(r"", "the job goes on by itself"),),
    Reason.POD_REFUSED: (Row(r"failed calling webhook", "the job then goes on by itself"),),
}
"""What happens without help, by the same reason; of a job that has ended nothing does."""
UNMET = (
    "if launchers cannot connect, a NetworkPolicy between the pods (port coordinator, and the 64 from rendezvous) or DNS "
    "is in the way"
)
"""Of ranks that are missing though nothing is known to hold their pods up."""
PROGRAM = (
    Row(
        r"ModuleNotFoundError: No module named '([^']+)'",
        "the image has no {0}: build an image with it, or put the code into workspace",
    ),
    Row(
        r"(?i)(?:CUDA|HIP|XPU)\b.{0,20}out of memory|OutOfMemoryError",
        "the GPU's memory is not enough: a smaller micro-batch (ddp.gradientAccumulationSteps keeps the global batch), "
        "precision: BF16, gradientCheckpointing: NonReentrant, or gradientAsBucketView: true",
    ),
    Row(
        r"(?i)No space left on device",
        "a volume is full: checkpoint.keep: fewer, or a larger claim; /dev/shm is memory and counts to the limit",
    ),
    Row(
        r"SIGBUS",
        "shared memory ran out (DataLoader workers use it): raise the memory limit, or use fewer workers",
    ),
    Row(
        r"SIGKILL",
        "something killed it from outside, mostly for memory: raise resourcesPerNode.limits.memory",
    ),
    Row(
        r"SIGSEGV",
        "native code crashed; python -X faulthandler, and the versions of torch and the driver, tell more",
    ),
    Row(
        r"(?i)did not receive grad|unused parameters|Expected to have finished reduction",
        "parameters took no part in the loss: set ddp.findUnusedParameters: true, or use them",
    ),
    Row(
        r"(?i)mark a variable ready only once|ready twice",
        "set ddp.staticGraph: true, or task.gradientCheckpointing: NonReentrant",
    ),
    Row(
        r"(?i)Address already in use",
        "another process has the port: choose others with spec.ports, or do not use hostNetwork",
    ),
    Row(
        r"(?i)NCCL.*(?:unhandled|system|remote) error|NCCL WARN",
        "run it once with env NCCL_DEBUG=INFO; interfaces are chosen with NCCL_SOCKET_IFNAME",
    ),
    Row(
        r"DataLoader timed out",
        "a worker process brought no batch within the DataLoader's timeout: what it reads is slow or hangs; raise it where a "
        "batch may take longer",
    ),
    Row(
        r"ReadTimeout|ConnectTimeout|ServerTimeoutError|HTTPS?Connection(?:Pool)?\(|urlopen error|\[Errno 110\]|"
        r"(?:TimeoutError|socket\.timeout): timed out",
        "a server that the program asked (a hub, a bucket) did not answer in time: is there a NetworkPolicy or a proxy on the "
        "way to it? A volume or the image can bring models and data along",
    ),
    Row(  # torch's words: any other time-out is the program's own
        r"(?i)collective operation timeout|NCCL timeout|before timing out|wait timeout after|timed out waiting \d+ ?ms|"
        r"timed out after \d+ seconds waiting|socket timeout|socket has timed out|errno: 110|monitoredBarrier|"
        r"gloo.*time(?:d )?out|timeout caused pair closure",
        "a rank waited too long for another: what that one did (ddpjob top, its log) is the cause; a slow but healthy "
        "step wants a larger ddp.timeoutSeconds",
    ),
    Row(
        r"FileNotFoundError",
        "the file is not in the pod: workspace, a volume in template, or the image brings files",
    ),
    Row(
        r"PermissionError",
        "pods run as a user that is not root, on a read-only workspace: write to /tmp or a volume",
    ),
)
ENDINGS = {
    Reason.INVALID_SPEC: "correct the spec (ddpjob lint FILE says line and field), then delete the job and apply it again",
    Reason.NAME_CONFLICT: "rename the job, or delete the object that has its name",
    Reason.CONFIGURATION_REFUSED: "change what the sentence names; trying again cannot help",
    Reason.MAX_RESTARTS_EXCEEDED: "correct the cause; recovery.maxRestarts allows more tries, which go on from the last checkpoint",
    Reason.MAX_DISRUPTIONS_EXCEEDED: "pods were taken away too often: other nodes, a priorityClassName, or recovery.maxDisruptions",
    Reason.DEADLINE_EXCEEDED: "raise activeDeadlineSeconds, or take it out",
    Reason.RENDEZVOUS_TIMEOUT: "what kept pods or ranks away is above; recovery.rendezvousTimeoutSeconds is how long they may take",
    Reason.OOM_KILLED: "raise resourcesPerNode.limits.memory, or use a smaller batch or fewer DataLoader workers",
    Reason.NO_PROGRESS: "ddpjob explain NAME --stacks shows what every rank did; a collective that not all ranks reach is "
    "the usual cause",
    Reason.NODE_LOST: "the node went away; nothing to change in the job",
    Reason.DISRUPTED: "pods were evicted or preempted: a priorityClassName in template, or nodes that are not reclaimed",
}


RUNNING: Mapping[Reason, Known] = {
    Reason.CHECKPOINT_FAILED: (
        (
            Row(
                r"(?i)No space left on device|quota exceeded",
                "make room on the volume of the checkpoints: checkpoint.keep: fewer, or a larger claim",
            ),
        ),
        "correct what the sentence names; until then a failure costs the steps since the last checkpoint",
    ),
    Reason.CHECKPOINT_DAMAGED: (
        (),
        "it went on from what was intact; where it happens again, look at the storage below spec.checkpoint",
    ),
    Reason.NOT_RESUMING: ((), "do as the sentence says; until then each restart begins at step 0"),
}
"""Of a job that runs (`conditions.ADVICE`)."""


def advise(rows: Sequence[Row], words: str, otherwise: str) -> str:
    """The advice of the first row whose pattern is in the words."""
    for row in rows:
        match = re.search(row.pattern, words, re.MULTILINE)
        if match is not None:
            return row.advice.format(*(group or "" for group in match.groups()))
    return otherwise
