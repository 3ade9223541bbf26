"""The operator's process: everything is put together here and nowhere else.

`python -m ddpjob_operator` runs in a pod with a service account, or anywhere with a kubeconfig.
"""

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import time
from datetime import UTC, datetime

import kopf

from ddpjob_api import __version__
from ddpjob_api.names import FIELD_MANAGER
from ddpjob_operator import census
from ddpjob_operator.access import TOKEN
from ddpjob_operator.cache import Cache
from ddpjob_operator.client import Client, Http, Limiter
from ddpjob_operator.errors import ApiError
from ddpjob_operator.handlers import kopf_settings, registry
from ddpjob_operator.health import Health, Metrics
from ddpjob_operator.leader import DEADLINE, Leader, LostLease
from ddpjob_operator.nodes import Nodes
from ddpjob_operator.observe import Key
from ddpjob_operator.poller import Poller
from ddpjob_operator.queue import Queue
from ddpjob_operator.reconcile import Reconciler
from ddpjob_operator.resync import first, keep_in_sync
from ddpjob_operator.settings import BadSetting, Settings, from_environment
from ddpjob_operator.tokens import Tokens

log = logging.getLogger("ddpjob")

LEASE_SECONDS = DEADLINE.total_seconds() / 2
"""A request about the Lease that takes longer is given up: within the deadline another one may do better."""


