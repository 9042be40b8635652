"""Node image for kind if kind's own cannot be pulled: Debian with systemd, Kubernetes as a single program, and all
images that kubeadm requires, already unpacked in containerd's store.

kind and kubeadm are the original programs; only what they start is built here.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import archives, debian, programs
from cluster.artifacts import Artifact, scratch_folder
from cluster.commands import Log, output_of, run
from cluster.errors import ClusterError
from cluster.paths import FILES_PATH

TAG = f"delaymq/node:{programs.KUBERNETES_VERSION}"
COREDNS_TAG = "v1.12.1"
"""The tag that kubeadm of KUBERNETES_VERSION expects (`kubeadm config images list`), regardless of CoreDNS's version.
"""
ETCD_TAG = "3.6.5-0"
PAUSE_TAG = "3.10.1"
RECIPE = 1
"""Increment if this file builds something else from the same inputs."""

CONTAINERD_START_TIMEOUT_S = 120.0
IMPORT_TIMEOUT_S = 600

MASKED_UNITS = (
    "systemd-sysctl.service", "systemd-modules-load.service", "systemd-remount-fs.service",
    "systemd-random-seed.service", "systemd-update-utmp.service", "systemd-update-utmp-runlevel.service",
    "systemd-logind.service", "systemd-hwdb-update.service", "systemd-pstore.service", "systemd-binfmt.service",
    "systemd-firstboot.service", "systemd-timesyncd.service", "systemd-networkd.service", "systemd-resolved.service",
    "getty.target", "console-getty.service", "getty-static.service", "dev-hugepages.mount", "dev-mqueue.mount",
    "sys-kernel-config.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-fs-fuse-connections.mount",
    "proc-sys-fs-binfmt_misc.automount", "proc-sys-fs-binfmt_misc.mount", "apt-daily.timer", "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer", "systemd-tmpfiles-clean.timer",
    "nftables.service", "conntrackd.service", "modprobe@.service",
)  # fmt: skip
"""A node must not affect the machine: no kernel settings, modules, devices or logins; and no periodic jobs."""
ENABLED_UNITS = ("containerd.service", "kubelet.service", "node-dns-udp.service", "node-dns-tcp.service")

NODE_PROGRAMS = ("kubelet", "kubeadm", "kubectl", "crictl")
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
IPTABLES_LINKS = tuple(
    f"{name}{suffix}" for name in ("iptables", "ip6tables") for suffix in ("", "-save", "-restore", "-nft")
)


def _make(draft: Path, log: Log) -> None:
    if os.geteuid() != 0:
        raise ClusterError("only root can build the node image (debootstrap, containerd)")
    with scratch_folder(draft) as scratch:
        root, preloaded = scratch / "root", scratch / "images.tar"
        root.mkdir(mode=0o755)
        debian.unpack_node_root(root, log)
        _install(root, log)
        with tempfile.TemporaryDirectory(dir=scratch) as layers:
            _write_preloaded_images(preloaded, root, Path(layers), log)
        _import_images(root, preloaded, scratch)
        image = archives.Image(
            name=TAG,
            layers=("root",),
            entrypoint=("/usr/local/bin/entrypoint", "/sbin/init"),
            environment=("container=docker",),
            labels={debian.LABEL: NODE_IMAGE.key},
            stop_signal="SIGRTMIN+3",
        )
        archives.write_compressed(draft / "image.tar.zst", {"root": root}, [image], owners=True)


def _install(root: Path, log: Log) -> None:
    """Add our files and Kubernetes to the Debian root."""
    run(["cp", "-r", "--no-preserve=ownership", f"{FILES_PATH / 'node'}/.", f"{root}/"], timeout_s=60)
    (root / "usr/local/bin/entrypoint").chmod(0o755)
    shutil.copy2(programs.KUBE.obtain(log) / "kube", root / "usr/bin/kube")
    for name in NODE_PROGRAMS:
        (root / "usr/bin" / name).symlink_to("kube")
    (root / "kind" / "version").write_text(programs.KUBERNETES_VERSION)
    for folder in ("opt/cni/bin", "etc/cni/net.d", "etc/kubernetes/manifests"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for plugin in sorted((root / "usr/lib/cni").iterdir()):
        (root / "opt/cni/bin" / plugin.name).symlink_to(f"/usr/lib/cni/{plugin.name}")
    units = root / "etc/systemd/system"
    for unit in MASKED_UNITS:
        _link(units / unit, "/dev/null")
    for unit in ENABLED_UNITS:
        _link(units / "multi-user.target.wants" / unit, f"../{unit}")
    _link(units / "default.target", "/lib/systemd/system/multi-user.target")


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _write_preloaded_images(target: Path, root: Path, layers: Path, log: Log) -> None:
    """Write the images of a kubeadm cluster; those of Kubernetes share one layer with all its programs."""
    _programs_layer(layers / "kube", "usr/local/bin", programs.KUBE.obtain(log) / "kube")
    for name in (*CONTROL_PLANE, "kube-proxy", "kubectl"):
        (layers / "kube/usr/local/bin" / name).symlink_to("kube")
    _programs_layer(layers / "etcd", "usr/local/bin", programs.ETCD.obtain(log) / "etcd")
    _programs_layer(layers / "coredns", "", programs.COREDNS.obtain(log) / "coredns")
    provisioner = programs.LOCAL_PATH_PROVISIONER.obtain(log) / "local-path-provisioner"
    _programs_layer(layers / "storage", "usr/local/bin", provisioner)
    _programs_layer(layers / "pause", "", programs.PAUSE.obtain(log) / "pause")
    _programs_layer(layers / "nodenet", "usr/local/bin", FILES_PATH / "nodenet")
    _busybox_layer(layers / "busybox", root)
    _iptables_layer(layers / "iptables", root)

    registry, version = "registry.k8s.io", programs.KUBERNETES_VERSION
    image = archives.Image
    images = [image(name=f"{registry}/{name}:{version}", layers=("kube",), command=(name,)) for name in CONTROL_PLANE]
    images += [
        image(name=f"{registry}/kube-proxy:{version}", layers=("kube", "iptables"), command=("kube-proxy",)),
        image(name=f"{registry}/etcd:{ETCD_TAG}", layers=("etcd",), command=("etcd",)),
        image(name=f"{registry}/coredns/coredns:{COREDNS_TAG}", layers=("coredns",), entrypoint=("/coredns",)),
        image(name=f"{registry}/pause:{PAUSE_TAG}", layers=("pause",), entrypoint=("/pause",), user="65535:65535"),
        image(
            name="docker.io/delaymq/nodenet:1",
            layers=("kube", "iptables", "busybox", "nodenet"),
            command=("nodenet",),
        ),
        image(
            name="docker.io/delaymq/local-path-provisioner:1",
            layers=("storage",),
            entrypoint=("local-path-provisioner",),
        ),
        image(name="docker.io/delaymq/busybox:1", layers=("busybox",), command=("sh",)),
    ]
    archives.write_archive(target, {folder.name: folder for folder in sorted(layers.iterdir())}, images)


def _programs_layer(layer: Path, folder: str, program: Path) -> None:
    target = layer / folder
    target.mkdir(parents=True)
    shutil.copy2(program, target / program.name)
    (target / program.name).chmod(0o755)


def _busybox_layer(layer: Path, root: Path) -> None:
    _programs_layer(layer, "bin", root / "bin/busybox")
    (layer / "etc").mkdir()
    (layer / "tmp").mkdir(mode=0o1777)
    (layer / "tmp").chmod(0o1777)
    (layer / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (layer / "etc/group").write_text("root:x:0:\n")
    for applet in run([layer / "bin/busybox", "--list"], timeout_s=10).stdout.split():
        if applet != "busybox":
            (layer / "bin" / applet).symlink_to("busybox")


def _iptables_layer(layer: Path, root: Path) -> None:
    """Copy the node's iptables with its libraries: its modules are loaded at run time and need more of them (libm);
    without these, kube-proxy fails at the first Service with two endpoints.
    """
    libraries = next((root / "usr/lib").glob("*-linux-gnu"))
    sbin, target = layer / "usr/sbin", layer / libraries.relative_to(root)
    sbin.mkdir(parents=True)
    shutil.copy2(root / "usr/sbin/xtables-nft-multi", sbin)
    shutil.copy2(root / "usr/sbin/nft", sbin)
    for name in IPTABLES_LINKS:
        (sbin / name).symlink_to("xtables-nft-multi")
    shutil.copytree(libraries / "xtables", target / "xtables")
    modules = sorted(f"/{path.relative_to(root)}" for path in (libraries / "xtables").glob("*.so"))
    needed = run(
        ["chroot", root, "ldd", "/usr/sbin/xtables-nft-multi", "/usr/sbin/nft", *modules], timeout_s=60, check=False
    ).stdout
    paths = {word for line in needed.splitlines() if not line.endswith(":") for word in line.split() if word[0] == "/"}
    for path in sorted(paths):
        copy = layer / path.lstrip("/") if "ld-linux" in path else target / Path(path).name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2((root / path.lstrip("/")).resolve(), copy)
    (layer / "lib").symlink_to("usr/lib")


def _import_images(root: Path, preloaded: Path, scratch: Path) -> None:
    """Unpack the images into the store of the node's containerd, once here instead of at every start of a node."""
    with _containerd(root / "var/lib/containerd", scratch / "containerd") as ctr:
        run([*ctr, "images", "import", preloaded], timeout_s=IMPORT_TIMEOUT_S)
        # Kubernetes needs only the unpacked layers; the packed ones would double the size of the image.
        for digest in archives.layer_digests(preloaded):
            run([*ctr, "content", "rm", f"sha256:{digest}"], timeout_s=60, check=False)
        # Removing an image synchronously triggers garbage collection immediately.
        run([*ctr, "images", "tag", "docker.io/delaymq/busybox:1", "docker.io/delaymq/garbage:1"], timeout_s=60)
        run([*ctr, "images", "rm", "--sync", "docker.io/delaymq/garbage:1"], timeout_s=60)


