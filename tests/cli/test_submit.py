"""`ddpjob submit`: what is packed, what is made of it, and what is refused in words."""

import base64
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.api_server import ApiServer
from tests.cli.jobs import document, inside, last_json, write

from ddpjob_cli.cluster import following
from ddpjob_cli.cluster.access import Access
from ddpjob_cli.cluster.following import report, waits_for
from ddpjob_cli.cluster.kubeconfig import Target
from ddpjob_cli.cluster.observe import observation
from ddpjob_cli.errors import RefusedJob, Unusable
from ddpjob_cli.packing import Pack, pack_folder, pack_script
from ddpjob_cli.submission import job_name

SCRIPT = "import torch\nprint('hello')\n"


def documents(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    code, job = yaml.safe_load_all(text)
    return code, job


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A program with a package, a binary file, and what must not travel."""
    root = tmp_path / "program"
    for name, data in {
        "train.py": b"import helper\n",
        "helper.py": b"",
        "pkg/__init__.py": b"",
        "pkg/model.py": b"x = 1\n",
        "pkg_model.py": b"y = 2\n",
        "data/tiny.bin": b"\xff\x00\xfe",
        ".secret": b"no",
        ".git-like/config": b"no",
        "__pycache__/train.cpython-311.pyc": b"no",
        "venv/pyvenv.cfg": b"no",
        "venv/lib/big.py": b"no",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


WANTED = ["data/tiny.bin", "helper.py", "pkg/__init__.py", "pkg/model.py", "pkg_model.py", "train.py"]


def test_a_script_becomes_a_job_that_lint_finds_nothing_wrong_with(tmp_path: Path) -> None:
    (tmp_path / "My_Train.py").write_text(SCRIPT)
    options = [
        "--nodes",
        "2",
        "--memory",
        "2Gi",
        "--set",
        "ddp.bucketCapMB=8",
        "--dry-run",
        "--",
        "--epochs",
        "3",
    ]
    result = inside("submit", "My_Train.py", *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    code, job = documents(result.stdout)
    assert job["metadata"]["name"] == "my-train"
    assert job["spec"] == {
        "nodes": 2,
        "resourcesPerNode": {"limits": {"memory": "2Gi"}},
        "script": {"args": ["My_Train.py", "--epochs", "3"]},
        "workspace": {"configMap": code["metadata"]["name"]},
        "ddp": {"bucketCapMB": 8},
    }
    assert code["data"] == {"My_Train.py": SCRIPT}
    (tmp_path / "all.yaml").write_text(result.stdout)
    assert inside("lint", "all.yaml", cwd=tmp_path).returncode == 0


def test_a_dry_run_for_a_program_is_the_same_resources_in_one_line_of_json(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n\nx = = 1\n")
    file = write(
        tmp_path, {"script": {"args": ["train.py"]}, "env": [{"name": "SINCE", "value": "2026-01-01"}]}
    )
    for submitted in ("train.py", file.name):
        printed = inside("submit", submitted, "--dry-run", cwd=tmp_path)
        told = inside("submit", submitted, "--dry-run", "--json", cwd=tmp_path)
        assert (told.returncode, told.stderr) == (0, printed.stderr)
        found = last_json(told)
        assert (found["apiVersion"], found["kind"]) == ("v1", "List")
        assert found["items"] == [*yaml.safe_load_all(printed.stdout)]


def test_a_folder_keeps_its_folders(folder: Path) -> None:
    options = ["--folder", str(folder), "--gpus", "2", "--dry-run"]
    result = inside("submit", str(folder / "train.py"), *options)
    assert result.returncode == 0, result.stderr
    code, job = documents(result.stdout)
    template = job["spec"]["template"]["spec"]
    (volume,) = template["volumes"]
    paths = {item["path"]: item["key"] for item in volume["configMap"]["items"]}
    assert sorted(paths) == WANTED
    assert volume["configMap"]["name"] == code["metadata"]["name"]
    assert code["data"][paths["pkg/model.py"]] == "x = 1\n"
    assert code["data"][paths["pkg_model.py"]] == "y = 2\n"
    assert base64.b64decode(code["binaryData"][paths["data/tiny.bin"]]) == b"\xff\x00\xfe"
    (container,) = template["containers"]
    assert container["workingDir"] == container["volumeMounts"][0]["mountPath"] == "/workspace"
    assert job["spec"]["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": 2}


def test_in_a_repository_git_says_what_is_ignored(folder: Path) -> None:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / ".gitignore").write_text("data/\nvenv/\n")
    assert sorted(pack_folder(folder).files) == [path for path in WANTED if not path.startswith("data/")]


def test_another_program_has_another_name() -> None:
    assert Pack(files={"a.py": b"1"}).digest() != Pack(files={"a.py": b"2"}).digest()
    assert Pack(files={"a.py": b"1"}).digest() == Pack(files={"a.py": b"1"}).digest()


@given(st.sets(st.text(st.sampled_from("ab_/.-é"), min_size=1, max_size=6), min_size=1, max_size=12))
def test_every_path_has_a_key_of_its_own(paths: set[str]) -> None:
    keys = Pack(files=dict.fromkeys(paths, b"")).keys()
    assert len(set(keys.values())) == len(paths)
    assert all(key.isascii() and "/" not in key and key not in {".", ".."} for key in keys.values())


def test_a_module_beside_the_script_is_not_forgotten(folder: Path) -> None:
    with pytest.raises(RefusedJob, match=r"imports helper, which lies beside it.*--folder"):
        pack_script(folder / "train.py")


@pytest.mark.parametrize("options", [[], ["--folder", "."]], ids=["script", "folder"])
def test_a_script_that_this_python_cannot_read_is_sent_with_a_warning(
    tmp_path: Path, options: list[str]
) -> None:
    (tmp_path / "train.py").write_text("import torch\n\nx = = 1\n")
    result = inside("submit", "train.py", *options, "--dry-run", cwd=tmp_path)
    assert result.returncode == 0
    assert result.stderr == "train.py:3: this Python cannot read it (invalid syntax); sent all the same\n"
    code, _ = documents(result.stdout)
    assert code["data"] == {"train.py": "import torch\n\nx = = 1\n"}
    (tmp_path / "train.py").write_text('import re\n\nword = re.compile("\\w")\n')
    result = inside("submit", "train.py", *options, "--dry-run", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, ""), "what Python only warns of is the program's matter"


def test_what_does_not_fit_is_refused_with_the_largest_files(folder: Path) -> None:
    (folder / "big.txt").write_bytes(b"x" * 1_500_000)
    with pytest.raises(RefusedJob, match=r"the largest: big.txt \(1464 KiB\).*persistentVolumeClaim"):
        pack_folder(folder)


@pytest.mark.parametrize(
    ("stem", "name"),
    [("train", "train"), ("My_Train v2", "my-train-v2"), ("3d-unet", "d-unet"), ("a" * 60, "a" * 40)],
)
def test_a_job_is_named_after_its_script(stem: str, name: str) -> None:
    assert job_name(stem) == name


def test_a_name_that_cannot_be_is_asked_for() -> None:
    with pytest.raises(Unusable, match="--name"):
        job_name("___")


@pytest.mark.parametrize(
    ("arguments", "code", "words", "name"),
    [
        (["nothing.py", "--dry-run"], 2, "cannot be read", None),
        (["train.py", "--folder", "other", "--dry-run"], 2, "no such folder", None),
        (
            ["job.yaml", "--nodes", "2", "--dry-run"],
            2,
            "--nodes is for a script; a resource takes --set",
            None,
        ),
        (["train.py", "--set", "ddp.bucketCapMb=1", "--dry-run"], 86, "did you mean bucketCapMB?", "train"),
        (
            ["train.py", "--cpu", "lots", "--dry-run"],
            86,
            "'lots' is no quantity; like 4, 500m, 16Gi",
            "train",
        ),
        (
            ["train.py", "--set", "ddp.bucketCapMB=0", "--dry-run"],
            86,
            "train.py: not sent: 1 problem",
            "train",
        ),
        (["train.py", "--kubeconfig", "nothing"], 2, "no cluster to ask", "train"),
    ],
)
def test_what_cannot_be_sent_is_a_sentence(
    tmp_path: Path, arguments: list[str], code: int, words: str, name: str | None
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    write(tmp_path, {"script": {"args": ["train.py"]}}, file="job.yaml")
    result = inside("submit", *arguments, cwd=tmp_path)
    assert (result.returncode, words in result.stderr) == (code, True), result.stderr
    assert (result.stdout, "Traceback" in result.stderr) == ("", False)
    told = inside("submit", "--json", *arguments, cwd=tmp_path)
    assert (told.returncode, told.stderr) == (code, result.stderr)
    ending = last_json(told)
    assert words in ending.pop("message")
    outcome = "Refused" if code == 86 else "Unusable"
    assert ending == {"name": name, "namespace": None, "outcome": outcome}


def test_an_option_of_the_script_asks_for_nothing(tmp_path: Path) -> None:
    assert inside("submit", "nothing.py", "--", "--json", cwd=tmp_path).stdout == ""


def test_a_resource_is_sent_as_it_stands(tmp_path: Path) -> None:
    file = write(tmp_path, {"script": {"args": ["train.py"]}})
    result = inside("submit", file, "--set", "nodes=3", "--dry-run")
    assert yaml.safe_load(result.stdout)["spec"] == {"script": {"args": ["train.py"]}, "nodes": 3}


def test_a_status_is_shown_as_a_run_is() -> None:
    status = {
        "state": "Pending",
        "nodes": {"desired": 2, "ready": 1},
        "conditions": [
            {
                "type": "PodsReady",
                "status": "False",
                "reason": "Unschedulable",
                "message": "pod a-1: 1 Insufficient cpu.",
            }
        ],
        "progress": {"step": 7, "totalSteps": 9},
        "lastFailure": {"reason": "Killed", "rank": 1},
    }
    job = {"metadata": {"name": "a"}, "spec": {"nodes": 2, "script": {"args": ["a.py"]}}, "status": status}
    seen = observation(json.loads(json.dumps(job)), (), (), (), (), namespace="n", now=0.0)
    found = report(seen)
    assert (found.nodes_joined, found.nodes_expected, found.progress.step, len(found.failures)) == (
        1,
        2,
        7,
        1,
    )
    assert waits_for(seen).startswith(
        "waits: Unschedulable: 1 Insufficient cpu. → no node has enough free cpu"
    )


SERVICE = "Service train exists and is not this job's"
STARTING = {
    "type": "PodsReady",
    "status": "False",
    "reason": "PodsStarting",
    "message": "0 of 1 pods are ready",
}
CONFLICT = {"type": "Admitted", "status": "False", "reason": "NameConflict", "message": SERVICE}
ACCEPTED = {"type": "Admitted", "status": "True", "reason": "Accepted", "message": "accepted"}
RUNS = {"type": "Running", "status": "True", "reason": "Training", "message": "runs"}


class Minute:
    """`time`, which goes on while somebody sleeps; when it is over, the server forgets the job."""

    def __init__(self, api: ApiServer) -> None:
        self.api, self.now = api, 1e9

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > 1e9 + 60:
            self.api.answers.clear()


@pytest.mark.parametrize(
    ("conditions", "suspend", "words"),
    [
        ([], False, ["waits: no operator has looked at it for 21 s → is the operator installed"]),
        ([CONFLICT], False, [f"waits: {SERVICE} → rename the job"]),
        ([CONFLICT, STARTING], False, [f"waits: {SERVICE} → rename the job"]),
        ([ACCEPTED], True, ["waits: it is suspended → kubectl patch ddpjob train"]),
        ([ACCEPTED], False, []),
        ([ACCEPTED, STARTING], False, []),
        ([CONFLICT, RUNS], False, []),
    ],
    ids=["no operator", "before pods", "a name conflict", "suspended", "admitted", "starting", "runs"],
)
def test_who_waits_for_a_job_that_nothing_becomes_of_is_told_why_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    conditions: list[dict[str, str]], suspend: bool, words: list[str],
) -> None:  # fmt: skip
    """Whatever the time is for the cluster."""
    job = document({"script": {"args": ["train.py"]}, "suspend": suspend}, name="train")
    job["metadata"] |= {"namespace": "team", "uid": "j", "creationTimestamp": "2038-01-01T00:00:00Z"}
    job["status"] = {"conditions": conditions} if conditions else {}
    said = io.StringIO()
    with ApiServer() as api:
        api.answers = {"GET /apis/ddpjob.dev/v1alpha1/namespaces/team/ddpjobs/train": (200, job)}
        monkeypatch.setattr(following, "time", Minute(api))
        access = Access(Target(kubeconfig=api.kubeconfig(tmp_path)))
        code, _ = following.follow(access, job, said)
    assert code == 1
    told = [line.removeprefix("[ddpjob] ") for line in said.getvalue().splitlines() if "waits: " in line]
    assert [line[: len(start)] for line, start in zip(told, words, strict=True)] == words
