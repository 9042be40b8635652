"""``PYTHONPATH=e2e python -m cluster <what>``: the steps of the tests, run manually."""

import argparse
import io
import os
import shlex
import signal
import sys
from types import FrameType

from cluster import build, dockerd, machine, modes, node_image
from cluster.errors import ClusterError
from cluster.images import build_images
from cluster.kind import PREFIX, Cluster
from cluster.paths import DAEMON_RUN_PATH, cache_path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster", description="Real Kubernetes clusters for tests.")
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build the parts of clusters that are missing")
    building.add_argument("names", nargs="*", help=f"only these: {', '.join(build.ALL)}")
    building.add_argument("--keep-go-cache", action="store_true", help="keep what makes the next build faster (7 GB)")
    commands.add_parser("up", help="start Docker unless it is running")
    commands.add_parser("images", help="build the product's images and print their tags")
    creating = commands.add_parser("create", help="create a cluster and print how to use it")
    creating.add_argument("name")
    creating.add_argument("--workers", type=int, default=0, help="nodes in addition to the control plane (0)")
    creating.add_argument("--load", action="store_true", help="also build the images and load them")
    deleting = commands.add_parser("delete", help="delete a cluster")
    deleting.add_argument("name")
    stopping = commands.add_parser("down", help="delete our clusters, stop our Docker daemon, restore the machine")
    stopping.add_argument("--force", action="store_true", help="even if another run uses it")
    commands.add_parser("status", help="show what is built and what runs")
    cleaning = commands.add_parser("clean", help="remove artifacts that this checkout does not need, and Go's caches")
    cleaning.add_argument("--all", action="store_true", help="remove the whole cache, after down")
    arguments = parser.parse_args()
    # Output that concerns a concurrent run must appear immediately, through a pipe too.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    try:
        COMMANDS[arguments.command](arguments)
    except ClusterError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _end(number: int, frame: FrameType | None) -> None:
    """Exit as after Ctrl-C: stop the programs that were started and remove incomplete results."""
    raise SystemExit(128 + number)


def _build(arguments: argparse.Namespace) -> None:
    build.build(arguments.names, keep_go_cache=arguments.keep_go_cache)


def _up(arguments: argparse.Namespace) -> None:
    daemon = dockerd.up()
    modes.choose(daemon)
    print(
        "the machine's own Docker is used"
        if not daemon.own
        else f"Docker is running: DOCKER_HOST=unix://{dockerd.SOCKET_PATH}"
    )


def _say(text: str) -> None:
    """Print the variables for a shell as well: `eval "$(python -m cluster create demo)"`."""
    print(text, file=sys.stderr, flush=True)


def _images(arguments: argparse.Namespace) -> None:
    for name, tag in build_images(log=_say).items():
        print(f"{name}: {tag}")


def _create(arguments: argparse.Namespace) -> None:
    made = Cluster.create(arguments.name, workers=arguments.workers, log=_say)
    if arguments.load:
        made.load_images(*build_images(log=_say).values())
    for name in ("PATH", "KUBECONFIG", "DOCKER_HOST", "DOCKER_CONFIG"):
        if name in (environment := made.environment()) and environment[name] != os.environ.get(name):
            print(f"export {name}={shlex.quote(environment[name])}")
    made.release()


def _delete(arguments: argparse.Namespace) -> None:
    found = Cluster.attach(arguments.name)
    if found is None:
        raise ClusterError(f"there is no cluster {PREFIX}{arguments.name}")
    found.delete()


def _down(arguments: argparse.Namespace) -> None:
    daemon = dockerd.current()
    if daemon is not None and not daemon.own:
        for name in _clusters():
            found = Cluster.attach(name.removeprefix(PREFIX))
            if found is not None:
                found.delete()
    if not dockerd.down(force=arguments.force):
        raise ClusterError("another run uses Docker: wait until it ends, or use --force")


def _status(arguments: argparse.Namespace) -> None:
    print(f"cache: {cache_path()}")
    for artifact in build.ALL.values():
        print(f"  {artifact.name}: {'built' if artifact.made else 'not built'} ({artifact.key})")
    daemon = dockerd.current()
    if daemon is None:
        left = machine.recall() is not None
        print(f"Docker: not running{f', but {DAEMON_RUN_PATH} has the state of a daemon: run down' if left else ''}")
    else:
        print(f"Docker: {'started by these tests' if daemon.own else 'that of the machine'}")
        print(f"  node image: {'loaded' if daemon.has_image(node_image.TAG) else 'not loaded'}")
        print(f"  clusters: {', '.join(_clusters()) or 'none'}")
    print(f"clusters can be created here: {modes.why_not() or 'yes'}")


def _clusters() -> list[str]:
    daemon = dockerd.current()
    if daemon is None:
        return []
    template = '{{.Label "io.x-k8s.kind.cluster"}}'
    listed = daemon.docker("ps", "-a", "--filter", "label=io.x-k8s.kind.cluster", "--format", template).stdout.split()
    return sorted({name for name in listed if name.startswith(PREFIX)})


def _clean(arguments: argparse.Namespace) -> None:
    if arguments.all:
        if not dockerd.down():
            raise ClusterError("another run uses Docker: wait until it ends")
        build.clean_all()
    else:
        if not build.tidy(unused_after_s=0):
            raise ClusterError(build.ANOTHER_BUILDS)


COMMANDS = {
    "build": _build,
    "up": _up,
    "images": _images,
    "create": _create,
    "delete": _delete,
    "down": _down,
    "status": _status,
    "clean": _clean,
}

if __name__ == "__main__":
    sys.exit(main())