@contextmanager
def _containerd(store: Path, folder: Path) -> Iterator[list[str | Path]]:
    """Run a separate containerd over ``store``; yield the start of a ctr command line."""
    folder.mkdir(parents=True)
    shutil.rmtree(store, ignore_errors=True)
    # A socket's path has at most 104 characters, which the path of a cache in a home folder alone may exceed.
    with tempfile.TemporaryDirectory(prefix="delaymq-") as name, (folder / "log").open("w") as output:
        socket = Path(name) / "socket"
        (folder / "config.toml").write_text(
            f'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\nroot = "{store}"\n'
            f'state = "{folder}/state"\n[grpc]\n  address = "{socket}"\n'
        )
        ctr: list[str | Path] = ["ctr", "-a", socket, "-n", "k8s.io"]
        command = ["containerd", "-c", str(folder / "config.toml")]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + CONTAINERD_START_TIMEOUT_S
            # Responses are slow while the disk writes earlier data.
            while output_of([*ctr, "version"], timeout_s=10) is None:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise ClusterError(f"containerd does not start:\n{(folder / 'log').read_text()[-2000:]}")
                time.sleep(0.1)
            yield ctr
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


NODE_IMAGE = Artifact(
    "node-image",
    (
        f"{RECIPE} {TAG} {COREDNS_TAG} {ETCD_TAG} {PAUSE_TAG}",
        " ".join((*MASKED_UNITS, *ENABLED_UNITS)),
        FILES_PATH / "node",
        FILES_PATH / "nodenet",
        debian.NODE_ROOT,
        programs.KUBE,
        programs.ETCD,
        programs.COREDNS,
        programs.LOCAL_PATH_PROVISIONER,
        programs.PAUSE,
    ),
    _make,
)
"""Artifact whose folder contains ``image.tar.zst`` with the image TAG."""
