"""From `spec.task.entrypoint` to a Task that the loop can train, or a sentence that says why not.

Why apart: everything a user can get wrong in a task is found here, before a process group is used. Must not: wrap,
move or train anything.
"""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.utils.data import IterableDataset

from ddpjob_trainer.errors import Refused
from ddpjob_trainer.loop.seeds import derive, seed_host
from ddpjob_trainer.task import Evaluation, Task


def make_task(entrypoint: str, params: Mapping[str, Any], seed: int) -> Task:
    """The task, made under the seed, so that every rank has the same model.

    Raises:
        Refused: it cannot be imported, called, or is no Task.
    """
    function = imported(entrypoint)
    check_params(entrypoint, function, params)
    seed_host(derive(seed, "model"))
    task = function(**params)
    if not isinstance(task, Task):
        raise Refused(
            f"spec.task.entrypoint {entrypoint} returned {kind(task)}; expected a ddpjob_trainer.task.Task"
        )
    check_task(entrypoint, task)
    return task


def imported(entrypoint: str) -> Any:
    module_name, _, name = entrypoint.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            # The module is there, and something that it imports is not: its own traceback says more.
            raise
        raise Refused(
            f"spec.task.entrypoint {entrypoint}: there is no module {error.name} here; put it into the image or the "
            "workspace (its folder is the working directory), or correct the name"
        ) from None
    function = getattr(module, name, None)
    if function is None:
        known = [each for each, value in vars(module).items() if inspect.isfunction(value) and each[0] != "_"]
        raise Refused(
            f"spec.task.entrypoint {entrypoint}: module {module_name} has no {name}; "
            f"it has {', '.join(known) or 'no functions'}"
        )
    if not callable(function):
        raise Refused(
            f"spec.task.entrypoint {entrypoint} is {kind(function)}; expected a callable returning a Task"
        )
    return function


def check_params(entrypoint: str, function: Any, params: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(**params)
    except TypeError as error:
        raise Refused(
            f"spec.task.params do not fit {entrypoint}{signature}: {error}; give what it asks for, by its names"
        ) from None


def check_task(entrypoint: str, given: Task) -> None:
    """Refuse what would only fail deep inside torch. Dataclasses do not look at types, so this does."""
    task: Any = given
    wrong = None
    if not isinstance(task.model, nn.Module):
        wrong = f"model is {kind(task.model)}; expected an nn.Module"
    elif not any(parameter.requires_grad for parameter in task.model.parameters()):
        wrong = "model has no parameter that requires a gradient, so there is nothing to train"
    elif not callable(task.loss):
        wrong = f"loss is {kind(task.loss)}; expected a function loss(model, batch) -> (loss_sum, count)"
    elif task.evaluate is not None and not isinstance(task.evaluate, Evaluation):
        wrong = f"evaluate is {kind(task.evaluate)}; expected a ddpjob_trainer.task.Evaluation"
    elif task.clip_norm is not None and not task.clip_norm > 0:
        wrong = f"clip_norm is {task.clip_norm}; expected a number above 0, or None"
    else:
        wrong = dataset_problem("train_dataset", task.train_dataset)
        if wrong is None and task.evaluate is not None:
            wrong = dataset_problem("evaluate.dataset", task.evaluate.dataset)
    if wrong is not None:
        raise Refused(f"{entrypoint}: Task.{wrong}")


def dataset_problem(name: str, dataset: Any) -> str | None:
    if isinstance(dataset, IterableDataset) or not (
        hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    ):
        return (
            f"{name} is {kind(dataset)}; expected a map-style dataset with len() and [index], because the loop decides "
            "the order and can go on from any sample"
        )
    if len(dataset) == 0:
        return f"{name} is empty; nothing can be learned from it"
    return None


def kind(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
