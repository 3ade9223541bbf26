"""`ddpjob explain`: each case that somebody meets has a finding with words and advice."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.observations import BASE, RUNNING, SPEC, conditions, failed, first_is, not_ready

from ddpjob_api.blame import blame
from ddpjob_api.conditions import ADVICE, Reason
from ddpjob_api.efficiency import Efficiency
from ddpjob_api.report import Failure, InEffect, JobReport, Override, Progress, RunState
from ddpjob_api.running import how_it_runs
from ddpjob_cli.explain.finding import Weight
from ddpjob_cli.explain.findings import findings
from ddpjob_cli.explain.observation import EventSeen, Observation, PodSeen
from ddpjob_cli.local.look import LocalRun, running

NOT_RESUMING = f"generation 2 began again at step 0: save there more often ({'x' * 460})"


def unmet(cause: str, attempts: int) -> str:
    """The operator's sentence about ranks that did not meet."""
    last = attempts == 3
    tries = f" in {attempts} attempts" if last else ""
    said = f"the ranks did not meet within recovery.rendezvousTimeoutSeconds (600){tries}: {cause}"
    again = f"; all pods are deleted and made again at 2027-01-01T00:05:00Z ({attempts} of 3 attempts)"
    return said + ("" if last else again)


NODE_AWAY = "node w2 is NotReady (since 2027-01-01T00:00:00Z)"

