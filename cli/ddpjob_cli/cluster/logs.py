"""The output of a job's pods, running and ended.

Why apart: which pods are meant by a rank, a failure or "before" is decided here. Must not: print.
"""

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddpjob_api.names import LABEL_INDEX, TRAINER_CONTAINER
from ddpjob_api.plan import plan
from ddpjob_cli.cluster.access import PATIENCE_SECONDS, Access, Body, NotThere, core_path
from ddpjob_cli.cluster.given import Given
from ddpjob_cli.cluster.observe import job_of, number, pods_of, spec_of
from ddpjob_cli.errors import CommandError, Unreachable, Unusable
from ddpjob_cli.explain.observation import argument
from ddpjob_cli.lines import Line, Wanted, read

LOOK_SECONDS = 1.0
"""Between two looks for new pods, and before a broken connection is made again, while following."""


def lines(access: Access, name: str, wanted: Wanted, *, follow: bool) -> Iterator[Line]:
    """The lines wanted; with `follow` until the job ends.

    Raises:
        Unusable: nothing of that kind is there.
        CommandError: the cluster does not give them.
    """
    job = job_of(access, name)
    wanted = placed(job, wanted, name)
    if follow:
        yield from followed(access, job, wanted)
        return
    pods = choose(pods_of(access, job), wanted)
    if not pods:
        which = "pod that ended before" if wanted.previous else "pod"
        node = f" of node {wanted.node}" if wanted.node is not None else ""
        raise Unusable(
            f"{name}: there is no {which}{node}; ddpjob explain {argument(name, access.namespace)} says why"
        )
    for pod in pods:
        yield from output(access, pod, wanted)


