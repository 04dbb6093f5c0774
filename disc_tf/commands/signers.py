"""Who signed the code of an optimised graph or model, for the verbs that look at one; and the trust files of those that run one.

Nothing here loads code. What is refused where code is loaded is `disc_tf.runtime.set_trust`'s business.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from disc_tf.commands.common import USAGE, VERIFY_FAILED, CommandError
from disc_tf.frontend.rewrite import launch_nodes
from disc_tf.runtime.artifact import Artifact, ArtifactError, unpack

#: said wherever a signature is shown
ORIGIN = "a signature proves where code comes from, not that it is safe"
#: what there is instead of one
UNSIGNED = "not signed"
#: the setting of the runtime
VARIABLE = "DISC_TF_TRUST"


def add_trust_argument(parser: Any, *, loads: bool) -> None:
    """``--trust-file`` of a verb that loads code, or of one that looks at it."""
    what = "load only code that one of these keys signed (docs/service.md; default: DISC_TF_TRUST)"
    look = "refuse code that none of these keys signed (docs/service.md)"
    parser.add_argument("--trust-file", metavar="FILE", default="", help=what if loads else look)


def set_trust(file: str) -> None:
    """What ``--trust-file`` asks of a verb that loads code; "": nothing. `CommandError` if the file cannot be used."""
    if not file:
        return
    from disc_tf.runtime import DiscError
    from disc_tf.runtime import set_trust as set_

    try:
        set_(file)
    except DiscError as e:
        raise CommandError(f"--trust-file: {e.message}", USAGE) from e


def refuse_local_code(remote: str = "") -> None:
    """`CommandError` where a policy is in force and this machine would compile: what it makes cannot be run to verify it."""
    if (policy := os.environ.get(VARIABLE)) and not remote:
        raise CommandError(
            f"{VARIABLE}={policy} is set, and nobody signs what is compiled here, so it cannot be run to verify it: "
            "give --remote HOST:PORT of a service that signs, or unset it for this command",
            USAGE,
        )


class Signers:
    """What signatures say, checked against a trust file if there is one. `CommandError` if the file cannot be used."""

    def __init__(self, trust_file: str) -> None:
        self._policy, self._file = None, trust_file
        if trust_file:
            from disc_tf.remote.trust import TrustError, TrustPolicy

            try:
                self._policy = TrustPolicy.from_file(trust_file)
            except TrustError as e:
                raise CommandError(f"--trust-file: {e}", USAGE) from e

    def of(self, message: Any) -> dict[str, dict[str, Any]]:
        """What `describe` finds of each launch of a GraphDef or SavedModel message, by `launch_nodes`' name."""
        return {name: self.describe(node.attr["executable"].s) for name, node in launch_nodes(message)}

    def describe(self, data: bytes) -> dict[str, Any]:
        """``signature``: who says to have signed; ``trusted``: None where nothing was checked; ``why``: why it is not."""
        try:
            artifact: Artifact = unpack(data)
        except ArtifactError as e:
            return {"signature": f"cannot be read: {e}", "trusted": None if self._policy is None else False, "why": str(e)}
        return self.describe_artifact(artifact)

    def describe_artifact(self, artifact: Artifact) -> dict[str, Any]:
        """`describe` of an artefact that was read, such as a stand-alone file's."""
        from disc_tf.remote.trust import TrustError, describe_signature

        signature = UNSIGNED if artifact.signed is None else describe_signature(artifact.signed)
        found: dict[str, Any] = {"signature": signature, "trusted": None, "why": ""}
        if self._policy is not None:
            try:
                self._policy.check_code(artifact)
                found["trusted"] = True
            except TrustError as e:
                found |= {"trusted": False, "why": str(e)}
        return found

    def text(self, found: dict[str, Any]) -> str:
        """One line of what `describe` found."""
        if found["trusted"] is None:
            return found["signature"] + ("" if found["signature"] == UNSIGNED else " (not checked: give --trust-file)")
        return f"{found['signature']}, by {self._file}" if found["trusted"] else f"NOT TRUSTED: {found['why']}"

    def require(self, path: str, found: dict[str, dict[str, Any]]) -> None:
        """`CommandError` for the first launch that the trust file does not cover; ``found``: what `of` found."""
        for name, one in found.items():
            if one["trusted"] is False:
                raise CommandError(f"{path}: {name} is not trusted: {one['why']}", VERIFY_FAILED)


def signers_of(path: str, trust_file: str) -> tuple[Signers, dict[str, dict[str, Any]]]:
    """Of all launches of a GraphDef's file or a SavedModel's directory, by node. `CommandError`."""
    from disc_tf.commands.common import read_graph
    from disc_tf.frontend.saved_model import SavedModelError, read_saved_model

    signers = Signers(trust_file)
    try:
        message = read_saved_model(path) if Path(path).is_dir() else read_graph(path)
    except SavedModelError as e:
        raise CommandError(str(e)) from e
    return signers, signers.of(message)


def summary(signers: Signers, found: dict[str, dict[str, Any]]) -> list[str]:
    """Lines for people: each thing that is said, with how many launches it is said of."""
    texts = [signers.text(one) for one in found.values()]
    lines = [f"native code of {texts.count(t)} launches: {t}" for t in dict.fromkeys(texts)]
    return lines + [ORIGIN] * any(one["signature"] != UNSIGNED for one in found.values())
