"""What all tests of the operator share."""

from api_server_fixtures import (  # noqa: F401
    api_server,
    api_server_with_controllers,
    controlled_namespace,
    kubernetes_programs,
    namespace,
)
