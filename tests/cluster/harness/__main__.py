"""`python -m tests.cluster.harness up|down|status|build-images|kubeconfig|purge`, from the root of the clone."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys

from . import paths, process, slot
from .cluster import Cluster
from .errors import HarnessError
from .progress import say
from .provider import Provider, choose


def main() -> int:
    """Run one command; errors are one sentence on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster.harness", description="A real Kubernetes for tests."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser(
        "up", help="start it, or find it running; removes leftovers of a killed run first"
    )
    up.add_argument(
        "--detach", action="store_true", help="leave it running; without, it ends with this command"
    )
    commands.add_parser("down", help="take it down and prove that nothing is left")
    commands.add_parser("status", help="what runs, and where")
    commands.add_parser("kubeconfig", help="print the kubeconfig's path")
    images = commands.add_parser(
        "build-images", help="build the images and put them onto the nodes; prints references"
    )
    images.add_argument("target", nargs="*", default=["operator", "trainer"])
    commands.add_parser("purge", help="down, then delete all caches: binaries, images, node stores")
    chosen = parser.parse_args()
    try:
        provider = choose()
        if chosen.command == "up":
            _up(provider, detach=chosen.detach)
        elif chosen.command == "down":
            _down(provider)
        elif chosen.command == "status":
            print("\n".join(provider.status()))
        elif chosen.command == "kubeconfig":
            print(provider.kubeconfig)
        elif chosen.command == "build-images":
            for target in chosen.target:
                print(Cluster(provider).ensure_image(target))
        else:
            _purge(provider)
    except HarnessError as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    return 0


def _up(provider: Provider, *, detach: bool) -> None:
    me = process.current("harness up")
    provider.up(detach=detach, user=None if detach else me)
    print(f"kubeconfig: {provider.kubeconfig}", flush=True)
    if detach:
        return
    say("Ctrl-C takes it down")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        signal.pause()
    except (KeyboardInterrupt, SystemExit):
        pass
    finally:
        provider.leave(me)


def _down(provider: Provider) -> None:
    if provider.is_up():
        provider.down()
        say("down; nothing is left")
    else:
        say("nothing is up")


def _purge(provider: Provider) -> None:
    _down(provider)
    for number in range(slot.SLOTS):
        if (owner := slot.read_owner(number)) and not owner.abandoned:
            raise HarnessError(f"slot {number} is used by {owner.clone}; take that cluster down first")
    shutil.rmtree(paths.cache())
    say(f"deleted {paths.cache()}")


if __name__ == "__main__":
    sys.exit(main())
