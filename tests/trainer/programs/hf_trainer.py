"""The Trainer script of the examples, unchanged, with the probe in it."""

import runpy
from pathlib import Path

import probe  # noqa: F401

ROOT = Path(__file__).parents[3]
runpy.run_path(str(ROOT / "examples" / "scripts" / "hf_trainer.py"), run_name="__main__")
