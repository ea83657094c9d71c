"""Click options made from the settings, and errors turned into one line and an exit code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import click

from trainer.config import OptionSpec, TrainSettings, option_specs
from trainer.errors import ConfigError, ResumeError, TrainerError
from trainer.state import store_exit_code

P = ParamSpec("P")


class Damaged(click.ClickException):
    """Bytes on disk are not what was written."""

    exit_code = 4


class Failed(click.ClickException):
    """It could not be done; nothing was lost."""

    exit_code = 8


class Refused(click.ClickException):
    """The call is wrong."""

    exit_code = 16


_BY_EXIT_CODE = {kind.exit_code: kind for kind in (Damaged, Failed, Refused)}


def settings_options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Options for the named settings (all without names), passed on as keyword arguments."""
    specs = [spec for spec in option_specs() if not names or spec.name in names]

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for spec in reversed(specs):
            command = _option(spec)(command)
        return command

    return add


def make_settings(values: dict[str, Any]) -> TrainSettings:
    """Settings out of a command's arguments; what it does not take keeps its default."""
    names = {field.name for field in dataclasses.fields(TrainSettings)}
    return TrainSettings(**{name: value for name, value in values.items() if name in names})


def reported(command: Callable[P, None]) -> Callable[P, None]:
    """One line and an exit code for every error that trainer or store raise on purpose."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (ConfigError, ResumeError) as error:
            raise Refused(str(error)) from error
        except TrainerError as error:
            raise Failed(str(error)) from error
        except Exception as error:
            code = store_exit_code(error)
            if code is None:
                raise
            raise _BY_EXIT_CODE[code](str(error)) from error

    return run


def _option(spec: OptionSpec) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    names = [spec.flag, spec.name]
    if spec.kind is bool:
        names[0] = f"{spec.flag}/{spec.negative_flag}" if spec.negative_flag else spec.flag
        return click.option(
            *names, is_flag=True, default=spec.default, help=spec.help, show_default=True
        )
    kind: Any = click.Path(path_type=Path) if spec.kind is Path else spec.kind
    if spec.choices:
        kind = click.Choice(spec.choices)
    return click.option(
        *names, type=kind, default=spec.default, help=spec.help, show_default=not spec.optional
    )
