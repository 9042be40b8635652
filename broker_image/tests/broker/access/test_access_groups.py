"""Permissions that follow from a group: its retry topic, its dead-letter topic; and reply topics."""

from pathlib import Path
from typing import Any

import pytest
from delaymq_testing.broker.guarded import MISSING, Guarded
from delaymq_testing.broker.harness import send_fields

OPEN = "defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB"
RULES = f"""
accounts:
- {{accessKey: operators, secretKey: operators-secret, admin: true}}
- {{accessKey: denied-one, secretKey: denied-one-secret, {OPEN}, groupPerms: [G=DENY]}}
- {{accessKey: by-default, secretKey: by-default-secret, defaultTopicPerm: PUB|SUB, groupPerms: [H=SUB]}}
- accessKey: one-group
  secretKey: one-group-secret
  groupPerms: [G=SUB]
- accessKey: stated-topic
  secretKey: stated-topic-secret
  groupPerms: [G=SUB, H=DENY, K=SUB]
  topicPerms: ["%DLQ%G=PUB", "%RETRY%K=DENY", "%DLQ%H=SUB", "%RETRY%H=SUB", DefaultCluster_REPLY_TOPIC=SUB]
- {{accessKey: no-replies, secretKey: no-replies-secret, {OPEN}, topicPerms: [DefaultCluster_REPLY_TOPIC=DENY]}}
"""
REPLIES = "DefaultCluster_REPLY_TOPIC"


@pytest.fixture
def groups(open_harness: Any, tmp_path: Path) -> Guarded:
    path = tmp_path / "plain_acl.yml"
    path.write_text(RULES)
    return Guarded(open_harness(acl_enable=True, acl_config_path=str(path)), path)


def read(groups: Guarded, topic: str, key: str) -> str:
    """A query by key: what it needs is the topic alone."""
    fields = {"topic": topic, "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1}
    return groups.refusal(12, fields, key=key)


@pytest.mark.parametrize("topic", ["%DLQ%G", "%RETRY%G"])
def test_topics_of_a_denied_group_are_denied(groups: Guarded, topic: str) -> None:
    said = read(groups, topic, "denied-one")
    assert said.startswith(MISSING)
    assert read(groups, topic.replace("G", "Other"), "denied-one") == ""
    for code in (310, 325):
        assert groups.refusal(code, send_fields(topic), key="denied-one") == said
    pull = {"topic": topic, "consumerGroup": "Other", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1}
    assert groups.refusal(11, pull, key="denied-one") == said


def test_unnamed_groups_use_the_group_default(groups: Guarded) -> None:
    assert read(groups, "%DLQ%G", "by-default") == MISSING + "topic:%DLQ%G"
    assert read(groups, "%DLQ%H", "by-default") == ""
    assert read(groups, "Orders", "by-default") == ""


def test_group_permission_includes_its_dead_letter_topic(groups: Guarded) -> None:
    for topic in ("%DLQ%G", "%RETRY%G"):
        assert read(groups, topic, "one-group") == ""
        assert groups.refusal(310, send_fields(topic), key="one-group") == ""
    assert read(groups, "%DLQ%H", "one-group") == MISSING + "topic:%DLQ%H"


def test_topic_rule_overrides_all_but_a_denied_group(groups: Guarded) -> None:
    assert read(groups, "%DLQ%G", "stated-topic") == MISSING + "topic:%DLQ%G"
    assert groups.refusal(310, send_fields("%DLQ%G"), key="stated-topic") == ""
    assert read(groups, "%RETRY%G", "stated-topic") == ""
    assert read(groups, "%RETRY%K", "stated-topic") == MISSING + "group:K"
    assert read(groups, "%DLQ%H", "stated-topic") == MISSING + "topic:%DLQ%H"
    assert read(groups, "%RETRY%H", "stated-topic") == MISSING + "group:H"


def test_reply_topics_are_writable_by_all_and_readable_by_rule(groups: Guarded) -> None:
    assert read(groups, REPLIES, "denied-one") == MISSING + f"topic:{REPLIES}"
    assert read(groups, REPLIES, "stated-topic") == ""
    assert read(groups, REPLIES, "operators") == ""
    for key in ("denied-one", "stated-topic", "one-group"):
        assert groups.refusal(325, send_fields(REPLIES), key=key) == ""
    assert groups.refusal(325, send_fields(REPLIES), key="no-replies") == MISSING + f"topic:{REPLIES}"
    # Only the name of the own cluster's is one.
    assert groups.refusal(325, send_fields("Mine_REPLY_TOPIC"), key="one-group") == MISSING + "topic:Mine_REPLY_TOPIC"
