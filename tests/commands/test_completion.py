"""Completion scripts: run in a real shell where there is one, and never behind the parser."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from disc_tf.cli import VERBS, build_parser, main
from disc_tf.commands.completion import SHELLS, commands

needs = {s: pytest.mark.skipif(shutil.which(s) is None, reason=f"there is no {s}") for s in SHELLS}


@pytest.fixture
def scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Path]:
    found = {}
    for shell in SHELLS:
        capsys.readouterr()
        assert main(["completion", shell]) == 0
        found[shell] = tmp_path / f"disc-tf.{shell}"
        found[shell].write_text(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("shell", SHELLS)
def test_every_flag_is_there(scripts: dict[str, Path], shell: str) -> None:
    text = scripts[shell].read_text()
    for command in commands(build_parser()):
        for flag in command.flags:
            for name in flag.names:
                spelled = f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                assert (spelled if shell == "fish" else name) in text
    assert all(verb in text for verb in VERBS)


CASES = [
    (["disc-tf", "opt"], {"optimize"}),
    (["disc-tf", ""], set(VERBS)),
    (["disc-tf", "--ver"], {"--version"}),
    (["disc-tf", "bench", "a.pb", "--cs"], {"--csv"}),
    (["disc-tf", "optimize", "in.pb", "--no-"], {"--no-verify", "--no-timing", "--no-use-tf-shapes"}),
    (["disc-tf", "optimize", "--target", "x86-64-v"], {"x86-64-v2", "x86-64-v3", "x86-64-v4"}),
    (["disc-tf", "optimize", "--points", ""], set()),
    (["disc-tf", "completion", "z"], {"zsh"}),
    (["disc-tf", "inspect", "--report", "gra"], {"graph.pb", "graph with space.pb"}),
    (["disc-tf", "restore", "gra"], {"graph.pb", "graph with space.pb"}),
    (["disc-tf", "restore", "--nonsense"], set()),
]


@needs["bash"]
@pytest.mark.parametrize(("words", "wanted"), CASES, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_bash(scripts: dict[str, Path], tmp_path: Path, words: list[str], wanted: set[str]) -> None:
    for name in ("graph.pb", "graph with space.pb"):
        (tmp_path / name).touch()
    spelled = " ".join(map(shlex.quote, words))
    script = f"source {scripts['bash']}; COMP_WORDS=({spelled}); COMP_CWORD={len(words) - 1}; _disc_tf"
    script += "; printf '%s\\n' \"${COMPREPLY[@]}\""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=30)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert set(done.stdout.splitlines()) - {""} == wanted


@needs["zsh"]
def test_zsh_reads_it(scripts: dict[str, Path]) -> None:
    script = f"autoload -U compinit; compinit -D; source {scripts['zsh']}"
    done = subprocess.run(["zsh", "-fc", script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and not done.stderr, done.stderr


@needs["fish"]
@pytest.mark.parametrize(("words", "wanted"), [CASES[i] for i in (0, 3, 5, 7)], ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_fish(scripts: dict[str, Path], tmp_path: Path, words: list[str], wanted: set[str]) -> None:
    line = " ".join(words)
    script = f"source {scripts['fish']}; complete -C {shlex.quote(line)}"
    home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["fish", "--no-config", "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=30, env=home)
    assert done.returncode == 0, done.stderr
    assert {x.split("\t")[0] for x in done.stdout.splitlines()} == wanted


def test_a_shell_that_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["completion", "csh"])
    assert "bash" in capsys.readouterr().err


def test_every_verb_has_examples_and_json() -> None:
    """Verbs that run on without a result, or whose result is a script, have no JSON."""
    for command in commands(build_parser()):
        if not command.words or command.inner:
            continue
        flags = {n for f in command.flags for n in f.names}
        assert "--json" in flags or command.words[0] in ("serve", "serving", "completion"), command.words
    for name, verb in VERBS.items():
        assert verb.epilog.startswith("examples:\n  disc-tf ") or name == "completion", name
