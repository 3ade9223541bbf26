"""`make test-torch VERSION=2.4.1`: the tests of the trainer with another torch, in a virtual environment of its own.

The index of PyPI has builds for CUDA only, whose libraries are gigabytes. Where no other index is given (pip's own
variables, e.g. PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu), the build comes without them, and each
library that torch asks the loader for is an empty one in its place: nothing of them runs on a CPU. libcudart is the
exception; torch calls it while it is loaded.
"""

import re
import subprocess
import sys
import venv
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ("tests/trainer/worker", "tests/trainer/loop")
TOOLS = ("hypothesis", "numpy", "pytest", "pytest-asyncio", "pytest-timeout", "scikit-learn", "setuptools")
"""Beside torch's own requirements and ours."""
OURS = ("click", "prometheus-client", "pyyaml", "rich")
VERSIONS = re.compile(r"File: (\S+)\s+Cnt: \d+\n((?:.*Name: .*\n?)*)")
"""What a library needs of another, in the words of readelf."""
LEFT_OUT = re.compile(r"nvidia-(?!cuda-runtime)|triton|cuda-")


def environment(version: str) -> Path:
    """The virtual environment of this version, made where it is not there; its Python."""
    folder = ROOT / f".venv-torch-{version}"
    python = folder / "bin/python"
    done = folder / ".done"
    if done.exists():
        return python
    venv.create(folder, with_pip=True)
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", f"torch=={version}")
    script = "from importlib.metadata import requires; print('\\n'.join(requires('torch') or ()))"
    asked = subprocess.run([python, "-c", script], check=True, capture_output=True, text=True).stdout
    needed = [line for line in asked.splitlines() if not LEFT_OUT.match(line) and "extra ==" not in line]
    run(python, "-m", "pip", "install", "--quiet", *needed, *TOOLS, *OURS)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "ddpjob.pth").write_text("\n".join(str(ROOT / name) for name in ("api", "trainer")))
    put_stubs(packages)
    run(python, "-c", "import torch; print('torch', torch.__version__)")
    done.touch()
    return python


def put_stubs(packages: Path) -> None:
    """Libraries that torch's own need and that are not there: each with the names it is asked for, beside torch's."""
    libraries = packages / "torch/lib"
    there = {path.name for path in [*libraries.iterdir(), *packages.glob("nvidia/*/lib/*")]}
    needed: set[str] = set()
    versioned: dict[str, set[str]] = defaultdict(set)
    tags: dict[str, set[str]] = defaultdict(set)
    plain: set[str] = set()
    for library in libraries.glob("*.so*"):
        needed.update(re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", library)))
        for soname, names in VERSIONS.findall(readelf("--version-info", library)):
            tags[soname].update(re.findall(r"Name: (\S+)", names))
        for line in readelf("--dyn-syms", library).splitlines():
            words = line.split()
            if "UND" in words and len(words) > 7:
                name, _, version = words[7].partition("@")
                if version:
                    versioned[version.strip("@")].add(name)
                else:
                    plain.add(name)
    for soname in sorted(needed - there):
        stem = soname.removeprefix("lib").partition(".so")[0]
        if not re.match(r"cu|nv|nccl", stem) or stem == "cuda":
            continue
        versions = {tag: versioned[tag] for tag in sorted(tags[soname])}
        unversioned = {name for name in plain if name.lower().startswith(stem.lower()[:5])}
        build(libraries / soname, soname, versions, unversioned)


def build(path: Path, soname: str, versions: dict[str, set[str]], unversioned: set[str]) -> None:
    """A shared library whose functions do nothing."""
    names = sorted(unversioned.union(*versions.values()))
    source = path.with_suffix(".c")
    source.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in names))
    script = path.with_suffix(".map")
    script.write_text(
        "".join(
            f"{tag} {{ {''.join(f'{name};' for name in sorted(found))} }};\n"
            for tag, found in versions.items()
        )
    )
    options = [f"-Wl,--version-script={script}"] if versions else []
    run(
        "gcc", "-w", "-shared", "-fPIC", "-fno-builtin", f"-Wl,-soname,{soname}", *options, "-o", path, source
    )
    source.unlink()
    script.unlink()


def readelf(option: str, library: Path) -> str:
    return subprocess.run(
        ["readelf", "--wide", option, library], check=True, capture_output=True, text=True
    ).stdout


def run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True)


def main(version: str, *options: str) -> int:
    python = environment(version)
    return subprocess.call([python, "-m", "pytest", *(options or TESTS)], cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
