"""Start the launcher with the Python of an image that is not ours.

Runs isolated (`-I`), so that no module of the workspace or of PYTHONPATH stands before one that the launcher needs. Its
children get PYTHONPATH with our packages, which are two names and nothing else.
Must not: need more than any Python before it has looked at the version.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def refuse_version() -> None:
    import json

    words = (
        "the image's Python, {}, is {}.{}; DDPJob needs 3.11 or newer: use another image, or name another Python of "
        "it in spec.python"
    ).format(sys.executable, *sys.version_info[:2])
    sys.stderr.write("[ddpjob] refused: " + words + "\n")
    with open(os.path.join(HERE, "protocol")) as file:
        protocol = int(file.read())
    numbers = {
        "node": "NODE_INDEX",
        "generation": "GENERATION",
        "restarts": "RESTARTS",
        "disruptions": "DISRUPTIONS",
    }
    known = {name: int(os.environ["DDPJOB_" + variable]) for name, variable in numbers.items()}
    message = {
        "protocol": protocol,
        "outcome": "Refused",
        "exitCode": 86,
        "term": 0,
        "message": words,
        **known,
    }
    with open(os.environ.get("DDPJOB_TERMINATION_LOG", "/dev/termination-log"), "w") as file:
        json.dump(message, file)
    sys.exit(86)


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036 - any Python may run this
        refuse_version()
    library = os.path.join(HERE, "lib")
    sys.path.insert(0, library)
    given = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = library + (os.pathsep + given if given else "")
    import runpy

    runpy.run_module("ddpjob_trainer.launcher", run_name="__main__", alter_sys=True)
