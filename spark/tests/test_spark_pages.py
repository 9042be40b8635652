"""Commands and programs in README.md and docs/analytics.md."""

import re
import shlex
from pathlib import Path

import pytest
from delaymq_spark.command.arguments import parse
from delaymq_spark_testing.fake_broker import fake_broker
from delaymq_spark_testing.running_broker import write_store
from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/analytics.md"
COUNT = 40


def blocks(page: str, language: str) -> str:
    """Return the page's code blocks in a language, in order."""
    return "".join(re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.core
@pytest.mark.parametrize("page", ["README.md", PAGE])
def test_commands_of_a_page_are_accepted(page: str) -> None:
    split = [
        shlex.split(line, comments=True)
        for line in blocks(page, "sh").splitlines()
        if re.match(r"\S*delaymq-spark ", line)
    ]
    assert split
    for _, *words in split:
        assert parse(words, 0).job in words


def test_programs_of_the_page_run_twice_in_succession(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    write_store(store, COUNT)
    with fake_broker(store) as broker:
        places = {
            "/var/lib/delaymq/store": str(store), "/backup/a": str(store), "http://10.0.0.7:8080": broker.url,
            "2026-01-31T08:00": "1970-01-01T08:00",
        }  # fmt: skip
        python, sql = blocks(PAGE, "python"), blocks(PAGE, "sql")
        for place, here in places.items():
            assert place in python + sql
            python, sql = python.replace(place, here), sql.replace(place, here)
        program = re.sub(r"^(spark\.read\..*)$", r"read.append(\1)", python, flags=re.MULTILINE)
        try:
            for _ in range(2):
                read: list[DataFrame] = []
                exec(program, {"spark": spark, "read": read})
                for statement in filter(str.strip, sql.split(";")):
                    spark.sql(statement)
            tables = [spark.table(name) for name in ("messages", "orders")]
            assert [each.count() for each in (*read, *tables)] == [COUNT, 2 * COUNT, COUNT, COUNT]
        finally:
            spark.sql("DROP TABLE IF EXISTS messages")
            spark.sql("DROP VIEW IF EXISTS orders")
