"""The kind provider without kind: what it would run, what it leaves, and what it does not touch."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.cluster.harness import CommandFailed, kind, progress

POD_ROUTE = "10.100.1.0/24 via 172.18.0.3"


class StandIn:
    """Instead of kind, kubectl and ip: what would be run, the clusters, and the one route that there is."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.address = "172.18.0.3"
        self.route = ""
        self.clusters: set[str] = set()
        self.fail: tuple[str, ...] = ()
        """Parts of the commands that fail."""

    @property
    def changes(self) -> list[str]:
        """What was done to the routes of the machine."""
        told = [command.partition("ip route ")[2] for command in self.commands]
        return [change for change in told if change and not change.startswith("show")]

    def run(self, *argv: object, **_: object) -> str:
        self.commands.append(" ".join(map(str, argv)))
        if argv[:3] == ("kind", "create", "cluster"):  # exists from then on, whether it gets ready or not
            self.clusters.add(str(argv[argv.index("--name") + 1]))
        if any(part in self.commands[-1] for part in self.fail):
            raise CommandFailed(self.commands[-1].split(), 1, "as the test wants it")
        if argv[:3] == ("kind", "delete", "cluster"):
            self.clusters.discard(str(argv[argv.index("--name") + 1]))
        if argv[:3] == ("kind", "get", "clusters"):
            return "\n".join(self.clusters)
        change, _, route = self.commands[-1].partition("ip route ")[2].partition(" ")
        if change == "show":
            return self.route
        if change:
            self.route = f"{route} dev br-0" if change == "add" else ""
        addresses = [
            {"type": "Hostname", "address": "worker"},
            {"type": "InternalIP", "address": self.address},
        ]
        node = {"spec": {"podCIDR": "10.100.1.0/24"}, "status": {"addresses": addresses}}
        return json.dumps({"items": [node]}) if " get node " in self.commands[-1] else ""


@pytest.fixture
def stand_in(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    one = StandIn()
    monkeypatch.setattr(kind, "run", one.run)
    monkeypatch.setattr(kind, "succeeds", lambda *argv: one.run(*argv) == "")
    monkeypatch.setattr(kind.Kind, "tool", lambda _, name: Path(name))
    monkeypatch.setattr(kind.Kind, "engine", "docker")
    built = SimpleNamespace(cached=lambda _: True, ensure=lambda names: one.run("build", *names))
    monkeypatch.setattr(kind, "KUBERNETES", built)
    return one


@pytest.mark.parametrize("part", ["kind create cluster", " wait node ", " get node ", "build kwok"])
def test_a_kind_cluster_that_did_not_come_up_is_not_left(stand_in: StandIn, part: str) -> None:
    here = kind.Kind()
    stand_in.fail = (part,)
    with pytest.raises(CommandFailed, match=part):
        here.up(detach=True, user=None)
    assert (stand_in.clusters, stand_in.route) == (set(), "")
    assert not here._folder.exists()


def test_a_kind_cluster_that_was_there_before_stays(stand_in: StandIn) -> None:
    here = kind.Kind()
    stand_in.clusters = {here._name}
    stand_in.fail = (" get node ",)
    with pytest.raises(CommandFailed, match=" get node "):
        here.up(detach=True, user=None)
    assert stand_in.clusters == {here._name}


def test_a_kind_cluster_that_can_be_neither_used_nor_deleted_is_named(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(progress, "sink", lines.append)
    here = kind.Kind()
    stand_in.fail = (" wait node ", "kind delete")
    with pytest.raises(CommandFailed, match=" wait node "):
        here.up(detach=True, user=None)
    assert f"`kind delete cluster --name {here._name}`: " in lines[-1]


def test_the_pods_of_kind_are_reached_from_here_until_it_goes(stand_in: StandIn) -> None:
    here = kind.Kind()
    here._folder.mkdir(parents=True)
    here._route_to_pods()
    here._route_to_pods()  # of a second session
    assert stand_in.changes == [f"add {POD_ROUTE}"]
    here.down()
    assert stand_in.changes == [f"add {POD_ROUTE}", f"del {POD_ROUTE}"]
    assert not here._folder.exists()


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (
            "10.100.1.0/24 via 172.18.0.30 dev br-1",
            "it has another route, 10.100.1.0/24 via 172.18.0.30 dev br-1",
        ),
        (f"{POD_ROUTE} dev br-1", ""),
    ],
)
def test_a_route_that_kind_did_not_add_stays(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, there: str, said: str
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(progress, "sink", lines.append)
    here = kind.Kind()
    here._folder.mkdir(parents=True)
    stand_in.route = there
    here._route_to_pods()
    assert said in "".join(lines) and bool(said) == bool(lines)
    here.down()
    assert stand_in.changes == []


def test_a_node_that_has_another_address_now_has_another_route(stand_in: StandIn) -> None:
    here = kind.Kind()
    here._folder.mkdir(parents=True)
    here._route_to_pods()
    stand_in.address = "172.18.0.4"
    here._route_to_pods()
    moved = POD_ROUTE.replace("172.18.0.3", "172.18.0.4")
    assert stand_in.changes == [f"add {POD_ROUTE}", f"del {POD_ROUTE}", f"add {moved}"]


def test_clones_have_pods_of_their_own_and_none_where_services_and_slots_are() -> None:
    subnets = [kind.pod_subnet(Path(f"/clones/{number}")) for number in range(1000)]
    assert kind.pod_subnet(Path("/clones/0")) == subnets[0]
    assert len(set(subnets)) > 600, "of 1600"
    allowed = [ipaddress.ip_network(f"10.{octet}.0.0/16") for octet in range(100, 200)]
    assert all(any(ipaddress.ip_network(one).subnet_of(range_) for range_ in allowed) for one in subnets)
    assert f'podSubnet: "{subnets[0]}"' in kind.CONFIG.format(shared="/shared", pods=subnets[0])
