"""`streamgauge completion SHELL`: print the code that completes commands and flags in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_STREAMGAUGE_COMPLETE"
"""Environment variable by which the shell asks the command for completions."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> int:
    """Print the completion code of a shell.

    \b
    bash  streamgauge completion bash > ~/.local/share/bash-completion/completions/streamgauge
    zsh   streamgauge completion zsh > "${fpath[1]}/_streamgauge"
    fish  streamgauge completion fish > ~/.config/fish/completions/streamgauge.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "streamgauge", VARIABLE).source())
    return 0