def placed(job: Body, wanted: Wanted, name: str) -> Wanted:
    """The node of the rank, and the rank and the pod of the failure.

    Raises:
        Unusable: there is no such rank or node, or nothing failed.
    """
    spec = spec_of(job)
    if wanted.failed:
        failure = (job.get("status") or {}).get("lastFailure") or {}
        if failure.get("node") is None:
            there = argument(name, job["metadata"]["namespace"])
            raise Unusable(
                f"{name}: no failure is known that has a node; ddpjob explain {there} says what is"
            )
        pod = failure.get("podUid") or failure.get("pod")
        wanted = replace(wanted, node=failure["node"], rank=failure.get("rank"), pod=pod)
    if spec is None:
        return wanted
    shape = plan(spec)
    if wanted.rank is not None:
        if wanted.rank >= shape.world_size:
            raise Unusable(f"{name} has ranks 0 to {shape.world_size - 1}; there is no rank {wanted.rank}")
        wanted = replace(wanted, node=wanted.rank // shape.processes_per_node)
    if wanted.node is not None and wanted.node >= shape.nodes:
        raise Unusable(f"{name} has nodes 0 to {shape.nodes - 1}; there is no node {wanted.node}")
    return wanted


def choose(pods: Sequence[Body], wanted: Wanted) -> list[Body]:
    """Of each index the newest pod that has an output, or the one before."""
    by_index: dict[int, list[Body]] = {}
    for pod in pods:
        index = number(pod, LABEL_INDEX)
        if (wanted.node is None or wanted.node == index) and has_output(pod):
            by_index.setdefault(index, []).append(pod)
    back = 2 if wanted.previous else 1
    if wanted.failed:
        # The pod that failed may have been replaced, or be the one that replaced another.
        found = {
            index: [pod for pod in mine if wanted.pod in (pod["metadata"]["uid"], pod["metadata"]["name"])]
            or [pod for pod in mine if phase(pod) == "Failed"]
            or mine
            for index, mine in by_index.items()
        }
        return [mine[-1] for mine in found.values()]
    return [mine[-back] for _, mine in sorted(by_index.items()) if len(mine) >= back]


def phase(pod: Body) -> str:
    return str((pod.get("status") or {}).get("phase") or "")


def trainer(pod: Body) -> Body | None:
    """The state of its trainer: waiting, running or terminated; None where the kubelet has not said a word of it."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        if container["name"] == TRAINER_CONTAINER:
            return container.get("state") or {}
    return None


def has_output(pod: Body) -> bool:
    """Whether its trainer has started."""
    state = trainer(pod)
    return state is not None and not state.get("waiting")


def has_ended(pod: Body) -> bool:
    """Whether its trainer has; a container beside it may go on, and the pod with that."""
    return phase(pod) in {"Succeeded", "Failed"} or bool((trainer(pod) or {}).get("terminated"))


def output(access: Access, pod: Body, wanted: Wanted) -> Iterator[Line]:
    """One pod's lines."""
    meta = pod["metadata"]
    path = core_path(access.namespace, "pods", meta["name"], "/log")
    texts = access.lines(path, f"the log of pod {meta['name']}", container=TRAINER_CONTAINER)
    return read(texts, node=number(pod, LABEL_INDEX), pod=meta["name"], wanted=wanted)


def grown(access: Access, pod: Body, wanted: Wanted) -> Iterator[Line]:
    """One pod's lines as they come, until its trainer has ended; a connection that ends before is made again.

    Raises:
        Unreachable: its trainer has ended, and for `PATIENCE_SECONDS` no more of them could be read.
        CommandError: they may not be read.
    """
    meta = pod["metadata"]
    path = core_path(access.namespace, "pods", meta["name"], "/log")
    given = Given()

    def fresh(*, half: bool) -> Iterator[str]:
        query = {"container": TRAINER_CONTAINER, "follow": "true", "timestamps": "true"}
        query |= {"sinceTime": given.since} if given.since else {}
        given.again()
        for text in access.lines(path, f"the log of pod {meta['name']}", half=half, **query):
            line = given.new(text)
            if line is not None:
                yield line

    silent_since: float | None = None
    while True:
        # Asked before the last look, so that nothing said in between is missed. Until then a connection that ends, as it
        # does in good order where the API server lost the kubelet, may have ended within a line: it comes once more.
        last = has_ended(pod)
        broke: Unreachable | None = None
        before = given.since
        try:
            texts = fresh(half=last)
            yield from read(texts, node=number(pod, LABEL_INDEX), pod=meta["name"], wanted=wanted)
        except NotThere:
            return
        except Unreachable as error:
            broke = error
        if last and broke is None:
            return
        now = again(access, pod)
        if now is None:
            return
        pod = now
        if last and broke is not None:
            if given.since != before or silent_since is None:
                silent_since = time.monotonic()
            if time.monotonic() - silent_since >= PATIENCE_SECONDS:
                raise broke
        if broke is not None or not has_ended(pod):
            time.sleep(LOOK_SECONDS)


def again(access: Access, pod: Body) -> Body | None:
    """The pod as it is, once the cluster says it; None if it is gone: a successor is found by the next look for pods."""
    meta = pod["metadata"]
    while True:
        try:
            found = access.get(core_path(access.namespace, "pods", meta["name"]), f"pod {meta['name']}")
        except NotThere:
            return None
        except Unreachable:
            time.sleep(LOOK_SECONDS)
            continue
        return found if found["metadata"]["uid"] == meta["uid"] else None


def followed(access: Access, job: Body, wanted: Wanted) -> Iterator[Line]:
    """All pods at once, replacements as they come, until the job has ended and all is read.

    Raises:
        Unreachable: the cluster does not answer, or the output of one pod could not be read to its end; then at the end.
        CommandError: they may not be read.
    """
    box: queue.Queue[Line | CommandError] = queue.Queue()
    readers: dict[str, threading.Thread] = {}
    wanted = replace(wanted, tail=None)

    def pump(pod: Body) -> None:
        try:
            for line in grown(access, pod, wanted):
                box.put(line)
        except CommandError as error:
            box.put(error)

    looked, heard = 0.0, time.monotonic()
    over = False
    unread: Unreachable | None = None
    while True:
        now = time.monotonic()
        if now - looked >= LOOK_SECONDS:
            looked = now
            try:
                last = ended(access, job)
                pods = choose(pods_of(access, job), wanted)
                over, heard = last, now  # not over while nobody knows whose output is left
            except Unreachable:
                if now - heard > PATIENCE_SECONDS:
                    raise
                pods = []
            for pod in pods:
                uid = pod["metadata"]["uid"]
                if uid not in readers:
                    readers[uid] = threading.Thread(target=pump, args=(pod,), daemon=True)
                    readers[uid].start()
        try:
            item = box.get(timeout=0.2)
        except queue.Empty:
            if over and not any(reader.is_alive() for reader in readers.values()):
                if not box.empty():
                    continue  # said between the two looks
                if unread is not None:
                    raise unread from None
                return
            continue
        if isinstance(item, Unreachable):
            unread = item  # of one pod: the others go on
            continue
        if isinstance(item, CommandError):
            raise item
        yield item


def ended(access: Access, job: Body) -> bool:
    """Whether it has; so it is with one that was deleted, also where another has its name."""
    try:
        now = job_of(access, job["metadata"]["name"])
    except NotThere:
        return True
    if now["metadata"]["uid"] != job["metadata"]["uid"]:
        return True
    conditions = (now.get("status") or {}).get("conditions") or ()
    return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)
