"""The Go programs, compiled from modules whose checksums are in this repository (``go/*/go.sum``).

Each artifact is a folder with the programs under their usual names.
"""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from cluster.artifacts import Artifact
from cluster.commands import Log, output_of, run
from cluster.errors import ClusterError
from cluster.paths import GO_SOURCES_PATH, go_path

KUBERNETES_VERSION = "v1.34.4"
ETCD_VERSION = "3.6.5"
HELM_VERSION = "v3.19.5"
KIND_VERSION = "v0.32.0"
SPARK_OPERATOR_VERSION = "v2.4.0"

GO_VERSION = (1, 24)
BUILD_TIMEOUT_S = 3600
"""All of Kubernetes takes 5 minutes on two free cores and 13 on two busy ones."""

KUBERNETES_PROGRAMS = (
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet",
    "kubectl", "kubeadm", "crictl",
)  # fmt: skip


def why_no_go(version: tuple[int, int] = GO_VERSION) -> str | None:
    """Return a sentence if there is no Go compiler of at least this version, otherwise None."""
    needed = ".".join(map(str, version))
    found = output_of(["go", "env", "GOVERSION"])
    if not found:
        return f"Go cannot be found: install Go {needed} or newer (https://go.dev/dl)"
    numbers = re.match(r"go(\d+)\.(\d+)", found)
    if numbers and (int(numbers[1]), int(numbers[2])) < version:
        return f"{found} is too old: install Go {needed} or newer (https://go.dev/dl)"
    return None


def go_environment(*, modules: str = "readonly") -> dict[str, str]:
    """Return an environment with separate modules and compiled packages, which can be deleted after the build.

    The folder for temporary files is separate too: a killed compiler leaves some hundred megabytes there.
    Without debugging information, which is stripped anyway, and without garbage collection below 3 GiB, compilation
    takes a sixth less time.
    """
    temporary = go_path() / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    return os.environ | {
        "GOMODCACHE": str(go_path() / "mod"),
        "GOCACHE": str(go_path() / "build"),
        "GOTMPDIR": str(temporary),
        "GOFLAGS": f"-buildvcs=false -mod={modules} -modcacherw -gcflags=all=-dwarf=false",
        "GOGC": "off",
        "GOMEMLIMIT": "3GiB",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "CGO_ENABLED": "0",
    }


@dataclass(frozen=True)
class Program:
    """One Go build."""

    module: str
    """Folder below ``go/``."""
    package: str
    """Import path, or a path in the module."""
    binary: str
    variables: tuple[str, ...] = ()
    """Variables set by the linker: ``import/path.name=value``."""

    def build(self, target: Path) -> None:
        if reason := why_no_go():
            raise ClusterError(reason)
        compile_package(GO_SOURCES_PATH / self.module, self.package, target / self.binary, variables=self.variables)

    def artifact(self, links: tuple[str, ...] = ()) -> Artifact:
        def make(draft: Path, log: Log) -> None:
            self.build(draft)
            for link in links:
                (draft / link).symlink_to(self.binary)

        sources = GO_SOURCES_PATH / self.module
        return Artifact(self.binary, (sources, self.package, *self.variables, *links), make)


def compile_package(
    folder: Path, package: str, target: Path, *, variables: tuple[str, ...] = (), modules: str = "readonly"
) -> None:
    """Compile a package of the module in ``folder`` into the program ``target``; raises ClusterError."""
    flags = " ".join(["-s", "-w", *(f"-X {variable}" for variable in variables)])
    run(
        ["go", "build", "-trimpath", "-ldflags", flags, "-o", target, package],
        folder=folder,
        environment=go_environment(modules=modules),
        timeout_s=BUILD_TIMEOUT_S,
    )


def _kubernetes_version() -> tuple[str, ...]:
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    values = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return tuple(f"{package}.{name}={value}" for package in packages for name, value in values.items())


def _spark_operator(draft: Path, log: Log) -> None:
    """Build the Spark operator in a copy of its module, since its ``replace`` lines count only in the main module."""
    path = "github.com/kubeflow/spark-operator/v2"
    environment = go_environment(modules="mod")
    download = ["go", "mod", "download", "-json", f"{path}@{SPARK_OPERATOR_VERSION}"]
    answer = run(download, folder=GO_SOURCES_PATH / "pause", environment=environment, timeout_s=600).stdout
    folder = re.search(r'"Dir": "([^"]+)"', answer)
    if folder is None:
        raise ClusterError(f"`{' '.join(download)}` returned no folder")
    sources = draft / "sources"
    shutil.copytree(folder[1], sources)
    version = (f"{path}.version={SPARK_OPERATOR_VERSION}",)
    compile_package(sources, "./cmd/operator", draft / "spark-operator", variables=version, modules="mod")
    shutil.copytree(sources / "charts" / "spark-operator-chart", draft / "chart")
    shutil.rmtree(sources)


KUBE = Program("kube", ".", "kube", _kubernetes_version()).artifact(KUBERNETES_PROGRAMS)
"""kubelet, kubectl, kubeadm and the control plane: one program with links to it."""
ETCD = Program("etcd", "go.etcd.io/etcd/server/v3", "etcd").artifact()
COREDNS = Program("addons", "./coredns", "coredns").artifact()
LOCAL_PATH_PROVISIONER = Program(
    "addons", "github.com/rancher/local-path-provisioner", "local-path-provisioner"
).artifact()
HELM = Program(
    "addons", "helm.sh/helm/v3/cmd/helm", "helm", (f"helm.sh/helm/v3/internal/version.version={HELM_VERSION}",)
).artifact()
KIND = Program("kind", "sigs.k8s.io/kind", "kind").artifact()
PAUSE = Program("pause", ".", "pause").artifact()
SPARK_OPERATOR = Artifact("spark-operator", (SPARK_OPERATOR_VERSION,), _spark_operator)
"""``spark-operator`` and its Helm chart in ``chart/``; not part of ordinary clusters."""


def find_program(name: str) -> Path | None:
    """Return a program that is already built (``kube-apiserver``, ``etcd``, ``kubectl``, …), otherwise None."""
    owners = dict.fromkeys(KUBERNETES_PROGRAMS, KUBE) | {item.name: item for item in (ETCD, COREDNS, HELM, KIND)}
    if name not in owners:
        raise ClusterError(f"no program {name!r} is built here; available: {', '.join(sorted(owners))}")
    path = owners[name].path / name
    return path if path.exists() else None
