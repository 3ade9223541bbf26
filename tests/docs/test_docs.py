"""The docs say what is: generated pages are current, every command has been run, every link and file named is there."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from docs.generate import FILES
from tests.cli.jobs import COMMAND

from ddpjob_api.codec import shapes
from ddpjob_api.metrics import METRICS
from ddpjob_api.rules import RULES
from ddpjob_api.spec import DDP, Checkpoint, Ports, Recovery, Spec, Task

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAMES = (
    "getting-started",
    "settings",
    "running-a-script",
    "writing-a-task",
    "command-line",
    "architecture",
    "metrics",
    "api",
    "operations",
    "observability",
    "threat-model",
)
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
PACKAGES = ("api/ddpjob_api", "operator/ddpjob_operator", "trainer/ddpjob_trainer", "cli/ddpjob_cli")
PAGES = tuple(DOCS / f"{name}.md" for name in NAMES)
BLOCK = re.compile(r"^```console( runnable)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]*)(?:#[^)]*)?\)")
FILE = re.compile(r"`((?:api|cli|crds|docs|examples|operator|trainer)/[\w./-]+\.\w+)`")

COVERED = {
    "make settings-matrix": "tests/trainer/programs/test_matrix.py::test_no_setting_differs",
    "ddpjob run examples/digits.yaml": "tests/cli/test_train.py::test_a_killed_rank",
    "ddpjob run examples/digits.yaml --json | jq .accuracy": "tests/cli/test_train.py::test_a_killed_rank",
    "ddpjob run examples/digits.yaml --nodes 2 --json": "tests/cli/test_train.py::test_a_killed_rank",
    "ddpjob run examples/digits.yaml --nodes 1 --processes-per-node 2 --set task.seed=1": (
        "tests/cli/test_train.py::test_ctrl_c_saves"
    ),
    "ddpjob run examples/script.yaml": "tests/cli/test_train.py::test_a_script_runs",
    "ddpjob run examples/torchrun.yaml": "tests/cli/test_train.py::test_a_command_runs_over_two_nodes",
    "ddpjob run examples/accelerate-launch.yaml": "tests/cli/test_train.py::test_a_command_runs_over_two_nodes",
    "ddpjob run examples/hf-guide.yaml --backend Gloo": "tests/cli/test_train.py::test_the_guides_values",
    "ddpjob explain digits": "tests/cli/test_explain_command.py::test_a_failed_local_run_is_explained_from_its_folder",
    "ddpjob explain NAME --stacks": "tests/cli/test_hangs.py::test_the_stacks_of_a_local_run",
    "ddpjob top digits": "tests/cli/test_top.py::test_a_run_is_seen_from_outside_while_it_runs_and_afterwards",
    "ddpjob logs digits --rank 1": "tests/cli/test_logs.py::test_the_logs_of_a_local_run",
    "ddpjob report digits -o report.html": "tests/cli/test_report.py::test_a_folder_without_a_history_is_reported",
    "ddpjob submit train.py --nodes 2 --gpus 8 --image REGISTRY/NAME:TAG -- --epochs 3": (
        "tests/cli/test_submit.py::test_a_script_becomes_a_job_that_lint_finds_nothing_wrong_with"
    ),
    "ddpjob tune examples/characters.yaml --steps 50 --write": (
        "tests/cli/test_tune.py::test_a_script_that_is_faster_with_another_setting_is_tuned_and_written"
    ),
    'DDPJOB_TASK=\'{"entrypoint": "ddpjob_trainer.tasks.digits:task", "epochs": 1, "globalBatchSize": 64}\' '
    "torchrun --nproc-per-node 2 -m ddpjob_trainer.train": (
        "tests/trainer/loop/test_page_of_docs.py::test_the_loop_runs_under_torchrun"
    ),
    "helm upgrade --install ddpjob charts/ddpjob --namespace ddpjob-system --create-namespace \\": (
        "tests/cluster/installation.py"
    ),
    "helm test ddpjob --namespace ddpjob-system": "tests/cluster/test_commands.py::test_helm_test_finds_a_whole_installation",
    "kubectl get ddpjob --all-namespaces": "tests/cluster/test_commands.py::test_a_command_of_the_docs",
    "kubectl explain ddpjob.spec.ddp": "tests/cluster/test_commands.py::test_a_command_of_the_docs",
    "kubectl auth can-i --list --as=system:serviceaccount:ddpjob-system:ddpjob": (
        "tests/cluster/test_commands.py::test_a_command_of_the_docs"
    ),
    "KUBECONFIG=… DDPJOB_TRAINER_IMAGE=REGISTRY/ddpjob/trainer:TAG python -m ddpjob_operator": (
        "tests/cluster/test_commands.py::test_the_operator_runs_outside_of_the_cluster"
    ),
    "curl -s http://<pod>:9464/metrics": "tests/cluster/test_training.py",
}
"""Commands too long for here, and the test that runs each."""


def commands(page: Path) -> Iterator[tuple[bool, str, str]]:
    """Whether it runs here, the command, and the output that the page shows (the last lines, often none)."""
    for runnable, body in BLOCK.findall(page.read_text()):
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            yield bool(runnable), command.partition("  #")[0].strip(), shown


ALL = [(page, *found) for page in PAGES for found in commands(page)]


def test_generated_files_are_current() -> None:
    stale = [name for name, write in FILES.items() if (ROOT / name).read_text() != write()]
    assert not stale, "run `make docs`"


def test_every_page_begins_with_the_command_that_shows_its_subject() -> None:
    for page in PAGES:
        blocks = re.findall(r"^```(\w+)", page.read_text(), re.MULTILINE)
        assert blocks[0] == "console", page.name


@pytest.mark.parametrize(
    ("command", "shown"),
    [(command, shown) for _, run, command, shown in ALL if run],
    ids=lambda value: value[:60],
)
def test_a_command_runs_and_prints_what_the_page_shows(command: str, shown: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "ddpjob"
    result = subprocess.run(
        [*COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert shown in result.stdout


def test_every_other_command_is_run_by_a_named_test() -> None:
    uncovered = {command for _, run, command, _ in ALL if not run} - set(COVERED)
    assert not uncovered, "make it runnable, or name the test that runs it in COVERED"
    for test in COVERED.values():
        file, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / file).read_text(), test


@pytest.mark.parametrize("page", [*PAGES, README, CONTRIBUTING], ids=lambda page: page.stem)
def test_links_and_files_named_exist(page: Path) -> None:
    text = page.read_text()
    links = [target for target in LINK.findall(text) if target and "://" not in target]
    missing = [target for target in links if not (page.parent / target).exists()]
    missing += [name for name in FILE.findall(text) if not (ROOT / name).exists()]
    assert not missing


def test_files_and_folders_named_for_contributors_exist() -> None:
    """A paragraph that begins with "In `folder/`" names what is in it; a module without a folder is one of a package."""
    found, missing = 0, []
    for paragraph in CONTRIBUTING.read_text().split("\n\n"):
        place = re.match(r"In `([\w/]+)/`", paragraph)
        for name in re.findall(r"`([\w./-]+(?:/|\.(?:py|toml|yaml|md)))`", paragraph):
            module = "/" not in name and name.endswith(".py")
            folders = [place[1], "."] if place else PACKAGES if module else ["."]
            found += 1
            if not any((ROOT / folder / name).exists() for folder in folders):
                missing.append(name)
    assert found and not missing


def test_the_readme_shows_an_example_as_it_is_and_commands_that_are_there() -> None:
    text = README.read_text()
    [shown] = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert yaml.safe_load(shown) == yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text())
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = re.findall(r"(?:`|^\$ )make ([a-z-]+)", text, re.MULTILINE)
    assert made and set(made) <= set(targets)
    modules = re.findall(r"`python -m ([a-z_.]+)", text)
    assert modules and all((ROOT / f"{name.replace('.', '/')}.py").is_file() for name in modules)
    files = re.findall(r"`pytest -s ([\w./]+)`", text)
    assert files and all((ROOT / name).is_file() for name in files)


def test_every_field_rule_and_metric_is_on_its_page() -> None:
    settings = (DOCS / "settings.md").read_text()
    fields = [shape.name for kind in (Spec, DDP, Task, Checkpoint, Recovery, Ports) for shape in shapes(kind)]
    assert [name for name in fields if f"| `{name}` |" not in settings] == []
    assert [row.id for row in RULES if f'id="{row.id}"' not in settings or row.sentence not in settings] == []
    metrics = (DOCS / "metrics.md").read_text()
    assert [
        metric.name for metric in METRICS if f"`{metric.name}" not in metrics or metric.help not in metrics
    ] == []


@pytest.mark.parametrize("command", ["run", "submit", "tune", "explain", "top", "logs", "report"])
def test_the_exit_codes_of_the_page_are_those_of_the_help(command: str) -> None:
    page = (DOCS / "command-line.md").read_text()
    helped = subprocess.run([*COMMAND, command, "--help"], capture_output=True, text=True, check=True).stdout
    for code in re.findall(r"^\s+(\d+)  ", helped.partition("Exit codes:")[2], re.MULTILINE):
        assert f"| {code} |" in page


def test_the_guides_example_stands_on_the_settings_page() -> None:
    settings = (DOCS / "settings.md").read_text()
    lines = (ROOT / "examples" / "hf-guide.yaml").read_text().splitlines()
    values = [line.partition("#")[0].strip() for line in lines[lines.index("  ddp:") + 1 :]]
    assert [value for value in values if value and f"  {value}\n" not in settings] == []
