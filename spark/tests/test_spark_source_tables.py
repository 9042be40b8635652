"""Stores as tables of Spark's catalogue, and several stores in one read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from delaymq_spark import register
from delaymq_spark.source.data_source import RocketMqStoreSource
from delaymq_spark.source.options import OptionError, parse_options
from delaymq_spark.source.schema import spark_schema
from delaymq_spark.store.address import StorePathError
from delaymq_spark_testing.fake_broker import fake_broker
from delaymq_spark_testing.running_broker import write_store
from pyspark.sql import SparkSession

COUNT = 300

core = pytest.mark.core


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store whose path contains characters that a URI would escape."""
    path = tmp_path_factory.mktemp("tables") / "a b%20c"
    write_store(path, COUNT)
    return path


def statement(**options: str) -> dict[str, str]:
    """Return the options that Spark passes for a CREATE TABLE with OPTIONS and `TBLPROPERTIES ('purpose'='audit')`."""
    given = {**options, **{f"option.{name}": value for name, value in options.items() if name != "path"}}
    return {**given, "owner": "root", "provider": "rocketmq_store", "purpose": "audit", "comment": "mine"}


@core
@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("file:/var/a b%20c/store", "/var/a b%20c/store"),
        ("file:///var/store", "/var/store"),
        ("/var/store", "/var/store"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
    ],
)
def test_table_stores_its_options_in_the_schema(location: str, path: str) -> None:
    created = RocketMqStoreSource(statement(path=location, splitbytes="16k", columns="topic,size"))
    kept = created.schema()
    assert kept.fieldNames() == ["topic", "size"]
    options = RocketMqStoreSource({"splitbytes": "32k"}).reader(kept).options
    assert (options.path, options.split_bytes, options.columns) == (path, 32 << 10, ("topic", "size"))
    assert RocketMqStoreSource({}).reader(kept).options.split_bytes == 16 << 10
    elsewhere = RocketMqStoreSource({"path": "/elsewhere"}).reader(kept).options
    assert (elsewhere.path, elsewhere.split_bytes) == ("/elsewhere", 128 << 20)


@core
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "file:/var/store", "splitbyte": "16k"}, "did you mean splitBytes?"),
        ({"path": "file:/var/store", "token": "hush"}, "a table cannot store a token"),
        ({"path": "stores/a"}, "the LOCATION of a table must be absolute"),
        ({"path": "s3a://bucket/store"}, "the scheme s3a is not supported"),
        ({}, "the option `path` is missing"),
    ],
)
def test_unreadable_table_is_not_created(options: dict[str, str], said: str) -> None:
    with pytest.raises((OptionError, StorePathError)) as caught:
        RocketMqStoreSource(statement(**options)).schema()
    assert said in str(caught.value)
    assert "hush" not in str(caught.value)


@core
def test_table_with_a_column_list_is_rejected_with_the_alternative() -> None:
    with pytest.raises(StorePathError, match=r"without a list of columns.*OPTIONS \(columns"):
        RocketMqStoreSource({}).reader(spark_schema(("topic",)))


@core
@pytest.mark.parametrize(
    ("paths", "said"),
    [
        ("/a,/b", "pass one store or a list of stores to load()"),
        ('{"a": 1}', "pass one store or a list of stores to load()"),
        ("[1]", "pass one store or a list of stores to load()"),
        ('["/a", "/a/"]', "/a is given twice"),
        ("[]", "pass one store or a list of stores to load()"),
        ('[""]', "the option `path` is missing"),
        ('["/a", "s3://b"]', "the scheme s3 is not supported"),
    ],
)
def test_invalid_list_of_paths_is_reported(paths: str, said: str) -> None:
    with pytest.raises((OptionError, StorePathError)) as caught:
        parse_options({"paths": paths})
    assert said in str(caught.value)


@core
def test_stream_of_several_stores_is_rejected() -> None:
    source = RocketMqStoreSource({"paths": '["/a", "/b"]'})
    with pytest.raises(OptionError, match="a stream reads one store, but 2 were given: start one stream per store"):
        source.streamReader(source.schema())


def test_spark_creates_and_reads_tables_and_keeps_the_store_when_they_are_dropped(
    spark: SparkSession, store: Path
) -> None:
    register(spark)
    query = "SELECT count(*), count(DISTINCT physical_offset) FROM"
    spark.sql(f"CREATE TABLE located USING rocketmq_store LOCATION '{store}'")
    with fake_broker(store) as broker:
        spark.sql(
            f"CREATE TABLE served USING rocketmq_store OPTIONS (path '{broker.url}', columns 'topic, physical_offset')"
            " COMMENT 'mine' TBLPROPERTIES ('purpose' = 'audit')"
        )
        try:
            assert spark.sql(f"{query} located").first() == (COUNT, COUNT)
            assert spark.sql(f"{query} served").first() == (COUNT, COUNT)
            assert spark.table("served").columns == ["topic", "physical_offset"]
            assert spark.sql("SELECT * FROM located WITH (until = '1970-01-01')").collect() == []
            both = spark.read.format("rocketmq_store").load([str(store), broker.url])
            assert both.count() == 2 * COUNT
        finally:
            spark.sql("DROP TABLE located")
            spark.sql("DROP TABLE served")
    assert spark.read.format("rocketmq_store").load(str(store)).count() == COUNT


def test_registration_sets_the_python_interpreter_that_has_this_package(
    spark: SparkSession, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python3")
    register(spark)
    assert spark.sparkContext.pythonExec == sys.executable
    assert spark.read.format("rocketmq_store").load(str(store)).count() == COUNT


class Context:
    """The part of a SparkContext that `register` uses."""

    def __init__(self, master: str, **conf: str) -> None:
        self.master, self.pythonExec, self._conf = master, "python3", conf

    def getConf(self) -> dict[str, str]:  # noqa: N802
        return self._conf


class Session:
    """A session that accepts any data source."""

    def __init__(self, context: Context) -> None:
        self.sparkContext = context
        self.dataSource = self

    def register(self, source: type) -> None:
        self.registered = source


@core
@pytest.mark.parametrize(
    ("context", "variable", "expected"),
    [
        (Context("local"), None, sys.executable),
        (Context("local[*]"), "", sys.executable),
        (Context("local-cluster[2,1,1024]"), None, sys.executable),
        (Context("local[2]"), "python3.13", "python3"),
        (Context("local[2]", **{"spark.pyspark.python": "/opt/python"}), None, "python3"),
        (Context("k8s://https://host"), None, "python3"),
        (Context("spark://host:7077"), None, "python3"),
    ],
)
def test_interpreter_is_set_only_locally_and_only_if_none_is_configured(
    monkeypatch: pytest.MonkeyPatch, context: Context, variable: str | None, expected: str
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if variable is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", variable)
    session = Session(context)
    register(session)  # type: ignore[arg-type]
    assert session.registered is RocketMqStoreSource
    assert context.pythonExec == expected
