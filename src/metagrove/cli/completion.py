"""metagrove completion: a script that completes commands, presets, options and files in bash and zsh."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from metagrove.config.own_data import OWN_DATA
from metagrove.config.presets import PRESETS
from metagrove.errors import InputError
from metagrove.tables.settings import TableData

__all__ = ["main"]

ALWAYS = ("--help", "--quiet", "--verbose", "--debug")
OWN = ("--learner", "--clusters", "--steps", "--patience", "--baselines", "--out", "--resume", "--help-all")
TRAIN = ("--learner", "--steps", "--seed", "--out", "--resume")
SCRIPT = """\
_metagrove() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"
    elif [ "$COMP_CWORD" -eq 2 ] && [ "${{COMP_WORDS[1]}}" = train ]; then words="{presets}"; fi
    COMPREPLY=( $(compgen -W "$words" -- "$word") )
}}
complete -o default -F _metagrove metagrove"""
ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def main(args: Sequence[str], commands: Mapping[str, Any]) -> int:
    """Print the script.

    Args:
        args: The shell: bash or zsh.
        commands: The commands by name; a dataclass of options, or None for one that parses its own.

    Returns:
        The exit code.

    Raises:
        InputError: If the shell is another one.
    """
    if list(args) not in (["bash"], ["zsh"]):
        raise InputError('name a shell, bash or zsh, e.g. in ~/.bashrc: eval "$(metagrove completion bash)"')
    print((ZSH if args[0] == "zsh" else "") + script(commands))
    return 0


def script(commands: Mapping[str, Any]) -> str:
    """The bash script; zsh runs it too, by bashcompinit."""
    table = [*options_of(TableData), *OWN]
    options = {name: options_of(cls) for name, cls in commands.items()} | {"train": dict.fromkeys([*TRAIN, *table])}
    cases = [f'        {name}) words="{" ".join([*words, *ALWAYS])}" ;;' for name, words in options.items()]
    presets = " ".join([*OWN_DATA, *PRESETS])
    return SCRIPT.format(cases="\n".join(cases), commands=" ".join(sorted(commands)), presets=presets)


def options_of(cls: Any) -> list[str]:
    """The options of a command, as they are spelt."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return [f"--{field.name.replace('_', '-')}" for field in fields if "Positional" not in str(field.type)]
