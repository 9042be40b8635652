"""Objects of a Broker as plain dicts: pure functions of the resource and a Context, with deterministic output.

Nothing here queries or changes the cluster. `inputs` determine whether pods must restart, never a comparison of
manifests: a newer operator version with other manifests restarts nothing.
"""

from delaymq_operator.manifests.accounts.access import RULES_KEY, RULES_PATH, keeps_plain_administrators
from delaymq_operator.manifests.accounts.registration import (
    NAMES_ACCOUNTS_PATH,
    REGISTRATION_VOLUME,
    Registrations,
    read_registrations,
    registers,
    registration_secret,
    restricts_queries,
)
from delaymq_operator.manifests.accounts.users import (
    UserAccount,
    UserRules,
    account_bytes,
    credentials_secret,
    read_user_rules,
    rule_of,
    users_secret,
)
from delaymq_operator.manifests.analytics import AnalyticsRun, analytics_application
from delaymq_operator.manifests.analytics_objects import (
    analytics_network_policy,
    analytics_result,
    analytics_role_binding,
    analytics_service_account,
)
from delaymq_operator.manifests.broker_pods import VOLUME_RETENTION, broker_stateful_set, volume_retention
from delaymq_operator.manifests.config import broker_conf, broker_settings, check_settings, hot_settings
from delaymq_operator.manifests.context import Context, DelayTable, GroupContext
from delaymq_operator.manifests.inputs import broker_inputs, name_server_inputs
from delaymq_operator.manifests.metadata import component_labels
from delaymq_operator.manifests.namesrv_pods import name_server_stateful_set, name_server_trial
from delaymq_operator.manifests.objects import supporting_objects, token_secret
from delaymq_operator.manifests.quantities import Quantity, parse_quantity, same_quantity
from delaymq_operator.manifests.replication import (
    group_service_account,
    master_endpoint_slice,
    members_text,
    read_replication_secrets,
    register_lease,
    register_role,
    register_role_binding,
    replication_secret,
    services_of,
    slice_ports,
)
from delaymq_operator.manifests.services import (
    group_external_service,
    group_service,
    listen_port,
    name_server_external_service,
)

__all__ = [
    "NAMES_ACCOUNTS_PATH",
    "REGISTRATION_VOLUME",
    "RULES_KEY",
    "RULES_PATH",
    "VOLUME_RETENTION",
    "AnalyticsRun",
    "Context",
    "DelayTable",
    "GroupContext",
    "Quantity",
    "Registrations",
    "UserAccount",
    "UserRules",
    "account_bytes",
    "analytics_application",
    "analytics_network_policy",
    "analytics_result",
    "analytics_role_binding",
    "analytics_service_account",
    "broker_conf",
    "broker_inputs",
    "broker_settings",
    "broker_stateful_set",
    "check_settings",
    "component_labels",
    "credentials_secret",
    "group_external_service",
    "group_service",
    "group_service_account",
    "hot_settings",
    "keeps_plain_administrators",
    "listen_port",
    "master_endpoint_slice",
    "members_text",
    "name_server_external_service",
    "name_server_inputs",
    "name_server_stateful_set",
    "name_server_trial",
    "parse_quantity",
    "read_registrations",
    "read_replication_secrets",
    "read_user_rules",
    "register_lease",
    "register_role",
    "register_role_binding",
    "registers",
    "registration_secret",
    "replication_secret",
    "restricts_queries",
    "rule_of",
    "same_quantity",
    "services_of",
    "slice_ports",
    "supporting_objects",
    "token_secret",
    "users_secret",
    "volume_retention",
]
