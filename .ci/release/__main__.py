"""`python -m release`: the steps of `make release` and `make release-images` after the wheels have been built."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from release import chart, images, signing
from release.errors import ReleaseError
from release.pins import ROOT
from release.sbom import SUFFIX, Writer

LATEST_S = 0o77777777777
"""Latest time in an archive of the format ustar."""


def main() -> int:
    """Run one step. An error is one line, and exit code 1."""
    parser = argparse.ArgumentParser(prog="python -m release", description="Steps of a release.")
    parser.add_argument("folder", type=Path, help="folder of the release")
    steps = parser.add_subparsers(dest="step", required=True)
    for name, summary in (("check", "check the arguments of the other steps"), ("images", "build the images")):
        step = steps.add_parser(name, help=summary)
        step.add_argument("--base-image", required=name == "images", help="NAME@sha256:DIGEST of the base image")
        step.add_argument("--build-image", required=name == "images", help="NAME@sha256:DIGEST for the build stages")
        step.add_argument("--flags", default="", help="further flags of docker build")
        step.add_argument("--sign-key", default="", help="path of an SSH private key")
    steps.add_parser("files", help="write the chart and the bills of materials of the wheels")
    sealing = steps.add_parser("seal", help="write the checksums, and sign them")
    sealing.add_argument("--sign-key", default="", help="path of an SSH private key")
    try:
        _run(parser.parse_args())
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: the release cannot be written: {error}", file=sys.stderr)
        return 1
    return 0


def _run(arguments: argparse.Namespace) -> None:
    folder: Path = arguments.folder
    match arguments.step:
        case "check":
            _check(arguments)
        case "files":
            epoch_s = _epoch_s()
            writer = Writer.of(ROOT, epoch_s)
            wheels = sorted(folder.glob("*.whl"))
            for wheel in wheels:
                wheel.with_name(wheel.name + SUFFIX).write_text(writer.of_wheel(wheel, wheels))
            chart.pack(folder, epoch_s)
        case "images":
            bases = (arguments.base_image, arguments.build_image)
            images.build_images(folder, Writer.of(ROOT, _epoch_s()), bases, _flags(arguments.flags))
        case "seal":
            signing.write_checksums(folder)
            print((folder / signing.SUMS).read_text(), end="")
            if arguments.sign_key:
                signing.sign(folder, Path(arguments.sign_key))
                print(f"Signed: {folder / signing.SIGNATURE}")
            else:
                print("Not signed: set SIGN_KEY to the path of an SSH private key to sign SHA256SUMS.")


def _check(arguments: argparse.Namespace) -> None:
    if arguments.base_image is not None:
        images.base_of(arguments.base_image, "BASE_IMAGE")
        images.base_of(arguments.build_image or "", "BUILD_IMAGE")
        _flags(arguments.flags)
        images.revision()
    if arguments.sign_key:
        signing.check_key(Path(arguments.sign_key), arguments.folder)


def _flags(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ReleaseError(f"DOCKER_FLAGS={text!r} cannot be split ({error}): close the quotation") from error


def _epoch_s() -> int:
    text = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not (text.isascii() and text.isdigit() and int(text[:12]) <= LATEST_S):
        raise ReleaseError(f"SOURCE_DATE_EPOCH={text!r} is not a time in seconds since 1970: use that of the commit")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
