"""Typer in Spanish: help pages, and usage errors as one message with exit status 2.

Typer writes both in English and has no translations, so that the pages are laid out here and the errors reworded.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer
from pydantic import ValidationError
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from enlace import EnlaceError, console
from enlace.config.load import similar, wrong

F = TypeVar("F", bound=Callable[..., Any])


class UsageError(EnlaceError):
    """A command line that makes no sense."""

    exit_status = 2

    def __init__(self, message: str, context: Any) -> None:
        super().__init__(f"{message} Cómo se usa: {context.command_path} --help")


class App(typer.Typer):
    """A group of commands; alone, without a command, it prints its help."""

    def __init__(self, help: str) -> None:
        super().__init__(
            help=help,
            cls=_Group,
            callback=_without_command,
            invoke_without_command=True,
            options_metavar="[OPCIONES]",
            subcommand_metavar="ORDEN ...",
            add_completion=False,
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        """As in Typer."""
        return super().command(name, cls=_Command, options_metavar="[OPCIONES]", **settings)

    def run(self) -> None:
        """Run the command line that this process was given; one that makes no sense ends it with status 2."""
        command = get_command(self)
        try:
            with command.make_context("enlace", sys.argv[1:]) as context:
                command.invoke(context)
        except typer.Exit as done:
            sys.exit(done.exit_code)
        except UsageError as error:
            console.fail(str(error), error.exit_status)


class _Command(TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        _write_help(self, ctx, formatter, [])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _usage_errors(ctx):
            return super().parse_args(ctx, args)


class _Group(TyperGroup):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        _write_help(self, ctx, formatter, [(name, c.get_short_help_str(200)) for name, c in self.commands.items()])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _usage_errors(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args[0] not in self.commands:
            raise UsageError(f"No hay orden «{args[0]}»{similar(args[0], list(self.commands))}.", ctx)
        return super().resolve_command(ctx, args)


def _without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(UsageError.exit_status)


def _write_help(command: Any, context: Any, formatter: Any, commands: list[tuple[str, str]]) -> None:
    formatter.write_usage(context.command_path, " ".join(command.collect_usage_pieces(context)), prefix="Uso: ")
    command.format_help_text(context, formatter)
    arguments = [(_name(param), _about(param)) for param in command.params if _is_argument(param)]
    options = [
        (f"{_name(param)} {param.metavar or ''}", _about(param)) for param in command.params if not _is_argument(param)
    ]
    options.append(("--help", "Enseña esta ayuda."))
    for title, rows in (("Argumentos", arguments), ("Opciones", options), ("Órdenes", commands)):
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


def _about(param: Any) -> str:
    hidden = param.default in (None, "") or isinstance(param.default, bool)
    return str(param.help) + ("" if hidden else f" [por defecto: {param.default}]")


def _name(param: Any) -> str:
    return str((param.metavar or param.name) if _is_argument(param) else param.opts[0])


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


@contextmanager
def _usage_errors(context: Any) -> Iterator[None]:
    try:
        yield
    except typer.TyperException as error:
        raise UsageError(_reworded(error, context), context) from None


def _reworded(error: Any, context: Any) -> str:
    """What `error`, raised while reading the arguments of a command, means.

    By the name of its class: Typer keeps these classes to itself.
    """
    params = context.command.get_params(context)
    match type(error).__name__:
        case "MissingParameter":
            return f"Falta {_name(error.param)}."
        case "BadParameter":
            if not isinstance(error.__cause__, ValidationError):
                return f"El valor de {_name(error.param)} no sirve."
            detail = error.__cause__.errors()[0]
            if choices := re.search("is not one of (.+)\\.$", detail["msg"]):
                return (
                    f"{_name(error.param)}={detail['input']}: tiene que ser uno de {choices[1].replace(chr(39), '')}."
                )
            return f"{_name(error.param)}={detail['input']}: {wrong(detail)}."
        case "NoSuchOption":
            name = error.option_name
            have = [option for param in params for option in param.opts]
            return f"No hay opción {name}{similar(name, [o for o in have if o.startswith(name)] or have)}."
        case "BadOptionUsage":
            flag = any(error.option_name in param.opts and getattr(param, "is_flag", False) for param in params)
            return f"{error.option_name} {'no lleva valor' if flag else 'necesita un valor'}."
    return "Sobran argumentos; un texto con espacios va entre comillas."
