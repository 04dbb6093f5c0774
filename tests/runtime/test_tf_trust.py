"""DiscLaunch under a trust file: what is not signed is never loaded, and the error says which node and why."""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disc_tf import ops
from disc_tf.cli import main
from disc_tf.runtime import counters, library_path, pack
from tests.runtime import toy
from tests.runtime.signed import Keys, trusting
from tests.runtime.test_identity import change
from tests.runtime.test_tf_op import _CONCRETE, _check, _launch, _values, tf


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


def test_eager_and_functions(keys: Keys) -> None:
    w, n, x = _values()
    good = pack(keys.signed(toy.artifact(name="good")))
    bad = pack(toy.artifact(name="bad"))
    images = counters()["images_loaded"]
    with trusting(keys.trust):
        _check(_launch(w, n, x, good), w, n, x)

        @tf.function
        def f(executable: Any) -> Any:
            return _launch(w, n, x, executable)

        _check(f(good), w, n, x)
        for call in (_launch, lambda w, n, x, data: f(data)):
            with pytest.raises(tf.errors.PermissionDeniedError, match=r"DiscLaunch \S+: bad: the code is not signed, but the trust file"):
                call(w, n, x, bad)
    assert counters()["images_loaded"] == images + 1


def test_sessions_name_the_node(keys: Keys) -> None:
    """Also where grappler would run the node before: it is refused there, and named when the graph runs."""
    w, n, x = _values()
    changed = change("checks.0.code", 9, keys.signed(toy.artifact(name="changed")))
    with tf.Graph().as_default() as graph, trusting(keys.trust):
        _CONCRETE.add_to_graph(graph)
        with tf.name_scope("tower"):
            outs = _launch(tf.constant(w), tf.constant(n), tf.constant(x), pack(changed))
        with tf.compat.v1.Session() as session, pytest.raises(tf.errors.PermissionDeniedError) as e:
            session.run(outs)
    assert "tower/DiscLaunch" in e.value.message and "changed: the signature of key '2026-11' is for other code" in e.value.message


