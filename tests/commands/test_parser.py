"""Wrong use in the form of all messages, and what was probably meant."""

from __future__ import annotations

import pytest

from tests.commands.test_cli import run


@pytest.mark.parametrize(
    ("arguments", "message", "see"),
    [
        (["optimise", "in.pb"], "there is no verb 'optimise'; did you mean optimize?", "disc-tf"),
        (["transmogrify"], "there is no verb 'transmogrify'; there are optimize, inspect,", "disc-tf"),
        (["--versoin"], "unrecognized arguments: --versoin; did you mean --version?", "disc-tf"),
        (["inspect", "in.pb", "--taget=native"], "unrecognized arguments: --taget=native; did you mean --target?", "disc-tf inspect"),
        (["optimize", "in.pb", "--taget", "native"], "unrecognized arguments: --taget native; did you mean --target?", "disc-tf optimize"),
        (["restore", "in.pb", "-o", "out.pb", "--zzz"], "unrecognized arguments: --zzz\n", "disc-tf restore"),
        (["doctor", "now"], "unrecognized arguments: now\n", "disc-tf doctor"),
        (["optimize", "in.pb", "--shape", "1x7"], "argument --shape: '1x7': write it as NAME=EXTENT,NAME=EXTENT", "disc-tf optimize"),
        (["restore", "in.pb"], "the following arguments are required: -o/--output", "disc-tf restore"),
        (["serving", "prepar", "models"], "there is no action 'prepar'; did you mean prepare?", "disc-tf serving"),
        (["serving", "prepare", "m", "--to", "n", "--kep", "1"], "--kep 1; did you mean --keep?", "disc-tf serving prepare"),
        (["completion", "bahs"], "invalid choice: 'bahs'", "disc-tf completion"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_wrong_use(arguments: list[str], message: str, see: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    said = capsys.readouterr()
    assert said.err.startswith("disc-tf: ") and message in said.err and not said.out
    assert said.err.splitlines()[1:] == [f"see {see} --help"]
