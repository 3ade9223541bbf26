"""The coordinator of a launcher's configuration.

Why apart: what only node 0 needs. Must not: open anything.
"""

import time

from ddpjob_trainer.launcher.config import Config
from ddpjob_trainer.launcher.coordinator import Coordinator
from ddpjob_trainer.launcher.job import Settings
from ddpjob_trainer.launcher.ledger import Ledger
from ddpjob_trainer.launcher.link import jitter
from ddpjob_trainer.launcher.memory import wall
from ddpjob_trainer.launcher.rendezvous import free_port
from ddpjob_trainer.launcher.timebook import TimeBook


def coordinator(config: Config) -> Coordinator:
    """A coordinator that knows what the launcher's environment says."""
    recovery = config.spec.recovery
    settings = Settings(
        name=config.name,
        nodes=config.plan.nodes,
        processes_per_node=config.plan.processes_per_node,
        incarnation=config.incarnation,
        grace_seconds=config.grace_seconds,
        rendezvous_seconds=recovery.rendezvous_timeout.total_seconds(),
        decides_rendezvous=not config.on_cluster,
        master_address=config.advertise_host,
        port=lambda generation: free_port(config.bind_host, config.spec.ports.rendezvous, generation),
        wall=wall,
        unix=time.time,
        saves=config.spec.task is not None and config.checkpoint_dir is not None,
        jitter=jitter,
    )
    ledger = Ledger(
        max_restarts=recovery.max_restarts,
        max_disruptions=recovery.max_disruptions,
        restarts=config.restarts,
        disruptions=config.disruptions,
    )
    return Coordinator(
        settings=settings, ledger=ledger, book=TimeBook(config.spent), newest=config.generation
    )
