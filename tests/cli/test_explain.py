"""`ddpjob explain`: each case that somebody meets has a finding with words and advice."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.jobs import inside

from ddpjob_api.blame import blame
from ddpjob_api.codec import parse_spec
from ddpjob_api.conditions import ADVICE, Reason
from ddpjob_api.efficiency import Efficiency
from ddpjob_api.report import Failure, InEffect, JobReport, Override, Progress, RunState
from ddpjob_api.running import how_it_runs
from ddpjob_cli.explain.finding import Weight
from ddpjob_cli.explain.findings import findings
from ddpjob_cli.explain.observation import ConditionSeen, EventSeen, Observation, PodSeen
from ddpjob_cli.local.look import LocalRun, running
from ddpjob_cli.ranks import Pace, Rank

SPEC = parse_spec({"nodes": 2, "script": {"args": ["train.py"]}})
BASE = Observation(name="digits", place="namespace default", spec=SPEC, nodes=2, now=1000.0)


def conditions(**given: tuple[str, str, str]) -> dict[str, ConditionSeen]:
    return {k: ConditionSeen(status=s, reason=r, message=m) for k, (s, r, m) in given.items()}


def not_ready(reason: str, message: str) -> Observation:
    return replace(BASE, conditions=conditions(PodsReady=("False", reason, message)))


def failed(reason: str, message: str, failure: Failure | None = None) -> Observation:
    return replace(BASE, conditions=conditions(Failed=("True", reason, message)), last_failure=failure)


NOT_RESUMING = f"generation 2 began again at step 0: save there more often ({'x' * 460})"

RUNNING = replace(
    BASE,
    state="Running",
    conditions=conditions(
        PodsReady=("True", "AllPodsReady", ""),
        RendezvousReady=("True", "AllRanksJoined", ""),
        Running=("True", "Training", ""),
    ),
    step=40,
    total_steps=100,
    samples_per_second=640.0,
    eta_seconds=12.0,
)


def rank(number: int, *, last: float = 999.0, phase: str = "forward", **phases: float) -> Rank:
    """Twenty steps of a tenth of a second each, unless the phases take longer."""
    seconds = max(2.0, sum(phases.values()))
    pace = Pace(steps=20, seconds=seconds, phases=phases, samples=320)
    return Rank(
        rank=number, node=number, pod=f"digits-{number}", host=f"node-{number}", step=40, phase=phase,
        last_step_at=last, pace=pace, usual=pace,
    )  # fmt: skip


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
    (
        "one rank waits for its data",
        replace(RUNNING, ranks=tuple(rank(n, data_wait=1.0 if n == 2 else 0.1, forward=0.6, backward_compute=0.4, comm_exposed=0.0 if n == 2 else 0.9) for n in range(4))),
        Weight.SLOWS,
        "rank 2 is the slowest: data_wait 50 ms a step, the others 5 ms",
        "DataLoader",
    ),
    (
        "one rank computes longer",
        replace(
            RUNNING,
            ranks=tuple(
                rank(n, forward=0.4, backward_compute=1.4 if n == 3 else 0.6, comm_exposed=0.0 if n == 3 else 0.8)
                for n in range(4)
            ),
        ),
        Weight.SLOWS,
        "rank 3 is the slowest: backward_compute 70 ms a step, the others 30 ms",
        "look at its node",
    ),
    (
        "all ranks wait for data",
        replace(RUNNING, ranks=tuple(rank(n, data_wait=1.2, forward=0.4, backward_compute=0.4) for n in range(2))),
        Weight.SLOWS,
        "waiting for data takes 60 % of the time",
        "DataLoader workers",
    ),
    (
        "all ranks wait for gradients",
        replace(RUNNING, ranks=tuple(rank(n, comm_exposed=1.0, forward=0.6, backward_compute=0.2) for n in range(2))),
        Weight.SLOWS,
        "waiting for gradients takes 50 %",
        "ddpjob tune",
    ),
    (
        "no step for minutes",
        replace(
            RUNNING,
            ranks=(
                rank(0, last=700.0, phase="backward", forward=0.5),
                rank(1, last=700.0, phase="backward", forward=0.5),
                rank(2, last=700.0, phase="data", forward=0.5),
            ),
        ),
        Weight.STOPS,
        "no step for 5 min 0 s, usually 100 ms; rank 2 in data",
        "collective",
    ),
    *(
        (
            f"no step while ranks are in {phase}",
            replace(RUNNING, ranks=(rank(0, last=905.0, phase=phase, forward=0.5), rank(1, last=905.0, phase=other, forward=0.5))),
            Weight.NOTES,
            f"no step for 1 min 35 s, usually 100 ms; {who} in {phase}",
            "",
        )
        for phase, other, who in (
            ("evaluation", "evaluation", "ranks 0, 1"),
            ("checkpoint", "backward", "rank 0"),
            ("loading", "loading", "ranks 0, 1"),
            ("starting", "starting", "ranks 0, 1"),
        )
    ),
    (
        "the operator has found the slow one",
        replace(RUNNING, efficiency=Efficiency(slowest_rank=5, slowest_rank_cause="data_wait", slowest_node="w7"), ranks=(rank(0),)),
        Weight.SLOWS,
        "rank 5 makes the others wait, in data_wait",
        "ddpjob top digits",
    ),
    (
        "who was slow for long is not any more, and all wait for gradients",
        replace(
            RUNNING,
            efficiency=Efficiency(exposed_communication_percent=50, data_wait_percent=0),
            ranks=tuple(rank(n, data_wait=0.6 if n == 2 else 0.0, forward=0.4, comm_exposed=0.4 if n == 2 else 1.0) for n in range(4)),
        ),
        Weight.SLOWS,
        "waiting for gradients takes 50 %",
        "ddpjob tune",
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
        "healthy ranks, unevenly busy",
        replace(RUNNING, ranks=tuple(rank(n, forward=0.6 + 0.04 * n, backward_compute=0.8, data_wait=0.02 * n) for n in range(4))),
        Weight.FINE,
        "nothing is in its way",
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
    found = findings(seen)
    assert (found[0].weight, what in found[0].what, do in found[0].do) == (weight, True, True), found[0]
    assert [finding.weight for finding in found] == sorted(finding.weight for finding in found)
    smooth = any("nothing is in its way" in finding.what for finding in found)
    assert not smooth or weight is Weight.FINE, found


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
    assert [f.weight for f in found] == [Weight.STOPS]


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


def test_what_waiting_costs_is_noted_beside_what_makes_it_slow() -> None:
    told = Efficiency(exposed_communication_percent=50, ddp_efficiency_percent=48)
    waiting = tuple(rank(n, comm_exposed=1.0, forward=0.6, backward_compute=0.2) for n in range(2))
    found = findings(replace(RUNNING, efficiency=told, ranks=waiting))
    assert [(f.weight, f.what.partition(":")[0]) for f in found] == [
        (Weight.SLOWS, "waiting for gradients takes 50 % of the time on the median rank"),
        (Weight.NOTES, "DDP efficiency 48 %"),
    ]


@pytest.mark.parametrize(
    ("now", "since_it_began", "said"),
    [
        (
            35,
            {"data_wait": 0.05, "forward": 0.95},
            ["waiting for data takes 35 % of the time on the median rank"],
        ),
        (4, {"data_wait": 0.5, "forward": 0.5}, []),
    ],
    ids=["it has begun", "it is over"],
)
def test_waiting_is_that_of_the_last_minute_where_the_coordinator_says_it(
    now: int, since_it_began: dict[str, float], said: list[str]
) -> None:
    """The event that tells of it is left out for the same reason."""
    told = Efficiency(exposed_communication_percent=9, data_wait_percent=now)
    event = EventSeen(about="job digits", reason="LowEfficiency", message="ranks waited much", warning=True)
    ranks = tuple(rank(n, **since_it_began) for n in range(2))
    found = findings(replace(RUNNING, efficiency=told, ranks=ranks, events=(event,)))
    assert [f.what for f in found if f.weight is not Weight.FINE] == said


def test_a_failure_whose_event_was_cut_is_told_once() -> None:
    failure = Failure(reason=Reason.PROGRAM_FAILED, rank=1, node=1, message="x" * 1000)
    event = EventSeen(about="job digits", reason="ProgramFailed", message=blame(failure), warning=True)
    found = findings(replace(RUNNING, last_failure=failure, events=(event,)))
    assert len([f for f in found if "xxx" in f.what]) == 1


@pytest.mark.parametrize("ranks_seen", [True, False])
def test_an_event_about_speed_is_told_only_where_the_ranks_themselves_are_not_seen(ranks_seen: bool) -> None:
    events = tuple(
        EventSeen(about="job digits", reason=reason, message=f"{reason} once", warning=True)
        for reason in ("Straggler", "LowEfficiency")
    )
    ranks = tuple(rank(n, forward=0.6, backward_compute=0.8) for n in range(2)) if ranks_seen else ()
    found = findings(replace(RUNNING, events=events, ranks=ranks))
    told = [f.what for f in found if f.weight is Weight.NOTES]
    assert told == ([] if ranks_seen else ["LowEfficiency: LowEfficiency once", "Straggler: Straggler once"])


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


def test_a_failed_local_run_is_explained_from_its_folder(tmp_path: Path) -> None:
    run = tmp_path / ".ddpjob" / "digits"
    run.mkdir(parents=True)
    (run / "state.json").write_text("{}")
    failure = {"reason": "ProgramFailed", "rank": 1, "message": "ModuleNotFoundError: No module named 'timm'"}
    last = {
        "name": "digits",
        "outcome": "Failed",
        "exitCode": 1,
        "message": "failed: rank 1",
        "lastFailure": failure,
    }
    (run / "last.json").write_text(json.dumps(last))
    result = inside("explain", "digits", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("digits (.ddpjob/digits): Failed\nstops  failed: rank 1")
    assert "the image has no timm" in result.stdout
    found = json.loads(inside("explain", "--dir", str(run), "--json", cwd=tmp_path).stdout)
    assert (found["state"], found["findings"][0]["weight"]) == ("Failed", "stops")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["explain"], 2, "which job? give its NAME"),
        (["explain", "--dir", "nothing"], 2, "nothing has run there"),
        (["explain", "digits", "--kubeconfig", "nothing"], 2, "no cluster to ask"),
        (["explain", "digits", "--kubeconfig", "config", "--context", "other"], 2, "it has here"),
        (["explain", "digits", "--kubeconfig", "config"], 69, "https://127.0.0.1:1 does not answer"),
        (
            ["explain", "digits"],
            2,
            "there is no run digits in .ddpjob of this folder, and no cluster to ask: there is no kubeconfig",
        ),
        (["top"], 2, "no cluster to ask: there is no kubeconfig"),
        (["explain", "../digits"], 2, "'../digits' is no name of a job"),
        (["logs", "", "-n", "team"], 2, "'' is no name of a job: it must start with a lower-case letter"),
        (["logs", "a" * 41], 2, "at most 40 characters long"),
        (["top", "--kubeconfig", "half"], 2, "half is no kubeconfig: while parsing"),
        (["top", "--kubeconfig", "word"], 2, "word is no kubeconfig: "),
        (["top", "--kubeconfig", "."], 2, "Is a directory"),
        (
            ["top", "--kubeconfig", "plugin"],
            2,
            "the kubeconfig's way to log in failed: [Errno 2] No such file",
        ),
        (["report", "digits", "-o", "none/x.html", "--kubeconfig", "half"], 2, "half is no kubeconfig"),
    ],
)
def test_what_cannot_be_asked_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "me", "user": {"token": "x"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "current-context": "here",
    }
    (tmp_path / "config").write_text(json.dumps(config))
    (tmp_path / "half").write_text("clusters: [")
    (tmp_path / "word").write_text("hello")
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "no-such-plugin",
        "interactiveMode": "Never",
    }
    (tmp_path / "plugin").write_text(
        json.dumps({**config, "users": [{"name": "me", "user": {"exec": plugin}}]})
    )
    result = inside(*arguments, cwd=tmp_path, KUBECONFIG="")
    assert (result.returncode, words in result.stderr) == (code, True), result.stderr
    assert "Traceback" not in result.stderr
