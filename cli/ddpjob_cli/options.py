"""`--set FIELD=VALUE`, the option that reaches every field of a spec.

Why apart: `run`, `submit` and `tune` must read it alike.
"""

import click

from ddpjob_api.codec import Path
from ddpjob_cli.document import one_value
from ddpjob_cli.errors import Unusable

settings_option = click.option(
    "--set",
    "settings",
    metavar="FIELD=VALUE",
    multiple=True,
    help="Another field of spec, e.g. --set ddp.bucketCapMB=1; VALUE is YAML. May be repeated.",
)


def option(text: str) -> tuple[Path, object, str]:
    """`ddp.bucketCapMB=1` as path, value and the option's name for sentences.

    Raises:
        Unusable: there is no `=`, or the value is no YAML.
    """
    field, sign, value = text.partition("=")
    parts = field.removeprefix("spec.").split(".")
    if not sign or not all(parts):
        raise Unusable(f"--set {text}: expected FIELD=VALUE, for instance --set ddp.bucketCapMB=1")
    return ("spec", *parts), one_value(value, f"--set {field}"), f"--set {field}"
