"""YAML with positions: what cannot be a resource is said in a sentence, what can has the line of each field."""

from pathlib import Path

import pytest

from ddpjob_cli.document import jobs, one_job, read
from ddpjob_cli.errors import Unusable

JOB = """\
apiVersion: ddpjob.dev/v1alpha1
kind: DDPJob
metadata: {name: NAME}
spec: {}
"""
SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ddpjob.yaml"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "empty; expected a DDPJob"),
        ("---\n---\n", "empty; expected a DDPJob"),
        ("a: [1", ":1: not YAML: "),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", ":4 b.c: given twice, first on line 3; keep one of them"),
        ("a: &x\n  b: *x\n", "the alias leads back to the object it is in"),
        ("a: .inf\n", ":1 a: .inf is no number that JSON can carry"),
        ("a: .NaN\n", "is no number that JSON can carry"),
        ("a: 1e999\n", "is no number that JSON can carry"),
        ("a: !!python/name:os.system x\n", "could not determine a constructor"),
        ("a: {b: !!binary aGk=}\n", ":1 a.b: bytes (!!binary), which JSON cannot carry"),
        ("a: !!set {b, c}\n", ":1 a: a set (!!set), which JSON cannot carry"),
        ("a: !!omap [b: 1]\n", "an ordered map (!!omap), which JSON cannot carry"),
        ("a: !!timestamp 2020-01-01\n", "a date (!!timestamp), which JSON cannot carry"),
        ("\0", "not YAML: unacceptable character"),
        ("[" * 5000, "nested too deeply"),
        (SERVICE, "no DDPJob in it, only Service; name the file that has one"),
    ],
)
def test_what_is_no_resource_is_said_in_a_sentence(file: Path, text: str, sentence: str) -> None:
    file.write_text(text)
    with pytest.raises(Unusable) as caught:
        jobs(str(file))
    assert sentence in str(caught.value)
    assert str(caught.value).startswith(str(file))


def test_aliases_nested_a_billionfold_are_read_in_no_time(file: Path) -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
    file.write_text("\n".join(lines))
    assert read(str(file))


@pytest.mark.parametrize(
    ("path", "sentence"),
    [("missing.yaml", "no such file"), (".", "a directory; name the YAML file in it")],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, path: str, sentence: str) -> None:
    with pytest.raises(Unusable, match=sentence):
        read(str(tmp_path / path))


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("spec",), 3),
        (("spec", "ddp", "bucketCapMB"), 5),
        (("spec", "env", 1, "name"), 8),
        (("spec", "env", 1), 8),
        (("spec", "ddp", "staticGraph"), 4),
        (("metadata", "name"), 1),
    ],
)
def test_a_path_has_the_line_of_its_field_or_of_what_is_around_it(
    file: Path, path: tuple[str | int, ...], line: int
) -> None:
    file.write_text(
        "kind: DDPJob\n\nspec:\n  ddp:\n    bucketCapMB: 1\n  env:\n  - {name: A}\n  - {name: B}\n"
    )
    (document,) = read(str(file))
    assert document.line(path) == line


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 1e5),
        ("-.5e1", -5.0),
        ("2020-01-01", "2020-01-01"),
        ("'1e-3'", "1e-3"),
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
    ],
)
def test_scalars_are_read_as_kubectl_reads_them(file: Path, text: str, value: object) -> None:
    file.write_text(f"a: {text}\n")
    assert read(str(file))[0].value == {"a": value}


def test_a_job_among_other_kinds_is_found(file: Path) -> None:
    file.write_text(SERVICE + "---\n" + JOB.replace("NAME", "one"))
    assert one_job(str(file), None).name == "one"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (None, r"2 DDPJobs \(one, two\); choose one with --name"),
        ("three", "no DDPJob named three; it has one, two"),
    ],
)
def test_of_several_jobs_one_must_be_named(file: Path, name: str | None, sentence: str) -> None:
    file.write_text(JOB.replace("NAME", "one") + "---\n" + JOB.replace("NAME", "two"))
    assert one_job(str(file), "two").name == "two"
    with pytest.raises(Unusable, match=sentence):
        one_job(str(file), name)


def test_an_option_stands_for_the_line_of_the_field_it_set(file: Path) -> None:
    file.write_text(JOB)
    document = one_job(str(file), None).with_value(("spec", "ddp", "backend"), "NCCL", "--backend")
    assert document.value == {
        "apiVersion": "ddpjob.dev/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": "NAME"},
        "spec": {"ddp": {"backend": "NCCL"}},
    }
    assert document.where(("spec", "ddp", "backend")) == "--backend"
    assert document.where(("spec", "ddp")) == f"{file}:4"
    with pytest.raises(Unusable, match=r"--set kind\.x: what is around x is no object"):
        document.with_value(("kind", "x"), 1, "--set kind.x")
