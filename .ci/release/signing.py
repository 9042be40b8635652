"""Checksums of a release, and their signature with an SSH key."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from release.errors import ReleaseError
from release.sbom import sha256_of

SUMS = "SHA256SUMS"
SIGNATURE = f"{SUMS}.sig"
NAMESPACE = "delaymq-release"
"""The signature is valid for this purpose only: a key may also sign commits."""
SIGN_TIMEOUT_S = 300
"""Includes the time to enter a passphrase, or to touch a security key."""


def write_checksums(folder: Path) -> None:
    """Write `SHA256SUMS` over all files of a release, by name. A former signature is removed."""
    (folder / SIGNATURE).unlink(missing_ok=True)
    names = sorted(path.name for path in folder.iterdir() if path.name != SUMS)
    (folder / SUMS).write_text("".join(f"{sha256_of(folder / name)}  {name}\n" for name in names))


def check_key(key: Path, folder: Path) -> None:
    """Raise ReleaseError if a key cannot sign, before anything is built."""
    if not key.is_file():
        raise ReleaseError(f"the key {key} is missing: set SIGN_KEY to the path of an SSH private key")
    if not os.access(key, os.R_OK):
        raise ReleaseError(f"the key {key} cannot be read: correct its permissions")
    if key.resolve().is_relative_to(folder.resolve()):
        raise ReleaseError(f"the key {key} is in the folder of the release, which is deleted first: move the key")
    if shutil.which("ssh-keygen") is None:
        raise ReleaseError("ssh-keygen is missing, which makes the signature: install OpenSSH 8.0 or newer")


def sign(folder: Path, key: Path) -> None:
    """Write `SHA256SUMS.sig`. ssh-keygen requests the passphrase of a protected key. Raises ReleaseError."""
    check_key(key, folder)
    (folder / SIGNATURE).unlink(missing_ok=True)
    _keygen(["sign", "-f", str(key), str(folder / SUMS)], f"the key {key} cannot sign")
    _keygen(["check-novalidate", "-s", str(folder / SIGNATURE)], "the signature is not valid", folder / SUMS)


def _keygen(arguments: list[str], problem: str, stdin: Path | None = None) -> None:
    action, *others = arguments
    command = ["ssh-keygen", "-Y", action, "-n", NAMESPACE, *others]
    with open(stdin or os.devnull, "rb") as content:
        try:
            done = subprocess.run(
                command, stdin=content, capture_output=True, text=True, timeout=SIGN_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ReleaseError(f"{problem}: ssh-keygen did not end within {SIGN_TIMEOUT_S} s") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[-300:] or "no output"
        raise ReleaseError(f"{problem} ({said}): use an SSH private key, such as one made by ssh-keygen -t ed25519")
