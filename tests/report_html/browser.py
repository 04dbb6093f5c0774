"""A headless browser, if this machine has one: Chromium prints the page's DOM after its scripts ran."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def dom(browser: str, page: Path, profile: Path, fragment: str = "") -> str:
    """The document as HTML after loading ``page``."""
    return _run(browser, profile, "--dump-dom", f"{page.as_uri()}{fragment}")


def screenshot(browser: str, page: Path, profile: Path, picture: Path, size: tuple[int, int] = (1200, 2400)) -> None:
    _run(browser, profile, f"--screenshot={picture}", f"--window-size={size[0]},{size[1]}", page.as_uri())


def _run(browser: str, profile: Path, *arguments: str) -> str:
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000", f"--user-data-dir={profile}"]
    return subprocess.run([browser, *flags, *arguments], capture_output=True, text=True, check=True, timeout=120).stdout