class Operator:
    """The parts and how they know each other.

    Settled at the start: settings, metrics, client. Known of the cluster: cache, tokens, poller's reports.
    Running: queue with the reconciler, poller, resync, health; kopf feeds the cache.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.http = Http()
        self.lease_http = Http(timeout_seconds=LEASE_SECONDS)
        """Connections of its own: a server that answers slowly keeps all of the others busy, and the Lease must not wait."""
        limiter = Limiter(rate=settings.api_qps, burst=settings.api_burst)
        self.client = Client(self.http, manager=FIELD_MANAGER, limiter=limiter)
        self.client.observe = self.metrics.request

        self.cache = Cache()
        self.nodes = Nodes(clock=lambda: datetime.now(UTC))
        self.tokens = Tokens(self.client)
        self.queue: Queue[Key] = Queue(self._work, workers=settings.workers)
        self.poller = Poller(
            self.cache, self.tokens, tell=self.queue.add, poll=settings.poll, progress=settings.progress
        )
        self.poller.observe = lambda result: self.metrics.polls.labels(result=result).inc()
        self.reconciler = Reconciler(
            self.client,
            self.cache,
            self.nodes,
            self.tokens,
            self.poller,
            image=settings.trainer_image,
            operator_image=settings.operator_image,
        )
        self.reconciler.counted = self.metrics.count
        self.queue.failed = self._failed
        self.background: list[asyncio.Task[None]] = []
        self.leader: Leader | None = None
        if settings.lease:
            namespace, name = settings.lease.split("/")
            # A pod's name is nobody else's: its container, started again after a crash, goes on with its own Lease.
            host = socket.gethostname()
            identity = host if TOKEN.exists() else f"{host}_{secrets.token_hex(4)}"
            # A client of its own: its renewals wait behind the work neither for a token nor for a connection.
            lease = Client(self.lease_http, manager=FIELD_MANAGER)
            lease.observe = self.metrics.request
            self.leader = Leader(lease, namespace=namespace, name=name, identity=identity)
        self.health = Health(
            self.metrics,
            resync=settings.resync,
            oldest_seconds=lambda: self.queue.oldest_seconds,
            refresh=self._gauges,
        )

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Until a signal, or `stop`.

        Raises:
            LostLease: another operator leads, or may.
        """
        settings = self.settings
        stop = stop or asyncio.Event()
        if settings.health_port:
            await self.health.start(settings.health_host, settings.health_port)
        try:
            if self.leader is not None and not await self._elected(self.leader, stop):
                return
            self.metrics.leader.set(1)
            await first(self.client, self.cache, self.nodes, settings.watch_namespaces)
            self.health.synced()
            for key in [*self.cache.keys()]:
                self.queue.add(key)
            self.queue.start()
            self.background = [
                asyncio.create_task(self.poller.run(), name="poller"),
                asyncio.create_task(self._resync(), name="resync"),
            ]
            if self.leader is not None:
                self.background.append(asyncio.create_task(self.leader.hold(), name="lease"))
            await self._watch(stop)
        finally:
            await self._clean_up()
            if self.leader is not None:
                await self.leader.release()
            await self.lease_http.close()
            await self.http.close()

    async def _elected(self, leader: Leader, stop: asyncio.Event) -> bool:
        """Stand by until this one leads; False where it is told to stop before."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):  # kopf, which follows, brings its own handlers
            loop.add_signal_handler(number, stop.set)
        self.health.standby = True
        acquiring = asyncio.create_task(leader.acquire())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({acquiring, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if acquiring.done():
                acquiring.result()
            return acquiring.done() and not stop.is_set()
        finally:
            self.health.standby = False
            for task in (acquiring, stopping):
                task.cancel()

    async def _watch(self, ended: asyncio.Event) -> None:
        """Follow kopf's watches, which end with a signal; a background task that ends brings the operator down."""
        background = list(self.background)
        for task in background:
            task.add_done_callback(lambda _: ended.set())
        settings = self.settings
        await kopf.operator(
            registry=registry(self.cache, self.nodes, self.queue.add, self.reconciler.forget, self._clean_up),
            settings=kopf_settings(),
            standalone=True,
            clusterwide=not settings.watch_namespaces,
            namespaces=settings.watch_namespaces,
            stop_flag=ended,
        )
        for task in background:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _clean_up(self) -> None:
        """End our own tasks; twice is once."""
        background, self.background = self.background, []
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await self.queue.stop()
        await self.health.stop()

    async def _resync(self) -> None:
        await keep_in_sync(
            self.client,
            self.cache,
            self.nodes,
            self.settings.watch_namespaces,
            every=self.settings.resync,
            add=self.queue.add,
            done=self._synced,
        )

    def _synced(self, well: bool, ghosts: int) -> None:
        self.metrics.resyncs.labels(result="ok" if well else "failed").inc()
        self.metrics.ghosts.inc(ghosts)
        if well:
            self.health.synced()

    async def _work(self, key: Key) -> float | None:
        start = time.perf_counter()
        again = await self.reconciler(key)
        self.metrics.reconciles.labels(result="ok").inc()
        self.metrics.reconcile_seconds.observe(time.perf_counter() - start)
        return again

    def _failed(self, key: Key, error: BaseException) -> None:
        self.metrics.reconciles.labels(result="failed").inc()
        log.warning("%s: will be looked at again: %s", key, error, exc_info=unexpected(error))

    def _gauges(self) -> None:
        self.metrics.depth.set(self.queue.depth)
        self.metrics.oldest.set(self.queue.oldest_seconds)
        if self.health.ready:  # before, fewer jobs are known than there are
            self.metrics.show(census.take(self.cache.jobs(), now=datetime.now(UTC)))


def unexpected(error: BaseException) -> BaseException | None:
    """The error if it is ours to explain: a full traceback belongs in the log then."""
    return None if isinstance(error, ApiError) else error


def main() -> int:
    try:
        settings = from_environment(os.environ)
    except BadSetting as error:
        print(f"ddpjob-operator: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    for noisy in ("kopf", "aiohttp"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    where = ", ".join(settings.watch_namespaces) or "all namespaces"
    log.info("ddpjob-operator %s serves %s; trainer image %s", __version__, where, settings.trainer_image)
    try:
        asyncio.run(Operator(settings).run())
    except kopf.LoginError as error:
        print(f"ddpjob-operator: {error}", file=sys.stderr)
        return 2
    except LostLease as lost:
        print(f"ddpjob-operator: stopped: {lost}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
