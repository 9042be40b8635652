"""Access to the API server by a service account or a kubeconfig, for the operator's own requests and kopf's watches."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from delaymq_operator.reconcile.errors import KubeError

if TYPE_CHECKING:
    from kubernetes.client import Configuration

SERVICE_ACCOUNT_PATH: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NO_CLUSTER: Final = (
    "no Kubernetes API server is configured: run the operator in a pod with a service account, or provide a "
    "kubeconfig (--kubeconfig, $KUBECONFIG or ~/.kube/config)"
)


@dataclass(frozen=True)
class Credentials:
    """Source of credentials; `load` reads them again, so that a rotated token takes effect."""

    kubeconfig: str = ""
    context: str = ""

    def load(self) -> Configuration:
        """Return the current address and credentials. KubeError (status 0) with an explanation if there are none."""
        # These imports take half a second, which --help does not need.
        from kubernetes import config
        from kubernetes.client import Configuration
        from kubernetes.config import ConfigException

        loaded = Configuration()
        try:
            if not self.kubeconfig and in_cluster():
                config.load_incluster_config(client_configuration=loaded)
            else:
                config.load_kube_config(
                    config_file=self.kubeconfig or None,
                    context=self.context or None,
                    client_configuration=loaded,
                    persist_config=False,
                )
        except (ConfigException, OSError, ValueError) as error:
            named = f"{self.kubeconfig}: " if self.kubeconfig else f"{NO_CLUSTER}: "
            raise KubeError(0, "NoCredentials", f"{named}{error}") from error
        return loaded


def in_cluster() -> bool:
    """Return whether this is a pod with a service account."""
    return "KUBERNETES_SERVICE_HOST" in os.environ and (SERVICE_ACCOUNT_PATH / "token").is_file()


def own_namespace() -> str:
    """Return the namespace of the pod, or an empty string."""
    try:
        return (SERVICE_ACCOUNT_PATH / "namespace").read_text().strip()
    except OSError:
        return ""


def authorization(loaded: Configuration) -> str | None:
    """Return the Authorization header; a service account's token file is read again every minute."""
    token = loaded.get_api_key_with_prefix("BearerToken")
    if token is None and loaded.username:
        return loaded.get_basic_auth_token()
    return token


Loader = Callable[[], "Configuration"]
