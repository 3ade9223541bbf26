"""What a launcher has been told and has seen of its job: all that a new coordinator learns from its hello.

Why apart: connection, workers and end of a launcher all read and write it, and it must be whole in every hello.
Must not: send, start or end anything.
"""

import os
from datetime import UTC, datetime

from ddpjob_api.goodput import Spent
from ddpjob_api.messages import PROTOCOL, Beat, Hello, Start
from ddpjob_api.report import Failure
from ddpjob_trainer.files import term_file
from ddpjob_trainer.launcher.config import Config


class Memory:
    """One launcher's knowledge."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.term = 0
        self.generation = 0
        self.restarts = config.restarts
        self.disruptions = config.disruptions
        self.judged = 0
        self.spent: Spent | None = None
        """What the time went to, as the coordinator said last."""
        self.done = False
        """All workers of `generation` ended with 0."""
        self.last_failure: Failure | None = None
        self.leaving = False
        self.giver_port = 0
        """Where this launcher gives its checkpoints; 0: nowhere."""
        self.fetched_bytes = 0
        self.fetch_seconds = 0.0
        self.unread: set[int] = set()
        """Steps that could not be read when the coordinator was told what is here: nobody has decided about them."""

    def raise_term(self, term: int) -> None:
        """Obey this term from now on, and let checkpoint writers here know."""
        if term <= self.term:
            return
        self.term = term
        file = term_file(self.config.run_dir)
        fresh = file.with_name(f"term.{os.getpid()}")
        fresh.write_text(str(term))
        fresh.replace(file)

    def counted(self, beat: Beat) -> None:
        """The coordinator says what it has counted; a failure that is in the counts is no news any more."""
        self.restarts = max(self.restarts, beat.restarts)
        self.disruptions = max(self.disruptions, beat.disruptions)
        self.judged = max(self.judged, beat.judged)
        self.spend(beat.spent)
        if self.last_failure is not None and self.last_failure.generation <= self.judged:
            self.last_failure = None

    def spend(self, spent: Spent | None) -> None:
        if spent is not None and (self.spent is None or spent.until >= self.spent.until):
            self.spent = spent

    def begin(self, message: Start) -> None:
        """A generation begins here."""
        self.generation = message.generation
        self.restarts, self.disruptions = message.restarts, message.disruptions
        self.done, self.last_failure = False, None

    def hello(self, nonce: str, proof: str, *, running: bool) -> Hello:
        config = self.config
        steps, tree = self.stock()
        return Hello(
            protocol=PROTOCOL,
            nonce=nonce,
            proof=proof,
            node=config.node,
            incarnation=config.incarnation,
            pod=config.pod_name,
            pod_uid=config.pod_uid,
            host_node=config.host_node,
            address=config.advertise_host,
            term=self.term,
            generation=self.generation,
            running=running,
            restarts=self.restarts,
            disruptions=self.disruptions,
            last_failure=self.last_failure,
            checkpoints=steps,
            tree=tree,
            giver_port=self.giver_port,
            done=self.done,
            leaving=self.leaving,
            judged=self.judged,
            spent=self.spent,
        )

    def stock(self) -> tuple[tuple[int, ...], str]:
        """Steps that are here to go on from, and the digest of what a script keeps."""
        if self.config.checkpoint_dir is None:
            return (), ""
        from ddpjob_trainer.launcher.peers.trees import Tree

        shelf = self.config.shelf
        named, steps = shelf.named(), shelf.steps()
        self.unread.update(named - set(steps))
        return steps[-1024:], Tree.of(shelf).digest


def wall() -> str:
    """Now, RFC 3339 in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
