"""`python -m ddpjob_trainer.handout FOLDER`: put the trainer where an image that lacks it finds it.

Why apart: the init container of a job whose image is not ours runs this, in the operator's image. What is handed out is
standard library only, so nothing of it can stand before a package of the image.
"""

import shutil
import sys
from pathlib import Path

import ddpjob_api
from ddpjob_api.messages import PROTOCOL
from ddpjob_api.names import CODE_LIBRARY


def hand_out(folder: Path) -> None:
    """Copy the packages below `folder`/lib, and what starts them beside it; all readable by any user.

    Raises:
        OSError: the folder cannot be written.
    """
    ours = Path(__file__).resolve().parent
    library = folder / CODE_LIBRARY
    no_caches = shutil.ignore_patterns("__pycache__", "*.pyc")
    for package in (Path(ddpjob_api.__file__).resolve().parent, ours):
        shutil.copytree(package, library / package.name, ignore=no_caches, dirs_exist_ok=True)
    for entry in (ours / "entry").iterdir():
        if entry.is_file():
            shutil.copyfile(entry, folder / entry.name)
    (folder / "protocol").write_text(f"{PROTOCOL}\n")
    # Made by one user, read by another: nothing depends on the umask here.
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.suffix == ".sh" else 0o644)


if __name__ == "__main__":
    hand_out(Path(sys.argv[1]))
