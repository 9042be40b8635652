"""Bills of materials (SBOM) of wheels and images, as CycloneDX 1.6 in JSON.

They are derived from the pins, Cargo.lock and the recorded licences. The same files give the same bytes.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.utils import parse_wheel_filename

from release.errors import ReleaseError
from release.licences import Table, read_table
from release.pins import KERNELS, ROOT, Crate, crates, pins_of

SUFFIX = ".cdx.json"
OWN_LICENCE = "Apache-2.0"
OWN_IN_IMAGE: Mapping[str, Sequence[str]] = {
    "broker": ("delaymq", KERNELS),
    "operator": ("delaymq", "delaymq-operator"),
    "spark": ("delaymq", "delaymq-spark"),
}
"""Distributions of this project in each image."""
IMAGE_OF = {"delaymq": "broker", "delaymq-operator": "operator", "delaymq-spark": "spark"}
"""Image with the tested versions of a wheel's dependencies, including those of its extras."""


@dataclass(frozen=True)
class Package:
    """A package of the operating system in an image."""

    name: str
    version: str
    architecture: str


@dataclass(frozen=True)
class Base:
    """Base image: its name, with a tag if it has one, and the digest of its manifest (`sha256:…`)."""

    name: str
    digest: str


@dataclass(frozen=True)
class Writer:
    """Writes bills of materials of one release."""

    table: Table
    created: datetime
    root: Path = ROOT

    @classmethod
    def of(cls, root: Path, epoch_s: int) -> Writer:
        """Return a writer for the tree `root`, with the time of the commit. Raises ReleaseError."""
        return cls(read_table(root), datetime.fromtimestamp(epoch_s, UTC), root)

    def of_wheel(self, wheel: Path, others: Iterable[Path] = ()) -> str:
        """Return the bill of a wheel: the tested versions of all that it may depend on, or the crates of the kernels.

        `others` are the wheels of the same release.
        """
        name, version, _, _ = parse_wheel_filename(wheel.name)
        subject = _own(name, str(version), sha256=sha256_of(wheel))
        bom = self._bom(subject)
        if name == KERNELS:
            self._add_crates(bom, subject)
            return _text(bom)
        parts = self._distributions(IMAGE_OF[name])
        if name != "delaymq":
            (client,) = [other for other in others if parse_wheel_filename(other.name)[0] == "delaymq"]
            parts.append(_own("delaymq", str(parse_wheel_filename(client.name)[1]), sha256=sha256_of(client)))
        _add(bom, subject, parts)
        return _text(bom)

    def of_image(self, image: str, version: str, archive: Path, base: Base, packages: Iterable[Package]) -> str:
        """Return the bill of an image: its distributions, crates and base image, and the packages of its system."""
        subject = Component(
            name=f"delaymq/{image}",
            version=version,
            type=ComponentType.CONTAINER,
            bom_ref=f"delaymq/{image}@{version}",
            hashes=[_sha256(sha256_of(archive))],
            licenses=[LicenseExpression(OWN_LICENCE)],
        )
        bom = self._bom(subject)
        own = {name: _own(name, version) for name in OWN_IN_IMAGE[image]}
        system = [_debian(package) for package in packages]
        _add(bom, subject, [*own.values(), *self._distributions(image), _base(base), *system])
        if KERNELS in own:
            self._add_crates(bom, own[KERNELS])
        return _text(bom)

    def _bom(self, subject: Component) -> Bom:
        return Bom(serial_number=uuid.UUID(int=0), metadata=BomMetaData(component=subject, timestamp=self.created))

    def _distributions(self, image: str) -> list[Component]:
        return [
            _component(
                PackageURL("pypi", name=pin.name, version=pin.version), self.table.python.get(pin.name), pin.hashes
            )
            for pin in pins_of(image, self.root)
        ]

    def _add_crates(self, bom: Bom, kernels: Component) -> None:
        locked = crates(self.root)
        # Cargo.lock names a crate without its version if there is only one.
        components: dict[str, Component] = {}
        for crate in locked:
            component = kernels if crate.name == KERNELS else self._crate(crate)
            components[crate.name] = components[f"{crate.name} {crate.version}"] = component
            if component is not kernels:
                bom.components.add(component)
        for crate in locked:
            parts = [components[name] for name in crate.dependencies]
            bom.register_dependency(components[f"{crate.name} {crate.version}"], parts)

    def _crate(self, crate: Crate) -> Component:
        purl = PackageURL("cargo", name=crate.name, version=crate.version)
        return _component(purl, self.table.crates.get(crate.name), [crate.checksum or ""])


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256(digest: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)


def _component(purl: PackageURL, licence: str | None, hashes: Iterable[str]) -> Component:
    if licence is None:
        raise ReleaseError(f"{purl.name} {purl.version} has no recorded licence: run make check")
    return Component(
        name=purl.name,
        version=purl.version,
        bom_ref=purl.to_string(),
        purl=purl,
        licenses=[LicenseExpression(licence)],
        hashes=[_sha256(digest) for digest in hashes],
    )


def _own(name: str, version: str, sha256: str | None = None) -> Component:
    purl = PackageURL("pypi", name=name, version=version)
    return _component(purl, OWN_LICENCE, [sha256] if sha256 else [])


def _debian(package: Package) -> Component:
    qualifiers = {"arch": package.architecture}
    purl = PackageURL("deb", "debian", package.name, package.version, qualifiers)
    return Component(name=package.name, version=package.version, bom_ref=purl.to_string(), purl=purl)


def _base(base: Base) -> Component:
    name = base.name.rpartition("/")[2].partition(":")[0]
    return Component(
        name=base.name,
        version=base.digest,
        type=ComponentType.CONTAINER,
        bom_ref=f"{base.name}@{base.digest}",
        purl=PackageURL("oci", name=name, version=base.digest),
        hashes=[_sha256(base.digest.removeprefix("sha256:"))],
    )


def _add(bom: Bom, subject: Component, parts: Sequence[Component]) -> None:
    """Add components on which `subject` depends. The pins are flat, so it depends on all of them."""
    for part in parts:
        bom.components.add(part)
    bom.register_dependency(subject, parts)


def _text(bom: Bom) -> str:
    """Return the bill with a serial number derived from its content. Raises ReleaseError if it violates the schema."""
    content = JsonV1Dot6(bom).output_as_string()
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, hashlib.sha256(content.encode()).hexdigest())
    text = JsonV1Dot6(bom).output_as_string(indent=2) + "\n"
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ReleaseError(f"a bill of materials violates the schema of CycloneDX: {str(error)[:500]}")
    return text