def test_a_saved_model_keeps_its_signature(keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Saved, loaded, saved again by TensorFlow."""
    good = pack(keys.signed(toy.artifact(name="saved")))
    w, n, x = _values()

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([], tf.int64), tf.TensorSpec([None, None])])
        def serve(self, n: Any, x: Any) -> Any:
            return _launch(w, n, x, good)

    tf.saved_model.save(Model(), str(tmp_path / "1"))
    tf.saved_model.save(tf.saved_model.load(str(tmp_path / "1")), str(tmp_path / "2"))
    assert main(["inspect", str(tmp_path / "2")]) == 0
    assert "signed with key '2026-11' until" in capsys.readouterr().out
    with trusting(keys.trust):
        _check(tf.saved_model.load(str(tmp_path / "2")).serve(n, x), w, n, x)
    keys.trust.write_text(keys.trust.read_text() + "revoked = true\n")
    with trusting(keys.trust), pytest.raises(tf.errors.PermissionDeniedError, match="is revoked"):
        tf.saved_model.load(str(tmp_path / "2")).serve(n, x)
    assert main(["inspect", str(tmp_path / "2"), "--trust-file", str(keys.trust)]) == 5
    assert "DiscLaunch is not trusted: signed with key '2026-11', which is revoked" in capsys.readouterr().err


def test_threads_that_make_kernels_at_once(keys: Keys) -> None:
    w, n, x = _values()
    good, bad = pack(keys.signed(toy.artifact(name="g"))), pack(toy.artifact(name="b"))
    found: list[bool] = []

    def work() -> None:
        for _ in range(5):
            with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
                _CONCRETE.add_to_graph(graph)
                _check(session.run(_launch(tf.constant(w), tf.constant(n), tf.constant(x), good)), w, n, x)
                with pytest.raises(tf.errors.PermissionDeniedError):
                    session.run(_launch(tf.constant(w), tf.constant(n), tf.constant(x), bad))
                found.append(True)

    with trusting(keys.trust):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert len(found) == 15


def test_libcrypto_beside_tensorflow(keys: Keys) -> None:
    """TensorFlow has BoringSSL inside, Python its own OpenSSL: all go on working."""
    w, n, x = _values()
    with trusting(keys.trust):
        _check(_launch(w, n, x, pack(keys.signed(toy.artifact(name="beside")))), w, n, x)
    with open("/proc/self/maps") as maps:
        assert "libcrypto.so" in maps.read()
    assert ssl.create_default_context().get_ciphers()
    assert hashlib.sha256(b"abc").hexdigest().startswith("ba7816bf")


_PROGRAM = r"""
#include <dlfcn.h>
#include <stdio.h>
#include "disc_ral.h"

int main(int argc, char** argv) { /* TensorFlow's library, the runtime's, a trust file, artefacts */
  void* tensorflow = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL); /* as in a program that is linked with it */
  void* runtime = dlopen(argv[2], RTLD_NOW);
  if (!tensorflow || !runtime) return printf("%s\n", dlerror()), 3;
  disc_exec* (*load)(const void*, size_t) = (disc_exec * (*)(const void*, size_t)) dlsym(runtime, "disc_load");
  int32_t (*set_trust)(const char*) = (int32_t(*)(const char*))dlsym(runtime, "disc_set_trust");
  const char* (*error)(void) = (const char* (*)(void))dlsym(runtime, "disc_last_error");
  if (!dlsym(RTLD_DEFAULT, "EVP_DigestVerify")) printf("no BoringSSL here: ");
  if (set_trust(argv[3])) return printf("%s\n", error()), 3;
  for (int i = 4; i < argc; ++i) {
    static char data[1 << 20];
    FILE* file = fopen(argv[i], "rb");
    size_t size = fread(data, 1, sizeof(data), file);
    fclose(file);
    printf("%s\n", load(data, size) ? "loaded" : error());
  }
  return 0;
}
"""


def test_in_a_program_that_is_linked_with_tensorflow(keys: Keys, tmp_path: Path) -> None:
    """There BoringSSL's functions are the process's, by the names of libcrypto's: libcrypto must not call them."""
    (tmp_path / "main.c").write_text(_PROGRAM)
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or "cc"
    include = Path(toy.__file__).parents[2] / "disc_tf" / "runtime" / "ral" / "include"
    program = str(tmp_path / "main")
    subprocess.run([compiler, "-std=gnu11", f"-I{include}", str(tmp_path / "main.c"), "-o", program, "-ldl"], check=True)
    good = keys.signed(toy.artifact())
    for name, artifact in {"good": good, "unsigned": toy.artifact(), "changed": change("checks.0.code", 9, good)}.items():
        (tmp_path / name).write_bytes(pack(artifact))
    framework = Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2"
    command = [program, str(framework), str(library_path()), str(keys.trust), *(str(tmp_path / n) for n in ("good", "unsigned", "changed"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr[-500:])
    first, second, third = done.stdout.splitlines()
    assert first == "loaded" and "is not signed" in second and "is for other code" in third


def test_jit_stays_in_tensorflow(keys: Keys) -> None:
    import disc_tf
    from disc_tf.just_in_time import JitWarning

    @disc_tf.jit(background=False, cache_dir=None)
    def f(x: Any) -> Any:
        return tf.nn.softmax(x * 2.0)

    with trusting(keys.trust), pytest.warns(JitWarning, match="is in force, and nobody signs what is compiled here"):
        np.testing.assert_allclose(f(tf.ones([2, 3])), np.full((2, 3), 1 / 3), rtol=1e-6)


def test_the_setting_is_of_the_ops_module(keys: Keys) -> None:
    w, n, x = _values()
    try:
        ops.set_trust(keys.trust)
        with pytest.raises(tf.errors.PermissionDeniedError):
            _launch(w, n, x, pack(toy.artifact(name="first")))
    finally:
        ops.set_trust(None)
    _check(_launch(w, n, x, pack(toy.artifact(name="second"))), w, n, x)