CASES: list[tuple[str, Observation, Weight, str, str]] = [
    # what is met, the observation, and the first finding: weight, words in what, words in do
    (
        "no GPU is free",
        not_ready("Unschedulable", "pod digits-0: Unschedulable: 0/5 nodes are available: 5 Insufficient nvidia.com/gpu."),
        Weight.STOPS,
        "0/5 nodes are available",
        "no node has enough free nvidia.com/gpu",
    ),
    (
        "memory, with more words behind",
        not_ready("Unschedulable", "0/2 nodes are available: 1 Insufficient memory, 1 node(s) were unschedulable."),
        Weight.STOPS,
        "Insufficient memory",
        "no node has enough free memory: lower resourcesPerNode (memory)",
    ),
    (
        "a claim that is not there",
        not_ready("Unschedulable", 'pod digits-0: Unschedulable: persistentvolumeclaim "ckpt" not found.'),
        Weight.STOPS,
        "ckpt",
        "create the claim ckpt",
    ),
    (
        "a taint",
        not_ready("Unschedulable", "0/1 nodes are available: 1 node(s) had untolerated taint {gpu: yes}."),
        Weight.STOPS,
        "untolerated",
        "nodes are tainted (gpu): add a toleration",
    ),
    (
        "a tag that was not pushed",
        not_ready("ImagePullFailed", "pod digits-1: ErrImagePull: docker.io/x:y: not found"),
        Weight.STOPS,
        "ImagePullFailed: ErrImagePull",
        "the name or tag is wrong",
    ),
    (
        "a registry nobody answers at",
        not_ready("ImagePullFailed", "pod digits-1: ErrImagePull: dial tcp 127.0.0.1:1: connect: connection refused"),
        Weight.STOPS,
        "connection refused",
        "does not reach the registry",
    ),
    (
        "a ConfigMap that is not there",
        not_ready("VolumeNotReady", 'pod a: FailedMount: MountVolume.SetUp failed: configmap "my-code" not found'),
        Weight.STOPS,
        "my-code",
        "create the ConfigMap my-code",
    ),
    (
        "an image whose user is root",
        not_ready("ContainerConfigError", "pod a: CreateContainerConfigError: container has runAsNonRoot and image will run as root"),
        Weight.STOPS,
        "runAsNonRoot",
        "numeric USER",
    ),
    (
        "a quota",
        not_ready("QuotaExceeded", 'pods "digits-0" is forbidden: exceeded quota: team-a, requested: cpu=2'),
        Weight.STOPS,
        "exceeded quota",
        "the quota team-a is used up",
    ),
    (
        "a webhook that is down",
        not_ready("PodRefused", 'Internal error occurred: failed calling webhook "policy.example": failed to call webhook: Post "https://policy.system.svc:443/?timeout=10s": dial tcp 10.0.0.9:443: connect: connection refused'),
        Weight.STOPS,
        "connection refused",
        "the webhook policy.example does not answer",
    ),
    (
        "an image that is not there keeps the ranks from meeting, between two attempts",
        not_ready("RendezvousTimeout", unmet("pod digits-1: ErrImagePull: docker.io/x:y: not found", 2)),
        Weight.STOPS,
        "made again at 2027-01-01T00:05:00Z (2 of 3 attempts)",
        "the name or tag is wrong",
    ),
    (
        "a pod that waits for what nobody has met yet",
        replace(
            not_ready("PodsStarting", "0 of 2 pods are ready"),
            namespace="team",
            pods=(PodSeen(name="digits-0", index=0, phase="Pending", reason="NewReason", message="its words"),),
        ),
        Weight.STOPS,
        "NewReason: its words",
        "kubectl describe pod digits-0 -n team",
    ),
    (
        "a node that is away",
        replace(
            not_ready("NodeNotReady", f"pod digits-1: {NODE_AWAY}; it is given up at 2027-01-01T00:05:00Z unless its rank is seen alive"),
            pods=tuple(PodSeen(name=f"digits-{n}", index=n, phase="Running") for n in range(2)),
        ),
        Weight.STOPS,
        "NodeNotReady: node w2 is NotReady (since 2027-01-01T00:00:00Z); it is given up at",
        "kubectl describe node",
    ),
    (
        "many nodes that are away",
        replace(
            not_ready("NodeStorm", f"pod digits-1: {NODE_AWAY}; 3 of 4 nodes are NotReady"),
            pods=tuple(PodSeen(name=f"digits-{n}", index=n, phase="Running") for n in range(2)),
        ),
        Weight.STOPS,
        "NodeStorm: node w2 is NotReady",
        "kubectl get nodes",
    ),
    (
        "a node is away and its rank trains",
        replace(
            RUNNING,
            conditions={**RUNNING.conditions, **conditions(PodsReady=("False", "NodeNotReady", f"pod digits-1: {NODE_AWAY}; its rank is alive, so it is kept"))},
        ),
        Weight.NOTES,
        "its rank is alive, so it is kept",
        "kubectl describe node",
    ),
    (
        "a reason that this version does not know",
        not_ready("SomethingNew", "pod digits-0: its words"),
        Weight.STOPS,
        "SomethingNew: its words",
        "",
    ),
    (
        "pods run and do not meet",
        replace(
            not_ready("PodsStarting", "1 of 2 pods are ready"),
            conditions=conditions(
                PodsReady=("False", "PodsStarting", ""),
                RendezvousReady=("False", "WaitingForRanks", "the launchers of 1 have not joined (1 of 2 have)"),
            ),
            pods=tuple(PodSeen(name=f"digits-{n}", index=n, phase="Running") for n in range(2)),
        ),
        Weight.STOPS,
        "the launchers of 1 have not joined",
        "NetworkPolicy",
    ),
    (
        "nobody knows whether it runs",
        replace(
            not_ready("PodsStarting", "0 of 2 pods are ready"),
            conditions=conditions(
                PodsReady=("False", "PodsStarting", ""),
                RendezvousReady=("False", "WaitingForRanks", "the ranks are joining"),
                Running=("Unknown", "CoordinatorSilent", "the coordinator, the launcher of node 0, does not answer"),
            ),
            pods=tuple(PodSeen(name=f"digits-{n}", index=n, phase="Running") for n in range(2)),
        ),
        Weight.STOPS,
        "whether it runs is not known: the coordinator",
        "NetworkPolicy between the operator",
    ),
    (
        "a queue holds the pods",
        replace(
            not_ready("PodsStarting", "0 of 2"), pods=(PodSeen(name="digits-0", index=0, phase="Pending", gated=True),)
        ),
        Weight.STOPS,
        "holds 1 pod back",
        "Kueue",
    ),
    ("no operator", replace(BASE, managed=False, age_seconds=90), Weight.STOPS, "1 min 30 s", "operator installed"),
    (
        "suspended",
        replace(BASE, spec=replace(SPEC, suspend=True)),
        Weight.STOPS,
        "suspended",
        "kubectl patch ddpjob digits",
    ),
    ("an invalid spec", failed("InvalidSpec", "spec.template: hostname is ours"), Weight.STOPS, "hostname", "ddpjob lint"),
    (
        "a module that the image lacks",
        failed(
            "MaxRestartsExceeded",
            "failed again",
            Failure(
                reason=Reason.PROGRAM_FAILED, rank=1, node=1, exit_code=1, message="ModuleNotFoundError: No module named 'timm'"
            ),
        ),
        Weight.STOPS,
        "failed again",
        "the image has no timm",
    ),
    (
        "out of memory, and training goes on",
        replace(
            RUNNING,
            restarts=1,
            last_failure=Failure(reason=Reason.OOM_KILLED, rank=0, node=0, pod="digits-0", signal="SIGKILL"),
            pods=(PodSeen(name="digits-0", index=0, phase="Running", memory_limit="2Gi"),),
        ),
        Weight.FAILS,
        "rank 0 (node 0): died of SIGKILL (restarts 1 of 3)",
        "resourcesPerNode.limits.memory (now 2Gi)",
    ),
    (
        "a pod was lost, and training goes on",
        replace(
            RUNNING,
            disruptions=1,
            last_failure=Failure(reason=Reason.NODE_LOST, rank=1, node=1, message="its node w2 is NotReady"),
        ),
        Weight.FAILS,
        "last failure: rank 1 (node 1): its node w2 is NotReady",
        "the node went away",
    ),
    ("all is well", RUNNING, Weight.FINE, "nothing is in its way: step 40 of 100, 640 samples/s, ETA 12 s", ""),
    (
        "all is well, and the coordinator has measured it",
        replace(RUNNING, efficiency=Efficiency(exposed_communication_percent=9, data_wait_percent=4, ddp_efficiency_percent=91)),
        Weight.FINE,
        "640 samples/s, ETA 12 s, DDP efficiency 91 %",
        "",
    ),
    (
        "complete",
        replace(BASE, conditions=conditions(Complete=("True", "AllRanksSucceeded", "")), step=100),
        Weight.FINE,
        "it is complete: 100 steps",
        "",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "weight", "what", "do"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_first_finding_is_the_cause(seen: Observation, weight: Weight, what: str, do: str) -> None:
    first_is(seen, weight, what, do)


PEER, SERVER = "a rank waited too long for another", "did not answer in time"


@pytest.mark.parametrize(
    ("words", "do"),
    [
        ("requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.", SERVER),
        ("httpx.ConnectTimeout: timed out", SERVER),
        ("TimeoutError: [Errno 110] Connection timed out", SERVER),
        ("TimeoutError: timed out", SERVER),
        ("urllib.error.URLError: <urlopen error timed out>", SERVER),
        ("RuntimeError: DataLoader timed out after 30 seconds", "the DataLoader's timeout"),
        ("subprocess.TimeoutExpired: Command 'x' timed out after 5 seconds", ""),
        ("no step for recovery.progressTimeoutSeconds (600)", ""),
        ("RuntimeError: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.", PEER),
        ("[third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 2000ms for recv operation to complete", PEER),
        ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.", PEER),
        ("torch.distributed.DistStoreError: wait timeout after 30000ms, keys: /default_pg/0//cuda//0", PEER),
        ("torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (digits-0, 29500).", PEER),
        ("RuntimeError: Rank 1 failed to pass monitoredBarrier in 1000 ms", PEER),
        ("RuntimeError: CUDA error: out of memory", "the GPU's memory is not enough"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "the GPU's memory is not enough"),
        ("RuntimeError: HIP out of memory", "the GPU's memory is not enough"),
    ],
)  # fmt: skip
def test_a_time_out_is_a_peers_only_where_torch_says_so(words: str, do: str) -> None:
    failure = Failure(reason=Reason.PROGRAM_FAILED, rank=1, node=1, message=words)
    own, _, _ = findings(failed("ProgramFailed", words, failure))[0].do.partition(";")
    assert (do in own) if do else not own


@pytest.mark.parametrize(
    ("cause", "do"),
    [
        ("pod digits-1: ErrImagePull: docker.io/x:y: not found", "the name or tag is wrong"),
        ("pod digits-1: ErrImagePull: dial tcp 10.0.0.1:443: i/o timeout", "does not reach the registry"),
        ("pod digits-1: Unschedulable: 0/5 nodes are available: 5 Insufficient cpu.", "enough free cpu"),
        ('pod digits-1: FailedMount: configmap "code" not found', "create the ConfigMap code"),
        ("pod digits-1: FailedMount: permission denied", "kubectl describe pod has the storage's words"),
        ('pod digits-1: CreateContainerConfigError: secret "hub" not found', "create the Secret hub"),
        ('pods "digits-1" is forbidden: exceeded quota: team-a, requested: cpu=2', "the quota team-a is used up"),
        (f"pod digits-1: {NODE_AWAY}", "kubectl describe node"),
        ('failed calling webhook "policy.example": connection refused', "the webhook policy.example does not answer"),
        ("the launchers of 1 have not joined (1 of 2 have)", "NetworkPolicy"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("attempts", [2, 3])
def test_ranks_that_did_not_meet_are_advised_on_by_what_kept_them_away(
    cause: str, do: str, attempts: int
) -> None:
    words = unmet(cause, attempts)
    seen = not_ready("RendezvousTimeout", words)
    found = findings(failed("RendezvousTimeout", words) if attempts == 3 else seen)
    assert cause.removeprefix("pod digits-1: ") in found[0].what
    assert do in found[0].do
    assert "ddp.timeoutSeconds" not in found[0].do, "nobody waited in a collective"
    assert "below" not in found[0].do, "there is nothing below"
    assert "by itself" not in found[0].do, "nothing more happens, or all pods are made again at once"
    assert [f.weight for f in found] == [Weight.STOPS]


@pytest.mark.parametrize(
    ("reason", "words", "do"),
    [
        ("NodeNotReady", f"pod digits-1: {NODE_AWAY}", "replaced after recovery.nodeLostTimeoutSeconds by itself"),
        ("NodeStorm", f"pod digits-1: {NODE_AWAY}", "the job goes on by itself"),
        ("PodRefused", 'failed calling webhook "policy.example": refused', "the job then goes on by itself"),
        ("PodRefused", 'admission webhook "policy.example" denied the request', ""),
    ],
)  # fmt: skip
def test_what_goes_on_by_itself_is_said_of_a_job_that_waits(reason: str, words: str, do: str) -> None:
    said = findings(not_ready(reason, words))[0].do
    assert (do in said) if do else "by itself" not in said


ADVISED = {
    Reason.CHECKPOINT_FAILED: {"checkpoint_trouble": "checkpoints cannot be written to /c: No space left on device"},
    Reason.CHECKPOINT_DAMAGED: {"passed_over": "node 1: checkpoint /c/step-00000010 is damaged"},
    Reason.NOT_RESUMING: {
        "ddp": InEffect(not_resuming=NOT_RESUMING, warnings=(f"not resuming: {NOT_RESUMING}"[:512],))
    },
}  # fmt: skip
"""What the coordinator reports of a job that runs with each reason."""


@pytest.mark.parametrize("reason", sorted(ADVICE))
@pytest.mark.parametrize("local", [True, False], ids=["local", "cluster"])
def test_what_to_do_something_about_in_a_job_that_runs_is_said_once(
    tmp_path: Path, reason: Reason, local: bool
) -> None:
    report = JobReport(
        protocol=1, name="digits", state=RunState.RUNNING, term=1, generation=2, nodes_joined=2, nodes_expected=2,
        progress=Progress(step=40), **ADVISED[reason],
    )  # fmt: skip
    _, message = how_it_runs(report)
    if local:
        seen = running(LocalRun(path=tmp_path), report, (), BASE.now)
    else:
        now = {**RUNNING.conditions, **conditions(Running=("True", reason, message))}
        event = EventSeen(about="job digits", reason=reason, message=message, warning=True)
        seen = replace(RUNNING, conditions=now, ddp=report.ddp, events=(event,))
    first, *others = findings(seen)
    assert (first.what, bool(first.do)) == (f"{reason}: {message}", True)
    assert first.weight is (Weight.NOTES if reason is Reason.CHECKPOINT_DAMAGED else Weight.FAILS)
    assert [found.what.partition(":")[0] for found in others] == ["it runs"]


def test_a_failure_whose_event_was_cut_is_told_once() -> None:
    failure = Failure(reason=Reason.PROGRAM_FAILED, rank=1, node=1, message="x" * 1000)
    event = EventSeen(about="job digits", reason="ProgramFailed", message=blame(failure), warning=True)
    found = findings(replace(RUNNING, last_failure=failure, events=(event,)))
    assert len([f for f in found if "xxx" in f.what]) == 1


def test_what_is_only_worth_knowing_comes_after_the_cause() -> None:
    ddp = InEffect(
        warnings=("broadcastBuffers has no buffers to send",),
        overrides=(
            Override(setting="bucketCapMB", asked="50", effective="50", where="train.py:3", applied=False),
        ),
    )
    events = (
        EventSeen(about="pod digits-0", reason="Unhealthy", message="Readiness probe failed", warning=True),
        EventSeen(about="pod digits-1", reason="FailedMount", message="timed out", warning=True, count=7),
    )
    found = findings(replace(RUNNING, ddp=ddp, events=events, disruptions=2))
    assert [(f.weight, f.where) for f in found] == [
        (Weight.NOTES, "disruptions"),
        (Weight.NOTES, "spec.ddp"),
        (Weight.NOTES, "train.py:3"),
        (Weight.NOTES, "pod digits-1"),
        (Weight.FINE, ""),
    ]
    assert "FailedMount: timed out (7 times)" in found[3].what
