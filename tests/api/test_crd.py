"""The CRD and the Python types say the same, both ways."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddpjob_api.codec import Shape, render, shapes
from ddpjob_api.conditions import Condition
from ddpjob_api.efficiency import Efficiency
from ddpjob_api.fields import is_duration
from ddpjob_api.names import RESERVED_ENV, RESERVED_ENV_PREFIX
from ddpjob_api.report import Failure, InEffect, Override
from ddpjob_api.rules import RULES, message_of
from ddpjob_api.spec import (
    GROUP,
    KIND,
    NAME_MAX_LENGTH,
    NAME_PATTERN,
    PLURAL,
    QUANTITY_MAX_LENGTH,
    QUANTITY_PATTERN,
    VERSION,
    Spec,
)

CRD = yaml.safe_load((Path(__file__).parents[2] / "crds" / "ddpjob.yaml").read_text())
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
SPEC = SCHEMA["properties"]["spec"]


def walk(kind: type, schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Shape, Mapping[str, Any]]]:
    """Every field of the types with its schema, nested ones and list items included."""
    for shape in shapes(kind):
        here = f"{path}.{shape.name}"
        found = schema.get("properties", {}).get(shape.name, {})
        yield here, shape, found
        inner, inner_schema = shape.hint, found
        if typing.get_origin(inner) is tuple:
            inner, inner_schema = typing.get_args(inner)[0], found.get("items", {})
        if dataclasses.is_dataclass(inner):
            yield from walk(typing.cast("type", inner), inner_schema, here)


def schemas(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every schema below one, by path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from schemas(inner, f"{path}.{name}")
    if "items" in schema:
        yield from schemas(schema["items"], f"{path}[]")


def cel_rules(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for _, inner in schemas(schema, ""):
        yield from inner.get("x-kubernetes-validations", ())


FIELDS = list(walk(Spec, SPEC, "spec"))


def sizes_in_the_status(shape: Shape, schema: Mapping[str, Any]) -> None:
    """The API server refuses a whole status for one text or list that is too long."""
    limits, items = shape.limits, schema.get("items", {})
    most = schema.get("maxItems", schema.get("maxProperties"))
    assert (most, items.get("maxLength")) == (limits.max_items, limits.max_item_length)
    if not (isinstance(shape.hint, type) and issubclass(shape.hint, StrEnum)):  # of a list, which may grow
        assert schema.get("maxLength") == limits.max_length


def expected_type(shape: Shape) -> str:
    hint = shape.hint
    if typing.get_origin(hint) is tuple:
        return "array"
    if hint is bool:
        return "boolean"
    if hint is int or is_duration(hint):
        return "integer"
    if hint is str or (isinstance(hint, type) and issubclass(hint, StrEnum)):
        return "string"
    return "object"


def test_names_of_the_resource() -> None:
    names = CRD["spec"]["names"]
    assert (CRD["spec"]["group"], names["kind"], names["plural"]) == (GROUP, KIND, PLURAL)
    assert CRD["metadata"]["name"] == f"{PLURAL}.{GROUP}"
    assert CRD["spec"]["versions"][0]["name"] == VERSION


@pytest.mark.parametrize(("path", "shape", "schema"), FIELDS, ids=[path for path, _, _ in FIELDS])
def test_a_field_of_the_types_stands_in_the_crd(path: str, shape: Shape, schema: Mapping[str, Any]) -> None:
    assert schema, f"{path} is not in crds/ddpjob.yaml"
    assert schema["type"] == expected_type(shape)
    limits = shape.limits
    sizes = "Properties" if schema["type"] == "object" else "Items"
    assert schema.get("minimum") == limits.minimum
    assert schema.get("maximum") == limits.maximum
    assert schema.get("minLength") == limits.min_length
    assert schema.get("maxLength") == limits.max_length
    assert schema.get(f"min{sizes}") == limits.min_items
    assert schema.get(f"max{sizes}") == limits.max_items
    assert schema.get("pattern") == limits.pattern
    if isinstance(shape.hint, type) and issubclass(shape.hint, StrEnum):
        assert schema["enum"] == [member.value for member in shape.hint]
    default = None if shape.required else render(shape.default())
    plain = default if isinstance(default, (str, int, bool)) else None
    assert schema.get("default") == plain


def test_the_crd_has_no_field_that_the_types_lack() -> None:
    known = {path for path, _, _ in FIELDS}
    listed = {path.replace("[]", "") for path, _ in schemas(SPEC, "spec")} - {"spec"}
    assert listed == known


def test_required_fields_are_equal() -> None:
    expected = {path for path, shape, _ in FIELDS if shape.required}
    found = {
        f"{path.replace('[]', '')}.{name}"
        for path, schema in schemas(SPEC, "spec")
        for name in schema.get("required", ())
    }
    assert found == expected


def test_every_field_is_described_by_a_text_that_begins_with_its_name() -> None:
    for path, schema in schemas(SPEC, "spec"):
        if path.endswith("[]"):
            continue
        name = path.rsplit(".", 1)[-1]
        words = ("limits", "requests") if name in ("limits", "requests") else (name,)
        assert schema.get("description", "").startswith(words), path


def test_status_is_described_and_has_no_free_maps() -> None:
    for path, schema in schemas(SCHEMA["properties"]["status"], "status"):
        assert schema.get("description") or path.endswith("[]"), path
        assert "additionalProperties" not in schema, path
        assert "x-kubernetes-preserve-unknown-fields" not in schema or path == "status.result", path


@pytest.mark.parametrize(
    ("kind", "field"),
    [(InEffect, "ddp"), (Efficiency, "efficiency"), (Failure, "lastFailure"), (Override, "ddp.overrides")],
)
def test_reports_fit_into_the_status(kind: type, field: str) -> None:
    """What a launcher reports is written to the status as it is: a field missing there would be pruned."""
    schema = SCHEMA["properties"]["status"]
    for name in field.split("."):
        schema = schema["properties"][name]
    schema = schema.get("items", schema)
    assert {shape.name for shape in shapes(kind)} == set(schema["properties"])
    for shape in shapes(kind):
        sizes_in_the_status(shape, schema["properties"][shape.name])


def test_the_conditions_are_those_of_the_list() -> None:
    text = SCHEMA["properties"]["status"]["properties"]["conditions"]["description"]
    for condition in Condition:
        assert condition.value in text, condition


@pytest.mark.parametrize("row", [row for row in RULES if row.in_crd], ids=lambda row: row.id)
def test_a_rule_of_the_crd_speaks_the_words_of_lint(row: Any) -> None:
    assert message_of(row) in {rule["message"] for rule in cel_rules(SCHEMA)}


def test_every_cel_message_is_a_rule_or_says_what_is_immutable() -> None:
    sentences = {message_of(row) for row in RULES if row.in_crd}
    others = [rule["message"] for rule in cel_rules(SCHEMA) if rule["message"] not in sentences]
    mutable = {"suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "template"}
    expected = [
        f"{name} may only change while the job is suspended"
        for name in SPEC["properties"]
        if name not in mutable
    ]
    assert sorted(others) == sorted(expected)


def test_reserved_names_are_those_of_the_launcher() -> None:
    rule = next(
        r["rule"] for r in SPEC["properties"]["env"]["x-kubernetes-validations"] if "startsWith" in r["rule"]
    )
    assert f"startsWith('{RESERVED_ENV_PREFIX}')" in rule
    listed = {word.strip(" '") for word in rule.split("[")[1].split("]")[0].split(",")}
    assert listed == RESERVED_ENV


def test_the_name_rule_is_the_one_of_the_types() -> None:
    rule = SCHEMA["x-kubernetes-validations"][0]["rule"]
    assert f"size() <= {NAME_MAX_LENGTH}" in rule
    assert f"matches('{NAME_PATTERN}')" in rule


@pytest.mark.parametrize("kind", ["limits", "requests"])
def test_a_quantity_is_what_the_types_take_for_one(kind: str) -> None:
    amounts = SPEC["properties"]["resourcesPerNode"]["properties"][kind]["additionalProperties"]
    assert (amounts["pattern"], amounts["maxLength"]) == (QUANTITY_PATTERN, QUANTITY_MAX_LENGTH)
    assert (amounts["x-kubernetes-int-or-string"], amounts["anyOf"]) == (
        True,
        [{"type": "integer"}, {"type": "string"}],
    )


def test_every_list_and_string_is_bounded() -> None:
    for path, schema in schemas(SPEC, "spec"):
        if schema.get("type") == "array":
            assert "maxItems" in schema, path
        if schema.get("type") == "string" and "enum" not in schema:
            assert "maxLength" in schema, path
