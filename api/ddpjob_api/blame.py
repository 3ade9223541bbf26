"""A failure in one sentence: whose it is, what was said, where, and how it ended.

Why apart: a coordinator's log, a termination message, a condition and an event tell of the same failure in the same
words, whoever sees only one of them. `ddpjob` says the same of it (`what`), and whose it is in its own way.
Must not: hold a fact that is not in the failure.
"""

import re

from ddpjob_api.conditions import Reason
from ddpjob_api.report import Failure

MAX_LENGTH = 896
"""Characters of a sentence; leaves room for what is said around it within the 1024 of an event and a last word."""


def blame(failure: Failure) -> str:
    """`rank 1 (pod digits-1 on node worker-a): ValueError: bad sample 17 (train.py:20), exit code 1 at step 16`.

    Of what is too long the program's own words are cut, and nothing else as long as that helps.
    """
    said = last_words(failure)
    who = culprit(failure, said)
    whole = f"{who}{said}{details(failure, said)}"
    if len(whole) > MAX_LENGTH:
        around = details(failure, "")
        whole = f"{who}{said[: max(0, MAX_LENGTH - len(who) - len(around) - 1)]}…{around}"
    return whole[:MAX_LENGTH]


def what(failure: Failure) -> str:
    """`ValueError: bad sample 17 (train.py:20), exit code 1 at step 16`: the sentence without whose it is, at any length."""
    said = last_words(failure)
    return f"{said}{details(failure, said)}"


def last_words(failure: Failure) -> str:
    """Its own words, else what killed it, else the reason."""
    if failure.message:
        return failure.message
    return f"died of {failure.signal}" if failure.signal else failure.reason.value


def culprit(failure: Failure, said: str) -> str:
    """`rank 1 (pod digits-1 on node worker-a): `, or `rank 1 (node 1): ` by the index, as in a local run without pods.

    Without a rank it is a launcher or the operator who speaks, of a pod that is mostly named already; launchers call it
    `node 1` by its index.
    """
    # Beside the name of a Kubernetes node, "node 1" would be another thing.
    of = "pod" if failure.host_node else "node"
    index = f"{of} {failure.node}" if failure.node is not None else ""
    pod = f"pod {failure.pod}" if failure.pod else index
    host = f"node {failure.host_node}" if failure.host_node else ""
    known = [name for name in (pod, host) if name]
    if failure.rank is not None:
        place = " on ".join(known)
        return f"rank {failure.rank} ({place}): " if place else f"rank {failure.rank}: "
    if not failure.pod and has(said, f"node {failure.node}"):
        known = [name for name in known if name != index]
    unsaid = " on ".join(name for name in known if not has(said, name))
    return f"{unsaid}: " if unsaid else ""


def details(failure: Failure, said: str) -> str:
    """What is known beside what was said, as far as that does not say it too."""
    place = f" ({failure.location})" if failure.location and failure.location not in said else ""
    end = ""
    if failure.signal:
        end = "" if failure.signal in said else f", died of {failure.signal}"
    # a hang's is not the program's
    elif failure.exit_code is not None and failure.reason is not Reason.NO_PROGRESS:
        end = "" if has(said, f"exit code {failure.exit_code}") else f", exit code {failure.exit_code}"
    step = f" at step {failure.step}" if failure.step and not has(said, f"at step {failure.step}") else ""
    others = ", ".join(map(str, failure.also))
    also = f" (also rank{'s' if len(failure.also) > 1 else ''} {others})" if others else ""
    return f"{place}{end}{step}{also}"


def has(said: str, words: str) -> bool:
    """Whether these words stand there, `step 1` not in `step 17`."""
    return re.search(rf"{re.escape(words)}(?!\w)", said) is not None
